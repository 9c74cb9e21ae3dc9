"""Read from a model, a configuration, a name or a device what decides about memory.

For :mod:`.planning`, which adds it up, and :mod:`.meter`, which measures.  Nothing is downloaded and nothing changed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rloo_kit.catalogue import PROJECTIONS, Checkpoint, checkpoint_from_config, find, nearest, nf4_bytes
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.memory import footprint
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.settings import PROCESSORS, Model, Settings
from rloo_kit.passes import DEFAULTS, PLAIN
from rloo_kit.session.imports import cpu_tile_logits, import_unsloth
from rloo_kit.session.show import GIB

if TYPE_CHECKING:
    import torch
    import trl
    from peft import PeftModel
    from transformers import PreTrainedModel


class LoadedPolicy(Protocol):
    """What this room needs of a :class:`~rloo_kit.policy.policy.Policy`."""

    @property
    def model(self) -> AnyModel: ...  # noqa: D102

    @property
    def checkpoint(self) -> Checkpoint: ...  # noqa: D102


AnyModel: TypeAlias = "PreTrainedModel | PeftModel"
Plannable: TypeAlias = "LoadedPolicy | AnyModel | Checkpoint | str | os.PathLike[str]"


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors, each storage once."""
    sizes = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(sizes.values())


def quantisation_tensors(parameter: torch.nn.Parameter) -> list[torch.Tensor]:
    """What bitsandbytes keeps beside a 4-bit weight: scales, their scales, offset, code books."""
    state = getattr(parameter, "quant_state", None)  # only Params4bit has one
    if state is None:
        return []
    found = [state.absmax, state.code, state.offset]
    if state.state2 is not None:
        found += [state.state2.absmax, state.state2.code]
    return [tensor for tensor in found if tensor is not None]


def is_lora(name: str) -> bool:
    """Whether a parameter's name is that of a LoRA matrix."""
    return "lora_" in name


def standing_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters with their quantisation state, buffers and gradients."""
    parameters = list(model.parameters())
    found: list[torch.Tensor] = [*parameters, *model.buffers()]
    found += [tensor for p in parameters for tensor in quantisation_tensors(p)]
    return found + [p.grad for p in parameters if p.grad is not None]


def optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """The tensors of an optimizer's state."""
    import torch

    entries = optimizer.state.values() if optimizer is not None else ()
    return [value for entry in entries for value in entry.values() if isinstance(value, torch.Tensor)]


def weight_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """Bytes of the frozen projections with their quantisation state, and of the other frozen parameters."""
    frozen = {name: p for name, p in model.named_parameters() if not is_lora(name)}
    linear = {
        name: p for name, p in frozen.items() if name.split(".")[-2] == "base_layer" or "_proj." in name
    }
    rest = [p for name, p in frozen.items() if name not in linear]
    return bytes_of(t for p in linear.values() for t in (p, *quantisation_tensors(p))), bytes_of(rest)


def is_four_bit(model: torch.nn.Module) -> bool:
    """Whether any weight is stored in 4 bit."""
    return any(quantisation_tensors(p) for p in model.parameters())


def reference_is_base(model: torch.nn.Module) -> bool:
    """Whether the base model serves as the reference: the LoRA is still the zero map, and nothing else is trained.

    Otherwise the reference is a copy of the LoRA.
    """
    ups = [p for name, p in model.named_parameters() if ".default." in name and "lora_B" in name]
    others = any(p.requires_grad for name, p in model.named_parameters() if not is_lora(name))
    return bool(ups) and not others and not any(p.any() for p in ups)


def checkpointing_of(model: torch.nn.Module) -> bool | str:
    """The gradient checkpointing that a policy was loaded with: "unsloth", True or False."""
    named = getattr(model, "_unsloth_gradient_checkpointing", None)
    if named is not None:
        return named if isinstance(named, str) else bool(named)
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def loaded_model(model: AnyModel, checkpoint: Checkpoint) -> tuple[Model, dict[str, Any]]:
    """A loaded model's real bytes, and its own settings."""
    if not any(is_lora(name) for name, _ in model.named_parameters()):
        return _fully_trained(model, checkpoint)
    trained = {name: p for name, p in model.named_parameters() if is_lora(name) and ".ref." not in name}
    own = {
        "four_bit": is_four_bit(model),
        "lora_rank": next((p.size(0) for name, p in trained.items() if "lora_A" in name), 0),
        "checkpointing": checkpointing_of(model),
        "dtype_bytes": model.get_input_embeddings().weight.element_size(),
        "reference_copy": not reference_is_base(model),
    }
    return Model(checkpoint, *weight_bytes(model), tuple(p.numel() for p in trained.values())), own


def _fully_trained(model: AnyModel, checkpoint: Checkpoint) -> tuple[Model, dict[str, Any]]:
    trained = [p for p in model.parameters() if p.requires_grad]
    own = {
        "four_bit": False,
        "lora_rank": 0,
        "full_finetuning": True,
        "checkpointing": checkpointing_of(model),
        "dtype_bytes": model.get_input_embeddings().weight.element_size(),
    }
    return Model(checkpoint, *weight_bytes(model), (), full_sizes=tuple(p.numel() for p in trained)), own


IDLE = {"repetition_penalty": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""The values with which transformers leaves a logits processor out."""


def settings_of(
    config: trl.RLOOConfig | None, prompt_tokens: int | None = None, max_seq_length: int | None = None
) -> Settings:
    """What of a configuration decides about memory; of None, and where it is silent, :data:`rloo_kit.passes.DEFAULTS`.

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
    sampling = values.get("generation_kwargs", {})
    asked = IDLE | values | sampling
    settings = Settings(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        num_generations=values["num_generations"],
        micro_rows=micro,
        batch_rows=micro * values.get("steps_per_generation", accumulation),
        generation_rows=values.get("generation_rows"),
        accumulation=accumulation,
        iterations=values["num_iterations"],
        steps=max(0, values.get("max_steps", 0)),
        beta=values["beta"],
        fast_sampling=values["fast_sampling"] and not sampling,
        processors=tuple(name for name in PROCESSORS if asked[name] != IDLE[name]),
        single_pass=values["single_pass"],
        optimizer=str(getattr(optimizer, "value", optimizer)),  # transformers makes an enum of it
    )
    counts = (
        "prompt_tokens",
        "completion_tokens",
        "num_generations",
        "micro_rows",
        "batch_rows",
        "generation_rows",
    )
    for name in counts:
        if getattr(settings, name) is not None and getattr(settings, name) < 1:
            raise ConfigError(
                f"{name} must be at least 1",
                where=f"plan, {name}={getattr(settings, name)}",
                todo="look at the lengths and batches of the configuration",
            )
    return settings


def device_settings(device: Device) -> dict[str, Any]:
    """The settings of a device.  On a CPU, importing unsloth settles the type it computes in and the tile's size."""
    in_float32 = not device.on_gpu and not import_unsloth().is_bfloat16_supported()
    return {
        "on_gpu": device.on_gpu,
        "small_card": device.usable_bytes <= 24.5 * GIB,
        "dtype_bytes": 4 if in_float32 else 2,
        "cpu_tile_logits": cpu_tile_logits(),
    }


def model_of(
    checkpoint: Checkpoint,
    lora_rank: int,
    four_bit: bool,
    dtype_bytes: int = 2,
    modules: Collection[str] = PROJECTIONS,
) -> Model:
    """A checkpoint's bytes from its shape; a rank of 0 stands for no LoRA, and all weights trained.

    Unsloth's 4-bit repositories keep some projections in 16 bit.  Their config.json lists them: where it is in the
    hub's cache they are counted, elsewhere :data:`rloo_kit.memory.footprint.KEPT_SHARE` estimates them.
    """
    linear, rest = checkpoint.linear_bytes(four_bit, dtype_bytes), checkpoint.rest_parameters * dtype_bytes
    kept = 0
    if four_bit and checkpoint.four_bit_repository:
        config = _config_file(checkpoint.four_bit_repository)
        if config is None:
            kept = int(footprint.KEPT_SHARE * (linear + rest))
        else:
            shapes = [checkpoint.projections[name] for name in _kept_in_16_bit(checkpoint, config)]
            linear += sum(2 * rows * columns - nf4_bytes(rows * columns) for rows, columns in shapes)
    if not lora_rank:
        return Model(checkpoint, linear, rest, (), full_sizes=footprint.all_sizes(checkpoint))
    return Model(checkpoint, linear, rest, footprint.lora_sizes(checkpoint, lora_rank, modules), kept)


def _kept_in_16_bit(checkpoint: Checkpoint, config: Path) -> list[str]:
    """The projections, an entry per layer, that a 4-bit checkpoint's config.json leaves unquantised."""
    quantization = json.loads(config.read_text()).get("quantization_config") or {}
    names = quantization.get("llm_int8_skip_modules") or []
    skipped = tuple(f"{name}." for name in names if "layers." in name)
    mlp = ("gate_proj", "up_proj", "down_proj")
    return [
        name
        for layer in range(checkpoint.layers)
        for name in checkpoint.projections
        if f"model.layers.{layer}.{'mlp' if name in mlp else 'self_attn'}.{name}.".startswith(skipped)
    ]


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

    if not isinstance(policy, torch.nn.Module):
        return policy.model, policy.checkpoint, {}
    name = str(policy.name_or_path)
    # Without the folders above it: tables are stored with notebooks, and paths are private.
    name = Path(name).name if Path(name).is_dir() else name
    return policy, checkpoint_from_config(name, policy.config, None), {}


def _adapter_config(name: str | os.PathLike[str]) -> dict[str, Any]:
    file = Path(name) / "adapter_config.json"
    return json.loads(file.read_text()) if file.is_file() else {}


def checkpoint_of(name: str | os.PathLike[str]) -> Checkpoint:
    """The shape behind a name: the catalogue, a folder, or the hub's cache; nothing is downloaded.

    Raises:
        PolicyNotFoundError: none of them has it.
    """
    adapter = _adapter_config(name)
    if adapter:
        return checkpoint_of(adapter["base_model_name_or_path"])
    text = os.fspath(name)
    found = find(text)
    if found is not None:
        return found
    file = _config_file(text)
    if file is None:
        raise PolicyNotFoundError(
            f"no shape is known for {text!r}",
            where="plan, which looks into the catalogue, folders and the hub's cache, and downloads nothing",
            todo=f"did you mean {' or '.join(nearest(text))}? Otherwise load it once and plan with the policy",
        )
    from transformers import AutoConfig

    return checkpoint_from_config(text, AutoConfig.from_pretrained(file.parent), None)


def _config_file(name: str) -> Path | None:
    """The config.json of a folder, or of a repository in the hub's cache."""
    folder = Path(name)
    if folder.is_dir():
        return folder / "config.json" if (folder / "config.json").is_file() else None
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(name, "config.json")
    return Path(cached) if isinstance(cached, str) else None
