"""What a run writes, and when: whole checkpoints of finite weights, at the end of a step and of no half of one.

For :mod:`.resume`, which goes on from them.  transformers writes the files; here they are written aside, sealed with a
manifest (:mod:`rloo_kit.watch.manifest`) and moved into place.  Only what a run of the kit's wrote is ever moved, and
nothing is deleted but by ``save_total_limit``: a user's folder may be called ``checkpoint-notes``, or be a copy of
another run's.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import trl
from filelock import FileLock, Timeout

from rloo_kit.errors import ConfigError, RLOOKitError, RunFolderError
from rloo_kit.memory import formulas
from rloo_kit.policy import model_card
from rloo_kit.policy.model_card import CARD
from rloo_kit.policy.save import check_finite
from rloo_kit.session import processes
from rloo_kit.session.output import scale_of
from rloo_kit.train import fingerprints, run_record
from rloo_kit.train.stops import Stops
from rloo_kit.watch import manifest
from rloo_kit.watch.run_folder import checkpoints, last_whole_checkpoint

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers.trainer_utils import TrainOutput

    from rloo_kit.memory.plan import Plan
    from rloo_kit.train.run_record import Asked

WRITING = "_rloo_kit_writing"
"""Where a checkpoint is while it is written, and one that is to be deleted; moving is one step of the file system.

What the kit keeps in a run's folder for itself begins with "_": transformers pushes nothing of that name to the hub."""

LOCK = "_rloo_kit.lock"
"""Says which process has it, for the message alone: on Windows a locked file takes no text."""


class SavingTrainer(trl.RLOOTrainer):
    """TRL's trainer whose checkpoints are whole, finite, and of the end of a step."""

    memory_plan: Plan
    stops: Stops
    _step: int
    _finished: int | None
    _asked: Asked
    _torn: bool
    _saved_step: int
    _made_of: fingerprints.Made | None = None
    _aside = False

    def _start_afresh(self) -> None:
        """What a run before this one has left says nothing of this one."""
        self.stops, self._finished, self._torn, self._saved_step = Stops(), None, False, -1

    @cached_property
    def folder(self) -> Path:
        """The run's folder, wherever a reward changes the directory to."""
        return Path(self.args.output_dir).absolute()

    def shown(self, path: Path) -> str:
        """A path in the run's folder as the user writes it."""
        inside = path.is_relative_to(self.folder)
        return str(Path(self.args.output_dir) / path.relative_to(self.folder) if inside else path)

    @property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes, without the tokenizer's files; 0 where the run writes none."""
        if self.args.save_strategy == "no":
            return 0
        parts = [formulas.LORA, formulas.REFERENCE]
        if self.memory_plan.settings.full_finetuning:
            parts += [formulas.WEIGHTS, formulas.REST]
        if not self.args.save_only_model:
            parts.append(formulas.OPTIMIZER)
        return sum(self.memory_plan.parts.get(part, 0) for part in parts)

    # --- the end of a step --------------------------------------------------------------------------------

    def begin_update(self) -> None:
        """From here on weights, optimizer and schedule are changed one after the other."""
        self.stops.held = True
        self._torn = True

    def end_update(self) -> None:
        """They belong together again.

        Raises:
            NonFiniteError: a weight is NaN or infinite.
        """
        self._check_weights(f"step {self.state.global_step}")
        self._torn, self._finished = False, self.state.global_step
        self._remember()

    def _maybe_log_save_evaluate(self, *args: object, **kwargs: object) -> None:
        """Works around: a signal between two of these would leave a step half logged or half saved."""
        self.stops.held = True
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.stops.release(self._largest)

    def _evaluate(self, *args: object, **kwargs: object) -> dict[str, float]:
        """Works around: an evaluation takes as long as many steps, for which a signal should not wait."""
        held = self.stops.held
        if not self.stops.together:
            self.stops.release()
        found: dict[str, float] = super()._evaluate(*args, **kwargs)
        self.stops.held = held
        return found

    def _largest(self, asked: int) -> int:
        mine = torch.tensor([asked], device=self.accelerator.device)
        return int(self.accelerator.gather(mine).max())

    def _check_weights(self, where: str) -> None:
        check_finite(self.model, where, self._way_on)

    def _way_on(self) -> str:
        kept = last_whole_checkpoint(self.folder)
        way = (
            f"train(resume_from_checkpoint={self.shown(kept)!r}) goes on from before"
            if kept
            else "start again"
        )
        return f"lower learning_rate, look at adam_epsilon and weight_decay, load the policy anew, and {way}"

    # --- a checkpoint -------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """Works around: files are written one by one into the place of a whole checkpoint, none is brought to the
        disk, and folders that begin like a checkpoint's name are deleted beyond save_total_limit."""
        folder, step = Path(self._get_output_dir(trial)), self.state.global_step
        aside, writes = folder / WRITING, self.args.should_save
        try:
            with explained(folder, f"checkpoint-{step}", self.checkpoint_bytes):
                if writes:
                    shutil.rmtree(aside / f"checkpoint-{step}", ignore_errors=True)
                    aside.mkdir(parents=True, exist_ok=True)
                self.accelerator.wait_for_everyone()
                self._aside = True
                super()._save_checkpoint(model, trial)
                self._aside = False
                self.accelerator.wait_for_everyone()
                if writes:
                    self._publish(folder, step)
        except BaseException:
            if writes:  # half a checkpoint would take the room that is missing
                shutil.rmtree(aside / f"checkpoint-{step}", ignore_errors=True)
                tidy(folder)
            raise
        finally:
            self._aside = False
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(place_of(folder, step)))

    def _publish(self, folder: Path, step: int) -> None:
        written, place = folder / WRITING / f"checkpoint-{step}", place_of(folder, step)
        if self.state.best_global_step == step and self.state.best_model_checkpoint:
            # transformers has noted where it was written.
            self.state.best_model_checkpoint = str(Path(self.args.output_dir) / place.name)
            self.state.save_to_json(str(written / manifest.STATE))
        told = {"step": step, "optimizer": optimizer_name(self.optimizer), "run": self._made_of}
        manifest.seal(written, told)
        if place.exists():
            delete(place)
        written.rename(place)
        manifest.sync(folder)
        self._saved_step = step
        keep_newest(folder, self.args.save_total_limit, self._best(folder))
        tidy(folder)

    def _best(self, folder: Path) -> Path | None:
        best = self.state.best_model_checkpoint
        return folder / Path(best).name if best else None

    def _get_output_dir(self, trial: object) -> str:
        """Works around: transformers writes into this folder, and deletes in it what begins like a checkpoint."""
        found = Path(super()._get_output_dir(trial))
        inside = self.folder / found.relative_to(self.args.output_dir)  # of a trial, its own
        return str(inside / WRITING if self._aside else inside)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Works around: what is uploaded in the background must not be moved meanwhile."""
        if not self._aside:
            super()._push_from_checkpoint(checkpoint_folder)

    def _finalize_training(self, *args: object, **kwargs: object) -> TrainOutput:
        """Works around: with save_total_limit=1 and a best checkpoint, every folder that begins like a checkpoint's
        name is deleted."""
        self._aside = True
        try:
            result = super()._finalize_training(*args, **kwargs)
        finally:
            self._aside = False
        best = self._best(self.folder)
        if self.args.should_save and best and self.args.save_total_limit == 1 and manifest.is_ours(best):
            for folder in ours(self.folder):
                if folder != best:
                    delete(folder)
            tidy(self.folder)
        return result

    def _find_best_again(self) -> None:
        """Works around: in a run's folder that was moved transformers forgets where the best checkpoint is, but
        not its metric, so that save_total_limit deletes it and no later one takes its place."""
        state = self.state
        if not (step := state.best_global_step):
            return
        if found := [one for one in ours(self.folder) if manifest.step_of(one) == step]:
            state.best_model_checkpoint = self.shown(found[-1])
            return
        state.best_global_step, state.best_metric, state.best_model_checkpoint = None, None, None
        if self.args.load_best_model_at_end:
            processes.warn(
                f"the best checkpoint, of step {step}, is not in {self.folder}: only later steps count now"
            )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As transformers', of finite weights alone.

        Raises:
            NonFiniteError: a trained weight is NaN or infinite.
        """
        self._check_weights(f"save_model, step {self.state.global_step}")
        place = Path(output_dir or self.args.output_dir)
        carded = self.args.should_save and model_card.may_be_written(place)
        super().save_model(output_dir, _internal_call)
        if carded:  # PEFT's has the base's place on this machine, and blanks to fill in
            self._write_card(place)

    def save_state(self) -> None:
        """Works around: the file is written in place, and a run killed meanwhile has no log."""
        if self.is_world_process_zero():
            unfinished = self.folder / f".{manifest.STATE}"
            with explained(self.folder, manifest.STATE):
                self.state.save_to_json(str(unfinished))
                unfinished.replace(self.folder / manifest.STATE)

    def create_model_card(self, *args: object, **kwargs: object) -> None:
        """Works around: TRL writes its card over a README.md of the user's, and says in it nothing of the run."""
        here = Path(self.args.output_dir).absolute() == self.folder
        if here and self.is_world_process_zero() and model_card.may_be_written(self.folder):
            self._write_card(self.folder)

    def _write_card(self, folder: Path) -> None:
        self._remember()
        manifest.replace_text(folder / CARD, run_record.card(self))

    def _remember(self) -> None:
        """The model keeps what its card is to say: the user may save it without the trainer."""
        self.model.trained_by = run_record.facts(self, self._data_facts)

    @cached_property
    def _base_facts(self) -> dict[str, object]:
        return fingerprints.base_of(self.model)

    @cached_property
    def _data_facts(self) -> dict[str, object]:
        return run_record.data(self._asked.train_dataset)


def optimizer_name(optimizer: Optimizer) -> str:
    """What an optimizer's saved state belongs to: its class, its library, and bits where it has some.

    >>> optimizer_name(torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
    'SGD of torch'
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    bits = getattr(getattr(inner, "args", None), "optim_bits", None)
    library = type(inner).__module__.split(".")[0]
    return f"{type(inner).__name__} of {library}" + (f", {bits} bit" if bits else "")


# --- a run's folder ---------------------------------------------------------------------------------------


def ours(output_dir: Path) -> list[Path]:
    """The checkpoints in a run's folder that runs of the kit's wrote there, by step."""
    return [folder for folder in checkpoints(output_dir) if manifest.is_ours(folder)]


def place_of(output_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step goes: its own name, or the next one that is free of others' things."""
    same = [folder for folder in ours(output_dir) if manifest.step_of(folder) == step]
    return same[-1] if same else _free(output_dir / f"checkpoint-{step}")


def set_aside(output_dir: Path, after: int = -1) -> Path | None:
    """Move the kit's checkpoints of later steps than ``after`` to ``_earlier-1``, or the next number that is free.

    Returns:
        The folder where they are now, or None where there were none.
    """
    folders = [folder for folder in ours(output_dir) if manifest.step_of(folder) > after]
    place = next(p for n in itertools.count(1) if not os.path.lexists(p := output_dir / f"_earlier-{n}"))
    for folder in folders:
        place.mkdir(exist_ok=True)
        folder.rename(place / folder.name)
    return place if folders else None


def keep_newest(output_dir: Path, limit: int | None, protected: Path | None = None) -> None:
    """Delete the oldest checkpoints of the kit's beyond ``save_total_limit``, as transformers does.

    Args:
        output_dir: of the run.
        limit: how many are kept; None or 0 keeps all.
        protected: the best one so far, which is kept beside the newest.
    """
    found = ours(output_dir)
    spared = {one for one in (*found[-1:], protected) if one in found}
    spare = [folder for folder in found if folder not in spared]
    for folder in spare[: max(0, len(found) - max(limit, len(spared)))] if limit else ():
        delete(folder)


def delete(folder: Path) -> None:
    """Move a checkpoint out of its place at once, for :func:`tidy` to delete: a killed run leaves no half there."""
    gone = folder.parent / WRITING / f"gone-{folder.name}"
    gone.parent.mkdir(exist_ok=True)
    folder.rename(_free(gone))


def tidy(output_dir: Path) -> None:
    """Delete what this run, or one before that was killed, left of checkpoints that it was writing or deleting."""
    writing = output_dir / WRITING
    for left in (*writing.glob("gone-checkpoint-*"), *writing.glob("checkpoint-*")):
        shutil.rmtree(left, ignore_errors=True)
    with suppress(OSError):
        writing.rmdir()


def _free(path: Path) -> Path:
    names = (path.with_name(f"{path.name}-{n}") for n in itertools.count(2))
    return next(free for free in itertools.chain([path], names) if not os.path.lexists(free))


@contextmanager
def explained(output_dir: Path, what: str, room_bytes: int = 0) -> Iterator[None]:
    """Turn an error of the disk into a RunFolderError: which file, why, and which checkpoint is there to go on from."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RLOOKitError) or not _of_the_disk(error):
            raise
        kept = last_whole_checkpoint(output_dir)
        room = f" for {room_bytes / 1e6:.1f} MB" if room_bytes else ""
        way_on = f"; {kept} is whole, and train(resume_from_checkpoint=True) goes on from it" if kept else ""
        reason = getattr(error, "strerror", None) or f"{str(error).splitlines()[0]}, as on a full disk"
        raise RunFolderError(
            f"{what} could not be written: {reason}",
            where=str(getattr(error, "filename", None) or output_dir),
            todo=f"make room{room}, or see who may write there{way_on}",
        ) from error


def _of_the_disk(error: Exception) -> bool:
    """safetensors' and torch's own errors carry no errno."""
    torchs = ("PytorchStreamWriter", "inline_container", "file write failed", "iostream error")
    said = isinstance(error, RuntimeError) and any(word in str(error) for word in torchs)
    return isinstance(error, OSError) or type(error).__name__ == "SafetensorError" or said


@contextmanager
def loadable(place: Path) -> Iterator[None]:
    """Turn an error into a ConfigError that says of which file or folder something cannot be loaded."""
    try:
        yield
    except Exception as error:
        if isinstance(error, RLOOKitError | MemoryError | torch.OutOfMemoryError):
            raise
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        told = told.partition(" In PyTorch 2.6")[0]  # torch goes on to advise loading it unsafely
        raise ConfigError(
            f"the checkpoint cannot be loaded: {told[:200]}",
            where=str(place),
            todo="resume from another one, or load_policy(that folder) and train() a new run from its weights",
        ) from error


def make_folder(output_dir: str | os.PathLike[str]) -> None:
    """Make a run's folder, as transformers does, which would say less.

    Raises:
        RunFolderError: it cannot be made.
    """
    folder = Path(output_dir).absolute()
    if folder.is_symlink() and not folder.exists():
        raise RunFolderError(
            "the run's folder is a link to one that does not exist",
            where=f"output_dir {folder} -> {folder.readlink()}",
            todo="make that folder, mount its disk, or choose another output_dir",
        )
    with explained(folder, "the run's folder"):
        folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def run_lock(output_dir: Path, checkpoint_bytes: int = 0) -> Iterator[None]:
    """Hold a run's folder while inside; the system gives the lock back when the process ends, however that ends.

    Raises:
        RunFolderError: another run has it, it cannot be written to, or one checkpoint of that size does not fit.
    """
    make_folder(output_dir)
    file, where = output_dir / LOCK, f"output_dir {output_dir}"
    with explained(output_dir, "the run's folder"):
        try:
            taken = FileLock(file, timeout=0).acquire()
        except Timeout:
            holder = ""
            with suppress(OSError):
                holder = file.read_text(errors="replace")
            raise RunFolderError(
                f"another run has this folder: {holder or 'its process is not known'}",
                where=where,
                todo="wait for it, end it, or choose another output_dir",
            ) from None
    with taken:
        with suppress(OSError):
            file.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        free = shutil.disk_usage(output_dir).free
        if checkpoint_bytes > free:
            (scale, unit), (some, small) = scale_of(checkpoint_bytes), scale_of(free)
            raise RunFolderError(
                f"there is no room for a checkpoint of {checkpoint_bytes / scale:.1f} {unit}: "
                f"{free / some:.1f} {small} are free",
                where=where,
                todo="make room, choose another output_dir, or save_strategy='no'",
            )
        yield
