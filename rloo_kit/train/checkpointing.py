"""What a run writes, and when: whole checkpoints of finite weights, each of the end of a step.

transformers writes the files; here they are written aside, sealed with a manifest (:mod:`.checkpoint_integrity`) and
moved into place.  Nothing is deleted but by ``save_total_limit``, and then only what a run of the kit's wrote.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
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
from rloo_kit.train import checkpoint_integrity as integrity
from rloo_kit.train import run_record
from rloo_kit.train.checkpoint_integrity import is_ours, last_whole_checkpoint
from rloo_kit.train.gradients import check_gradients
from rloo_kit.train.signals import Stops
from rloo_kit.watch.run_folder import STATE, checkpoints, step_of

if TYPE_CHECKING:
    from rloo_kit.memory.plan import Plan

WRITING = "_rloo_kit_writing"
"""Where a checkpoint is while it is written, and one that is deleted.

What the kit keeps in a run's folder for itself begins with "_": transformers pushes nothing of that name to the hub."""

LOCK = "_rloo_kit.lock"


class SavingTrainer(trl.RLOOTrainer):
    """TRL's trainer whose checkpoints are whole, finite, and of the end of a step."""

    memory_plan: Plan
    stops: Stops
    _step: int
    _asked: dict[str, Any]
    _made_of: dict[str, Any] | None = None
    _whole: int | None
    """The step that weights, optimizer and schedule belong to; None before the first, and during an update."""
    _random: RandomStates | None = None
    """Of the end of that step, with the tokens seen: what a stop drops may have drawn since."""
    _tokens_seen = 0

    def _start_afresh(self) -> None:
        """What a run before this one has left says nothing of this one."""
        self.stops, self._whole, self._random = Stops(), None, None

    @cached_property
    def folder(self) -> Path:
        """The run's folder, wherever a reward changes the directory to."""
        return Path(self.args.output_dir).absolute()

    def shown(self, path: Path) -> str:
        """A path in the run's folder as the user writes it."""
        inside = path.is_relative_to(self.folder)
        return str(Path(self.args.output_dir) / path.relative_to(self.folder) if inside else path)

    # --- the end of a step --------------------------------------------------------------------------------

    def _maybe_log_save_evaluate(self, *args: object, **kwargs: object) -> None:
        """Works around: a signal between two of these would leave a step half logged or half saved."""
        self.stops.held = True
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self._random, self._tokens_seen = random_states(), self.state.num_input_tokens_seen
        self.stops.release(self.accelerator)

    def _way_on(self) -> str:
        kept = last_whole_checkpoint(self.folder)
        way = f"train(resume_from_checkpoint={self.shown(kept)!r})" if kept else "start again"
        return f"lower learning_rate, look at adam_epsilon and weight_decay, load the policy anew, and {way}"

    # --- a checkpoint -------------------------------------------------------------------------------------

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
        # transformers has noted it where it was written aside, or before the run's folder was moved.
        if place == best or best.is_dir():
            self.state.best_model_checkpoint = str(best)
            self.state.save_to_json(str(written / STATE))
        kept = Path(self.state.best_model_checkpoint) if self.state.best_model_checkpoint else None
        integrity.seal(written, {"step": self.state.global_step, "run": self._made_of})
        if is_ours(place):
            delete(place)
        written.rename(place)
        integrity.sync(self.folder)
        keep_newest(self.folder, self.args.save_total_limit, kept)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Works around: what is uploaded in the background must not be moved meanwhile."""
        if Path(checkpoint_folder).parent.name != WRITING:
            super()._push_from_checkpoint(checkpoint_folder)

    # --- what else is written -----------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As transformers', of finite weights alone.

        Raises:
            NonFiniteError: a trained weight is NaN or infinite.
        """
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
        integrity.replace_text(folder / model_card.CARD, run_record.card(self))

    def remember(self) -> None:
        """The model keeps what its card is to say: the user may save it without the trainer."""
        self.model.trained_by = run_record.facts(self, self._data_facts)

    @cached_property
    def _data_facts(self) -> dict[str, object]:
        return run_record.data(self._asked["train_dataset"])


class StepEnds(TrainerCallback):
    """Tells the trainer when an update begins, and when weights, optimizer and schedule belong together again."""

    def __init__(self, trainer: SavingTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, args: Any, state: Any, *_: Any, model: Any, **kwargs: Any) -> None:
        """From here on they are changed one after the other, and no signal stops the run."""
        check_gradients(model, self._trainer.accelerator, state.global_step + 1)
        self._trainer.stops.held, self._trainer._whole = True, None

    def on_step_end(self, args: Any, state: Any, *_: Any, **kwargs: Any) -> None:
        """The step's number is that of its weights."""
        check_finite(self._trainer.model, f"step {state.global_step}", self._trainer._way_on)
        self._trainer._whole = state.global_step
        self._trainer.remember()


# --- a run's folder ---------------------------------------------------------------------------------------


def set_aside(output_dir: Path, after: int = -1) -> Path | None:
    """Move what is called a checkpoint of a later step than ``after`` to ``_earlier-1``, or the next free number, which
    is returned."""
    found = [path for path in checkpoints(output_dir) if step_of(path) > after]
    if not found:
        return None
    place = next(p for n in itertools.count(1) if not os.path.lexists(p := output_dir / f"_earlier-{n}"))
    place.mkdir()
    for path in found:
        path.rename(place / path.name)
    return place


def keep_newest(output_dir: Path, limit: int | None, protected: Path | None = None) -> None:
    """Delete the oldest checkpoints of the kit's beyond ``save_total_limit``, as transformers does.

    A limit of None or 0 keeps all; ``protected`` is the best one so far, which is kept beside the newest.
    """
    found = [folder for folder in checkpoints(output_dir) if is_ours(folder)]
    spared = {one for one in (*found[-1:], protected) if one in found}
    spare = [folder for folder in found if folder not in spared]
    for folder in spare[: max(0, len(found) - max(limit, len(spared)))] if limit else ():
        delete(folder)


def delete(folder: Path) -> None:
    """Take a checkpoint out of its place at once; what is in :data:`WRITING` is deleted when the new one is there."""
    gone = folder.parent / WRITING / f"gone-{folder.name}"
    gone.parent.mkdir(exist_ok=True)
    folder.rename(gone)


RandomStates = tuple[Any, Any, torch.Tensor, list[torch.Tensor]]


def random_states() -> RandomStates:
    """Of Python, NumPy, torch and each GPU: what a checkpoint keeps."""
    on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), on_gpus


def set_random_states(states: RandomStates) -> None:
    """Put them back."""
    python, numpy, cpu, on_gpus = states
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)
    if on_gpus:
        torch.cuda.set_rng_state_all(on_gpus)


@contextmanager
def explained(
    kind: type[RLOOKitError], what: str, where: Path, todo: str, errors: tuple[type[Exception], ...]
) -> Iterator[None]:
    """Turn an error while files are read or written, which may name no file, into one of the kit's."""
    try:
        yield
    except errors as error:
        if isinstance(error, RLOOKitError) or out_of_memory.is_out_of_memory(error):
            raise
        said = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
        # Torch goes on to advise loading it unsafely.
        said = said.splitlines()[0].partition(" In PyTorch 2.6")[0][:200]
        place = getattr(error, "filename", None) or where
        raise kind(f"{what}: {said}", where=str(place), todo=todo) from error


def writable(what: str, folder: Path) -> AbstractContextManager[None]:
    """An error of the disk while ``what`` is written becomes a RunFolderError; torch's is a RuntimeError."""
    todo = "make room on a full disk, or see who may write there; train(resume_from_checkpoint=True) goes on"
    return explained(
        RunFolderError, f"{what} could not be written", folder, todo, (OSError, RuntimeError, SafetensorError)
    )


def loadable(place: Path) -> AbstractContextManager[None]:
    """An error while something is read becomes a ConfigError."""
    todo = "resume from another one, or load_policy(that folder) and train() a new run from its weights"
    return explained(ConfigError, "the checkpoint cannot be loaded", place, todo, (Exception,))


def make_folder(output_dir: str | os.PathLike[str]) -> None:
    """Make a run's folder.

    Raises:
        RunFolderError: it cannot be made.
    """
    with writable("the run's folder", Path(output_dir)):
        Path(output_dir).mkdir(parents=True, exist_ok=True)


@contextmanager
def run_lock(output_dir: Path) -> Iterator[None]:
    """Hold a run's folder while inside; the system gives the lock back when the process ends, however that ends.

    Raises:
        RunFolderError: another run has it, or it cannot be written to.
    """
    make_folder(output_dir)
    with writable("the run's folder", output_dir):
        try:
            taken = FileLock(output_dir / LOCK, timeout=0).acquire()
        except Timeout:
            raise RunFolderError(
                "another run has this folder",
                where=f"output_dir {output_dir}",
                todo="wait for it, end it, or choose another output_dir",
            ) from None
    with taken:
        yield
