"""Collect the inputs of a memory plan, and choose the forward passes of a training step.

The trainer runs the passes that the plan counts.  This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError

if TYPE_CHECKING:
    import trl

PROCESSORS = {"repetition_penalty": 4, "temperature": 4, "top_k": 5, "top_p": 22, "min_p": 9}
"""Bytes per logit that transformers' logits processors hold at their peak besides their input, in order of use."""

IDLE = {"repetition_penalty": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""The values with which transformers leaves a processor out."""

PLAIN = {"single_pass": False, "fast_sampling": False}  # what a plain trl.RLOOConfig means


@dataclass(frozen=True)
class Configured:
    """The fields of :class:`rloo_kit.RLOOConfig` that affect memory and time, with its defaults."""

    num_generations: int = 4
    max_completion_length: int = 512
    per_device_train_batch_size: int = 4
    per_device_eval_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    generation_rows: int | None = None
    steps_per_generation: int = 2  # None in a config means gradient_accumulation_steps
    num_iterations: int = 1
    max_steps: int = -1
    beta: float = 0.05
    kl_placement: str = "reward"
    single_pass: bool = True
    fast_sampling: bool = True
    optim: str = "adamw_torch_fused"


@dataclass(frozen=True)
class Settings(Configured):
    """The configuration, and what follows from the policy and the device.

    Attributes:
        padded: whether prompts of a batch differ in length, so that rows are padded on the left.
        processors: names from :data:`PROCESSORS` that are switched on, in order of use.
        evaluates: whether the trainer evaluates, ``per_device_eval_batch_size`` rows in one pass.
        evaluations: how often, and arguments of ``evaluate``: before and after training, and during it.
        reference_copy: whether the reference is a second LoRA (of a continued policy), not the base model.
        dtype_bytes: bytes per element of activations, cache and everything that is not quantised.
        small_card: whether the GPU has at most 24.5 GiB, so that unsloth's head works in smaller tiles.
        by_vllm: whether vLLM samples, of which nothing is counted.
    """

    prompt_tokens: int = 512
    padded: bool = True
    processors: tuple[str, ...] = ()
    evaluates: bool = False
    evaluations: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    lora_rank: int = 16
    four_bit: bool = True
    checkpointing: bool | str = "unsloth"
    reference_copy: bool = False
    on_gpu: bool = True
    dtype_bytes: int = 2
    small_card: bool = True
    by_vllm: bool = False

    @property
    def row_tokens(self) -> int:  # T
        return self.prompt_tokens + self.max_completion_length

    @property
    def batch_rows(self) -> int:  # of a generation batch
        return self.per_device_train_batch_size * self.steps_per_generation

    @property
    def update_rows(self) -> int:
        return self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def sampled_rows(self) -> int:  # at once
        return self.generation_rows or self.batch_rows

    @property
    def old_pass(self) -> bool:
        """Whether a step runs the policy that sampled once more, for its log-probabilities.  The loss's own pass gives
        them, and the ratio is 1, where every loss is computed with the weights that sampled its completions: each
        generation batch is used once, and each update consumes whole generation batches.  A KL term in the reward needs
        them before the loss."""
        whole_batches = self.gradient_accumulation_steps % self.steps_per_generation == 0
        on_policy = self.single_pass and self.num_iterations == 1 and whole_batches
        return not on_policy or (bool(self.beta) and self.kl_placement != "loss")


def settings_of(
    config: trl.RLOOConfig | None,
    prompt_tokens: int | None = None,
    max_seq_length: int | None = None,
    evaluate: Mapping[str, Any] | None = None,
    eval_rows: int = 0,
) -> Settings:
    """Return what of a configuration affects memory and time; None, and unset values, mean the defaults.

    Raises:
        ConfigError: a length or batch below 1, or a config without attributes.
    """
    if config is not None and not hasattr(config, "__dict__"):
        what, where = "a plan needs a configuration, not its settings alone", f"plan, got {type(config).__name__}"
        raise ConfigError(what, where=where, todo="pass rloo_kit.RLOOConfig(**settings)")
    given = {} if config is None else PLAIN | {k: v for k, v in vars(config).items() if v is not None}
    given = {name: getattr(value, "value", value) for name, value in given.items()}  # transformers has enums
    chosen = {field.name: given.get(field.name, field.default) for field in fields(Configured)}
    chosen["steps_per_generation"] = given.get("steps_per_generation", chosen["gradient_accumulation_steps"])
    longest, room = Settings.prompt_tokens, (max_seq_length or 2**31) - chosen["max_completion_length"]
    chosen["prompt_tokens"] = max(1, min(longest, room)) if prompt_tokens is None else prompt_tokens
    for name in ("prompt_tokens", "max_completion_length", "per_device_train_batch_size", "generation_rows"):
        if chosen[name] is not None and chosen[name] < 1:
            todo = "look at the lengths and batches of the configuration"
            raise ConfigError(f"{name} must be at least 1", where=f"plan, {name}={chosen[name]}", todo=todo)
    evaluations = [] if evaluate is None else [(2, evaluate)]
    if given.get("eval_strategy") == "steps" and (every := given.get("eval_steps")):
        times = max(0, chosen["max_steps"]) // every if every >= 1 else 1 / every
        samples = given.get("num_generations_eval", chosen["num_generations"])
        asked = {"n": eval_rows, "samples": samples, "batch_size": given.get("per_device_eval_batch_size")}
        evaluations.append((int(times), asked))
    further = given.get("generation_kwargs", {})
    chosen["fast_sampling"] &= not further and not given.get("use_transformers_continuous_batching", False)
    sampling = IDLE | given | further
    processors = tuple(name for name in PROCESSORS if sampling[name] != IDLE[name])
    evaluates = given.get("eval_strategy", "no") != "no"
    return Settings(**chosen, processors=processors, evaluates=evaluates, evaluations=tuple(evaluations))
