"""``RLOOTrainer``: TRL's, guarded, that can be run twice, stopped anywhere and resumed.

For everybody who trains, in a notebook or a script.  It is a subclass of whatever ``trl.RLOOTrainer`` is
after unsloth's import: TRL's own class on a CPU, unsloth's generated one on a GPU.  The method is Ahmadian et
al. 2024 (arXiv 2402.14740), equation 6: the advantage of a completion is its reward minus the mean reward of
the other K - 1 of its prompt.

This is the only room that overrides TRL's methods.  Each override names what it answers; tests/contract pins
the methods and fails in words when TRL changes them.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rloo_kit import config as _config
from rloo_kit import environment, guards, sampling
from rloo_kit.errors import ArgumentError, ConfigError, NonFiniteError

environment.import_unsloth()

import torch  # noqa: E402 - unsloth first
import trl  # noqa: E402
from transformers import PrinterCallback, TrainerCallback, TrainerState  # noqa: E402
from transformers.trainer_utils import TrainOutput  # noqa: E402

import rewards  # noqa: E402
from rloo_kit.progress import ProgressCallback  # noqa: E402

RLOOConfig = _config.RLOOConfig

OLD_NAMES = {
    "policy": "model",
    "tokenizer": "processing_class",
    "reward_model": "reward_funcs",
    "config": "args",
}
"""Arguments of older TRL trainers, and what they are called today."""

GONE = {
    "ref_policy": "remove it: the reference is the policy as it was when the trainer was made",
    "ref_model": "remove it: the reference is the policy as it was when the trainer was made",
    "value_model": "remove it: the leave-one-out baseline needs no value model",
    "data_collator": "remove it: prompts are tokenized by the trainer",
}
"""Trainer arguments without an equal today, and what to do instead."""

ARGUMENTS = (
    "model",
    "reward_funcs",
    "args",
    "train_dataset",
    "eval_dataset",
    "processing_class",
    "reward_processing_classes",
    "callbacks",
    "optimizers",
    "quantization_config",
    "peft_config",
)
"""TRL's; unsloth's generated class hides ``optimizers`` behind ``**kwargs``."""

UNSCORED_BATCHES = 3
"""After so many batches in a row without a single score a reward is reported."""


class RLOOTrainer(trl.RLOOTrainer):
    """TRL's ``RLOOTrainer``; all of its arguments work and mean the same.

    What differs, each because stock TRL fails there in silence:

    - Configuration, dataset and reward functions are checked before the first completion is sampled, and
      rewards again at every step (``rewards.guarded``).
    - The same policy can be trained again: stock TRL stops with "Adapter with name 'ref' already exists".
      No second copy of the LoRA is kept where the reference is the base model or beta is 0.
    - A gradient that is not finite stops the run before it reaches a weight.
    - ``train(resume_from_checkpoint=True)`` takes the newest checkpoint that is whole.
    - Without a KL term and with each batch used once, the pass for the old log-probabilities is left out:
      they are the new ones, and the update is the same.
    - One line per logged step, and the metric ``dead_groups``: the share of groups whose K raw rewards are
      all equal, counted before the KL term hides it.

    Args:
        model: a PEFT model, or the :class:`~rloo_kit.models.Policy` that holds one.
        reward_funcs: TRL reward callables, reward models, or a list of both.
        args: an :class:`RLOOConfig`.
        train_dataset, eval_dataset: with a column ``prompt``; further columns go to the rewards.
        processing_class: the tokenizer; taken from a ``Policy``.
        kwargs: the other arguments of TRL's trainer.

    Raises:
        ConfigError, DatasetError, RewardError: see :mod:`rloo_kit.guards`.
        ArgumentError: an argument that TRL's trainer does not have.
        rewards.RewardValueError: a reward that cannot be called as TRL calls it.
    """

    generation_config: Any
    generation_kwargs: dict[str, Any]

    def __init__(
        self,
        model: Any = None,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        **kwargs: Any,
    ) -> None:
        named = {"model": model, "reward_funcs": reward_funcs, "args": args, "train_dataset": train_dataset}
        given = {name: value for name, value in {**named, **kwargs}.items() if value is not None}
        given = _config.modern_names(given, OLD_NAMES, GONE, set(ARGUMENTS), "RLOOTrainer")
        given = _unwrap_policy(given)
        if "args" not in given:
            given["args"] = RLOOConfig()
        _check_arguments(given)
        given["reward_funcs"] = _guarded_rewards(given)
        _drop_reference(given["model"])
        self._unscored: Counter[str] = Counter()
        super().__init__(**given)
        if self.beta == 0 or _is_fresh(self.model):
            # TRL then takes the base model, with the adapter switched off, as the reference.
            _drop_reference(self.model)
        _keep_padding_mask(self.model)
        self.remove_callback(PrinterCallback)
        self.add_callback(ProgressCallback())
        self.add_callback(_FiniteGradients())
        self._check_first_prompts()

    def _check_first_prompts(self) -> None:
        rows, prompts = guards.longest_prompts(self.train_dataset)
        ids, _, _ = self._tokenize_prompts(prompts)
        guards.check_lengths(ids, self.max_completion_length, self._max_seq_length, rows)

    @property
    def _max_seq_length(self) -> int | None:
        return getattr(self.model, "max_seq_length", None)

    # --- a step -------------------------------------------------------------------------------------------

    def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
        """Answers: unsloth cuts sequences inside the forward pass; multinomial is most of a CPU's step."""
        guards.check_lengths(prompt_ids, self.max_completion_length, self._max_seq_length)
        with self._fast_sampling():
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)

    @contextmanager
    def _fast_sampling(self) -> Iterator[None]:
        """Have ``generate`` draw by inverse CDF while inside, on a CPU."""
        wanted = getattr(self.args, "fast_sampling", False) and self.accelerator.device.type == "cpu"
        other_engine = self.use_vllm or self.use_transformers_continuous_batching
        if not wanted or other_engine or self.args.generation_kwargs:
            yield
            return
        draw = sampling.Draw(self.temperature, self.top_p, self.top_k, self.min_p)
        options = draw.generate_options(self.accelerator.device)
        processors = options.pop("logits_processor")
        model, before = self.model, (self.generation_config, self.generation_kwargs)
        bound = model.generate

        def generate(*args: Any, **kwargs: Any) -> Any:
            return bound(*args, logits_processor=processors, **kwargs)

        self.generation_kwargs = {**self.generation_kwargs, **options}
        self.generation_config = type(before[0])(**self.generation_kwargs, disable_compile=True)
        own = "generate" in vars(model)
        model.generate = generate
        try:
            yield
        finally:
            if own:
                model.generate = bound
            else:
                del model.generate
            self.generation_config, self.generation_kwargs = before

    @property
    def _is_single_pass(self) -> bool:
        """Whether the policy that sampled a batch is the one that the loss is taken of, and no KL term needs
        its log-probabilities before: then the ratio is 1, and its value is known without a forward pass."""
        used_once = self.num_iterations == 1
        before_update = self.args.gradient_accumulation_steps % self.args.steps_per_generation == 0
        return getattr(self.args, "single_pass", False) and self.beta == 0 and used_once and before_update

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: Any,
        logits_to_keep: int,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Answers: TRL runs a forward pass for the old log-probabilities also where they are the new ones.

        Returns:
            Log-probabilities (rows, logits_to_keep), entropies or None, auxiliary loss or None.
        """
        if self._is_single_pass and self.model.training and not torch.is_grad_enabled():
            return torch.zeros(len(input_ids), logits_to_keep, device=input_ids.device), None, None
        result = super()._get_per_token_logps_and_entropies(
            model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
        )
        if self._is_single_pass and self.model.training:
            mask = self._loss_inputs["completion_mask"]
            self._loss_inputs["old_logps"] = (result[0].detach() * mask).sum(1)
        return result

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """TRL's loss; keeps the batch at hand for :meth:`_get_per_token_logps_and_entropies`."""
        self._loss_inputs = inputs
        try:
            return super().compute_loss(model, inputs, *args, **kwargs)
        finally:
            del self._loss_inputs

    def _calculate_rewards(self, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Answers: TRL counts groups without spread after the KL term has given them one.

        Returns:
            (completions, rewards), gathered over processes, NaN where a reward does not apply.
        """
        scores: torch.Tensor = super()._calculate_rewards(inputs, *args, **kwargs)
        training = self.model.training
        k = self.num_generations if training else self.num_generations_eval
        if k > 1:  # an evaluation may sample one completion per prompt
            dead = dead_groups(scores, self.reward_weights.to(scores.device), k)
            self._metrics["train" if training else "eval"]["dead_groups"].append(dead.float().mean().item())
        if training:
            self._report_unscored(scores)
        return scores

    def _report_unscored(self, scores: torch.Tensor) -> None:
        """Answers: a reward that is None for every sample changes nothing, and TRL says so only in a log."""
        for name, column in zip(self.reward_func_names, scores.T, strict=True):
            self._unscored[name] = self._unscored[name] + 1 if column.isnan().all() else 0
            if self._unscored[name] == UNSCORED_BATCHES:
                warnings.warn(
                    f"Reward '{name}' has given None for every sample of {UNSCORED_BATCHES} batches in a row, so "
                    "it teaches nothing. Check the dataset column it reads.",
                    stacklevel=2,
                )

    # --- a run --------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """Train, from the start or from a checkpoint, and leave ``trainer_state.json`` in ``output_dir``.

        Args:
            resume_from_checkpoint: True goes on from the newest whole checkpoint in ``output_dir``, and
                starts anew where there is none; a path names one.  A checkpoint that was being written when
                the process died is removed; a run that is interrupted saves its last step.  Without it the run
                starts at step 0, and checkpoints of an earlier run are moved to ``output_dir/earlier``, so that
                no later resume takes them for its own.
            kwargs: as in transformers' ``Trainer.train``.
        """
        if resume_from_checkpoint is True:
            found = last_whole_checkpoint(self.args.output_dir)
            if self.accelerator.is_main_process:
                _remove_broken_checkpoints(self.args.output_dir)
                print(f"resuming from {found}" if found else "no checkpoint yet: starting at step 0")
            self.accelerator.wait_for_everyone()
            resume_from_checkpoint = str(found) if found else None
        elif not resume_from_checkpoint and self.accelerator.is_main_process:
            _set_aside(self.args.output_dir)
        if resume_from_checkpoint and 0 < self.args.max_steps <= _step_of(Path(resume_from_checkpoint)):
            return self._already_done(Path(str(resume_from_checkpoint)))
        try:
            result = super().train(resume_from_checkpoint=resume_from_checkpoint or None, **kwargs)
        except KeyboardInterrupt:
            self._keep_what_is_done()
            raise
        self.save_state()
        return result

    def _keep_what_is_done(self) -> None:
        """Answers: a cell that is stopped loses all steps since the last checkpoint."""
        if self.state.global_step and self.args.save_strategy != "no":
            self._save_checkpoint(self.model, trial=None)
            print(
                f"stopped: step {self.state.global_step} is saved, train(resume_from_checkpoint=True) goes on"
            )

    def _already_done(self, folder: Path) -> TrainOutput:
        """Answers: transformers takes one more step from a checkpoint that is at the last one."""
        print(f"{folder} is at step {_step_of(folder)} of {self.args.max_steps}: nothing left to train")
        self._load_from_checkpoint(str(folder))
        self.state = TrainerState.load_from_json(str(folder / "trainer_state.json"))
        return TrainOutput(self.state.global_step, 0.0, {})

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Answers: with a "ref" folder inside a checkpoint, transformers loads that adapter and no other, so
        a resumed run would go on from untrained weights."""
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        folder, target = Path(resume_from_checkpoint), self.model if model is None else model
        if not (folder / "ref").is_dir():
            # That run's reference was the base; the one made for this trainer would be a policy half trained.
            _drop_reference(target)
        elif (folder / "adapter_config.json").is_file():
            target.load_adapter(str(folder), "default", is_trainable=True)
            target.set_adapter("default")


class _FiniteGradients(TrainerCallback):
    """Answers: clipping a gradient of infinite norm multiplies it by zero, and inf x 0 is NaN."""

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        if args.fp16:  # the loss scaler skips such steps itself
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if gradients and not torch.nn.utils.get_total_norm(gradients).isfinite():
            model.zero_grad()
            raise NonFiniteError(
                "the gradient is not finite; the weights are those of the last good step",
                where=f"step {state.global_step + 1}",
                todo="lower learning_rate, look at the last rewards, and train(resume_from_checkpoint=True)",
            )


def dead_groups(scores: torch.Tensor, weights: torch.Tensor, k: int) -> torch.Tensor:
    """Which groups carry no signal: all their K weighted rewards are equal, so every advantage is 0.

    Args:
        scores: (groups x K, rewards), NaN where a reward does not apply.
        weights: (rewards,).
        k: completions per group.

    Returns:
        (groups,) bool.  Completions that no reward scored are left out; a group with fewer than two scored
        ones is dead.
    """
    unscorable = scores.isnan().all(dim=1)
    total = (scores * weights).nansum(dim=1)
    low = total.masked_fill(unscorable, torch.inf).view(-1, k).amin(dim=1)
    high = total.masked_fill(unscorable, -torch.inf).view(-1, k).amax(dim=1)
    return high <= low


# --- before the parent's __init__ -------------------------------------------------------------------------


def _unwrap_policy(given: dict[str, Any]) -> dict[str, Any]:
    from rloo_kit.models import Policy

    policy = given.get("model")
    if isinstance(policy, Policy):
        return {"processing_class": policy.tokenizer, **given, "model": policy.model}
    return given


def _guarded_rewards(given: dict[str, Any]) -> list[Any]:
    funcs = given.get("reward_funcs")
    funcs = [] if funcs is None else funcs if isinstance(funcs, list | tuple) else [funcs]
    guards.check_rewards(funcs, given["args"].reward_weights)
    limit = getattr(given["args"], "reward_limit", 1e6)
    dataset = given.get("train_dataset")
    columns = guards.reward_columns(dataset) if hasattr(dataset, "column_names") else None
    kept = (str, torch.nn.Module)  # reward models: TRL calls them itself
    guarded = [f if isinstance(f, kept) else rewards.guarded(f, limit=limit, columns=columns) for f in funcs]
    callables = [f for f in guarded if not isinstance(f, kept)]
    # TRL logs by name, and would average two rewards of one name into one line.
    for func, name in zip(callables, guards.distinct([f.__name__ for f in callables]), strict=True):
        func.__name__ = name
    return guarded


def _check_arguments(given: dict[str, Any]) -> None:
    for name in ("model", "train_dataset"):
        if given.get(name) is None:
            raise ArgumentError(f"{name} is missing", where="RLOOTrainer", todo=f"pass {name}=...")
    _check_model(given)
    args = given["args"]
    guards.check_config(args, environment.process_count())
    evaluated = given.get("eval_dataset")
    parts = evaluated if isinstance(evaluated, dict) else {"": evaluated}
    datasets = {"train_dataset": given["train_dataset"]}
    datasets |= {
        f"eval_dataset[{part!r}]" if part else "eval_dataset": dataset for part, dataset in parts.items()
    }
    for name, dataset in datasets.items():
        if hasattr(dataset, "column_names"):
            guards.check_dataset(dataset, args, given.get("processing_class"), name)


def _check_model(given: dict[str, Any]) -> None:
    """Answers: on a GPU unsloth's trainer cannot take a name, and ignores peft_config without a word."""
    generated = trl.RLOOTrainer.__name__.startswith("Unsloth")
    if generated and isinstance(given["model"], str):
        raise ConfigError(
            "on a GPU the trainer takes a loaded model, not a name",
            where=f"RLOOTrainer(model={given['model']!r})",
            todo="policy = rloo_kit.load_policy(name), and pass model=policy",
        )
    if generated and given.get("peft_config") is not None:
        raise ConfigError(
            "on a GPU unsloth ignores peft_config, and the whole model would be trained or nothing",
            where="RLOOTrainer(peft_config=...)",
            todo="attach the LoRA before: load_policy(name, lora_rank=...), or FastLanguageModel.get_peft_model",
        )
    tokenizer = given.get("processing_class")
    if tokenizer is not None and getattr(tokenizer, "eos_token_id", 0) is None:
        raise ConfigError(
            "the tokenizer has no end-of-sequence token, so no completion would ever end",
            where=f"RLOOTrainer(processing_class={type(tokenizer).__name__})",
            todo="set tokenizer.eos_token, or load both with rloo_kit.load_policy",
        )


def _is_fresh(model: Any) -> bool:
    """Whether the LoRA is still the zero map, so that the base model is the same reference."""
    pairs = [p for name, p in model.named_parameters() if ".default." in name and "lora_B" in name]
    others = [name for name, p in model.named_parameters() if p.requires_grad and "lora_" not in name]
    return bool(pairs) and not others and not any(p.any() for p in pairs)


def _drop_reference(model: Any) -> None:
    """Answers: TRL adds an adapter "ref" to every PEFT model, and fails where one is left from before."""
    if "ref" in getattr(model, "peft_config", {}):
        model.delete_adapter("ref")
        model.set_adapter("default")


def _keep_padding_mask(model: Any) -> None:
    """Answers: in training mode unsloth's fast forward drops the attention mask, so that left-padded prompts are
    attended to, unless this flag is set, as unsloth sets it for its own PPO (its models/llama.py and rl.py)."""
    for module in model.modules():
        if hasattr(module, "embed_tokens"):
            module._unsloth_keep_padding_mask = True


# --- checkpoints ------------------------------------------------------------------------------------------


def last_whole_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest ``checkpoint-N`` that was written to its end, or None.

    transformers writes ``trainer_state.json`` last, so a checkpoint without a readable one for its own step
    was cut off.
    """
    whole = [folder for folder in _checkpoints(output_dir) if _is_whole(folder)]
    return whole[-1] if whole else None


def _checkpoints(output_dir: str | Path) -> list[Path]:
    folders = [f for f in Path(output_dir).glob("checkpoint-*") if f.name.split("-")[-1].isdigit()]
    return sorted(folders, key=_step_of)


def _step_of(folder: Path) -> int:
    """The step in a checkpoint's name; 0 for a folder of another name."""
    digits = folder.name.split("-")[-1]
    return int(digits) if digits.isdigit() else 0


def _is_whole(folder: Path) -> bool:
    try:
        state = json.loads((folder / "trainer_state.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(state.get("global_step") == _step_of(folder))


def _remove_broken_checkpoints(output_dir: str | Path) -> None:
    for folder in _checkpoints(output_dir):
        if not _is_whole(folder):
            shutil.rmtree(folder)


def _set_aside(output_dir: str | Path) -> None:
    """Move what an earlier run left to ``earlier``, in place of what was there."""
    folders = _checkpoints(output_dir)
    if not folders:
        return
    earlier = Path(output_dir) / "earlier"
    shutil.rmtree(earlier, ignore_errors=True)
    earlier.mkdir()
    for folder in folders:
        folder.rename(earlier / folder.name)
    print(f"checkpoints of an earlier run are now in {earlier}")
