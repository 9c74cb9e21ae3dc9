"""What decides how much memory a run takes, read from a model, a configuration, a name or a device."""

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
from rloo_kit.memory.hardware import Device, Engine
from rloo_kit.memory.passes import DEFAULTS, PLAIN, Passes
from rloo_kit.models import HEAD_NORMS, PROJECTIONS, Checkpoint
from rloo_kit.session.import_order import import_unsloth
from rloo_kit.session.output import GIB

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
"""Of the weights, what the projections add that unsloth's 4-bit repositories leave in 16 bit: "below 10 %", says its
README.  A loaded policy is counted as it is."""


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

    @property
    def trained_sizes(self) -> tuple[int, ...]:
        """Elements of each trained tensor."""
        return self.full_sizes or self.lora_sizes


@dataclass(frozen=True)
class Settings:
    """The configuration and the device, with the names of ``RLOOConfig`` in brackets.

    Attributes:
        padded: whether prompts of a batch differ in length, so that rows are padded on the left.
        micro_rows, accumulation: ``per_device_train_batch_size``, ``gradient_accumulation_steps``.
        batch_rows: completions of a generation batch, micro_rows x ``steps_per_generation``.
        generation_rows: the most completions sampled at once; None takes as many as fit.
        iterations, steps: ``num_iterations``, and ``max_steps`` of the run, 0 where the data decides.
        groupwise, normalized: whether the advantage estimator needs one group at a time, ``normalize_advantages``.
        reference_copy: whether the reference is a second LoRA (a continued policy) or the base model.
        processors: those of :data:`PROCESSORS` that are switched on, in their order.
        dtype_bytes: of activations, cache and whatever is not quantised.
        small_card: at most 24.5 GiB, where unsloth's head works in smaller tiles.
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
    completion, micro = values["max_completion_length"], values["per_device_train_batch_size"]
    accumulation, optimizer = values["gradient_accumulation_steps"], values["optim"]
    if prompt_tokens is None:
        room = max_seq_length - completion if max_seq_length else Settings.prompt_tokens
        prompt_tokens = max(1, min(Settings.prompt_tokens, room))
    asked = IDLE | values | values.get("generation_kwargs", {})
    counts = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion,
        "num_generations": values["num_generations"],
        "micro_rows": micro,
        "batch_rows": micro * values.get("steps_per_generation", accumulation),
        "generation_rows": values.get("generation_rows"),
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            todo = "look at the lengths and batches of the configuration"
            raise ConfigError(f"{name} must be at least 1", where=f"plan, {name}={count}", todo=todo)
    estimator, groupwise = values.get("advantage_estimator", "rloo"), True
    if estimator != "rloo":  # a plan for a named GPU does not import torch
        from rloo_kit import advantages

        groupwise = advantages.find(estimator).groupwise
    return Settings(
        **counts,
        accumulation=accumulation,
        iterations=values["num_iterations"],
        steps=max(0, values.get("max_steps", 0)),
        beta=values["beta"],
        kl_placement=values.get("kl_placement", "reward"),
        groupwise=groupwise,
        normalized=values.get("normalize_advantages", False),
        processors=tuple(name for name in PROCESSORS if asked[name] != IDLE[name]),
        single_pass=values["single_pass"],
        optimizer=str(getattr(optimizer, "value", optimizer)),  # transformers makes an enum of it
    )


def device_settings(device: Device) -> dict[str, Any]:
    """The settings of a device.  On a CPU, importing unsloth settles the type it computes in."""
    in_float32 = not device.on_gpu and not import_unsloth().is_bfloat16_supported()
    small = device.usable_bytes <= 24.5 * GIB
    return {"on_gpu": device.on_gpu, "small_card": small, "dtype_bytes": 4 if in_float32 else 2}


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors, each storage once."""
    storages = {storage._cdata: storage for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storage.nbytes() for storage in storages.values())


def quantisation_tensors(parameter: torch.nn.Parameter) -> list[torch.Tensor]:
    """What bitsandbytes keeps beside a 4-bit weight: scales, their scales, offset, code books."""
    state = getattr(parameter, "quant_state", None)  # only Params4bit has one
    if state is None:
        return []
    found = [state.absmax, state.code, state.offset]
    found += [state.state2.absmax, state.state2.code] if state.state2 is not None else []
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
    if not lora_rank:
        return Model(checkpoint, linear, rest, (), full_sizes=all_sizes(checkpoint))
    return Model(checkpoint, linear, rest, lora_sizes(checkpoint, lora_rank, modules), kept)


def lora_sizes(checkpoint: Checkpoint, rank: int, modules: Collection[str] = PROJECTIONS) -> tuple[int, ...]:
    """Elements of each LoRA matrix: A is rank x inputs, B outputs x rank (Hu et al. 2021)."""
    shapes = [shape for name, shape in checkpoint.projections.items() if name in modules]
    layer = [rank * size for rows, columns in shapes for size in (columns, rows)]
    return tuple(layer * checkpoint.layers)


def all_sizes(checkpoint: Checkpoint) -> tuple[int, ...]:
    """Elements of each weight: projections and norms of every layer, embedding, lm_head, last norm."""
    layer = [rows * columns for rows, columns in checkpoint.projections.values()]
    layer += [checkpoint.hidden_size] * 2
    layer += [checkpoint.head_dim] * 2 if checkpoint.family in HEAD_NORMS else []
    embeddings = [checkpoint.vocabulary * checkpoint.hidden_size] * (1 if checkpoint.tied else 2)
    return (*layer * checkpoint.layers, *embeddings, checkpoint.hidden_size)


def taken_apart(policy: Plannable) -> tuple[AnyModel | None, Checkpoint, dict[str, Any]]:
    """The model, where one is loaded; the shape; and the settings that a saved adapter brings along.

    Raises:
        PolicyNotFoundError: a name without a known shape.
    """
    if isinstance(policy, Checkpoint):
        return None, policy, {}
    if isinstance(policy, str | os.PathLike):
        adapter = _adapter_config(policy)
        own = {"lora_rank": adapter["r"], "reference_copy": True} if adapter else {}
        return None, checkpoint_of(policy), own
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


def _adapter_config(name: str | os.PathLike[str]) -> dict[str, Any]:
    file = Path(name).expanduser() / "adapter_config.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def checkpoint_of(name: str | os.PathLike[str]) -> Checkpoint:
    """The shape behind a name: the catalogue, a folder, or the hub's cache."""
    text = os.fspath(_adapter_config(name).get("base_model_name_or_path", name))
    if (known := models.find(text)) is not None:
        return known
    if "/" in text or Path(text).is_dir():
        from transformers import AutoConfig

        with contextlib.suppress(OSError):  # neither a folder with a config.json nor in the cache
            config = AutoConfig.from_pretrained(Path(text).expanduser().as_posix(), local_files_only=True)
            found = models.checkpoint_from_config(text, config, None)
            if found.uncounted:
                what, where = f"the plan cannot count {found.uncounted}", f"plan({text!r})"
                todo = (
                    "plan a dense model, as those of rloo_kit.CATALOGUE; or load it and watch its first step"
                )
                raise ConfigError(what, where=where, todo=todo)
            return found
    near = " or ".join(models.nearest(text))
    raise PolicyNotFoundError(
        f"no shape is known for {text!r}",
        where="plan, which looks into the catalogue, folders and the hub's cache, and downloads nothing",
        todo=f"did you mean {near}? Otherwise load it once and plan with the policy",
    )
