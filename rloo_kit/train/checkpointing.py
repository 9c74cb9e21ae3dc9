"""Checkpoints: complete ones with finite weights, each of the end of a step.

transformers writes the files; here they are written aside, sealed with a manifest that names every file with its size
and a digest, and moved into place.  The manifest is written last, so a checkpoint that was cut off has none.  Nothing
is deleted but by ``save_total_limit``, and then only what a run of the kit's wrote.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import trl
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from transformers import TrainerCallback

from rloo_kit.errors import ConfigError, RLOOKitError, RunFolderError
from rloo_kit.memory import out_of_memory
from rloo_kit.policy import model_card
from rloo_kit.policy.save import check_finite
from rloo_kit.train import run_record
from rloo_kit.train.finite_gradients import check_gradients
from rloo_kit.train.stop_signals import Stops
from rloo_kit.watch.read_run import MANIFEST, NAME, STATE, UNREADABLE, checkpoints, saved_step, step_of

if TYPE_CHECKING:
    from rloo_kit.memory.plan import Plan

# In a run's folder.  transformers pushes nothing whose name begins with "_" to the hub.
WRITING = "_rloo_kit_writing"  # where a checkpoint is while it is written, and one that is deleted
LOCK = "_rloo_kit.lock"

OPTIMIZER = ("optimizer.", "global_step", "pytorch_model_fsdp")
"""How the file of the optimizer's state begins, DeepSpeed's and FSDP's too: a resumed run would go on without it."""

RandomStates = tuple[Any, Any, torch.Tensor, list[torch.Tensor]]


class SavingTrainer(trl.RLOOTrainer):
    """TRL's trainer whose checkpoints are whole, finite, and of the end of a step."""

    memory_plan: Plan
    stops: Stops
    _asked: dict[str, Any]
    _made_of: dict[str, Any] | None = None
    _whole: int | None
    """The step that weights, optimizer and schedule belong to; None before the first, and during an update."""
    _random: RandomStates | None = None
    """Of the end of that step, with the tokens seen: what a stop drops may have drawn since."""
    _tokens_seen = 0

    def _start_afresh(self) -> None:
        """Reset what an earlier ``train()`` has left."""
        self.stops, self._whole, self._random = Stops(), None, None

    @cached_property
    def folder(self) -> Path:
        """The run's folder, wherever a reward changes the directory to."""
        return Path(self.args.output_dir).absolute()

    def shown(self, path: Path) -> str:
        """A path in the run's folder as the user writes it."""
        inside = path.is_relative_to(self.folder)
        return str(Path(self.args.output_dir) / path.relative_to(self.folder) if inside else path)

    def _maybe_log_save_evaluate(self, *args: object, **kwargs: object) -> None:
        """Works around: a signal between two of these would leave a step half logged or half saved."""
        self.stops.held = True
        check_finite(self.model, f"step {self.state.global_step}", self._way_on)
        self._whole = self.state.global_step
        self.remember()
        self._end_step()  # an evaluation may fail
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._end_step()
        self.stops.release()

    def _end_step(self) -> None:
        self._random, self._tokens_seen = random_states(), self.state.num_input_tokens_seen

    def _way_on(self) -> str:
        kept = newest_whole(self.folder)[0]
        way = f"train(resume_from_checkpoint={self.shown(kept)!r})" if kept else "start again"
        return f"lower learning_rate, look at adam_epsilon and weight_decay, load the policy anew, and {way}"

    def _get_output_dir(self, trial: object) -> str:
        """Works around: transformers writes one file after the other into this folder, and deletes in it what begins
        like a checkpoint's name."""
        return str(self.folder / WRITING)

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """Works around: see :meth:`_get_output_dir`; and nothing is brought to the disk."""
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
            if self.args.should_save:  # half a checkpoint would take the room that is missing
                shutil.rmtree(aside, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(self.folder / name))

    def _publish(self, written: Path) -> None:
        place = self.folder / written.name
        best = self.folder / f"checkpoint-{self.state.best_global_step}"
        # transformers recorded its path in the scratch folder, or before the run's folder was moved.
        if place == best or best.is_dir():
            self.state.best_model_checkpoint = str(best)
            self.state.save_to_json(str(written / STATE))
        kept = Path(self.state.best_model_checkpoint) if self.state.best_model_checkpoint else None
        seal(written, {"step": self.state.global_step, "run": self._made_of})
        if is_ours(place):
            delete(place)
        written.rename(place)
        sync(self.folder)
        keep_newest(self.folder, self.args.save_total_limit, kept)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Works around: what is uploaded in the background must not be moved meanwhile."""
        if Path(checkpoint_folder).parent.name != WRITING:
            super()._push_from_checkpoint(checkpoint_folder)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As transformers', of finite weights alone; or a NonFiniteError."""
        check_finite(self.model, f"save_model, step {self.state.global_step}", self._way_on)
        place = Path(output_dir or self.args.output_dir)
        carded = self.args.should_save and model_card.may_be_written(place)
        super().save_model(output_dir, _internal_call)
        if carded:  # PEFT's has the base's place on this machine, and blanks to fill in
            self._write_card(place)

    def create_model_card(self, *args: object, **kwargs: object) -> None:
        """Works around: TRL writes its card over a README.md of the user's, and says in it nothing of the run."""
        if self.is_world_process_zero() and model_card.may_be_written(self.folder):
            self._write_card(self.folder)

    def _write_card(self, folder: Path) -> None:
        self.remember()
        replace_text(folder / model_card.CARD, run_record.card(self))

    def remember(self) -> None:
        """The model keeps what its card is to say: the user may save it without the trainer."""
        self.model.trained_by = run_record.facts(self, self._data_facts)

    @cached_property
    def _data_facts(self) -> dict[str, object]:
        return run_record.data(self._asked["train_dataset"])


class Updates(TrainerCallback):
    """Tells the trainer that an update begins: weights, optimizer and schedule change one after the other."""

    def __init__(self, trainer: SavingTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, *_: Any, model: Any, **kwargs: Any) -> None:
        """From here on no signal stops the run."""
        check_gradients(model, self._trainer.accelerator, state.global_step + 1)
        self._trainer.stops.held, self._trainer._whole = True, None


def random_states() -> RandomStates:
    """Of Python, NumPy, torch and each GPU: what a checkpoint keeps."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_gpus


def set_random_states(states: RandomStates) -> None:
    python, numpy, cpu, on_gpus = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if on_gpus:
        torch.cuda.set_rng_state_all(on_gpus)


# --- whether a checkpoint is whole ------------------------------------------------------------------------


def seal(folder: Path, facts: Mapping[str, object]) -> None:
    """Bring every file of a complete checkpoint to the disk, then write the manifest: the files, and ``facts``."""
    files = {}
    for path in sorted(folder.rglob("*")):
        sync(path)
        # People write into the card, and no resumed run reads it.
        if path.is_file() and path.name not in (MANIFEST, model_card.CARD):
            size = path.stat().st_size
            files[path.relative_to(folder).as_posix()] = {"bytes": size, "sha256": _digest(path)}
    replace_text(folder / MANIFEST, json.dumps({**facts, "files": files}, indent=1, sort_keys=True) + "\n")


def fault(folder: Path) -> str:
    """What is wrong with a checkpoint, in a few words; empty where it is whole and can be resumed from."""
    if not folder.is_dir():
        return "is not a folder" if os.path.lexists(folder) else "does not exist"
    try:
        if (saved := saved_step(folder)) is None:
            return f"{STATE} is missing or was cut off"
        if saved != step_of(folder):
            return f"its {STATE} is of step {saved}"
        if (folder / MANIFEST).is_file() and (wrong := _fault_by_manifest(folder)):  # plain TRL's have none
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
    """The newest whole checkpoint or None, and each one that is newer, with what is wrong with it."""
    passed_over: list[tuple[Path, str]] = []
    for folder in reversed(checkpoints(output_dir)):
        if not (wrong := fault(folder)):
            return folder, passed_over
        passed_over.append((folder, wrong))
    return None, passed_over


def check_whole(folder: Path, output_dir: Path) -> None:
    """Refuse a folder that cannot be resumed from, with a ConfigError that names the whole ones of the run."""
    if not (wrong := fault(folder)):
        return
    wrong = f"is not a checkpoint that can be resumed from: {wrong}" if folder.exists() else wrong
    todo = "call train() without it to start at step 0"
    if whole := [checkpoint.name for checkpoint in checkpoints(output_dir) if not fault(checkpoint)]:
        todo = f"take one of those in {output_dir}: {', '.join(whole)}"
    raise ConfigError(f"{folder} {wrong}", where="train(resume_from_checkpoint=...)", todo=todo)


# --- a run's folder ---------------------------------------------------------------------------------------


def is_ours(folder: Path) -> bool:
    """Whether a run of the kit's wrote this folder, here; a link is the user's own."""
    named = NAME.fullmatch(folder.name) and not folder.is_symlink()
    return bool(named) and (folder / MANIFEST).is_file()


def set_aside(output_dir: Path, after: int = -1) -> Path | None:
    """Move what is called a checkpoint of a later step than ``after``, with a log of later steps, to ``_earlier-1``, or
    the next free number, which is returned."""
    later = [path for path in checkpoints(output_dir) if step_of(path) > after]
    if not later:
        return None
    later += [output_dir / STATE] if (saved_step(output_dir) or -1) > after else []
    place = next(p for n in itertools.count(1) if not os.path.lexists(p := output_dir / f"_earlier-{n}"))
    place.mkdir()
    for path in later:
        path.rename(place / path.name)
    return place


def keep_newest(output_dir: Path, limit: int | None, protected: Path | None = None) -> None:
    """Delete the oldest checkpoints of the kit's beyond ``save_total_limit``, of which None and 0 keep all.
    ``protected``, the best one so far, is kept beside the newest."""
    ours = [folder for folder in checkpoints(output_dir) if is_ours(folder)]
    kept = {folder for folder in (*ours[-1:], protected) if folder in ours}
    spare = [folder for folder in ours if folder not in kept]
    for folder in spare[: max(0, len(ours) - max(limit, len(kept)))] if limit else ():
        delete(folder)


def delete(folder: Path) -> None:
    """Take a checkpoint out of its place at once; what is in :data:`WRITING` is deleted when the new one is there."""
    gone = folder.parent / WRITING / f"gone-{folder.name}"
    gone.parent.mkdir(exist_ok=True)
    folder.rename(gone)


def replace_text(file: Path, text: str) -> None:
    """Write a file at once: a reader, also after a crash, finds the old text or the new one."""
    fresh = file.with_name(f".{file.name}")
    fresh.write_text(text, encoding="utf-8")
    sync(fresh)
    fresh.replace(file)
    sync(file.parent)


def sync(path: Path) -> None:
    if os.name == "nt":
        return  # folders cannot be opened there, nor files that are only read be flushed
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def writable(what: str, folder: Path) -> Iterator[None]:
    """An error of the disk while ``what`` is written becomes a RunFolderError; torch's is a RuntimeError."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, RLOOKitError) or out_of_memory.is_out_of_memory(error):
            raise
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
        raise RunFolderError(
            f"{what} could not be written: {reason}",
            where=str(getattr(error, "filename", None) or folder),
            todo="make room on a full disk, or see who may write there; train(resume_from_checkpoint=True) goes on",
        ) from error


def make_folder(output_dir: str | os.PathLike[str]) -> None:
    with writable("the run's folder", Path(output_dir)):
        Path(output_dir).mkdir(parents=True, exist_ok=True)


@contextmanager
def run_lock(output_dir: Path) -> Iterator[None]:
    """Hold a run's folder while inside, or raise a RunFolderError; the system gives the lock back when the process
    ends, however that ends."""
    make_folder(output_dir)
    with writable("the run's folder", output_dir):
        try:
            taken = FileLock(output_dir / LOCK, timeout=0).acquire()
        except Timeout:
            where, todo = f"output_dir {output_dir}", "wait for it, end it, or choose another output_dir"
            raise RunFolderError("another run has this folder", where=where, todo=todo) from None
    with taken:
        yield
