"""A run twice, stopped anywhere, and resumed.

For :class:`rloo_kit.RLOOTrainer`, which holds the algorithm.  What a run writes is :mod:`.saving`'s, and which
checkpoint is whole :mod:`rloo_kit.watch.checkpoint`'s.
"""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from rloo_kit.errors import ConfigError, OutOfMemoryError, RunFolderError
from rloo_kit.memory import shortage
from rloo_kit.memory.planning import Plan
from rloo_kit.session import cell, processes
from rloo_kit.session.imports import import_unsloth
from rloo_kit.watch import arguments, run_folder
from rloo_kit.watch import checkpoint as checkpoint_file

import_unsloth()

import torch  # noqa: E402 - unsloth first
from peft import get_peft_model_state_dict  # noqa: E402
from safetensors import safe_open  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR  # noqa: E402
from transformers import TrainerState, TrainingArguments  # noqa: E402
from transformers.trainer_callback import ExportableState  # noqa: E402
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput  # noqa: E402

from rloo_kit.train import checkpoints, gradients, recipe  # noqa: E402
from rloo_kit.train.claim import claimed  # noqa: E402
from rloo_kit.train.saving import SavingTrainer, optimizer_differs, optimizer_name  # noqa: E402
from rloo_kit.train.stops import Terminated, told  # noqa: E402

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HYPERPARAMETERS = ("initial_lr", "betas", "eps", "weight_decay", "momentum")
"""What a configuration sets in an optimizer's parameter groups.  Some optimizers keep state beside it."""

NOT_TO_CHANGE = (
    *("seed", "data_seed", "num_generations", "per_device_train_batch_size", "gradient_accumulation_steps"),
    *("steps_per_generation", "num_iterations", "max_completion_length", "temperature", "beta", "epsilon"),
    *("advantage_estimator", "kl_placement", "kl_estimator", "loss_aggregation", "importance_sampling_level"),
    "use_bias_correction_kl",
    "reward_weights",
)
"""Settings that make a resumed run another one than that which was stopped, and nothing fails."""


class ResumableTrainer(SavingTrainer):
    """TRL's trainer whose ``train()`` can be called again, be interrupted, and resume."""

    _asked: recipe.Asked
    memory_plan: Plan

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: object) -> TrainOutput:
        """Train, from the start or from a checkpoint, and leave ``trainer_state.json`` in ``output_dir``.

        SIGTERM and SIGINT (a notebook's stop button) end the run with its last finished step saved; a step in progress
        is dropped, and the resumed run takes it again with the same draws.  After SIGTERM the process ends with
        status 143.

        Args:
            resume_from_checkpoint: True resumes from the newest whole checkpoint in ``output_dir``, and starts at
                step 0 where there is none; a path names one.  Damaged checkpoints are named and moved to
                ``output_dir/broken``.  Without it the run starts at step 0.  Checkpoints of an earlier run, or of
                later steps than the one that is named, are moved to ``output_dir/earlier-1`` or the next number, so
                that no later resume takes them for its own.  Nothing is moved that no run of the kit's wrote.
            kwargs: as in transformers' ``Trainer.train``.

        Raises:
            ConfigError: the path is not that of a whole checkpoint, or the checkpoint's optimizer is another one.
            RunFolderError: another run has ``output_dir``, it cannot be written to, or it has no room.
            NonFiniteError: a weight is NaN or infinite; it is not saved.
            OutOfMemoryError: with the phase, what to change, and the checkpoint to resume from.
            KeyboardInterrupt, SystemExit: the run was stopped; its last step is saved.  In IPython a stop shows one
                line, and no traceback.
            Exception: a reward's, or another's; the last finished step is saved, with one process.
        """
        alone = claimed(self.folder, self.checkpoint_bytes) if self.args.should_save else nullcontext()
        try:
            with processes.named(), alone, cell.one_output():
                return self._train(self._checkpoint_to_resume(resume_from_checkpoint), **kwargs)
        except Terminated:
            self.stops.pass_on()
            raise

    def _train(self, folder: Path | None, **kwargs: object) -> TrainOutput:
        if folder and 0 < self.args.max_steps <= checkpoint_file.step_of(folder):
            return self._already_done(folder)
        self._start_afresh()
        if self.args.should_save:
            with checkpoints.explained(self.folder, run_folder.RECIPE):
                recipe.write(self.folder, self._asked, self.model, self.args, resumed=folder is not None)
        if folder and self.accelerator.is_main_process and (changed := changed_settings(self.args, folder)):
            processes.say(f"settings that differ from the checkpoint's: {changed}")
        shortage.warn_if_too_large(self.memory_plan)
        if self.memory_plan.sliced and self._samples_itself and self.accelerator.is_main_process:
            processes.say(self.memory_plan.sliced)
        with self.stops.listening(together=self.accelerator.num_processes > 1):
            try:
                with shortage.phase(self, "optimizer"):
                    result = super().train(resume_from_checkpoint=folder and str(folder), **kwargs)
            except (KeyboardInterrupt, Terminated) as stop:
                raise told(stop, self._keep_what_is_done()) from None
            except OutOfMemoryError as error:
                shortage.let_go(error)
                processes.say(self._keep_what_is_done())
                kept = run_folder.last_whole_checkpoint(self.folder)
                raise shortage.with_way_on(error, kept) from error.__cause__
            except Exception as error:
                self._keep_despite(error)
                raise
            self.save_state()
        return result

    def _checkpoint_to_resume(self, asked: str | bool | None) -> Path | None:
        """The checkpoint to start from, with the run's folder put in order."""
        run_folder.check_asked(asked)
        if self.args.should_save:
            checkpoints.clear_up(self.folder)
        found = Path(asked).absolute() if asked and asked is not True else None
        if found:
            run_folder.check(found, self.folder)
        if self.args.should_save:
            if asked is True:
                found = self._newest_whole()
            else:
                self._set_others_aside(found)
        self.accelerator.wait_for_everyone()
        if asked is True and not self.args.should_save:
            found = run_folder.last_whole_checkpoint(self.folder)
        return found

    def _newest_whole(self) -> Path | None:
        found, passed_over = run_folder.newest_whole(self.folder)
        damaged = [one for one, _ in passed_over if not checkpoint_file.is_complete(one)]
        moved = checkpoints.put_broken_away(self.folder, damaged)
        for folder, reason in passed_over:
            now = f"; it is now in {self.shown(moved)}" if moved and not os.path.lexists(folder) else ""
            warnings.warn(f"passed over {folder.name}: {reason}{now}", stacklevel=5)
        processes.say(
            f"resuming from {self.shown(found)}" if found else "no whole checkpoint: starting at step 0"
        )
        self._set_others_aside(found)
        return found

    def _set_others_aside(self, resumed: Path | None) -> None:
        """What is of another run, or of steps that this one will take again, must not be resumed from later."""
        inside = resumed is not None and resumed.parent == self.folder
        after = checkpoint_file.step_of(resumed) if resumed and inside else -1
        if moved := checkpoints.set_aside(self.folder, after):
            what = "of later steps" if inside else "of an earlier run"
            processes.say(f"checkpoints {what} are now in {self.shown(moved)}")
        left = [one.name for one in run_folder.checkpoints(self.folder) if not checkpoint_file.is_ours(one)]
        if left and not resumed:
            processes.say(
                f"left as they are, since no run of the kit's wrote them: {', '.join(left)} in {self.folder}"
            )

    @property
    def _samples_itself(self) -> bool:
        """Whether completions come from ``model.generate``, not from an engine that schedules them itself."""
        return not (self.use_vllm or self.use_transformers_continuous_batching)

    def _start_afresh(self) -> None:
        super()._start_afresh()
        self._forget_step()

    def _forget_step(self) -> None:
        """Works around: a cell that was stopped within a step leaves its position and its batches behind, and every
        later step would train on completions of an older policy."""
        self._step, self._buffered_inputs, self._current_train_step_time = 0, None, 0.0
        self._metrics["train"].clear()
        gradients.begin(self.accelerator)

    def _load_callback_state(self) -> None:
        """Works around: a callback with a state that the checkpoint's run did not have ends the run when it is to be
        saved."""
        super()._load_callback_state()
        self._find_best_again()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                self.state.stateful_callbacks.setdefault(type(callback).__name__, callback.state())

    def _keep_what_is_done(self) -> str:
        """Works around: a run that is stopped loses all steps since the last checkpoint.

        Set back to the end of the last finished step: weights are, unless an update was cut in two.

        Returns:
            What is said of it: where the run stands, and how to go on.
        """
        self.stops.hold()
        moment, way_on = self._moment, "train(resume_from_checkpoint=True) goes on"
        if self.args.save_strategy == "no":
            return "stopped: save_strategy='no', so nothing is saved"
        if moment is None:
            return f"stopped: no step was finished, so there is nothing to save; {way_on}"
        if self._torn:
            return (
                f"stopped: in the middle of an update, which is not saved; {way_on} from the last checkpoint"
            )
        if moment.step != self._saved_step:
            moment.restore(self)
            self._save_checkpoint(self.model, trial=None)
        where = self.shown(self.folder / f"{PREFIX_CHECKPOINT_DIR}-{moment.step}")
        return f"stopped: step {moment.step} of {self.state.max_steps} is saved in {where}; {way_on}"

    def _keep_despite(self, error: Exception) -> None:
        """Works around: an error, such as that of a reward whose service is down, loses all steps since the last
        checkpoint.  Where other processes go on, saving would wait for them."""
        moment = self._moment
        finished = moment is not None and not self._torn and moment.step == self.state.global_step
        cannot = self.args.save_strategy == "no" or isinstance(error, RunFolderError)
        if not finished or cannot or self.accelerator.num_processes > 1:
            return
        try:
            processes.say(self._keep_what_is_done())
        except Exception as again:  # the error that ended the run is the one to read
            processes.say(f"stopped: the last step could not be saved, {type(again).__name__}: {again}")

    def _already_done(self, folder: Path) -> TrainOutput:
        """Works around: transformers takes one more step from a checkpoint that is at the last one."""
        step, steps = checkpoint_file.step_of(folder), self.args.max_steps
        processes.say(f"{self.shown(folder)} is at step {step} of {steps}: nothing left to train")
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / checkpoint_file.STATE))
        if checkpoint_file.facts(folder).get("evaluation_due"):
            self._start_afresh()
            self._tr_loss = torch.zeros(())
            self._load_rng_state(str(folder))
            self.save_state()
        return TrainOutput(self.state.global_step, 0.0, {})

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Works around: torch's load_state_dict takes learning rate, betas and weight decay from the checkpoint, so a
        learning_rate lowered to mend a run would have no effect.  (DeepSpeed loads its own before this, and keeps
        them.)"""
        scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)  # accelerate wraps it
        groups = self.optimizer.param_groups
        asked = [{name: group[name] for name in HYPERPARAMETERS if name in group} for group in groups]
        if checkpoint is not None:
            self._check_optimizer(Path(checkpoint))
            _without_number(self.args)
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
            processes.say(f"learning_rate is {self.args.learning_rate:g} from here on; it was {saved[0]:g}")

    def _check_optimizer(self, folder: Path) -> None:
        """Works around: torch loads the state of one optimizer into another, which fails later or starts anew."""
        if not (file := folder / "optimizer.pt").is_file():
            return
        saved = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        if other := optimizer_differs(self.optimizer, saved, checkpoint_file.facts(folder).get("optimizer")):
            raise ConfigError(
                f"the checkpoint's optimizer is another one: {other}, not {optimizer_name(self.optimizer)}",
                where=f"RLOOConfig(optim={str(self.args.optim)!r}), {folder}",
                todo="set optim as it was; or load_policy(that folder) and train() a new run from its weights",
            )

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: PreTrainedModel | None = None
    ) -> None:
        """Works around: with a folder "ref" inside a checkpoint, transformers loads that adapter and no other, so that
        a resumed run would go on from untrained weights; and PEFT casts what it loads to float32, where TRL trains a
        4-bit policy's adapter in bfloat16 on a CPU."""
        folder, target = Path(resume_from_checkpoint), self.model if model is None else model
        dtypes = {name: parameter.dtype for name, parameter in target.named_parameters()}
        _check_adapter(folder, target)
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


def changed_settings(args: object, folder: Path) -> str:
    """What of :data:`NOT_TO_CHANGE` is not as the checkpoint's run had it; empty where all is, or it is not known."""
    saved = vars(arguments.beside(folder) or SimpleNamespace())
    pairs = [(name, getattr(args, name, None), saved.get(name)) for name in NOT_TO_CHANGE if name in saved]
    plain = (int, float, str, list, type(None))
    return ", ".join(
        f"{name}={now!r} (it was {then!r})"
        for name, now, then in pairs
        if isinstance(now, plain) and isinstance(then, plain) and now != then
    )


def _check_adapter(folder: Path, model: PreTrainedModel) -> None:
    """Works around: PEFT loads what fits by name, fails halfway where a shape does not, and leaves the rest as it is.

    Raises:
        ConfigError: the adapter in the folder is not of the model's rank or of its modules.
    """
    file = folder / "adapter_model.safetensors"
    if not file.is_file() or "default" not in getattr(model, "peft_config", {}):
        return
    with safe_open(file, framework="pt") as opened:
        saved = {name: list(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    mine = {name: list(weight.shape) for name, weight in get_peft_model_state_dict(model).items()}
    if different := [name for name in {**saved, **mine} if saved.get(name) != mine.get(name)]:
        name = different[0]
        raise ConfigError(
            f"the checkpoint's adapter does not fit the policy's: {name} is {saved.get(name)}, not {mine.get(name)}",
            where=f"{folder}, {len(different)} of {len(mine)} tensors",
            todo="load the policy with the lora_rank and the modules of the run, or load_policy(that folder)",
        )


def drop_reference(model: PreTrainedModel) -> None:
    """Works around: TRL adds an adapter "ref" to every PEFT model, and fails where one is left from before."""
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")
        model.set_adapter("default")


def _without_number(args: TrainingArguments) -> None:
    """Works around: with several processes transformers loads the optimizer's state to ``args.device``, and torch.load
    knows the device "cpu" and no "cpu:0", which is accelerate's name for it."""
    if args.device.type == "cpu":
        args.__dict__["_setup_devices"] = torch.device("cpu")
