"""A run twice, stopped anywhere, and resumed.

What a run writes is :mod:`.checkpointing`'s, and which checkpoint is whole :mod:`rloo_kit.watch.manifest`'s.
"""

from __future__ import annotations

import json
import shutil
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
from transformers import TrainerState  # noqa: E402
from transformers.trainer_callback import ExportableState  # noqa: E402
from transformers.trainer_utils import TrainOutput  # noqa: E402

from rloo_kit.train import checkpointing, run_record, stops  # noqa: E402
from rloo_kit.train.checkpointing import SavingTrainer, loadable, optimizer_name  # noqa: E402
from rloo_kit.train.stops import Terminated  # noqa: E402

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel

HYPERPARAMETERS = ("initial_lr", "betas", "eps", "weight_decay", "momentum")
"""What a configuration sets in an optimizer's parameter groups.  Some optimizers keep state beside it."""

LORA = {"r": "lora_rank", "lora_alpha": "lora_alpha", "use_rslora": "use_rslora"}
"""PEFT's names of what the weights of an adapter mean, and ``load_policy``'s."""


class ResumableTrainer(SavingTrainer):
    """TRL's trainer whose ``train()`` can be called again, be interrupted, and resume."""

    _buffered_inputs: list[dict[str, torch.Tensor]] | None

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: object) -> TrainOutput:
        """Train, from the start or from a checkpoint, and leave ``trainer_state.json`` in ``output_dir``.

        SIGTERM and SIGINT (a notebook's stop button) end the run with its last finished step saved; a step in progress
        is dropped, and the resumed run samples it again.  After SIGTERM the process ends with status 143.

        Args:
            resume_from_checkpoint: True resumes from the newest whole checkpoint in ``output_dir``, or starts at step 0
                where there is none; a path names one.  Damaged checkpoints are named and passed over.  Without it the
                run starts at step 0.  Checkpoints of an earlier run, or of later steps than the one that is resumed,
                are moved to ``output_dir/_earlier-1`` or the next number, so that no later resume takes them.
            kwargs: as in transformers' ``Trainer.train``.

        Raises:
            ConfigError: the path is not that of a whole checkpoint; or its base, its LoRA or its optimizer is another
                one.  Other changes are named in one warning.
            RunFolderError: another run has ``output_dir``, it cannot be written to, or it has no room.
            NonFiniteError: a weight is NaN or infinite; it is not saved.
            OutOfMemoryError: with the phase, what to change, and the checkpoint to resume from.
            KeyboardInterrupt, SystemExit: the run was stopped; its last step is saved.  IPython shows one line.
            Exception: a reward's, or another's; the last finished step is saved, with one process.
        """
        alone = (
            checkpointing.run_lock(self.folder, self.checkpoint_bytes)
            if self.args.should_save
            else nullcontext()
        )
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
            run_record.write(self.folder, self._asked, self.model, self.args, resumed=folder is not None)
        oom.warn_if_too_large(self.memory_plan)
        if self.memory_plan.sliced and self._samples_itself:
            processes.say(self.memory_plan.sliced)
        with self.stops.listening(together=self.accelerator.num_processes > 1):
            try:
                with oom.phase(self, "optimizer"):
                    result = super().train(resume_from_checkpoint=folder and str(folder), **kwargs)
            except (KeyboardInterrupt, Terminated, Exception) as error:
                if isinstance(error, OutOfMemoryError):
                    oom.let_go(error)
                said = self._keep_what_is_done(error)
                if isinstance(error, KeyboardInterrupt) and running_shell() is not None:
                    raise Interrupted(said) from None
                processes.say(said)
                if isinstance(error, OutOfMemoryError):
                    kept = run_folder.last_whole_checkpoint(self.folder)
                    raise oom.with_way_on(error, kept) from error.__cause__
                raise
            self.save_state()
        return result

    @property
    def _samples_itself(self) -> bool:
        """Whether completions come from ``model.generate``, not from an engine that schedules them itself."""
        return not (self.use_vllm or self.use_transformers_continuous_batching)

    # --- which checkpoint ---------------------------------------------------------------------------------

    def _checkpoint_to_resume(self, asked: str | bool | None) -> Path | None:
        """The checkpoint to start from, with later ones and what a killed run was writing out of the way."""
        found = None
        if asked is True:
            found, passed_over = run_folder.newest_whole(self.folder)
            for folder, reason in passed_over:
                processes.warn(f"passed over {folder.name}: {reason}")
            start = "no whole checkpoint: starting at step 0"
            processes.say(f"resuming from {self.shown(found)}" if found else start)
        elif asked is not None and asked is not False:
            found = Path(asked).absolute()
            run_folder.check(found, self.folder)
        self._check_same_run(found)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            shutil.rmtree(self.folder / checkpointing.WRITING, ignore_errors=True)
            inside = found is not None and found.parent.resolve() == self.folder.resolve()
            moved = checkpointing.set_aside(self.folder, manifest.step_of(found) if found and inside else -1)
            if moved:
                what = "of later steps" if inside else "of an earlier run"
                processes.say(f"checkpoints {what} are now in {self.shown(moved)}")
        self.accelerator.wait_for_everyone()
        return found

    def _check_same_run(self, folder: Path | None) -> None:
        """Refuse what would give the checkpoint's weights another meaning; name what else has changed."""
        now = self._made_of = run_record.made_of(self, self._base_facts, self._data_facts)
        if folder is None:
            return
        if not self.is_deepspeed_enabled:  # it shards the weights, and checks them
            with loadable(folder):
                _check_adapter(folder, self.model)
        with loadable(folder / manifest.MANIFEST):
            then = manifest.facts(folder).get("run") or {}
            if then.get("version") != run_record.VERSION:  # of plain TRL, or of another version of the kit
                where = self.shown(folder)
                processes.say(f"{where} does not say what its run was made of, so nothing is compared")
                return
            changed = run_record.check_base(now["base"], then["base"], folder)
            changed += run_record.changed(now, then)
        if changed:
            processes.warn(f"not as in the checkpoint's run: {'; '.join(changed)}")

    def _already_done(self, folder: Path) -> TrainOutput:
        """Works around: transformers takes one more step from a checkpoint that is at the last one."""
        processes.say(
            f"{self.shown(folder)} is at step {self.args.max_steps} or later: nothing left to train"
        )
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / manifest.STATE))
        return TrainOutput(self.state.global_step, 0.0, {})

    # --- the end of a run ---------------------------------------------------------------------------------

    def _start_afresh(self) -> None:
        """Works around: a cell that was stopped within a step leaves its position and its batches behind, and every
        later step would train on completions of an older policy."""
        super()._start_afresh()
        self._step, self._buffered_inputs, self._current_train_step_time = 0, None, 0.0
        self._metrics["train"].clear()
        stops.reset_loss_scale(self.accelerator)

    def _keep_what_is_done(self, error: BaseException) -> str:
        """Works around: a run that is stopped, or ends by an error such as a reward's whose service is down, loses all
        steps since the last checkpoint.  Returns what is said of it."""
        self.stops.held = True
        step, way_on = self._whole, "train(resume_from_checkpoint=True) goes on"
        others_go_on = (
            isinstance(error, Exception) and self.accelerator.num_processes > 1
        )  # saving would wait for them
        if self.args.save_strategy == "no":
            return "stopped: save_strategy='no', so nothing is saved"
        if step is None or others_go_on or isinstance(error, RunFolderError):
            return f"stopped: there is no finished step to save; {way_on} from the last checkpoint"
        try:
            if step != self._saved_step:
                self._save_checkpoint(self.model, trial=None)
        except Exception as again:  # what has ended the run is the one to read
            return f"stopped: the last step could not be saved, {type(again).__name__}: {again}"
        where = self.shown(self.folder / f"checkpoint-{step}")
        return f"stopped: step {step} of {self.state.max_steps} is saved in {where}; {way_on}"

    # --- what is loaded -----------------------------------------------------------------------------------

    def _load_callback_state(self) -> None:
        """Works around: a callback with a state that the checkpoint's run did not have ends the run at its save."""
        super()._load_callback_state()
        self._find_best()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                self.state.stateful_callbacks.setdefault(type(callback).__name__, callback.state())

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        """Works around: torch's load_state_dict takes learning rate, betas and weight decay from the checkpoint, so a
        learning_rate that was lowered would have no effect; and it loads the state of one optimizer into another,
        which fails later or starts anew.  (DeepSpeed loads its own before this, and keeps them.)"""
        if folder is None:
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
        if (
            self.args.device.type == "cpu"
        ):  # torch.load knows no "cpu:0", accelerate's name with several processes
            self.args.__dict__["_setup_devices"] = torch.device("cpu")
        with loadable(Path(folder)):
            super()._load_optimizer_and_scheduler(folder)
        if isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = [one["initial_lr"] for one in asked]
            pairs = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
            scheduler._last_lr = [base * shape(int(scheduler.last_epoch)) for base, shape in pairs]
            for group, given, rate in zip(
                self.optimizer.param_groups, asked, scheduler._last_lr, strict=True
            ):
                group.update(given, lr=rate)

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
            parameter.data = parameter.data.to(dtypes.get(name, parameter.dtype))

    # --- what is drawn ------------------------------------------------------------------------------------

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler[int]:
        """Works around: after resuming, TRL does not draw prompts in the same order."""
        return ByEpoch(super()._get_train_sampler(dataset))

    def _save_rng_state(self, output_dir: str) -> None:
        """Works around: a generation batch that several steps train on would be sampled anew."""
        super()._save_rng_state(output_dir)
        steps = self.args.steps_per_generation * self.num_iterations
        if self._first_micro_step % steps and self._buffered_inputs is not None:
            kept = {"layout": self._batch_layout, "batches": self._buffered_inputs}
            torch.save(kept, self._rollout_file(output_dir))

    def _load_rng_state(self, checkpoint_folder: str | None) -> None:
        """Works around: TRL goes on in the middle of a generation batch as if at its start."""
        if checkpoint_folder is None:
            return
        file, self._step = self._rollout_file(checkpoint_folder), self._first_micro_step
        with loadable(Path(checkpoint_folder)):
            super()._load_rng_state(checkpoint_folder)
            if file.is_file():
                kept = torch.load(file, map_location=self.accelerator.device, weights_only=True)
                self._buffered_inputs = kept["batches"] if kept["layout"] == self._batch_layout else None

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
        return Path(folder) / f"rollout_{self.accelerator.process_index}.pt"


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
    """SIGINT has stopped the run in IPython, which shows the message and no traceback: the stop button is no fault.

    Elsewhere it stays a KeyboardInterrupt: Python ends a script with SIGINT's status for no subclass of it.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def _check_adapter(folder: Path, model: PreTrainedModel) -> None:
    """Works around: PEFT loads an adapter's weights into a LoRA that scales them otherwise; it loads what fits by name,
    fails halfway where a shape does not, and leaves the rest."""
    mine, file = getattr(model, "peft_config", {}).get("default"), folder / "adapter_config.json"
    if mine is None or not file.is_file():
        return
    config = json.loads(file.read_text(encoding="utf-8"))
    pairs = [(name, getattr(mine, key), config.get(key, False)) for key, name in LORA.items()]
    wrong = [f"{name}={now} (it was {then})" for name, now, then in pairs if now != then]
    if not wrong and (folder / "adapter_model.safetensors").is_file():
        with safe_open(folder / "adapter_model.safetensors", framework="pt") as opened:
            then = {name: list(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
        now = {name: list(weight.shape) for name, weight in get_peft_model_state_dict(model).items()}
        names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        wrong = [f"{name} is {now.get(name)} (it was {then.get(name)})" for name in names[:1]]
    if wrong:
        raise ConfigError(
            f"the policy's LoRA is another one than the checkpoint's: {', '.join(wrong)}",
            where=f"load_policy(...), {folder}",
            todo=run_record.AS_IT_WAS,
        )


def drop_reference(model: PreTrainedModel) -> None:
    """Works around: TRL adds an adapter "ref" to every PEFT model, and fails where one is left from before."""
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")
        model.set_adapter("default")
