"""What ``load_policy`` may be asked for, by its own names and by unsloth's, checked before anything is loaded.

For :mod:`.load`.  Each of unsloth's arguments works, or is refused with what to do instead; a value that asks for
nothing, as recipes write them out (``lora_dropout=0``), is taken.  It loads nothing.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NoReturn

from annotated_types import Gt

from rloo_kit import redact, values
from rloo_kit.catalogue import PROJECTIONS
from rloo_kit.errors import ArgumentError, ConfigError
from rloo_kit.session import processes
from rloo_kit.session.import_order import import_unsloth
from rloo_kit.values import Count, PositiveShare, Seed

Arguments = dict[str, Any]

DEFAULT_LENGTH = 4096  # tokens
DEFAULTS: Arguments = {"name": None, "load_in_4bit": None, "lora_rank": 16, "lora_alpha": None, "seed": 0}
DEFAULTS |= {"max_seq_length": DEFAULT_LENGTH, "gradient_checkpointing": "unsloth", "full_finetuning": False}
DEFAULTS |= {"target_modules": None, "use_rslora": False}

HINTS = {
    "name": str | os.PathLike[str] | None,
    "max_seq_length": Count,
    "load_in_4bit": bool | None,
    "load_in_16bit": bool,
    "full_finetuning": bool,
    "lora_rank": Count,
    "lora_alpha": Annotated[float, Gt(0)] | None,
    "target_modules": str | list[Literal[PROJECTIONS]] | None,  # type: ignore[valid-type]
    "use_rslora": bool,
    "gradient_checkpointing": Literal["unsloth"] | bool,
    "seed": Seed,
    "fast_inference": bool,
    "gpu_memory_utilization": PositiveShare,
    "float8_kv_cache": bool,
    "max_lora_rank": Count,
    "dtype": Literal["float32", "bfloat16", "float16", "auto"] | None,
    "token": str | bool | None,
    "revision": str | None,
}
ADVICE = {
    "name": "a name such as 'qwen3-4b', a hub id, or a folder",
    "max_seq_length": "4096 is the default",
    "lora_rank": "16 is the default",
    "target_modules": f"a list of some of {', '.join(PROJECTIONS)}, or 'all-linear' for all seven",
    "dtype": "torch.bfloat16, torch.float16 or torch.float32, or leave it out: the device decides",
}

ALIASES = {"model_name": "name", "r": "lora_rank", "random_state": "seed"}
ALIASES |= {"use_gradient_checkpointing": "gradient_checkpointing", "torch_dtype": "dtype"}
"""Unsloth's names for arguments that have another one here."""

ALL_LINEAR = "all-linear"

_OTHER_BITS = "remove it: load_in_4bit=True takes less memory, load_in_16bit=True loses nothing"
INSTEAD: dict[str, tuple[object, str]] = {
    "lora_dropout": (0, "remove it: dropout makes the on-policy ratio differ from 1"),
    "load_in_8bit": (False, _OTHER_BITS),
    "load_in_fp8": (False, _OTHER_BITS),
    "bias": ("none", "remove it: the LoRA has no biases, nor have Qwen3's projections"),
    "modules_to_save": (None, "remove it; full_finetuning=True trains every weight"),
    "loftq_config": (None, "remove it: the policy must begin as the reference, and LoftQ changes weights"),
    "init_lora_weights": (True, "remove it: the policy must begin as the reference, with a LoRA of 0"),
    "layers_to_transform": (None, "remove it: the LoRA is on all layers; target_modules says on which parts"),
    "layers_pattern": (None, "remove it: the LoRA is on all layers"),
    "qat_scheme": (None, "remove it: the completions would come from another policy than the one trained"),
    "max_length": (None, "use max_seq_length"),
    "rank": (None, "use lora_rank"),
    "alpha": (None, "use lora_alpha"),
}
"""What ``load_policy`` does not take, though unsloth's functions do: the value that asks for nothing, and what to do
instead of any other."""

NAMES = {*HINTS, *DEFAULTS, *ALIASES, *INSTEAD, "device_map"}
"""Every argument that ``load_policy`` takes or answers; others go to unsloth."""


@dataclass(frozen=True)
class Lora:
    """The LoRA to attach to a base."""

    rank: int
    alpha: float
    modules: tuple[str, ...] = PROJECTIONS
    rank_stabilised: bool = False  # alpha / sqrt(rank) in place of alpha / rank


@dataclass(frozen=True)
class Asked:
    """What ``load_policy`` was asked for."""

    name: str | os.PathLike[str] | None  # None leaves it to the device
    max_seq_length: int
    four_bit: bool | None  # None leaves it to the checkpoint
    lora: Lora | None  # None where all weights are trained
    checkpointing: bool | str
    seed: int
    further: Arguments = field(default_factory=dict)  # for ``FastLanguageModel.from_pretrained`` as they are


def settled(given: Arguments) -> Asked:
    """What ``load_policy`` was given, by one name each, checked.

    Raises:
        ArgumentError: an argument that it does not take, or one given by two names.
        ConfigError: a value out of range, two that contradict each other, or one that this device cannot do.
    """
    if isinstance(token := given.get("token"), str):
        redact.hide("load_policy(token)", token)
    given = _by_our_names(given)
    for name in INSTEAD:
        _drop_idle(given, name)
    _refuse_misspelt(given)
    if given.get("dtype") is not None:
        given["dtype"] = str(given["dtype"]).removeprefix("torch.")
    if given["target_modules"] == ALL_LINEAR:
        given["target_modules"] = list(PROJECTIONS)
    if isinstance(given["target_modules"], str) or given["target_modules"] == []:
        _refuse(given, "target_modules", "target_modules must be a list of names", ADVICE["target_modules"])
    given |= values.check(given, HINTS, "load_policy", ADVICE)
    four_bit = _four_bit(given)
    lora = None if given["full_finetuning"] else _lora(given)
    if lora is None:
        _check_full(given)
    _check_engine(given)
    ours = {*DEFAULTS, "load_in_16bit", "dtype"}
    further = {name: value for name, value in given.items() if name not in ours}
    further |= _dtype(given.get("dtype"))
    if lora is None:
        further["full_finetuning"], four_bit = True, False
    name, length, checkpointing = given["name"], given["max_seq_length"], given["gradient_checkpointing"]
    return Asked(name, length, four_bit, lora, checkpointing, given["seed"], further)


def _by_our_names(given: Arguments) -> Arguments:
    found = DEFAULTS | given
    for theirs, ours in ALIASES.items():
        if theirs not in found:
            continue
        value = found.pop(theirs)
        before = given.get(ours, DEFAULTS.get(ours))
        if before not in (DEFAULTS.get(ours), value):
            raise ArgumentError(
                f"{theirs} and {ours} are two names of one setting",
                where=f"load_policy({theirs}={values.shown(theirs, value)}, {ours}={values.shown(ours, before)})",
                todo=f"give {ours} alone",
            )
        found[ours] = value
    return found


def _drop_idle(given: Arguments, name: str) -> None:
    """Take an argument out that asks for nothing; else refuse it."""
    if name not in given:
        return
    value, (idle, todo) = given.pop(name), INSTEAD[name]
    if value != idle and value not in (False, None, {}):
        raise ArgumentError(
            f"load_policy takes no {name}",
            where=f"load_policy({name}={values.shown(name, value)})",
            todo=todo,
        )


def _refuse_misspelt(given: Arguments) -> None:
    """An argument that is nearly one of ours would go to unsloth, which may drop it."""
    ours = {*HINTS, *DEFAULTS, "device_map"}
    for name, value in given.items():
        near = difflib.get_close_matches(name, ours, n=1, cutoff=0.8) if name not in ours else []
        if near:
            raise ArgumentError(
                f"load_policy takes no {name}",
                where=f"load_policy({name}={values.shown(name, value)})",
                todo=f"did you mean {near[0]}?",
            )


def _refuse(given: Mapping[str, Any], names: str, what: str, todo: str) -> NoReturn:
    where = ", ".join(f"{name}={values.shown(name, given[name])}" for name in names.split(", "))
    raise ConfigError(what, where=f"load_policy({where})", todo=todo)


def _four_bit(given: Arguments) -> bool | None:
    if not given.get("load_in_16bit"):
        return None if given["load_in_4bit"] is None else bool(given["load_in_4bit"])
    if given["load_in_4bit"]:
        _refuse(given, "load_in_4bit, load_in_16bit", "weights are loaded in one precision", "leave one out")
    return False


def _lora(given: Arguments) -> Lora:
    rank, modules = given["lora_rank"], given["target_modules"] or PROJECTIONS
    chosen = tuple(name for name in PROJECTIONS if name in modules)
    return Lora(rank, given["lora_alpha"] or rank, chosen, given["use_rslora"])


def _check_full(given: Arguments) -> None:
    """That nothing is asked of a run that trains all weights which only a LoRA has."""
    if given["load_in_4bit"]:
        _refuse(
            given,
            "full_finetuning, load_in_4bit",
            "weights in 4 bit cannot be trained, only a LoRA over them",
            "leave load_in_4bit out: all weights are then loaded in 16 bit, on a CPU in float32",
        )
    of_lora = ("lora_rank", "lora_alpha", "target_modules", "use_rslora")
    if named := [name for name in of_lora if given[name] != DEFAULTS[name]]:
        _refuse(
            given,
            f"full_finetuning, {named[0]}",
            f"full_finetuning trains every weight, and {named[0]} is of a LoRA",
            f"leave out {named[0]}, or full_finetuning",
        )


def _check_engine(given: Arguments) -> None:
    """vLLM's arguments: refused where it cannot work, and said where they have no effect."""
    if not given.get("fast_inference"):
        idle = [name for name in ("gpu_memory_utilization", "float8_kv_cache") if given.pop(name, None)]
        if idle:
            processes.warn(
                f"{' and '.join(idle)} of load_policy: without fast_inference=True there is no vLLM, and no effect.",
            )
        given.pop("fast_inference", None)
        return
    import torch

    if not torch.cuda.is_available():
        without = "remove fast_inference: completions are then sampled by the kit's own loop"
        _refuse(given, "fast_inference", "fast_inference samples with vLLM, which needs a GPU", without)
    if torch.cuda.get_device_capability()[0] < 7:
        without = "remove fast_inference: completions are then sampled by unsloth"
        _refuse(given, "fast_inference", "vLLM needs a GPU of compute capability 7 or newer", without)
    if importlib.util.find_spec("vllm") is None:
        todo = "pip install vllm==0.31.0 and start a fresh kernel, or remove fast_inference"
        _refuse(given, "fast_inference", "fast_inference samples with vLLM, which is not installed", todo)
    if given["full_finetuning"]:
        both = "fast_inference, full_finetuning"
        _refuse(given, both, "unsloth's vLLM takes a LoRA, and not weights that change", "leave one out")
    import_unsloth()
    from unsloth.models.loader_utils import fsdp2_requested

    if fsdp2_requested():
        without = "remove fast_inference, or launch with --engine ddp"
        _refuse(given, "fast_inference", "unsloth's vLLM does not work under FSDP2", without)


def _dtype(name: str | None) -> Arguments:
    """As unsloth takes it on a GPU and on a CPU; "auto" is the checkpoint's own, which unsloth takes on a GPU without
    being told."""
    if name is None:
        return {}
    import torch

    if name == "auto":
        return {} if torch.cuda.is_available() else {"dtype": "auto"}
    return {"dtype": getattr(torch, name)}
