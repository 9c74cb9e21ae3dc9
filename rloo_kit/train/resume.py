"""A run twice, stopped anywhere, and resumed.

What a run writes is :mod:`.checkpointing`'s, and which checkpoint is whole :mod:`.checkpoint_integrity`'s.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError, OutOfMemoryError, RunFolderError
from rloo_kit.memory import out_of_memory
from rloo_kit.memory.plan_inputs import is_lora, quantisation_tensors
from rloo_kit.redact import without_secrets
from rloo_kit.session import multi_process, output
from rloo_kit.session.import_order import import_unsloth
from rloo_kit.session.output import running_shell
from rloo_kit.watch.run_folder import MANIFEST, STATE, facts, step_of

import_unsloth()

import torch  # noqa: E402 - unsloth first
from torch.optim.lr_scheduler import LambdaLR  # noqa: E402
from torch.utils.data import Sampler  # noqa: E402
from transformers import TrainerState  # noqa: E402
from transformers.trainer_utils import TrainOutput  # noqa: E402

from rloo_kit.train import checkpoint_integrity as integrity  # noqa: E402
from rloo_kit.train import checkpointing, run_record  # noqa: E402
from rloo_kit.train.checkpointing import SavingTrainer, loadable  # noqa: E402
from rloo_kit.train.gradients import reset_loss_scale  # noqa: E402
from rloo_kit.train.signals import Interrupted, Terminated  # noqa: E402

if TYPE_CHECKING:
    import trl
    from datasets import Dataset
    from transformers import PreTrainedModel

    Made = dict[str, Any]

HYPERPARAMETERS = ("initial_lr", "betas", "eps", "weight_decay", "momentum")
"""What a configuration sets in an optimizer's parameter groups.  Some optimizers keep state beside it."""

LORA = ("r", "lora_alpha", "use_rslora", "target_modules")  # what the weights of an adapter mean

VERSION = 3
"""Of what :func:`made_of` gives.  A checkpoint with another one, or none, is resumed and not compared."""

STOPPED = (KeyboardInterrupt, Terminated)

OR_ANEW = "as it was; or load_policy(that folder) and train() a new run from its weights"

_COMPARED = """
seed data_seed num_generations per_device_train_batch_size gradient_accumulation_steps steps_per_generation
num_iterations shuffle_dataset train_sampling_strategy
temperature top_p top_k min_p repetition_penalty max_completion_length generation_kwargs chat_template_kwargs use_vllm
beta epsilon epsilon_high reward_clip_range mask_truncated_completions skip_dead_groups normalize_advantages
advantage_estimator kl_placement kl_estimator loss_aggregation importance_sampling_level use_bias_correction_kl
sync_ref_model ref_model_mixup_alpha ref_model_sync_steps router_aux_loss_coef disable_dropout neftune_noise_alpha
label_smoothing_factor
learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps max_steps num_train_epochs
optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm
"""
SETTINGS = tuple(_COMPARED.split())
"""Settings that make a resumed run another one than that which was stopped, and nothing fails."""

SAMPLE = (
    1024  # values of each frozen tensor that are looked at; merging a LoRA changes far more than 1 of 1,000
)


class ResumableTrainer(SavingTrainer):
    """TRL's trainer whose ``train()`` can be called again, be interrupted, and resume."""

    _buffered_inputs: list[dict[str, torch.Tensor]] | None

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: object) -> TrainOutput:
        """Train, and leave ``trainer_state.json`` in ``output_dir``.

        SIGTERM, SIGINT (a notebook's stop button) and an error end the run with its last finished step saved; a step in
        progress is dropped, and the resumed run samples it again.  After SIGTERM the exit status is 143.

        Args:
            resume_from_checkpoint: True goes on from the newest whole checkpoint in ``output_dir``, with a word on each
                damaged one, or starts at step 0 where there is none; a path names one; without it the run starts at
                step 0.  Checkpoints of later steps move to ``output_dir/_earlier-1``, or the next number.
            kwargs: as in transformers' ``Trainer.train``.

        Raises:
            ConfigError: no whole checkpoint is there, or its base, LoRA or optimizer is another one; other changes are
                named in one warning.
            RunFolderError: another run has ``output_dir``, or it cannot be written to.
            NonFiniteError: a weight is NaN or infinite; it is not saved.
            OutOfMemoryError: with the phase, what to change, and the checkpoint to resume from.
            KeyboardInterrupt, SystemExit: the run was stopped.
        """
        alone = checkpointing.run_lock(self.folder) if self.args.should_save else nullcontext()
        with multi_process.named(), alone, output.one_output():
            return self._train(self._checkpoint_to_resume(resume_from_checkpoint), **kwargs)

    def _train(self, folder: Path | None, **kwargs: object) -> TrainOutput:
        if folder and 0 < self.args.max_steps <= step_of(folder):
            return self._already_done(folder)
        self._start_afresh()
        if self.args.should_save:
            run_record.write(self.folder, self._asked, self.args, resumed=folder is not None)
        out_of_memory.warn_if_too_large(self.memory_plan)
        if self.memory_plan.sliced and self._samples_itself:
            output.say(self.memory_plan.sliced)
        with self.stops.listening(together=self.accelerator.num_processes > 1):
            try:
                with out_of_memory.phase(self, "optimizer"):
                    result = super().train(resume_from_checkpoint=folder and str(folder), **kwargs)
            except (*STOPPED, Exception) as error:
                if isinstance(error, OutOfMemoryError):
                    out_of_memory.let_go(error)
                said = self._keep_what_is_done(error)
                if isinstance(error, KeyboardInterrupt) and running_shell() is not None:
                    raise Interrupted(said) from None
                output.say(said)
                if isinstance(error, OutOfMemoryError):
                    kept = integrity.last_whole_checkpoint(self.folder)
                    raise out_of_memory.with_way_on(error, kept) from error.__cause__
                raise
            if self.is_world_process_zero():
                self.state.save_to_json(str(self.folder / STATE))
        return result

    @cached_property
    def _base_facts(self) -> dict[str, object]:
        return base_of(self.model)

    @property
    def _samples_itself(self) -> bool:
        """Whether completions come from ``model.generate``, not from an engine that schedules them itself."""
        return not (self.use_vllm or self.use_transformers_continuous_batching)

    # --- which checkpoint ---------------------------------------------------------------------------------

    def _checkpoint_to_resume(self, asked: str | bool | None) -> Path | None:
        """The checkpoint to start from, with later ones and what a killed run was writing out of the way."""
        found = None
        if asked is True:
            found, passed_over = integrity.newest_whole(self.folder)
            for folder, reason in passed_over:
                output.warn(f"passed over {folder.name}: {reason}")
            start = "no whole checkpoint: starting at step 0"
            output.say(f"resuming from {self.shown(found)}" if found else start)
        elif asked is not None and asked is not False:
            found = Path(asked).absolute()
            integrity.check(found, self.folder)
        self._check_same_run(found)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            shutil.rmtree(self.folder / checkpointing.WRITING, ignore_errors=True)
            inside = found is not None and found.parent.resolve() == self.folder.resolve()
            moved = checkpointing.set_aside(self.folder, step_of(found) if found and inside else -1)
            if moved:
                what = "of later steps" if inside else "of an earlier run"
                output.say(f"checkpoints {what} are now in {self.shown(moved)}")
        self.accelerator.wait_for_everyone()
        return found

    def _check_same_run(self, folder: Path | None) -> None:
        """Refuse what would give the checkpoint's weights another meaning; name what else has changed."""
        now = self._made_of = made_of(self, self._base_facts, self._data_facts)
        if folder is None:
            return
        if not self.is_deepspeed_enabled:  # it shards the weights, and checks them
            with loadable(folder):
                _check_adapter(folder, self.model)
        with loadable(folder / MANIFEST):
            then = facts(folder).get("run") or {}
            if then.get("version") != VERSION:  # of plain TRL, or of another version of the kit
                where = self.shown(folder)
                output.say(f"{where} does not say what its run was made of, so nothing is compared")
                return
            found = check_base(now["base"], then["base"], folder) + changed(now, then)
            mine, its = now["settings"]["optim"], then["settings"]["optim"]
        if mine != its:  # another's state fails at the first step, or starts anew without a word
            what, where = (
                f"the checkpoint's optimizer is {its}, not {mine}",
                f"RLOOConfig(optim={mine!r}), {folder}",
            )
            raise ConfigError(what, where=where, todo=f"set optim {OR_ANEW}")
        if found:
            output.warn(f"not as in the checkpoint's run: {'; '.join(found)}")

    def _already_done(self, folder: Path) -> TrainOutput:
        """Works around: transformers takes one more step from a checkpoint that is at the last one."""
        output.say(f"{self.shown(folder)} is at the last step or later: nothing left to train")
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / STATE))
        return TrainOutput(self.state.global_step, 0.0, {})

    # --- the end of a run ---------------------------------------------------------------------------------

    def _start_afresh(self) -> None:
        """Works around: a cell that was stopped within a step leaves its position and its batches behind, and every
        later step would train on completions of an older policy."""
        super()._start_afresh()
        self._step, self._buffered_inputs, self._current_train_step_time = 0, None, 0.0
        self._metrics["train"].clear()
        reset_loss_scale(self.accelerator)

    def _keep_what_is_done(self, error: BaseException) -> str:
        """Works around: a run that is stopped, or ends by an error such as a reward's whose service is down, loses all
        steps since the last checkpoint.  Returns what is said of it."""
        self.stops.held = True
        step, way_on = self._whole, "train(resume_from_checkpoint=True) goes on"
        alone = self.accelerator.num_processes == 1  # where other processes go on, saving would wait for them
        if self.args.save_strategy == "no":
            return "stopped: save_strategy='no', so nothing is saved"
        if step is None or isinstance(error, RunFolderError) or not (alone or isinstance(error, STOPPED)):
            if any(self.folder.glob("checkpoint-*")):
                return f"stopped: there is no finished step to save; {way_on} from the last checkpoint"
            return "stopped: there is no finished step to save, and no checkpoint: train() begins again"
        try:
            if not (place := self.folder / f"checkpoint-{step}").is_dir():
                if self._random is not None:  # the step that is dropped has drawn completions
                    checkpointing.set_random_states(self._random)
                    self.state.num_input_tokens_seen = self._tokens_seen
                self._save_checkpoint(self.model, trial=None)
        except Exception as again:  # what has ended the run is the one to read
            return f"stopped: the last step could not be saved, {type(again).__name__}: {again}"
        return f"stopped: step {step} of {self.state.max_steps} is saved in {self.shown(place)}; {way_on}"

    # --- what is loaded -----------------------------------------------------------------------------------

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        """Works around: torch's load_state_dict takes learning rate, betas and weight decay from the checkpoint, so a
        learning_rate that was lowered would have no effect.  (DeepSpeed loads its own before this, and keeps them.)"""
        if folder is None:
            return
        groups = self.optimizer.param_groups
        asked = [{name: group[name] for name in HYPERPARAMETERS if name in group} for group in groups]
        if self.args.device.type == "cpu":  # with several processes "cpu:0", which torch.load does not know
            self.args.__dict__["_setup_devices"] = torch.device("cpu")
        with loadable(Path(folder)):
            super()._load_optimizer_and_scheduler(folder)
        scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)  # accelerate wraps it
        if isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = [one["initial_lr"] for one in asked]
            shapes = [shape(int(scheduler.last_epoch)) for shape in scheduler.lr_lambdas]
            scheduler._last_lr = [base * now for base, now in zip(scheduler.base_lrs, shapes, strict=True)]
            rates = zip(self.optimizer.param_groups, asked, scheduler._last_lr, strict=True)
            for group, given, rate in rates:
                group.update(given, lr=rate)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
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
        return int(self.state.global_step * self.args.gradient_accumulation_steps)

    @property
    def _batch_layout(self) -> list[int]:
        """What a generation batch was cut by; the rest of one that was cut otherwise is of no use."""
        args, several = self.args, (self.num_iterations, self.accelerator.num_processes)
        rows = (args.num_generations, args.per_device_train_batch_size, args.gradient_accumulation_steps)
        return [*rows, args.steps_per_generation, *several]

    def _rollout_file(self, folder: str) -> Path:
        return Path(folder) / f"rollout_{self.accelerator.process_index}.pt"


class ByEpoch(Sampler[int]):
    """Works around: TRL's sampler shuffles each epoch by where its generator has got to, so that a run that is resumed
    in the second epoch would see the first one's order again."""

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


def _check_adapter(folder: Path, model: PreTrainedModel) -> None:
    """Works around: PEFT loads an adapter's weights into a LoRA that scales them otherwise; it loads what fits by name,
    and leaves the rest."""
    mine, file = getattr(model, "peft_config", {}).get("default"), folder / "adapter_config.json"
    if mine is None or not file.is_file():
        return
    config = json.loads(file.read_text(encoding="utf-8"))

    def plain(value: Any) -> Any:
        return sorted(value) if isinstance(value, set | list) else value

    pairs = [(name, plain(getattr(mine, name)), plain(config.get(name))) for name in LORA]
    if wrong := [f"{name}={now} (it was {then})" for name, now, then in pairs if now != then]:
        what = f"the policy's LoRA is another one than the checkpoint's: {', '.join(wrong)}"
        raise ConfigError(what, where=f"load_policy(...), {folder}", todo=f"load the policy {OR_ANEW}")


def drop_reference(model: PreTrainedModel) -> None:
    """Works around: TRL adds an adapter "ref" to every PEFT model, and fails where one is left from before."""
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")
        model.set_adapter("default")


# --- whether it is the same run ---------------------------------------------------------------------------


def made_of(trainer: trl.RLOOTrainer, base: Mapping[str, object], of_data: Mapping[str, object]) -> Made:
    """What the kit's trainer makes its run of, with :func:`base_of` its model and a summary of its dataset."""
    weights = zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
    settings = {n: getattr(v, "value", v) for n, v in vars(trainer.args).items() if n in SETTINGS}
    if str(settings["lr_scheduler_type"]).startswith("constant"):
        del settings["max_steps"], settings["num_train_epochs"]  # how far a run goes, and not how
    text = json.dumps(without_secrets(settings), default=lambda one: type(one).__name__)
    return {
        "version": VERSION,
        "base": dict(base),
        "dataset": list(of_data.values()),
        "rewards": [f"{name} x {weight:g}" for name, weight in weights],
        "settings": json.loads(text),
    }


def changed(now: Made, then: Made) -> list[str]:
    """What differs, each with its new and its old value; of what either does not know nothing is said."""
    named, before = (
        {"dataset": one["dataset"][1:], "rewards": one["rewards"]} | one["settings"] for one in (now, then)
    )
    pairs = [(name, value, before[name]) for name, value in named.items() if name in before]
    return [f"{name}={value!r} (it was {was!r})" for name, value, was in pairs if value != was]


def base_of(model: torch.nn.Module) -> dict[str, object]:
    """The frozen weights that a LoRA is trained on: name, how they were loaded, and a digest of them, rounded to
    bfloat16, so that float32 agrees; empty where there are none, or not all are here."""
    found, parameters = hashlib.sha256(), list(model.named_parameters())
    packed = any(quantisation_tensors(p) for _, p in parameters)
    first = next(p for _, p in parameters if p.is_floating_point())
    frozen = [(n, p) for n, p in parameters if not p.requires_grad and not is_lora(n)]
    complete = bool(frozen) and not any(p.is_meta or not p.numel() for _, p in frozen)
    for name, parameter in frozen if complete else ():
        found.update(name.replace(".base_layer", "").encode())
        for tensor in (parameter.detach(), *quantisation_tensors(parameter)):
            flat = tensor.reshape(-1)
            taken = flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE].cpu()
            taken = taken.bfloat16().view(torch.int16) if taken.is_floating_point() else taken
            found.update(taken.numpy().tobytes())
    return {
        "name": Path(str(getattr(getattr(model, "config", None), "_name_or_path", ""))).name,
        "bits": 4 if packed else 16,
        "loaded": f"{first.device.type}, 4 bit" if packed else str(first.dtype).removeprefix("torch."),
        "digest": found.hexdigest()[:16] if complete else "",
    }


def check_base(now: Made, then: Made, folder: Path) -> list[str]:
    """Refuse another base than a checkpoint's; return what cannot be told, as of one that was rounded otherwise."""
    if now["bits"] == then["bits"]:
        if now["digest"] == then["digest"]:
            return []
        if now["loaded"] != then["loaded"] or not now["digest"] or not then["digest"]:
            return [f"whether the base is the same cannot be told: {now['loaded']} (it was {then['loaded']})"]
    mine, its = (f"{one['name']} {one['digest']} in {one['bits']}" for one in (now, then))
    what = f"the policy's base is another one: {mine} bit, and the checkpoint's was {its}"
    where = f"load_policy(load_in_4bit={now['bits'] == 4}), {folder}"
    raise ConfigError(what, where=where, todo=f"load the policy {OR_ANEW}")
