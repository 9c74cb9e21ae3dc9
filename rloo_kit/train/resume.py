"""A run twice, stopped anywhere, and resumed.

For :class:`rloo_kit.RLOOTrainer`, which holds the algorithm.  What a run writes is :mod:`.checkpointing`'s, and which
checkpoint is whole :mod:`rloo_kit.watch.manifest`'s.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError, OutOfMemoryError, RunFolderError
from rloo_kit.memory import oom
from rloo_kit.session import output, processes
from rloo_kit.session.import_order import import_unsloth
from rloo_kit.session.output import running_shell
from rloo_kit.watch import manifest, run_folder

import_unsloth()

import torch  # noqa: E402 - unsloth first
from peft import get_peft_model_state_dict  # noqa: E402
from safetensors import safe_open  # noqa: E402
from torch.optim.lr_scheduler import LambdaLR  # noqa: E402
from torch.utils.data import Sampler  # noqa: E402
from transformers import TrainerState, TrainingArguments  # noqa: E402
from transformers.trainer_callback import ExportableState  # noqa: E402
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput  # noqa: E402

from rloo_kit.train import checkpointing, fingerprints, run_record, stops  # noqa: E402
from rloo_kit.train.checkpointing import SavingTrainer, loadable, optimizer_name  # noqa: E402
from rloo_kit.train.stops import Terminated  # noqa: E402

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

HYPERPARAMETERS = ("initial_lr", "betas", "eps", "weight_decay", "momentum")
"""What a configuration sets in an optimizer's parameter groups.  Some optimizers keep state beside it."""

LORA = {"r": "lora_rank", "lora_alpha": "lora_alpha", "use_rslora": "use_rslora"}
"""PEFT's names of what the weights of an adapter mean, and ``load_policy``'s."""

AS_IT_WAS = "load the policy as it was; or load_policy(that folder) and train() a new run from its weights"


class ResumableTrainer(SavingTrainer):
    """TRL's trainer whose ``train()`` can be called again, be interrupted, and resume."""

    _buffered_inputs: list[dict[str, torch.Tensor]] | None

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: object) -> TrainOutput:
        """Train, from the start or from a checkpoint, and leave ``trainer_state.json`` in ``output_dir``.

        SIGTERM and SIGINT (a notebook's stop button) end the run with its last finished step saved; a step in progress
        is dropped, and the resumed run samples it again.  After SIGTERM the process ends with status 143.

        Args:
            resume_from_checkpoint: True resumes from the newest whole checkpoint in ``output_dir``, and starts at
                step 0 where there is none; a path names one.  Damaged checkpoints are named and passed over.  Without
                it the run starts at step 0.  Checkpoints of an earlier run, or of later steps than the one that is
                resumed, are moved to ``output_dir/_earlier-1`` or the next number, so that no later resume takes them
                for its own.  Nothing is moved that no run of the kit's wrote.
            kwargs: as in transformers' ``Trainer.train``.

        Raises:
            ConfigError: the path is not that of a whole checkpoint; or its base, its LoRA's scaling or its optimizer
                is another one.  Other changes are named in one warning.
            RunFolderError: another run has ``output_dir``, it cannot be written to, or it has no room.
            NonFiniteError: a weight is NaN or infinite; it is not saved.
            OutOfMemoryError: with the phase, what to change, and the checkpoint to resume from.
            KeyboardInterrupt, SystemExit: the run was stopped; its last step is saved.  In IPython a stop shows one
                line, and no traceback.
            Exception: a reward's, or another's; the last finished step is saved, with one process.
        """
        writes, room = self.args.should_save, self.checkpoint_bytes
        alone = checkpointing.run_lock(self.folder, room) if writes else nullcontext()
        try:
            with processes.named(), alone, output.one_output():
                return self._train(self._checkpoint_to_resume(resume_from_checkpoint), **kwargs)
        except Terminated:
            self.stops.pass_on()
            raise

    def _train(self, folder: Path | None, **kwargs: object) -> TrainOutput:
        if folder and 0 < self.args.max_steps <= manifest.step_of(folder):
            return self._already_done(folder)
        self._start_afresh()
        if self.args.should_save:
            with checkpointing.explained(self.folder, run_folder.RECIPE):
                run_record.write(self.folder, self._asked, self.model, self.args, resumed=folder is not None)
        oom.warn_if_too_large(self.memory_plan)
        if self.memory_plan.sliced and self._samples_itself and self.accelerator.is_main_process:
            processes.say(self.memory_plan.sliced)
        with self.stops.listening(together=self.accelerator.num_processes > 1):
            try:
                with oom.phase(self, "optimizer"):
                    result = super().train(resume_from_checkpoint=folder and str(folder), **kwargs)
            except (KeyboardInterrupt, Terminated) as stop:
                raise told(stop, self._keep_what_is_done()) from None
            except OutOfMemoryError as error:
                oom.let_go(error)
                processes.say(self._keep_what_is_done())
                kept = run_folder.last_whole_checkpoint(self.folder)
                raise oom.with_way_on(error, kept) from error.__cause__
            except Exception as error:
                self._keep_despite(error)
                raise
            self.save_state()
        return result

    # --- which checkpoint ---------------------------------------------------------------------------------

    def _checkpoint_to_resume(self, asked: str | bool | None) -> Path | None:
        """The checkpoint to start from, with the run's folder put in order."""
        run_folder.check_asked(asked)
        found = Path(asked).absolute() if asked and asked is not True else None
        if self.args.should_save:
            checkpointing.tidy(self.folder)
        if found:
            run_folder.check(found, self.folder)
        if self.args.should_save:
            found = self._newest_whole() if asked is True else found
            self._check_same_run(found)
            self._set_others_aside(found)
        self.accelerator.wait_for_everyone()
        if not self.args.should_save:
            found = run_folder.last_whole_checkpoint(self.folder) if asked is True else found
            self._check_same_run(found)
        return found

    def _newest_whole(self) -> Path | None:
        found, passed_over = run_folder.newest_whole(self.folder)
        for folder, reason in passed_over:
            processes.warn(f"passed over {folder.name}: {reason}")
        for other in run_folder.checkpoints(self.folder):
            later = found and manifest.step_of(other) > manifest.step_of(found)
            if found and later and not manifest.is_ours(other) and not manifest.fault(other):
                processes.warn(
                    f"passed over {other.name}, a link or a copy that no run of the kit's wrote there, for "
                    f"{found.name}. What to do: train(resume_from_checkpoint={self.shown(other)!r}) takes it."
                )
        meant = [str(run_folder.last_whole_checkpoint(one)) for one in run_folder.alike(self.folder)]
        start = "no whole checkpoint: starting at step 0"
        start += f"; did you mean {' or '.join(meant)}?" if meant else ""
        processes.say(f"resuming from {self.shown(found)}" if found else start)
        return found

    def _set_others_aside(self, resumed: Path | None) -> None:
        """What is of another run, or of steps that this one will take again, must not be resumed from later."""
        inside = resumed is not None and resumed.parent == self.folder
        after = manifest.step_of(resumed) if resumed and inside else -1
        if moved := checkpointing.set_aside(self.folder, after):
            what = "of later steps" if inside else "of an earlier run"
            processes.say(f"checkpoints {what} are now in {self.shown(moved)}")

    def _check_same_run(self, folder: Path | None) -> None:
        """Refuse what would give the checkpoint's weights another meaning; name what else has changed."""
        now = self._made_of = fingerprints.of(self, self._base_facts, self._data_facts)
        if folder is None:
            return
        _check_lora(folder, self.model)
        if not self.is_deepspeed_enabled:  # it shards the weights, and checks them
            _check_adapter(folder, self.model)
        with loadable(folder / manifest.MANIFEST):
            then = manifest.facts(folder).get("run") or {}
            if then.get("version") != fingerprints.VERSION:  # of plain TRL, or of another version of the kit
                processes.say(
                    f"{self.shown(folder)} does not say what its run was made of, so nothing is compared"
                )
                return
            changed = fingerprints.check_base(now["base"], then["base"], folder)
            changed += fingerprints.changed(now, then)
        if changed:
            processes.warn(f"not as in the checkpoint's run: {'; '.join(changed)}")

    @property
    def _samples_itself(self) -> bool:
        """Whether completions come from ``model.generate``, not from an engine that schedules them itself."""
        return not (self.use_vllm or self.use_transformers_continuous_batching)

    # --- the end of a run ---------------------------------------------------------------------------------

    def _start_afresh(self) -> None:
        """Works around: a cell that was stopped within a step leaves its position and its batches behind, and every
        later step would train on completions of an older policy."""
        super()._start_afresh()
        self._step, self._buffered_inputs, self._current_train_step_time = 0, None, 0.0
        self._metrics["train"].clear()
        stops.reset_loss_scale(self.accelerator)

    def _keep_what_is_done(self) -> str:
        """Works around: a run that is stopped loses all steps since the last checkpoint.

        Returns:
            What is said of it: where the run stands, and how to go on.
        """
        self.stops.held = True
        step, way_on = self._finished, "train(resume_from_checkpoint=True) goes on"
        if self.args.save_strategy == "no":
            return "stopped: save_strategy='no', so nothing is saved"
        if step is None:
            return f"stopped: no step was finished, so there is nothing to save; {way_on}"
        if self._torn:
            return (
                f"stopped: in the middle of an update, which is not saved; {way_on} from the last checkpoint"
            )
        if step != self._saved_step:
            self._save_checkpoint(self.model, trial=None)
        where = self.shown(self.folder / f"{PREFIX_CHECKPOINT_DIR}-{step}")
        return f"stopped: step {step} of {self.state.max_steps} is saved in {where}; {way_on}"

    def _keep_despite(self, error: Exception) -> None:
        """Works around: an error, such as that of a reward whose service is down, loses all steps since the last
        checkpoint.  Where other processes go on, saving would wait for them."""
        finished = not self._torn and self._finished == self.state.global_step
        cannot = self.args.save_strategy == "no" or isinstance(error, RunFolderError)
        if not finished or cannot or self.accelerator.num_processes > 1:
            return
        try:
            processes.say(self._keep_what_is_done())
        except Exception as again:  # the error that ended the run is the one to read
            processes.say(f"stopped: the last step could not be saved, {type(again).__name__}: {again}")

    def _already_done(self, folder: Path) -> TrainOutput:
        """Works around: transformers takes one more step from a checkpoint that is at the last one."""
        step, steps = manifest.step_of(folder), self.args.max_steps
        processes.say(f"{self.shown(folder)} is at step {step} of {steps}: nothing left to train")
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / manifest.STATE))
        return TrainOutput(self.state.global_step, 0.0, {})

    # --- what is loaded -----------------------------------------------------------------------------------

    def _load_callback_state(self) -> None:
        """Works around: a callback with a state that the checkpoint's run did not have ends the run when it is to be
        saved."""
        super()._load_callback_state()
        self._find_best_again()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                self.state.stateful_callbacks.setdefault(type(callback).__name__, callback.state())

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        """Works around: torch's load_state_dict takes learning rate, betas and weight decay from the checkpoint, so a
        learning_rate lowered to mend a run would have no effect; and it loads the state of one optimizer into another,
        which fails later or starts anew.  (DeepSpeed loads its own before this, and keeps them.)"""
        if folder is None:
            super()._load_optimizer_and_scheduler(folder)
            return
        saved, mine = manifest.facts(Path(folder)).get("optimizer"), optimizer_name(self.optimizer)
        if saved not in (None, mine):
            raise ConfigError(
                f"the checkpoint's optimizer is another one: {saved}, not {mine}",
                where=f"RLOOConfig(optim={str(self.args.optim)!r}), {folder}",
                todo="set optim as it was; or load_policy(that folder) and train() a new run from its weights",
            )
        scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)  # accelerate wraps it
        own = self.optimizer.param_groups
        asked = [{name: group[name] for name in HYPERPARAMETERS if name in group} for group in own]
        _without_number(self.args)
        with loadable(Path(folder)):
            super()._load_optimizer_and_scheduler(folder)
            if isinstance(scheduler, LambdaLR):
                scheduler.base_lrs = [one["initial_lr"] for one in asked]
                pairs = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
                scheduler._last_lr = [base * shape(int(scheduler.last_epoch)) for base, shape in pairs]
                groups = zip(self.optimizer.param_groups, asked, scheduler._last_lr, strict=True)
                for group, settings, rate in groups:
                    group.update(settings, lr=rate)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: PreTrainedModel | None = None
    ) -> None:
        """Works around: with a folder "ref" inside a checkpoint, transformers loads that adapter and no other, so that
        a resumed run would go on from untrained weights; and PEFT casts what it loads to float32, where TRL trains a
        4-bit policy's adapter in bfloat16 on a CPU."""
        folder, target = Path(resume_from_checkpoint), self.model if model is None else model
        dtypes = {name: parameter.dtype for name, parameter in target.named_parameters()}
        with loadable(folder):
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

    # --- what is drawn ------------------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler[int]:
        """Works around: after resuming, TRL does not draw prompts in the same order."""
        return ByEpoch(super()._get_train_sampler(dataset))

    def _save_rng_state(self, output_dir: str) -> None:
        """Works around: a generation batch that several steps train on would be sampled anew."""
        super()._save_rng_state(output_dir)
        steps = self.args.steps_per_generation * self.num_iterations
        if self._first_micro_step % steps and self._buffered_inputs is not None:
            batches = [{name: t.clone() for name, t in one.items()} for one in self._buffered_inputs]
            torch.save({"layout": self._batch_layout, "batches": batches}, self._rollout_file(output_dir))

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        """Works around: TRL goes on in the middle of a generation batch as if at its start."""
        if checkpoint_folder is None:
            return
        file, device = self._rollout_file(checkpoint_folder), self.accelerator.device
        self._step = self._first_micro_step
        with loadable(Path(checkpoint_folder)):
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

    @property
    def _batch_layout(self) -> list[int]:
        """What a generation batch was cut by; the rest of one that was cut otherwise is of no use."""
        args = self.args
        rows = [args.num_generations, args.per_device_train_batch_size, args.gradient_accumulation_steps]
        return [*rows, args.steps_per_generation, self.num_iterations, self.accelerator.num_processes]

    def _rollout_file(self, folder: str) -> Path:
        """The rest of a generation batch, of each process its own."""
        alone, index = self.accelerator.num_processes == 1, self.accelerator.process_index
        return Path(folder) / ("rollout.pt" if alone else f"rollout_{index}.pt")


class ByEpoch(Sampler[int]):
    """TRL's order of prompts, of any epoch.

    Works around: TRL's sampler (a ``RepeatSampler``) shuffles each epoch by where its generator has got to, so that a
    run that is resumed in the second epoch would see the first one's order again.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.epoch = sampler, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        if self.sampler.shuffle and self.sampler.seed is not None:
            self.sampler.generator.manual_seed(self.sampler.seed)
            for _ in range(self.epoch):
                torch.randperm(self.sampler.num_samples, generator=self.sampler.generator)
        return iter(self.sampler)


class Interrupted(KeyboardInterrupt):
    """SIGINT has stopped the run in IPython, which shows the message and no traceback: the stop button is no fault."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def told(stop: BaseException, said: str) -> BaseException:
    """What to raise where ``stop`` has ended a run and ``said`` is what became of it.

    In IPython a KeyboardInterrupt that says so.  Elsewhere the same exception, said before it: Python ends a script
    with the status of SIGINT for a KeyboardInterrupt, and not for a subclass.
    """
    if isinstance(stop, KeyboardInterrupt) and running_shell() is not None:
        return Interrupted(said)
    processes.say(said)
    return stop


def _check_lora(folder: Path, model: PreTrainedModel) -> None:
    """Works around: PEFT loads an adapter's weights into a LoRA that scales them otherwise."""
    mine, file = getattr(model, "peft_config", {}).get("default"), folder / "adapter_config.json"
    if mine is None or not file.is_file():
        return
    with loadable(file):
        saved = json.loads(file.read_text(encoding="utf-8"))
        pairs = [(name, getattr(mine, key), saved.get(key, False)) for key, name in LORA.items()]
    if different := [f"{name}={now} (it was {then})" for name, now, then in pairs if now != then]:
        raise ConfigError(
            f"the policy's LoRA is another one than the checkpoint's: {', '.join(different)}",
            where=f"load_policy({', '.join(one.split('=')[0] for one in different)}), {folder}",
            todo=AS_IT_WAS,
        )


def _check_adapter(folder: Path, model: PreTrainedModel) -> None:
    """Works around: PEFT loads what fits by name, fails halfway where a shape does not, and leaves the rest."""
    file = folder / "adapter_model.safetensors"
    if not file.is_file() or "default" not in getattr(model, "peft_config", {}):
        return
    with loadable(file), safe_open(file, framework="pt") as opened:
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
