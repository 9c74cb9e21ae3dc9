"""``train()`` and resuming: stop anywhere, go on from a checkpoint of the same run, call ``train()`` again."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import PreTrainedModel, TrainerState
from transformers.trainer_utils import TrainOutput

from rloo_kit.errors import ConfigError, OutOfMemoryError, RunFolderError
from rloo_kit.memory import out_of_memory
from rloo_kit.memory.policy_tensors import digest_of, frozen, quantisation_tensors
from rloo_kit.policy.thinking import setting_of
from rloo_kit.redact import without_secrets
from rloo_kit.session import output
from rloo_kit.session.output import running_shell
from rloo_kit.train import check_config, checkpoints, run_record
from rloo_kit.train.finite_gradients import reset_loss_scale
from rloo_kit.train.stop_signals import Interrupted, Terminated
from rloo_kit.watch.read_run import RECIPE, STATE, checkpoints_in, manifest_of, step_of

RunFacts = dict[str, Any]

# What a configuration sets in an optimizer's parameter groups.  Some optimizers keep state in them, too.
HYPERPARAMETERS = ("initial_lr", "betas", "eps", "weight_decay", "momentum")
LORA = ("r", "lora_alpha", "use_rslora", "target_modules")  # these decide what an adapter's weights mean
VERSION = 4  # of run_facts's facts; where a checkpoint has another or none, only the LoRA's scale is compared

NOT_COMPARED = re.compile(
    "_|output_dir|run_name|report_to|project|trackio|hub|push|log|save|load_best|metric|greater|eval|per_device_eval|do_|"
    "include|progress|live_plot|on_unhealthy|disable_tqdm|num_completions|resume|dataloader|ddp|vllm|generation_rows|"
    "gradient_checkpointing|torch_empty|reward_weights"
)
"""Prefixes of settings that do not change what is trained.  Reward weights are compared together with their rewards."""


class ResumableTrainer(checkpoints.SavingTrainer):
    """TRL's trainer whose ``train()`` can be called again, be interrupted, and resume."""

    _buffered_inputs: list[dict[str, torch.Tensor]] | None
    _number: int  # of this trainer, among those built on its policy
    kept_beside: Mapping[str, str] = {}  # file name in output_dir -> text, written before the first step

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: object) -> TrainOutput:
        """Train, and leave ``trainer_state.json`` in ``output_dir``.

        When SIGTERM, SIGINT (a notebook's stop button) or an error ends the run, its last finished step is saved.  The
        step in progress is dropped, and a resumed run samples it anew.  After SIGTERM the exit status is 143.  Runs of
        several processes lose the steps since their last checkpoint.

        ``resume_from_checkpoint=True`` takes the newest whole checkpoint in ``output_dir``, and names each damaged one
        that it passes over; if there is none the run starts at step 0.  A path names a checkpoint.  Without it the run
        starts at step 0.  Checkpoints of later steps move to ``output_dir/_earlier-1``, or the next free number.  Other
        ``kwargs`` are those of transformers' ``Trainer.train``.

        Raises:
            ConfigError: the path is not a whole checkpoint, or its base, LoRA or optimizer differs from this run's
                (other changes are named in one warning); or a later trainer was built on this policy.
            RunFolderError: another run uses ``output_dir``, or it cannot be written to.
            NonFiniteError: a gradient or a weight is not finite; it is not saved.
            OutOfMemoryError: it names the phase, what to change, and the checkpoint to resume from.
        """
        self._check_newest()
        alone = checkpoints.run_lock(self.folder) if self.args.should_save else nullcontext()
        with alone:
            return self._train(self._checkpoint_to_resume(resume_from_checkpoint), **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """As TRL's; a ConfigError if a later trainer was built on this policy, or the batch holds parts of groups."""
        check_config.check_evaluation(self.args, self.accelerator.num_processes)
        self._check_newest()
        return super().evaluate(*args, **kwargs)

    def _check_newest(self) -> None:
        """Works around: a trainer built later on the same policy replaces its head, which has the temperature, and its
        reference, silently."""
        if self.model.trainers_built != self._number:
            raise ConfigError(
                "a later trainer was built on this policy, which now has that trainer's temperature and reference",
                where="RLOOTrainer.train, or evaluate",
                todo="build this trainer anew, or go on with the later one",
            )

    def _train(self, checkpoint: Path | None, **kwargs: object) -> TrainOutput:
        if checkpoint:
            *_, last_step = self.set_initial_training_values(self.args, self.get_train_dataloader())
            if last_step <= step_of(checkpoint):
                return self._already_done(checkpoint)
        self._start_afresh()
        if self.args.should_save:
            recipe = run_record.recipe_of(self._asked, self.args, resumed=checkpoint is not None)
            for name, text in {RECIPE: recipe.as_json(), **self.kept_beside}.items():
                checkpoints.replace_text(self.folder / name, text)
        out_of_memory.warn_if_too_large(self.memory_plan)
        if self.memory_plan.sliced and self._samples_itself:
            output.say(self.memory_plan.sliced)
        with self.stops.listening() if self.accelerator.num_processes == 1 else nullcontext():
            try:
                with out_of_memory.explained("optimizer", self.memory_plan):
                    result = super().train(resume_from_checkpoint=checkpoint and str(checkpoint), **kwargs)
            except (KeyboardInterrupt, Terminated, Exception) as error:
                if isinstance(error, OutOfMemoryError):
                    out_of_memory.let_go(error)
                outcome = self._keep_what_is_done(error)
                if isinstance(error, KeyboardInterrupt) and running_shell() is not None:
                    raise Interrupted(outcome) from None
                output.say(outcome)
                if isinstance(error, OutOfMemoryError):
                    kept, _ = checkpoints.newest_whole(self.folder)
                    raise out_of_memory.naming_checkpoint(error, kept) from error.__cause__
                raise
            if self.is_world_process_zero():
                self.state.save_to_json(str(self.folder / STATE))
        return result

    @property
    def _samples_itself(self) -> bool:
        """Whether ``model.generate`` samples the completions, and not an engine that schedules them itself."""
        return not (self.use_vllm or self.use_transformers_continuous_batching)

    def _checkpoint_to_resume(self, resume: str | bool | None) -> Path | None:
        """The checkpoint to start from; moves later ones aside and deletes what a killed run was writing."""
        checkpoint = None
        if resume is True:
            checkpoint, passed_over = checkpoints.newest_whole(self.folder)
            for folder, reason in passed_over:
                output.warn(f"passed over {folder.name}: {reason}")
            start = "no whole checkpoint: starting at step 0"
            output.say(f"resuming from {self.shown(checkpoint)}" if checkpoint else start)
        elif resume is not None and resume is not False:
            checkpoint = Path(resume).absolute()
            checkpoints.check_whole(checkpoint, self.folder)
        self._check_same_run(checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            shutil.rmtree(self.folder / checkpoints.WRITING, ignore_errors=True)
            inside = checkpoint is not None and checkpoint.parent.resolve() == self.folder.resolve()
            moved = checkpoints.set_aside(self.folder, step_of(checkpoint) if checkpoint and inside else -1)
            if moved:
                what = "of later steps" if inside else "of an earlier run"
                output.say(f"checkpoints {what} are now in {self.shown(moved)}")
        self.accelerator.wait_for_everyone()
        return checkpoint

    def _check_same_run(self, folder: Path | None) -> None:
        """Refuse a policy or optimizer that the checkpoint's state does not belong to; warn of all other changes."""
        now = self._run_facts = run_facts(self, self._data_facts)
        if folder is None:
            return
        then = manifest_of(folder).get("run") or {}
        if then.get("version") != VERSION:  # written by plain TRL, or by another version of the kit
            where = self.shown(folder)
            output.say(f"{where} does not record its run's settings, so only the LoRA's scale is compared")
            then = now | {"policy": now["policy"] | scaling_of(folder)}
        wrong, changed = differences(now, then)
        if wrong:
            raise ConfigError(
                f"the checkpoint belongs to another policy or optimizer: {', '.join(wrong)}",
                where=str(folder),
                todo="load the policy and set optim as they were; or load_policy(that folder) and train() a new run",
            )
        if changed:
            output.warn(f"not as in the checkpoint's run: {'; '.join(changed)}")

    def _already_done(self, folder: Path) -> TrainOutput:
        """Works around: transformers takes one more step from a checkpoint that is at the last one."""
        output.say(f"{self.shown(folder)} is at the last step or later: nothing left to train")
        self.state = TrainerState.load_from_json(str(folder / STATE))
        if self.args.load_best_model_at_end and (best := self.state.best_model_checkpoint):
            beside = folder.with_name(Path(best).name)  # the run's folder may have been moved since
            places = [place for place in (beside, Path(best)) if place.is_dir()]
            if not places:
                output.warn(f"The best checkpoint, {self.shown(Path(best))}, is gone: the last one is loaded.")
            folder = places[0] if places else folder
        self._load_from_checkpoint(str(folder))
        return TrainOutput(self.state.global_step, 0.0, {})

    def _start_afresh(self) -> None:
        """Works around: a cell that was stopped within a step leaves its position and its batches in the trainer, and
        every later step would train on completions of an older policy."""
        super()._start_afresh()
        self._step, self._buffered_inputs, self._current_train_step_time = 0, None, 0.0
        self._metrics["train"].clear()
        reset_loss_scale(self.accelerator)

    def _keep_what_is_done(self, error: BaseException) -> str:
        """Works around: a run that is stopped, or fails because, say, a reward's service is down, loses all steps since
        the last checkpoint.  Returns the sentence that tells the user what was saved."""
        self.stops.held = True
        step, way_on = self._whole, "train(resume_from_checkpoint=True) goes on"
        if self.args.save_strategy == "no":
            return "stopped: save_strategy='no', so nothing is saved"
        several = self.accelerator.num_processes > 1  # saving would wait for those that go on
        if step is None or several or isinstance(error, RunFolderError):
            if checkpoints_in(self.folder):
                return f"stopped: there is no finished step to save; {way_on} from the last checkpoint"
            return "stopped: there is no finished step to save, and no checkpoint: train() begins again"
        try:
            if not (place := self.folder / f"checkpoint-{step}").is_dir():
                self._save_checkpoint(self.model, trial=None)
        except Exception as again:  # the error that ended the run is raised, not this one
            return f"stopped: the last step could not be saved, {type(again).__name__}: {again}"
        return f"stopped: step {step} of {self.state.max_steps} is saved in {self.shown(place)}; {way_on}"

    def _load_optimizer_and_scheduler(self, folder: str | None) -> None:
        """Works around: torch's load_state_dict takes learning rate, betas and weight decay from the checkpoint, so a
        lowered learning_rate would have no effect.  (DeepSpeed has loaded its state before, and keeps its own.)"""
        if folder is None:
            return
        groups = self.optimizer.param_groups
        configured = [{name: group[name] for name in HYPERPARAMETERS if name in group} for group in groups]
        if self.args.device.type == "cpu":  # with several processes "cpu:0", which torch.load does not know
            self.args.__dict__["_setup_devices"] = torch.device("cpu")
        super()._load_optimizer_and_scheduler(folder)
        for group, settings in zip(self.optimizer.param_groups, configured, strict=True):
            group.update(settings)
        scheduler = getattr(self.lr_scheduler, "scheduler", self.lr_scheduler)  # accelerate wraps it
        if isinstance(scheduler, LambdaLR):
            scheduler.base_lrs = [settings["initial_lr"] for settings in configured]
            scheduler.last_epoch -= 1
            scheduler.step()  # sets the rate of the same step again

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Works around: with a folder "ref" inside a checkpoint, transformers loads that adapter and no other, so that
        a resumed run would go on from untrained weights; and PEFT casts what it loads to float32, where TRL trains a
        4-bit policy's adapter in bfloat16 on a CPU."""
        folder, target = Path(resume_from_checkpoint), self.model if model is None else model
        dtypes = {name: parameter.dtype for name, parameter in target.named_parameters()}
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if not (folder / "ref").is_dir():
            # That run kept no copy: the base is the reference, and not this trainer's half-trained policy.
            drop_reference(target)
        elif (folder / "adapter_config.json").is_file():
            target.load_adapter(str(folder), "default", is_trainable=True)
            target.set_adapter("default")
        for name, parameter in target.named_parameters():
            parameter.data = parameter.data.to(dtypes.get(name, parameter.dtype))

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler[int]:
        """Works around: a resumed TRL run draws its prompts in another order."""
        return ByEpoch(super()._get_train_sampler(dataset))

    def _save_rng_state(self, output_dir: str) -> None:
        """Works around: TRL would sample a generation batch anew that several steps train on."""
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
        super()._load_rng_state(checkpoint_folder)
        if file.is_file():
            # By its type: torch.load takes no "cpu:0", as accelerate calls a CPU of several.
            kept = torch.load(file, map_location=self.accelerator.device.type, weights_only=True)
            self._buffered_inputs = kept["batches"] if kept["layout"] == self._batch_layout else None

    @property
    def _first_micro_step(self) -> int:
        return int(self.state.global_step * self.args.gradient_accumulation_steps)

    @property
    def _batch_layout(self) -> list[int]:
        """The settings that a generation batch was cut by; under others, a saved rest of it cannot be used."""
        names = ["num_generations", "per_device_train_batch_size", "gradient_accumulation_steps"]
        names += ["steps_per_generation", "num_iterations", "world_size"]
        return [*(getattr(self.args, name) for name in names), bool(self.beta)]

    def _rollout_file(self, folder: str) -> Path:
        return Path(folder) / f"rollout_{self.accelerator.process_index}.pt"


class ByEpoch(Sampler[int]):
    """Works around: TRL's sampler shuffles each epoch from its generator's current state: a run resumed in the second
    epoch would see the first epoch's order again."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.epoch = sampler, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        if self.sampler.shuffle and self.sampler.seed is not None:
            self.sampler.generator.manual_seed(self.sampler.seed)
            for _ in range(self.epoch):
                torch.randperm(self.sampler.num_samples, generator=self.sampler.generator)
        return iter(self.sampler)


def drop_reference(model: PreTrainedModel) -> None:
    """Works around: TRL adds an adapter "ref" to every PEFT model, and fails where one is left from before."""
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")
        model.set_adapter("default")


# --- whether it is the same run ---------------------------------------------------------------------------


def run_facts(trainer: trl.RLOOTrainer, of_data: Mapping[str, object]) -> RunFacts:
    """What a run is made of: policy, dataset, rewards with their weights, and settings."""
    names, weights = trainer.reward_func_names, trainer.reward_weights.tolist()
    values = {n: getattr(v, "value", v) for n, v in vars(trainer.args).items() if not NOT_COMPARED.match(n)}
    if str(values["lr_scheduler_type"]).startswith("constant"):
        del values["max_steps"], values["num_train_epochs"]  # they say how far the run goes, not how
    settings = json.loads(json.dumps(without_secrets(values), default=lambda value: type(value).__name__))
    return {
        "version": VERSION,
        "policy": policy_facts(trainer.model, trainer.ref_model) | {"thinking": setting_of(trainer._tokenizer)},
        "dataset": list(of_data.values()),
        "rewards": [f"{name} x {weight:g}" for name, weight in zip(names, weights, strict=True)],
        "reward_code": dict(zip(names, map(run_record.digest_of_reward, trainer.reward_funcs), strict=True)),
        "settings": settings,
        "given": sorted(getattr(trainer.args, "given", dict)() or settings),
    }


def scaling_of(folder: Path) -> dict[str, object]:
    """The scaling of a checkpoint's adapter, from PEFT's own file: also of checkpoints that the kit did not write."""
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text()) if file.is_file() else {}
    return {name: config[name] for name in ("r", "lora_alpha", "use_rslora") if name in config}


def policy_facts(model: torch.nn.Module, reference: torch.nn.Module | None = None) -> dict[str, object]:
    """A policy's LoRA, how its weights were loaded, and a digest of its frozen ones (its reference's, if all are
    trained)."""
    parameters = list(model.parameters())
    packed = any(map(quantisation_tensors, parameters))
    first = next(parameter for parameter in parameters if parameter.is_floating_point())
    lora = getattr(model, "peft_config", {}).get("default")
    values = {name: getattr(lora, name) for name in LORA if lora is not None}
    return {
        "bits": 4 if packed else 16,
        "loaded": f"{first.device.type}, 4 bit" if packed else str(first.dtype).removeprefix("torch."),
        "base_weights": digest_of(frozen(model) or dict(reference.named_parameters() if reference is not None else ())),
        **{name: sorted(value) if isinstance(value, set) else value for name, value in values.items()},
    }


def differences(now: RunFacts, then: RunFacts) -> tuple[list[str], list[str]]:
    """What differs, each with its new and old value: first what a checkpoint's weights and optimizer state depend on,
    then everything else that was given to either run.

    Works around: PEFT loads weights silently into a LoRA with another scale or with other modules, and torch another
    optimizer's state, which then fails at the first step or silently starts anew.
    """
    mine, its = (
        {**run["settings"], **run["policy"], "dataset": run["dataset"][1:], "rewards": run["rewards"]}
        | {"reward_code": run.get("reward_code")}
        for run in (now, then)
    )
    policy = {"bits", "optim", *LORA}
    what_pays = "reward_code" if mine["rewards"] == its["rewards"] else "rewards"
    given = {"dataset", "thinking", what_pays, *now["given"], *then["given"]} - policy
    if mine["base_weights"] and its["base_weights"] and mine["loaded"] == its["loaded"]:
        policy.add("base_weights")
    elif mine["base_weights"] != its["base_weights"]:
        given.add("loaded")  # so the digests cannot be compared

    def differing(names: set[str]) -> list[str]:
        known = sorted(names & mine.keys() & its.keys())
        return [f"{n}={mine[n]!r} (it was {its[n]!r})" for n in known if mine[n] != its[n]]

    return differing(policy), differing(given)
