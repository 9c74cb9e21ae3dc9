"""A run twice, stopped anywhere, and resumed.

For :class:`rloo_kit.RLOOTrainer`, which holds the algorithm.  What is in a checkpoint is transformers' affair, which of
them are whole is :mod:`rloo_kit.watch.run_folder`'s.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rloo_kit.errors import OutOfMemoryError
from rloo_kit.memory import shortage
from rloo_kit.session.imports import import_unsloth
from rloo_kit.watch import run_folder

import_unsloth()

import torch  # noqa: E402 - unsloth first
import trl  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR  # noqa: E402
from transformers import TrainerState  # noqa: E402
from transformers.trainer_utils import TrainOutput  # noqa: E402

from rloo_kit.train import gradients  # noqa: E402
from rloo_kit.train.prompts import PromptHistory  # noqa: E402

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rloo_kit.memory.planning import Plan

HYPERPARAMETERS = ("initial_lr", "betas", "eps", "weight_decay", "momentum")
"""What a configuration sets in an optimizer's parameter groups.  Some optimizers keep state beside it."""


class ResumableTrainer(trl.RLOOTrainer):
    """TRL's trainer whose ``train()`` can be called again, be interrupted, and resume."""

    memory_plan: Plan
    _history: PromptHistory | None
    _buffered_inputs: list[dict[str, torch.Tensor]] | None

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: object) -> TrainOutput:
        """Train, from the start or from a checkpoint, and leave ``trainer_state.json`` in ``output_dir``.

        Args:
            resume_from_checkpoint: True resumes from the newest whole checkpoint in ``output_dir``, and starts at
                step 0 where there is none; a path names one.  A checkpoint that was cut off while it was written is
                removed.  Without it the run starts at step 0, and checkpoints of an earlier run are moved to
                ``output_dir/earlier``, so that no later resume takes them for its own.
            kwargs: as in transformers' ``Trainer.train``.

        Raises:
            ConfigError: the path is not that of a whole checkpoint.
            OutOfMemoryError: with the phase, what to change, and the checkpoint to resume from.
            KeyboardInterrupt: the run was stopped; its last step is saved.
        """
        folder = self._checkpoint_to_resume(resume_from_checkpoint)
        if folder and 0 < self.args.max_steps <= run_folder.step_of(folder):
            return self._already_done(folder)
        self._start_afresh()
        self._recall_prompts(folder)
        shortage.warn_if_too_large(self.memory_plan)
        try:
            with shortage.phase(self, "optimizer"):
                result = super().train(resume_from_checkpoint=folder and str(folder), **kwargs)
        except KeyboardInterrupt:
            self._keep_what_is_done()
            raise
        except OutOfMemoryError as error:
            shortage.let_go(error)
            self._keep_what_is_done()
            kept = run_folder.last_whole_checkpoint(self.args.output_dir)
            raise shortage.with_way_on(error, kept) from error.__cause__
        self.save_state()
        return result

    def _checkpoint_to_resume(self, asked: str | bool | None) -> Path | None:
        """The checkpoint to start from, with ``output_dir`` put in order."""
        main, output_dir = self.accelerator.is_main_process, self.args.output_dir
        if asked is True:
            found = run_folder.last_whole_checkpoint(output_dir)
            if main:
                run_folder.remove_broken(output_dir)
                print(f"resuming from {found}" if found else "no checkpoint yet: starting at step 0")
            self.accelerator.wait_for_everyone()
            return found
        if asked:
            run_folder.check(Path(asked), output_dir)
            return Path(asked)
        if main:
            run_folder.set_aside(output_dir)
        return None

    def _start_afresh(self) -> None:
        """Works around: a cell that was stopped within a step leaves its position and its batches behind, and every
        later step would train on completions of an older policy."""
        self._step, self._buffered_inputs, self._current_train_step_time = 0, None, 0.0
        self._metrics["train"].clear()
        gradients.begin(self.accelerator)

    def _recall_prompts(self, checkpoint: Path | None) -> None:
        """Restore the prompts' history of a checkpoint, or empty it for a run that starts at step 0."""
        if self._history is None:
            return
        state, trained = PromptHistory(self.num_generations).state(), 0
        if checkpoint:
            saved = TrainerState.load_from_json(str(checkpoint / run_folder.STATE))
            state = saved.stateful_callbacks.get("PromptHistory", state)
            steps = self.args.steps_per_generation * self.num_iterations
            trained = saved.global_step * self.args.gradient_accumulation_steps // steps
        self._history.restore(state, trained)

    def _load_callback_state(self) -> None:
        """Works around: restore_callback_states_from_checkpoint puts another history in place of the one in use."""
        super()._load_callback_state()
        if self._history is not None:
            self.remove_callback(PromptHistory)
            self.add_callback(self._history)

    def _keep_what_is_done(self) -> None:
        """Works around: a run that is stopped loses all steps since the last checkpoint."""
        if self.state.global_step and self.args.save_strategy != "no":
            self._save_checkpoint(self.model, trial=None)
            print(
                f"stopped: step {self.state.global_step} is saved, train(resume_from_checkpoint=True) goes on"
            )

    def _already_done(self, folder: Path) -> TrainOutput:
        """Works around: transformers takes one more step from a checkpoint that is at the last one."""
        print(
            f"{folder} is at step {run_folder.step_of(folder)} of {self.args.max_steps}: nothing left to train"
        )
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / run_folder.STATE))
        return TrainOutput(self.state.global_step, 0.0, {})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Works around: torch's load_state_dict takes learning rate, betas and weight decay from the checkpoint, so a
        learning_rate lowered to mend a run would have no effect.  (DeepSpeed loads its own before this, and keeps
        them.)"""
        scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)  # accelerate wraps it
        groups = self.optimizer.param_groups
        asked = [{name: group[name] for name in HYPERPARAMETERS if name in group} for group in groups]
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None or not isinstance(scheduler, LambdaLR):
            return
        saved, scheduler.base_lrs = scheduler.base_lrs, [one["initial_lr"] for one in asked]
        rates = [
            base * shape(scheduler.last_epoch)
            for base, shape in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
        ]
        for group, settings, rate in zip(self.optimizer.param_groups, asked, rates, strict=True):
            group.update(settings, lr=rate)
        scheduler._last_lr = rates
        if saved != scheduler.base_lrs and self.accelerator.is_main_process:
            print(f"learning_rate is {self.args.learning_rate:g} from here on; it was {saved[0]:g}")

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: PreTrainedModel | None = None
    ) -> None:
        """Works around: with a folder "ref" inside a checkpoint, transformers loads that adapter and no other, so that
        a resumed run would go on from untrained weights; and PEFT casts what it loads to float32, where TRL trains a
        4-bit policy's adapter in bfloat16 on a CPU."""
        folder, target = Path(resume_from_checkpoint), self.model if model is None else model
        dtypes = {name: parameter.dtype for name, parameter in target.named_parameters()}
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if not (folder / "ref").is_dir():
            # That run's reference was the base; the one made for this trainer would be a policy half trained.
            drop_reference(target)
        elif (folder / "adapter_config.json").is_file():
            target.load_adapter(str(folder), "default", is_trainable=True)
            target.set_adapter("default")
        for name, parameter in target.named_parameters():
            if parameter.dtype != dtypes.get(name, parameter.dtype):
                parameter.data = parameter.data.to(dtypes[name])


def drop_reference(model: PreTrainedModel) -> None:
    """Works around: TRL adds an adapter "ref" to every PEFT model, and fails where one is left from before."""
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")
        model.set_adapter("default")
