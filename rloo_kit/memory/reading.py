"""What of a model, a configuration or a name decides about memory: read, and nothing estimated.

For :mod:`.planning`, which adds it up, and :mod:`.meter`, which measures.  Nothing is downloaded and nothing changed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.catalogue import Checkpoint, checkpoint_from_config, find, nearest, nf4_bytes
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.memory import footprint
from rloo_kit.memory.footprint import PROCESSORS, Model, Settings, lora_sizes
from rloo_kit.memory.hardware import Device, where_computed
from rloo_kit.session.show import GIB

if TYPE_CHECKING:
    import torch

# --- of a model -------------------------------------------------------------------------------------------


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors, each storage once."""
    sizes = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(sizes.values())


def quantisation_tensors(parameter: Any) -> list[torch.Tensor]:
    """What bitsandbytes keeps beside a 4-bit weight: scales, their scales, offset, code books."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return []
    found = [state.absmax, state.code, state.offset]
    if state.state2 is not None:
        found += [state.state2.absmax, state.state2.code]
    return [tensor for tensor in found if tensor is not None]


def is_lora(name: str) -> bool:
    """Whether a parameter's name is that of a LoRA matrix."""
    return "lora_" in name


def standing_tensors(model: torch.nn.Module, optimizer: Any = None) -> list[torch.Tensor]:
    """Parameters with their quantisation state, buffers, gradients and the optimizer's state."""
    parameters = list(model.parameters())
    found: list[torch.Tensor] = [*parameters, *model.buffers()]
    found += [tensor for p in parameters for tensor in quantisation_tensors(p)]
    found += [p.grad for p in parameters if p.grad is not None]
    return found + optimizer_tensors(optimizer)


def optimizer_tensors(optimizer: Any) -> list[torch.Tensor]:
    """The tensors of an optimizer's state, accelerate's wrapper or none included."""
    state = getattr(optimizer, "state", None) or {}
    return [value for entry in state.values() for value in entry.values() if isinstance(value, torch.Tensor)]


def weight_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """Bytes of the frozen projections with their quantisation state, and of the other frozen parameters."""
    frozen = [(name, p) for name, p in model.named_parameters() if not is_lora(name)]
    linear = [p for name, p in frozen if name.split(".")[-2] == "base_layer" or "_proj." in name]
    rest = [p for name, p in frozen if not any(p is other for other in linear)]
    return bytes_of([*linear, *(t for p in linear for t in quantisation_tensors(p))]), bytes_of(rest)


def is_four_bit(model: torch.nn.Module) -> bool:
    """Whether any weight is stored in 4 bit."""
    return any(getattr(p, "quant_state", None) is not None for p in model.parameters())


def is_trained(model: torch.nn.Module) -> bool:
    """Whether a LoRA has left the zero map that it starts as."""
    return any(bool(p.any()) for name, p in model.named_parameters() if "lora_B.default" in name)


def checkpointing_of(model: torch.nn.Module) -> bool | str:
    """The gradient checkpointing that a policy was loaded with: "unsloth", True or False."""
    named = getattr(model, "_unsloth_gradient_checkpointing", None)
    if named is not None:
        return named if isinstance(named, str) else bool(named)
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


# --- of a configuration, a name or a device ---------------------------------------------------------------

DEFAULT_PROMPT_TOKENS = 512
"""Length assumed for the longest prompt where nobody says: a word problem with a chat template has 100 to 300."""


def settings_of(config: Any, prompt_tokens: int | None = None, max_seq_length: int | None = None) -> Settings:
    """What of a configuration decides about memory.

    Raises:
        ConfigError: a length or batch below 1.
    """
    default = Settings()

    def read(name: str, otherwise: Any) -> Any:
        value = getattr(config, name, None)
        return otherwise if value is None else value

    completion = int(read("max_completion_length", default.completion_tokens))
    if prompt_tokens is None:
        room = max_seq_length - completion if max_seq_length else DEFAULT_PROMPT_TOKENS
        prompt_tokens = max(1, min(DEFAULT_PROMPT_TOKENS, room))
    micro = int(read("per_device_train_batch_size", default.micro_rows))
    accumulation = int(read("gradient_accumulation_steps", default.accumulation))
    optimizer = read("optim", default.optimizer)
    fast = bool(getattr(config, "fast_sampling", config is None)) and not getattr(
        config, "generation_kwargs", None
    )
    idle = {"repetition_penalty": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    asked = getattr(config, "generation_kwargs", None) or {}
    settings = Settings(
        prompt_tokens=prompt_tokens,
        completion_tokens=completion,
        num_generations=int(read("num_generations", default.num_generations)),
        micro_rows=micro,
        generation_rows=micro * int(read("steps_per_generation", accumulation)),
        accumulation=accumulation,
        iterations=int(read("num_iterations", default.iterations)),
        beta=float(read("beta", default.beta)),
        fast_sampling=fast,
        processors=tuple(
            name for name in PROCESSORS if asked.get(name, read(name, idle[name])) != idle[name]
        ),
        single_pass=bool(getattr(config, "single_pass", config is None)),
        optimizer=str(getattr(optimizer, "value", optimizer)),
    )
    for name in ("prompt_tokens", "completion_tokens", "num_generations", "micro_rows", "generation_rows"):
        if getattr(settings, name) < 1:
            raise ConfigError(
                f"{name} must be at least 1",
                where=f"plan, {name}={getattr(settings, name)}",
                todo="look at the lengths and batches of the configuration",
            )
    return settings


def model_of(checkpoint: Checkpoint, lora_rank: int, four_bit: bool, dtype_bytes: int = 2) -> Model:
    """A checkpoint's bytes from its shape.

    Unsloth's 4-bit repositories keep some projections in 16 bit.  Which ones stands in their config.json; where that
    is in the hub's cache they are counted, elsewhere :data:`rloo_kit.memory.footprint.KEPT_SHARE` stands for them.
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
    return Model(checkpoint, linear, rest, lora_sizes(checkpoint, lora_rank), kept)


def _kept_in_16_bit(checkpoint: Checkpoint, config: Path) -> list[str]:
    """The projections, an entry per layer, that a 4-bit checkpoint's config.json leaves unquantised."""
    quantization = json.loads(config.read_text()).get("quantization_config") or {}
    skipped = [f"{name}." for name in quantization.get("llm_int8_skip_modules") or [] if "layers." in name]
    mlp = ("gate_proj", "up_proj", "down_proj")
    found = []
    for layer in range(checkpoint.layers):
        for name in checkpoint.projections:
            full = f"model.layers.{layer}.{'mlp' if name in mlp else 'self_attn'}.{name}."
            found += [name] if any(full.startswith(part) for part in skipped) else []
    return found


def is_on(model: Any, device: Device) -> bool:
    """Whether a model is on the kind of device that is planned for."""
    return (where_computed(model).type != "cpu") == device.on_gpu


def loaded_model(model: Any, checkpoint: Checkpoint) -> tuple[Model, dict[str, Any]]:
    """A loaded model's real bytes, and the settings that are its own."""
    trained = [p for name, p in model.named_parameters() if is_lora(name) and ".ref." not in name]
    linear, rest = weight_bytes(model)
    own = {
        "four_bit": is_four_bit(model),
        "lora_rank": getattr(getattr(model, "peft_config", {}).get("default"), "r", 0),
        "checkpointing": checkpointing_of(model),
        "dtype_bytes": model.get_input_embeddings().weight.element_size(),
        # The trainer takes a fresh LoRA's base for the reference, and copies one that was trained before.
        "reference_copy": is_trained(model),
    }
    return Model(checkpoint, linear, rest, tuple(p.numel() for p in trained)), own


def checkpoint_of_any(policy: Any) -> Checkpoint:
    """The shape of a policy, a model, a name or a folder."""
    if isinstance(policy, Checkpoint):
        return policy
    return checkpoint_of(policy) if isinstance(policy, str | os.PathLike) else checkpoint_of_loaded(policy)


def checkpoint_of_loaded(policy: Any) -> Checkpoint:
    """The shape of a policy, or of a bare model."""
    own = getattr(policy, "checkpoint", None)
    if own is not None:
        return own
    name = str(getattr(policy, "name_or_path", "model"))
    # Tables are stored with notebooks, and whose folders they were is nobody's business.
    return checkpoint_from_config(Path(name).name if Path(name).is_dir() else name, policy.config, None)


def adapter_settings(policy: Any) -> dict[str, Any]:
    """The settings of a saved adapter: its rank, and that the reference will be a copy of it."""
    config = _adapter_config(policy)
    return {"lora_rank": config["r"], "reference_copy": True} if config else {}


def _adapter_config(policy: Any) -> dict[str, Any]:
    file = Path(policy) / "adapter_config.json" if isinstance(policy, str | os.PathLike) else None
    return json.loads(file.read_text()) if file and file.is_file() else {}


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


def device_settings(device: Device) -> dict[str, Any]:
    """The settings that are the device's, whatever the policy.

    rloo_kit.session.environment sets the tile's size when unsloth is imported; unsloth reads it at every call.
    """
    tile = int(os.environ.get("UNSLOTH_CPU_CE_CHUNK_ELEMENTS", Settings.cpu_tile_logits))
    return {
        "on_gpu": device.on_gpu,
        "small_card": device.usable_bytes <= 24.5 * GIB,
        "cpu_tile_logits": tile,
    }


def cpu_dtype_bytes() -> int:
    """Unsloth's CPU path computes in bfloat16 where the processor has it, else in float32."""
    from rloo_kit.session.imports import import_unsloth

    return 2 if import_unsloth().is_bfloat16_supported() else 4
