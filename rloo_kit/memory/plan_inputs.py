"""What a plan is computed from: the tensors of a policy, and the settings of a run that decide about memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rloo_kit import models
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.memory.hardware import Engine
from rloo_kit.memory.passes import DEFAULTS, PLAIN, Passes
from rloo_kit.models import HEAD_NORMS, PROJECTIONS, Checkpoint

if TYPE_CHECKING:
    import torch
    import trl
    from peft import PeftModel
    from transformers import PreTrainedModel

    from rloo_kit import Policy


AnyModel: TypeAlias = "PreTrainedModel | PeftModel"
Plannable: TypeAlias = "Policy | AnyModel | Checkpoint | str | os.PathLike[str]"

PROCESSORS = {"repetition_penalty": 4, "temperature": 4, "top_k": 5, "top_p": 22, "min_p": 9}
"""Bytes per logit that transformers' logits processors hold at their peak beside their input, in their order."""

IDLE = {"repetition_penalty": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""The values with which transformers leaves them out."""

KEPT_SHARE = 0.1
"""Of the weights, what projections add that unsloth's 4-bit repositories leave in 16 bit: "below 10 %" (its README)."""

FIELDS = {
    "num_generations": "num_generations",
    "max_completion_length": "completion_tokens",
    "per_device_train_batch_size": "micro_rows",
    "gradient_accumulation_steps": "accumulation",
    "generation_rows": "generation_rows",
    "num_iterations": "iterations",
    "max_steps": "steps",
    "beta": "beta",
    "kl_placement": "kl_placement",
    "normalize_advantages": "normalized",
    "single_pass": "single_pass",
    "per_device_eval_batch_size": "eval_batch",
}
"""A field of ``RLOOConfig`` -> of :class:`Settings`."""


@dataclass(frozen=True)
class Model:
    """A policy's tensors.

    Attributes:
        linear_bytes: the projections as stored.
        rest_bytes: embedding, lm_head and norms.
        lora_sizes: elements of each LoRA matrix.
        kept_bytes: an estimate of what layers kept in 16 bit add, before it is loaded.
        full_sizes: elements of each weight, where all are trained.
    """

    checkpoint: Checkpoint
    linear_bytes: int
    rest_bytes: int
    lora_sizes: tuple[int, ...]
    kept_bytes: int = 0
    full_sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Settings:
    """The configuration, by :data:`FIELDS`, and what the policy and the device say.

    Attributes:
        padded: whether prompts of a batch differ in length, so that rows are padded on the left.
        batch_rows: completions of a generation batch, micro_rows x ``steps_per_generation``.
        generation_rows: the most completions sampled at once; None takes as many as fit.
        steps: of the run, 0 where the data decides.
        groupwise: whether the advantage estimator needs one group at a time.
        reference_copy: whether the reference is a second LoRA (a continued policy) or the base model.
        processors: those of :data:`PROCESSORS` that are switched on, in their order.
        dtype_bytes: of activations, cache and whatever is not quantised.
        small_card: at most 24.5 GiB, where unsloth's head works in smaller tiles.
        evaluate: arguments of ``evaluate`` before and after training, by name; none where it is not called.
        eval_times, eval_rows, eval_batch: how often the trainer evaluates, completions in each, and at once.
    """

    prompt_tokens: int = 512
    completion_tokens: int = DEFAULTS.max_completion_length
    padded: bool = True
    num_generations: int = DEFAULTS.num_generations
    micro_rows: int = DEFAULTS.per_device_train_batch_size
    batch_rows: int = DEFAULTS.per_device_train_batch_size * DEFAULTS.gradient_accumulation_steps
    generation_rows: int | None = None
    accumulation: int = DEFAULTS.gradient_accumulation_steps
    iterations: int = DEFAULTS.num_iterations
    steps: int = 0
    beta: float = DEFAULTS.beta
    kl_placement: str = "reward"
    groupwise: bool = True
    normalized: bool = False
    reference_copy: bool = False
    processors: tuple[str, ...] = ()
    single_pass: bool = DEFAULTS.single_pass
    optimizer: str = DEFAULTS.optim
    lora_rank: int = 16
    full_finetuning: bool = False
    four_bit: bool = True
    checkpointing: bool | str = "unsloth"
    on_gpu: bool = True
    dtype_bytes: int = 2
    engine: Engine | None = None
    small_card: bool = True
    evaluate: tuple[tuple[str, Any], ...] = ()
    eval_times: int = 0
    eval_rows: int = 0
    eval_batch: int = 4

    @property
    def row_tokens(self) -> int:
        """T: prompt and completion of one row."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def sampled_rows(self) -> int:
        """Completions sampled at once; all of the batch where ``generation_rows`` is None."""
        return self.generation_rows or self.batch_rows

    @property
    def passes(self) -> Passes:
        """The forward passes of a step."""
        same = ("beta", "num_generations", "micro_rows", "accumulation", "iterations", "single_pass")
        given = {name: getattr(self, name) for name in (*same, "kl_placement", "groupwise", "normalized")}
        return Passes.of(**given, steps_per_generation=self.batch_rows // self.micro_rows)


def settings_of(
    config: trl.RLOOConfig | None, prompt_tokens: int | None = None, max_seq_length: int | None = None
) -> Settings:
    """What of a configuration decides about memory; of None, and where it is silent, the defaults.

    Raises:
        ConfigError: a length or batch below 1.
    """
    given = {} if config is None else PLAIN | {k: v for k, v in vars(config).items() if v is not None}
    values = dataclasses.asdict(DEFAULTS) | given
    found = {ours: values[name] for name, ours in FIELDS.items() if name in values}
    if prompt_tokens is None:
        room = max_seq_length - found["completion_tokens"] if max_seq_length else Settings.prompt_tokens
        prompt_tokens = max(1, min(Settings.prompt_tokens, room))
    steps = values.get("steps_per_generation", found["accumulation"])
    found |= {"prompt_tokens": prompt_tokens, "batch_rows": found["micro_rows"] * steps}
    for name in ("prompt_tokens", "completion_tokens", "micro_rows", "batch_rows", "generation_rows"):
        if found.get(name, 1) < 1:
            todo = "look at the lengths and batches of the configuration"
            raise ConfigError(f"{name} must be at least 1", where=f"plan, {name}={found[name]}", todo=todo)
    if (estimator := values.get("advantage_estimator", "rloo")) != "rloo":
        from rloo_kit import advantages  # which imports torch

        found["groupwise"] = advantages.find(estimator).groupwise
    found["steps"] = max(0, found.get("steps", 0))
    strategy = values.get("eval_strategy", "no")  # transformers makes an enum of it, and of optim
    if getattr(strategy, "value", strategy) == "steps" and (every := values.get("eval_steps")):
        found["eval_times"] = int(found["steps"] // every if every >= 1 else 1 / every)
    asked, optimizer = IDLE | values | values.get("generation_kwargs", {}), values["optim"]
    return Settings(
        **found,
        processors=tuple(name for name in PROCESSORS if asked[name] != IDLE[name]),
        optimizer=str(getattr(optimizer, "value", optimizer)),
    )


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors, each storage once."""
    storages = {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storage.nbytes() for storage in storages.values())


def quantisation_tensors(parameter: torch.nn.Parameter) -> list[torch.Tensor]:
    """What bitsandbytes keeps beside a 4-bit weight: scales, their scales, offset, code books."""
    state = getattr(parameter, "quant_state", None)  # only Params4bit has one
    if state is None:
        return []
    second = state.state2
    found = [state.absmax, state.code, state.offset, *((second.absmax, second.code) if second else ())]
    return [tensor for tensor in found if tensor is not None]


def is_lora(name: str) -> bool:
    """Whether a parameter's name is that of a LoRA matrix."""
    return "lora_" in name


def weight_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """Bytes of the frozen projections with their quantisation state, and of the other frozen parameters."""
    frozen = {name: p for name, p in model.named_parameters() if not is_lora(name)}
    linear = {name: p for name, p in frozen.items() if "_proj." in name or ".base_layer." in name}
    stored = [tensor for p in linear.values() for tensor in (p, *quantisation_tensors(p))]
    return bytes_of(stored), bytes_of(p for name, p in frozen.items() if name not in linear)


def reference_is_base(model: torch.nn.Module) -> bool:
    """Whether the base serves as the reference, and no copy: the LoRA is the zero map, and nothing else is trained."""
    ups = [p for name, p in model.named_parameters() if ".default." in name and "lora_B" in name]
    others = any(p.requires_grad for name, p in model.named_parameters() if not is_lora(name))
    return bool(ups) and not others and not any(p.any() for p in ups)


def loaded_model(model: AnyModel, checkpoint: Checkpoint) -> tuple[Model, dict[str, Any]]:
    """A loaded model's real bytes, and its own settings; without a LoRA all its weights are trained."""
    checkpointing = getattr(model, "_unsloth_gradient_checkpointing", None)
    if checkpointing is None:
        checkpointing = any(getattr(module, "gradient_checkpointing", False) for module in model.modules())
    own = {
        "four_bit": any(quantisation_tensors(p) for p in model.parameters()),
        "checkpointing": checkpointing,
        "dtype_bytes": model.get_input_embeddings().weight.element_size(),
    }
    lora = {name: p for name, p in model.named_parameters() if is_lora(name) and ".ref." not in name}
    if not lora:
        sizes = tuple(p.numel() for p in model.parameters() if p.requires_grad)
        own |= {"lora_rank": 0, "full_finetuning": True}
        return Model(checkpoint, *weight_bytes(model), (), full_sizes=sizes), own
    own["lora_rank"] = next((p.size(0) for name, p in lora.items() if "lora_A" in name), 0)
    own["reference_copy"] = not reference_is_base(model)
    return Model(checkpoint, *weight_bytes(model), tuple(p.numel() for p in lora.values())), own


def model_of(
    checkpoint: Checkpoint,
    lora_rank: int,
    four_bit: bool,
    dtype_bytes: int = 2,
    modules: Collection[str] = PROJECTIONS,
) -> Model:
    """A checkpoint's bytes from its shape; a rank of 0 stands for no LoRA, and all weights trained."""
    linear, rest = checkpoint.linear_bytes(four_bit, dtype_bytes), checkpoint.rest_parameters * dtype_bytes
    kept = int(KEPT_SHARE * (linear + rest)) if four_bit and checkpoint.four_bit_repository else 0
    if lora_rank:  # A is rank x inputs, B outputs x rank (Hu et al. 2021)
        shapes = [shape for name, shape in checkpoint.projections.items() if name in modules]
        layer = [lora_rank * size for rows, columns in shapes for size in (columns, rows)]
        return Model(checkpoint, linear, rest, tuple(layer * checkpoint.layers), kept)
    hidden, norms = checkpoint.hidden_size, [checkpoint.head_dim] * 2 * (checkpoint.family in HEAD_NORMS)
    layer = [*(rows * columns for rows, columns in checkpoint.projections.values()), hidden, hidden, *norms]
    ends = [checkpoint.vocabulary * hidden] * (1 if checkpoint.tied else 2) + [hidden]
    return Model(checkpoint, linear, rest, (), full_sizes=(*layer * checkpoint.layers, *ends))


def taken_apart(policy: Plannable) -> tuple[AnyModel | None, Checkpoint, dict[str, Any]]:
    """The model, where one is loaded; the shape; and the settings that a saved adapter brings along.

    Raises:
        PolicyNotFoundError: a name without a known shape.
    """
    if isinstance(policy, Checkpoint):
        return None, policy, {}
    if isinstance(policy, str | os.PathLike):
        file = Path(policy).expanduser() / "adapter_config.json"
        if not file.is_file():
            return None, checkpoint_of(os.fspath(policy)), {}
        adapter = json.loads(file.read_text())
        own = {"lora_rank": adapter["r"], "reference_copy": True}
        return None, checkpoint_of(adapter["base_model_name_or_path"]), own
    import torch

    if isinstance(policy, torch.nn.Module):
        name = str(policy.name_or_path)
        # Without the folders above it: tables are stored with notebooks, and paths are private.
        name = Path(name).name if Path(name).is_dir() else name
        return policy, models.checkpoint_from_config(name, policy.config, None), {}
    if not hasattr(policy, "checkpoint"):
        raise ConfigError(
            f"the first argument is the policy, and it is a {type(policy).__name__}",
            where="plan(policy, config)",
            todo="give what load_policy returns, a model, or a name such as 'qwen3-4b'",
        )
    return policy.model, policy.checkpoint, {}


def checkpoint_of(name: str) -> Checkpoint:
    """The shape behind a name: the catalogue, a folder, or the hub's cache."""
    if (known := models.find(name)) is not None:
        return known
    if "/" in name or Path(name).is_dir():
        from transformers import AutoConfig

        with contextlib.suppress(OSError):  # neither a folder with a config.json nor in the cache
            config = AutoConfig.from_pretrained(Path(name).expanduser().as_posix(), local_files_only=True)
            found = models.checkpoint_from_config(name, config, None)
            if found.uncounted:
                families = " and ".join(sorted({one.family for one in models.CATALOGUE.values()}))
                raise ConfigError(
                    f"the plan cannot count {found.uncounted}",
                    where=f"plan({name!r}), of the family {found.family}",
                    todo=f"take a dense model: the families {families} are known (rloo_kit.CATALOGUE)",
                )
            return found
    near = " or ".join(models.nearest(name))
    raise PolicyNotFoundError(
        f"no shape is known for {name!r}",
        where="plan, which looks into the catalogue, folders and the hub's cache, and downloads nothing",
        todo=f"did you mean {near}? Otherwise load it once and plan with the policy",
    )
