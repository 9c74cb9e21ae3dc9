"""Write whole checkpoints with a manifest; find the newest whole one; delete old ones; lock a run's folder.

transformers writes the files into a scratch folder; here they are sealed with a manifest, which lists every file with
its size and digest, and moved into place.  The manifest is written last, so a checkpoint that was cut off has none.
Only ``save_total_limit`` deletes checkpoints, and only those that the kit wrote.
"""

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import trl
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from transformers import TrainerCallback

from rloo_kit.errors import ConfigError, RLOOKitError, RunFolderError
from rloo_kit.memory import out_of_memory
from rloo_kit.memory.plan import Plan
from rloo_kit.policy import model_card
from rloo_kit.policy.save import check_finite
from rloo_kit.train import run_record
from rloo_kit.train.finite_gradients import check_gradients
from rloo_kit.train.stop_signals import Stops
from rloo_kit.watch.read_run import MANIFEST, NAME, STATE, UNREADABLE, checkpoints_in, saved_step, step_of

# Both are in the run's folder.  transformers does not push names that begin with "_" to the hub.
WRITING = "_rloo_kit_writing"  # scratch folder of checkpoints that are being written or deleted
LOCK = "_rloo_kit.lock"

OPTIMIZER = ("optimizer.", "global_step", "pytorch_model_fsdp")
"""Prefixes of the optimizer state's file, also DeepSpeed's and FSDP's.  transformers resumes without it, silently."""


class SavingTrainer(trl.RLOOTrainer):
    """TRL's trainer with checkpoints that are whole, finite, and written at the end of a step."""

    memory_plan: Plan
    stops: Stops
    _asked: dict[str, Any]
    _run_facts: dict[str, Any] | None = None
    _whole: int | None
    """The last finished step, to which weights, optimizer and schedule belong; None before it and during an update."""

    def _start_afresh(self) -> None:
        """Reset what an earlier ``train()`` left behind."""
        self.stops, self._whole = Stops(), None

    @cached_property
    def folder(self) -> Path:
        """The run's folder, whatever working directory a later cell changes to."""
        return Path(self.args.output_dir).absolute()

    def shown(self, path: Path) -> str:
        """A path inside the run's folder, written relative to ``output_dir`` as the user gave it."""
        inside = path.is_relative_to(self.folder)
        return str(Path(self.args.output_dir) / path.relative_to(self.folder) if inside else path)

    def _maybe_log_save_evaluate(self, *args: object, **kwargs: object) -> None:
        """Works around: a signal in here would leave a step half logged or half saved."""
        self.stops.held = True
        check_finite(self.model, f"step {self.state.global_step}", self._way_on)
        self._whole = self.state.global_step
        self.remember()
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.stops.release()

    def _way_on(self) -> str:
        kept = newest_whole(self.folder)[0]
        way = f"train(resume_from_checkpoint={self.shown(kept)!r})" if kept else "start again"
        return f"lower learning_rate, look at adam_epsilon and weight_decay, load the policy anew, and {way}"

    def _get_output_dir(self, trial: object) -> str:
        """Works around: transformers writes the files one by one into this folder, and deletes folders in it that are
        named like checkpoints."""
        return str(self.folder / WRITING)

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """Works around: see :meth:`_get_output_dir`; and transformers does not flush what it writes to the disk."""
        aside, name = self.folder / WRITING, f"checkpoint-{self.state.global_step}"
        try:
            with writable(name, self.folder):
                if self.args.should_save:
                    shutil.rmtree(aside, ignore_errors=True)
                    aside.mkdir(parents=True)
                self.accelerator.wait_for_everyone()
                super()._save_checkpoint(model, trial)
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    self._publish(aside / name)
        finally:
            if self.args.should_save:  # on a full disk half a checkpoint would take up room
                shutil.rmtree(aside, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(self.folder / name))

    def _publish(self, written: Path) -> None:
        place = self.folder / written.name
        best = self.folder / f"checkpoint-{self.state.best_global_step}"
        # transformers recorded the scratch folder's path, or one from before the run's folder was moved.
        if place == best or best.is_dir():
            self.state.best_model_checkpoint = str(best)
            self.state.save_to_json(str(written / STATE))
        kept = Path(self.state.best_model_checkpoint) if self.state.best_model_checkpoint else None
        seal(written, {"step": self.state.global_step, "run": self._run_facts})
        if is_ours(place):
            delete(place)
        written.rename(place)
        sync(self.folder)
        keep_newest(self.folder, self.args.save_total_limit, kept)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Works around: transformers would upload in the background from a folder that is then moved."""
        if Path(checkpoint_folder).parent.name != WRITING:
            super()._push_from_checkpoint(checkpoint_folder)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As transformers'; raises NonFiniteError if a weight is not finite."""
        check_finite(self.model, f"save_model, step {self.state.global_step}", self._way_on)
        place = Path(output_dir or self.args.output_dir)
        carded = self.args.should_save and model_card.may_be_written(place)
        super().save_model(output_dir, _internal_call)
        if carded:  # PEFT's card shows the base's local path, and blanks to fill in
            self._write_card(place)

    def create_model_card(self, *args: object, **kwargs: object) -> None:
        """Works around: TRL overwrites the user's README.md with a card that says nothing about the run."""
        if self.is_world_process_zero() and model_card.may_be_written(self.folder):
            self._write_card(self.folder)

    def _write_card(self, folder: Path) -> None:
        self.remember()
        replace_text(folder / model_card.CARD, run_record.card(self))

    def remember(self) -> None:
        """Store the run's facts on the model, for its card: the user may save it without the trainer."""
        self.model.trained_by = run_record.card_facts(self, self._data_facts)

    @cached_property
    def _data_facts(self) -> dict[str, object]:
        return run_record.data(self._asked["train_dataset"])


class Updates(TrainerCallback):
    """Marks the start of an update, in which weights, optimizer and schedule change one after the other."""

    def __init__(self, trainer: SavingTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, *_: Any, model: Any, **kwargs: Any) -> None:
        """From here until the step ends, signals wait."""
        check_gradients(model, self._trainer.accelerator, state.global_step + 1)
        self._trainer.stops.held, self._trainer._whole = True, None


# --- whether a checkpoint is whole ------------------------------------------------------------------------


def seal(folder: Path, facts: Mapping[str, object]) -> None:
    """Flush every file of a complete checkpoint to the disk, then write the manifest: the files, and ``facts``."""
    files = {}
    for path in sorted(folder.rglob("*")):
        sync(path)
        # People edit the card, and no resumed run reads it.
        if path.is_file() and path.name not in (MANIFEST, model_card.CARD):
            size = path.stat().st_size
            files[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": _digest(path)}
    replace_text(folder / MANIFEST, json.dumps({**facts, "files": files}, indent=1, sort_keys=True) + "\n")


def fault(folder: Path) -> str:
    """What is wrong with a checkpoint, in a few words; empty if it is whole and can be resumed from."""
    if not folder.is_dir():
        return "is not a folder" if os.path.lexists(folder) else "does not exist"
    try:
        if (saved := saved_step(folder)) is None:
            return f"{STATE} is missing or was cut off"
        if saved != step_of(folder):
            return f"its {STATE} is of step {saved}"
        if (folder / MANIFEST).is_file() and (wrong := _fault_by_manifest(folder)):  # plain TRL writes none
            return wrong
        complete = any(path.name.startswith(OPTIMIZER) for path in folder.iterdir())
        return "" if complete else "it has no optimizer state (save_only_model?)"
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"


def _fault_by_manifest(folder: Path) -> str:
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"].items()
        for name, expected in files:
            file = folder / name
            if not file.is_file():
                return f"{name} is missing"
            if (size := file.stat().st_size) != expected["bytes"]:
                return f"{name} has {size} bytes of {expected['bytes']}"
            if _digest(file) != expected["sha256"]:
                return f"{name} is not what was saved"
    except (*UNREADABLE, AttributeError):
        return f"{MANIFEST} or a file that it names cannot be read"
    return ""


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def newest_whole(output_dir: str | Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The newest whole checkpoint or None, and every newer one with what is wrong with it."""
    passed_over: list[tuple[Path, str]] = []
    for folder in reversed(checkpoints_in(output_dir)):
        if not (wrong := fault(folder)):
            return folder, passed_over
        passed_over.append((folder, wrong))
    return None, passed_over


def check_whole(folder: Path, output_dir: Path) -> None:
    """Refuse a folder that cannot be resumed from, with a ConfigError that names the run's whole checkpoints."""
    if not (wrong := fault(folder)):
        return
    wrong = f"is not a checkpoint that can be resumed from: {wrong}" if folder.exists() else wrong
    todo = "call train() without it to start at step 0"
    if whole := [checkpoint.name for checkpoint in checkpoints_in(output_dir) if not fault(checkpoint)]:
        todo = f"take one of those in {output_dir}: {', '.join(whole)}"
    raise ConfigError(f"{folder} {wrong}", where="train(resume_from_checkpoint=...)", todo=todo)


# --- a run's folder ---------------------------------------------------------------------------------------


def is_ours(folder: Path) -> bool:
    """Whether a run of the kit wrote this folder, and here: a symbolic link is the user's own."""
    named = NAME.fullmatch(folder.name) and not folder.is_symlink()
    return bool(named) and (folder / MANIFEST).is_file()


def set_aside(output_dir: Path, after: int = -1) -> Path | None:
    """Move checkpoints of later steps than ``after``, and a log that goes further, to ``_earlier-1`` or the next free
    number, and return that folder."""
    later = [path for path in checkpoints_in(output_dir) if step_of(path) > after]
    if not later:
        return None
    later += [output_dir / STATE] if (saved_step(output_dir) or -1) > after else []
    place = next(p for n in itertools.count(1) if not os.path.lexists(p := output_dir / f"_earlier-{n}"))
    place.mkdir()
    for path in later:
        path.rename(place / path.name)
    return place


def keep_newest(output_dir: Path, limit: int | None, protected: Path | None = None) -> None:
    """Delete the kit's oldest checkpoints beyond ``save_total_limit``; None and 0 keep all.  The newest one and
    ``protected``, the best so far, are always kept."""
    ours = [folder for folder in checkpoints_in(output_dir) if is_ours(folder)]
    kept = {folder for folder in (*ours[-1:], protected) if folder in ours}
    spare = [folder for folder in ours if folder not in kept]
    for folder in spare[: max(0, len(ours) - max(limit, len(kept)))] if limit else ():
        delete(folder)


def delete(folder: Path) -> None:
    """Move a checkpoint away in one step; :data:`WRITING` is deleted once the new one is in place."""
    gone = folder.parent / WRITING / f"gone-{folder.name}"
    gone.parent.mkdir(exist_ok=True)
    folder.rename(gone)


def replace_text(file: Path, text: str) -> None:
    """Replace a file atomically: a reader finds the old text or the new one, also after a crash."""
    fresh = file.with_name(f".{file.name}")
    fresh.write_text(text, encoding="utf-8")
    sync(fresh)
    fresh.replace(file)
    sync(file.parent)


def sync(path: Path) -> None:
    if os.name == "nt":
        return  # Windows cannot open folders, nor flush files opened for reading
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def writable(what: str, folder: Path) -> Iterator[None]:
    """Turn a disk error while ``what`` is written into a RunFolderError; torch raises RuntimeErrors for these."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, RLOOKitError) or out_of_memory.is_out_of_memory(error):
            raise
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        where = str(getattr(error, "filename", None) or folder)
        todo = "free disk space, or check the folder's permissions; train(resume_from_checkpoint=True) goes on"
        if isinstance(error, FileExistsError | NotADirectoryError):
            todo = "choose another folder: a file has this name"
        raise RunFolderError(f"{what} could not be written: {reason}", where=where, todo=todo) from error


def make_folder(output_dir: str | os.PathLike[str]) -> None:
    with writable("the run's folder", Path(output_dir)):
        Path(output_dir).mkdir(parents=True, exist_ok=True)


@contextmanager
def run_lock(output_dir: Path) -> Iterator[None]:
    """Lock a run's folder while inside, or raise a RunFolderError.  The system releases the lock when the process ends,
    even by a kill."""
    make_folder(output_dir)
    with writable("the run's folder", output_dir):
        try:
            taken = FileLock(output_dir / LOCK, timeout=0).acquire()
        except Timeout:
            where, todo = f"output_dir {output_dir}", "wait for it, end it, or choose another output_dir"
            raise RunFolderError("another run is using this folder", where=where, todo=todo) from None
    with taken:
        yield
