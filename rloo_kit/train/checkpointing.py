"""What a run writes, and when: whole checkpoints of finite weights, at the end of a step and of no half of one.

For :mod:`.resume`, which goes on from them.  transformers writes the files; here they are written aside, sealed and
moved into place (:mod:`.checkpoints`), and signals wait while an update is made (:mod:`.stops`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import trl
from transformers import TrainerCallback

from rloo_kit.memory import formulas as footprint
from rloo_kit.policy import model_card
from rloo_kit.policy.model_card import CARD
from rloo_kit.policy.save import check_finite
from rloo_kit.session import processes
from rloo_kit.train import checkpoints, fingerprints, run_record
from rloo_kit.train.stops import Stops
from rloo_kit.watch import checkpoint, run_folder

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from transformers import TrainerControl, TrainerState, TrainingArguments
    from transformers.trainer_utils import TrainOutput

    from rloo_kit.memory.plan import Plan
    from rloo_kit.train.run_record import Asked

ROLLOUT = "rollout.pt"
"""The rest of a generation batch that several steps train on."""

Batches = list[dict[str, torch.Tensor]]


class SavingTrainer(trl.RLOOTrainer):
    """TRL's trainer whose checkpoints are whole, finite, and of the end of a step."""

    memory_plan: Plan
    stops: Stops
    _step: int
    _buffered_inputs: Batches | None
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

    def shown(self, path: Path | None) -> str:
        """A path in the run's folder as the user writes it."""
        if path is None or not path.is_relative_to(self.folder):
            return str(path)
        return str(Path(self.args.output_dir) / path.relative_to(self.folder))

    @property
    def _batch_steps(self) -> int:
        """Micro-batches that a generation batch is trained on for."""
        steps: int = self.args.steps_per_generation * self.num_iterations
        return steps

    @property
    def _batch_layout(self) -> list[int]:
        """What a generation batch was cut by; the rest of one that was cut otherwise is of no use."""
        args = self.args
        rows = [args.num_generations, args.per_device_train_batch_size, args.gradient_accumulation_steps]
        return [*rows, args.steps_per_generation, self.num_iterations, self.accelerator.num_processes]

    @property
    def checkpoint_bytes(self) -> int:
        """What a checkpoint takes, without the tokenizer's files; 0 where the run writes none."""
        if self.args.save_strategy == "no":
            return 0
        parts = [footprint.LORA, footprint.REFERENCE]
        if self.memory_plan.settings.full_finetuning:
            parts += [footprint.WEIGHTS, footprint.REST]
        if not self.args.save_only_model:
            parts.append(footprint.OPTIMIZER)
        return sum(self.memory_plan.parts.get(part, 0) for part in parts)

    # --- the end of a step --------------------------------------------------------------------------------

    def begin_update(self) -> None:
        """From here on weights, optimizer and schedule are changed one after the other."""
        self.stops.hold()
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
        self.stops.hold()
        super()._maybe_log_save_evaluate(*args, **kwargs)
        self.stops.release(self._agreed)

    def _evaluate(self, *args: object, **kwargs: object) -> dict[str, float]:
        """Works around: an evaluation takes as long as many steps, for which a signal should not wait."""
        held = self.stops.held
        if not self.stops.together:
            self.stops.release()
        found: dict[str, float] = super()._evaluate(*args, **kwargs)
        self.stops.held = held
        return found

    def _agreed(self, asked: int) -> int:
        """The largest of all processes' numbers."""
        mine = torch.tensor([asked], device=self.accelerator.device)
        return int(self.accelerator.gather(mine).max())

    def _check_weights(self, where: str) -> None:
        check_finite(self.model, where, self._way_on)

    def _way_on(self) -> str:
        kept = run_folder.last_whole_checkpoint(self.folder)
        way_on = "start again"
        if kept:
            way_on = f"train(resume_from_checkpoint={self.shown(kept)!r}) goes on from before"
        return (
            f"lower learning_rate, look at adam_epsilon and weight_decay, load the policy anew, and {way_on}"
        )

    # --- a checkpoint -------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: torch.nn.Module, trial: object) -> None:
        """Works around: files are written one by one into the place of a whole checkpoint, none is brought to the
        disk, and folders that begin like a checkpoint's name are deleted beyond save_total_limit."""
        folder, step = Path(self._get_output_dir(trial)), self.state.global_step
        aside, writes = folder / checkpoints.WRITING, self.args.should_save
        try:
            with checkpoints.explained(folder, f"checkpoint-{step}", self.checkpoint_bytes):
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
            if writes:
                shutil.rmtree(
                    aside, ignore_errors=True
                )  # half a checkpoint would take the room that is missing
            raise
        finally:
            self._aside = False
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoints.place_of(folder, step)))

    def _publish(self, folder: Path, step: int) -> None:
        place = checkpoints.place_of(folder, step)
        written = folder / checkpoints.WRITING / f"checkpoint-{step}"
        if self.state.best_global_step == step and self.state.best_model_checkpoint:
            # transformers has noted where it was written.
            self.state.best_model_checkpoint = str(Path(self.args.output_dir) / place.name)
            self.state.save_to_json(str(written / checkpoint.STATE))
        told = {"step": step, "optimizer": optimizer_name(self.optimizer), "run": self._made_of}
        checkpoints.publish(written, place, told)
        self._saved_step = step
        checkpoints.keep_newest(folder, self.args.save_total_limit, self._best(folder))

    def _best(self, folder: Path) -> Path | None:
        best = self.state.best_model_checkpoint
        return folder / Path(best).name if best else None

    def _get_output_dir(self, trial: object) -> str:
        """Works around: transformers writes into this folder, and deletes in it what begins like a checkpoint."""
        found = Path(super()._get_output_dir(trial))
        inside = found.relative_to(self.args.output_dir)  # of a trial, its own
        return str(self.folder / inside / checkpoints.WRITING if self._aside else self.folder / inside)

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
        if self.args.should_save and best and self.args.save_total_limit == 1 and checkpoint.is_ours(best):
            for folder in checkpoints.ours(self.folder):
                if folder != best:
                    checkpoints.delete(folder)
        return result

    def _find_best_again(self) -> None:
        """Works around: in a run's folder that was moved transformers forgets where the best checkpoint is, but
        not its metric, so that save_total_limit deletes it and no later one takes its place."""
        state = self.state
        if not (step := state.best_global_step):
            return
        if found := [one for one in checkpoints.ours(self.folder) if checkpoint.step_of(one) == step]:
            state.best_model_checkpoint = self.shown(found[-1])
            return
        state.best_global_step, state.best_metric, state.best_model_checkpoint = None, None, None
        if self.args.load_best_model_at_end:
            processes.warn(
                f"the best checkpoint, of step {step}, is not in {self.folder}: only later steps count now",
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
            unfinished = self.folder / f".{checkpoint.STATE}"
            with checkpoints.explained(self.folder, checkpoint.STATE):
                self.state.save_to_json(str(unfinished))
                unfinished.replace(self.folder / checkpoint.STATE)

    def create_model_card(self, *args: object, **kwargs: object) -> None:
        """Works around: TRL writes its card over a README.md of the user's, and says in it nothing of the run."""
        here = Path(self.args.output_dir).absolute() == self.folder
        if here and self.is_world_process_zero() and model_card.may_be_written(self.folder):
            self._write_card(self.folder)

    def _write_card(self, folder: Path) -> None:
        self._remember()
        checkpoint.replace_text(folder / CARD, run_record.card(self))

    def _remember(self) -> None:
        """The model keeps what its card is to say: the user may save it without the trainer."""
        self.model.trained_by = run_record.facts(self, self._data_facts)

    @cached_property
    def _base_facts(self) -> dict[str, object]:
        return fingerprints.base_of(self.model)

    @cached_property
    def _data_facts(self) -> dict[str, object]:
        return run_record.data(self._asked.train_dataset)

    # --- what is drawn ------------------------------------------------------------------------------------

    def _save_rng_state(self, output_dir: str) -> None:
        """Works around: a generation batch that several steps train on would be sampled anew."""
        super()._save_rng_state(output_dir)
        if self._first_micro_step % self._batch_steps and self._buffered_inputs is not None:
            batches = [{name: t.clone() for name, t in one.items()} for one in self._buffered_inputs]
            kept = {"layout": self._batch_layout, "batches": batches}
            torch.save(kept, Path(output_dir) / rollout_file(self.accelerator))

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        """Works around: TRL goes on in the middle of a generation batch as if at its start."""
        if checkpoint_folder is None:
            return
        file, device = Path(checkpoint_folder) / rollout_file(self.accelerator), self.accelerator.device
        self._step = self._first_micro_step
        with checkpoints.loadable(Path(checkpoint_folder)):
            super()._load_rng_state(checkpoint_folder)
            kept = torch.load(file, map_location="cpu", weights_only=True) if file.is_file() else {}
            if kept.get("layout") == self._batch_layout:
                batches = [{name: t.to(device) for name, t in one.items()} for one in kept["batches"]]
                self._buffered_inputs = batches

    @property
    def _first_micro_step(self) -> int:
        """Micro-batches until the next step, which a stop may have cut in two."""
        steps: int = self.state.global_step * self.args.gradient_accumulation_steps
        return steps


def rollout_file(accelerator: object) -> str:
    """:data:`ROLLOUT`, of one process of several with its number."""
    processes, index = accelerator.num_processes, accelerator.process_index  # type: ignore[attr-defined]
    return ROLLOUT if processes == 1 else f"rollout_{index}.pt"


def optimizer_name(optimizer: Optimizer) -> str:
    """What an optimizer's saved state belongs to: its class, its library, and bits where it has some.

    >>> optimizer_name(torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
    'SGD of torch'
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
    bits = getattr(getattr(inner, "args", None), "optim_bits", None)
    library = type(inner).__module__.split(".")[0]
    return f"{type(inner).__name__} of {library}" + (f", {bits} bit" if bits else "")


def optimizer_differs(optimizer: Optimizer, saved: Mapping[str, object], told: str | None) -> str:
    """The optimizer that a checkpoint's state is of, where it is another one than this; else empty.

    Args:
        optimizer: of the run that resumes.
        saved: the state in the checkpoint.
        told: :func:`optimizer_name` of the one that wrote it, None in a checkpoint without a manifest.
    """
    mine = optimizer_name(optimizer)
    if told is not None:
        return told if told != mine else ""
    kept = {name for one in saved["state"].values() for name in one}  # type: ignore[attr-defined]
    if ("betas" in saved["param_groups"][0]) != ("betas" in optimizer.param_groups[0]):  # type: ignore[index]
        return "one of another kind"
    if kept and ("state1" in kept) != mine.partition(" of ")[2].startswith("bitsandbytes"):
        return "one of bitsandbytes" if "state1" in kept else "one of torch"
    return ""


class StepEnds(TrainerCallback):
    """Tells the trainer when an update begins and when it has ended."""

    def __init__(self, trainer: SavingTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Gradients are in; the optimizer is next."""
        self._trainer.begin_update()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Weights, optimizer, schedule and the step's number are those of one step."""
        self._trainer.end_update()
