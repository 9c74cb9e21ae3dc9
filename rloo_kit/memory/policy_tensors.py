"""List the sizes of a model's tensors, from a loaded policy or from a checkpoint's shape."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rloo_kit import models
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.models import PROJECTIONS, Checkpoint

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel

    from rloo_kit import Policy


AnyModel: TypeAlias = "PreTrainedModel | PeftModel"
Plannable: TypeAlias = "Policy | AnyModel | Checkpoint | str | os.PathLike[str]"

SAMPLE = 1024  # values of each tensor that go into a digest: merging a LoRA changes most of them
KEPT_SHARE = 0.1
"""Share of the weights that projections left in 16 bit add in unsloth's 4-bit repositories: "below 10 %" (README)."""


@dataclass(frozen=True)
class Model:
    checkpoint: Checkpoint
    linear_bytes: int  # of the projections as stored
    rest_bytes: int  # of embedding, lm_head and norms
    lora_sizes: tuple[int, ...]  # elements of each LoRA matrix
    kept_bytes: int = 0  # an estimate, before loading, of what layers kept in 16 bit add
    full_sizes: tuple[int, ...] = ()  # elements of each weight, where all are trained


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
    return "lora_" in name


def frozen(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The base's parameters by name, if they are not trained."""
    return {name: p for name, p in model.named_parameters() if not p.requires_grad and not is_lora(name)}


def digest_of(parameters: Mapping[str, torch.nn.Parameter]) -> str:
    """A digest of a sample of each parameter, rounded to bfloat16 so that float32 agrees; empty if there are none, or
    not all of them are in this process."""
    import torch

    digest = hashlib.sha256()
    if not parameters or any(p.is_meta or not p.numel() for p in parameters.values()):
        return ""
    for name, parameter in parameters.items():
        digest.update(name.replace(".base_layer", "").encode())
        for tensor in (parameter.detach(), *quantisation_tensors(parameter)):
            flat = tensor.reshape(-1)
            sample = flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE].cpu()
            sample = sample.bfloat16().view(torch.int16) if sample.is_floating_point() else sample
            digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def weight_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """Bytes of the frozen projections with their quantisation state, and of the other frozen parameters."""
    untrained = {name: p for name, p in model.named_parameters() if not is_lora(name)}
    linear = {name: p for name, p in untrained.items() if "_proj." in name or ".base_layer." in name}
    stored = [tensor for p in linear.values() for tensor in (p, *quantisation_tensors(p))]
    return bytes_of(stored), bytes_of(p for name, p in untrained.items() if name not in linear)


def reference_is_base(model: torch.nn.Module) -> bool:
    """Whether the base, not a copy, serves as the reference: the LoRA is the zero map, and nothing else is trained."""
    ups = [p for name, p in model.named_parameters() if ".default." in name and "lora_B" in name]
    others = any(p.requires_grad for name, p in model.named_parameters() if not is_lora(name))
    return bool(ups) and not others and not any(p.any() for p in ups)


def loaded_model(model: AnyModel, checkpoint: Checkpoint) -> tuple[Model, dict[str, Any]]:
    """Return a loaded model's actual bytes and its settings; without a LoRA all its weights are trained."""
    of_unsloth = getattr(model, "_unsloth_gradient_checkpointing", model.is_gradient_checkpointing)
    lora = {name: p for name, p in model.named_parameters() if is_lora(name) and ".ref." not in name}
    own = {
        "four_bit": any(quantisation_tensors(p) for p in model.parameters()),
        "checkpointing": "auto" if hasattr(model, "auto_checkpointing") else of_unsloth,
        "dtype_bytes": model.get_input_embeddings().weight.element_size(),
        "lora_rank": next((p.size(0) for name, p in lora.items() if "lora_A" in name), 0),
        "reference_copy": bool(lora) and not reference_is_base(model),
    }
    full = () if lora else tuple(p.numel() for p in model.parameters() if p.requires_grad)
    sizes = tuple(p.numel() for p in lora.values())
    return Model(checkpoint, *weight_bytes(model), sizes, full_sizes=full), own


def model_of(
    checkpoint: Checkpoint, lora_rank: int, four_bit: bool, dtype_bytes: int = 2, modules: Collection[str] = PROJECTIONS
) -> Model:
    """Return a checkpoint's bytes from its shape; rank 0 means that all weights are trained, counted as two tensors."""
    linear, rest = checkpoint.linear_bytes(four_bit, dtype_bytes), checkpoint.rest_parameters * dtype_bytes
    kept = int(KEPT_SHARE * (linear + rest)) if four_bit and checkpoint.four_bit_repository else 0
    if not lora_rank:
        both = checkpoint.linear_parameters, checkpoint.rest_parameters
        return Model(checkpoint, linear, rest, (), full_sizes=both)
    # A is rank x inputs, B outputs x rank (Hu et al. 2021).
    shapes = [shape for name, shape in checkpoint.projections.items() if name in modules]
    layer = [lora_rank * size for rows, columns in shapes for size in (columns, rows)]
    return Model(checkpoint, linear, rest, tuple(layer * checkpoint.layers), kept)


def taken_apart(policy: Plannable) -> tuple[AnyModel | None, Checkpoint, dict[str, Any]]:
    """Return the loaded model or None, the checkpoint's shape, and the settings of a saved adapter.

    Raises:
        PolicyNotFoundError: a name without a known shape.
    """
    if isinstance(policy, Checkpoint):
        return None, policy, {}
    if isinstance(policy, str | os.PathLike):
        named = Path(os.path.expanduser(policy))  # noqa: PTH111 - Path.expanduser raises for an unknown user
        file = named / "adapter_config.json"
        if not file.is_file():
            return None, checkpoint_of(str(named) if named.is_dir() else os.fspath(policy)), {}
        adapter = json.loads(file.read_text())
        own = {"lora_rank": adapter["r"], "reference_copy": True}
        return None, checkpoint_of(adapter["base_model_name_or_path"]), own
    loaded: Any = policy
    if hasattr(loaded, "checkpoint"):
        return loaded.model, loaded.checkpoint, {}
    if not hasattr(loaded, "name_or_path"):
        raise ConfigError(
            f"the first argument is the policy, and it is a {type(policy).__name__}",
            where="plan(policy, config)",
            todo="give what load_policy returns, a model, or a name such as 'qwen3-4b'",
        )
    return loaded, models.checkpoint_from_config(_public(str(loaded.name_or_path)), loaded.config, None), {}


def _public(name: str) -> str:
    """Return a folder's name without its path: tables are stored in notebooks, and paths are private."""
    return Path(name).name if Path(name).is_dir() else name


def checkpoint_of(name: str) -> Checkpoint:
    """Return the shape behind a name, from the catalogue, a folder, or the hub's cache."""
    if (known := models.of_base(name)) is not None:
        return known if known.name in models.CATALOGUE else replace(known, name=_public(known.name))
    if Path(name, "config.json").is_file() or ("/" in name and not Path(name).is_dir()):
        from transformers import AutoConfig

        with contextlib.suppress(OSError):  # neither a folder with a config.json nor in the cache
            config = AutoConfig.from_pretrained(name, local_files_only=True)
            found = models.checkpoint_from_config(_public(name), config, None)
            if not found.uncounted:
                return found
            families = " and ".join(sorted({known.family for known in models.CATALOGUE.values()}))
            raise ConfigError(
                f"the plan cannot count {found.uncounted}",
                where=f"plan({name!r}), of the family {found.family}",
                todo=f"take a dense model: the families {families} are known (rloo_kit.CATALOGUE)",
            )
    near = "a run's checkpoint-N inside it" if Path(name).is_dir() else " or ".join(models.nearest(name))
    raise PolicyNotFoundError(
        f"no shape is known for {name!r}",
        where="plan, which looks into the catalogue, folders and the hub's cache, and downloads nothing",
        todo=f"did you mean {near}? rloo_kit.fit() plans the largest; else load it once, and plan with the policy",
    )
