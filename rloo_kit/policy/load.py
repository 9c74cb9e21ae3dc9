"""Load a Qwen3 policy: a 4-bit base, LoRA on the seven projections, a tokenizer with a pad and every eos id.

It loads through unsloth's ``FastLanguageModel``, the only loader that works with and without a GPU.  :func:`settled`
first checks the arguments, by the kit's names and by unsloth's; it imports neither torch nor unsloth.
"""

from __future__ import annotations

import contextlib
import os
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval

from rewards.factory_calls import Call, recorded
from rloo_kit import argument_types, redact
from rloo_kit.argument_types import Count, Positive, PositiveShare, Seed
from rloo_kit.errors import ArgumentError, ConfigError, OutOfMemoryError
from rloo_kit.memory import model_choice
from rloo_kit.models import CATALOGUE, PROJECTIONS, is_folder
from rloo_kit.policy import resolve
from rloo_kit.policy.resolve import Source
from rloo_kit.policy.thinking import set_thinking
from rloo_kit.session import output, prepare
from rloo_kit.session.import_order import import_unsloth
from rloo_kit.session.output import quiet, without_bars

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rloo_kit.policy.policy import Policy

Arguments = dict[str, Any]

# Parts of unsloth's and transformers' errors for a device map that would move 4-bit weights to the CPU.
SPILLED = ("does not fit in GPU memory", "dispatched on the CPU or the disk")


def _remember(policy: Policy, call: Call) -> None:
    """Store the call, with the name chosen for this machine, on the model too: a trainer may get only the model."""
    arguments = dict(call.arguments)
    name = os.fspath(arguments.pop("model_name", None) or arguments.get("name") or policy.checkpoint.name)
    if is_folder(name, folder := resolve.expanded(name)):
        name = str(folder.absolute())
    plain = policy.thinking is True or policy.checkpoint.thinks == "never"
    chosen = {} if plain else {"thinking": policy.thinking}
    policy.model.made_by = Call(call.function, {**arguments, **chosen, "name": name})


@recorded(without=("token",), also=_remember)
def load_policy(
    name: str | os.PathLike[str] | None = None,
    *,
    max_seq_length: Count = 4096,
    load_in_4bit: bool | None = None,
    full_finetuning: bool = False,
    lora_rank: Count = 16,
    lora_alpha: Positive | None = None,
    target_modules: str | Sequence[str] | None = None,
    use_rslora: bool = False,
    gradient_checkpointing: Literal["auto", "unsloth"] | bool = "auto",
    thinking: bool | Count | None = None,
    seed: Seed = 0,
    **kwargs: Any,
) -> Policy:
    """Load a policy to train: a 4-bit base with a fresh LoRA, a saved adapter on its base, or all weights.

    Args:
        name: a catalogue name ("qwen3-4b-thinking"), a hub id, or a folder.  None takes the tiny Qwen3 on a CPU; on a
            GPU, qwen3-4b-instruct if it fits, else qwen3-1.7b with thinking off.  "largest" takes the largest that
            fits.  "smollm2-135m" is a language model for a CPU, from an optional package.
        max_seq_length: longest prompt + completion, in tokens; capped at the checkpoint's trained length.
        load_in_4bit: NF4 weights; False keeps 16 bit (float32 on a CPU).  None takes 4 bit if the checkpoint is
            large enough (``checkpoint.four_bit``).
        full_finetuning: train every weight, in 16 bit.  With beta > 0 a copy of the model is kept as the reference.
        lora_rank, lora_alpha: alpha defaults to the rank, dropout is 0.  A saved adapter keeps its own.
        target_modules: which of the seven projections get a LoRA; None or "all-linear" takes all.
        use_rslora: scale the LoRA by alpha / sqrt(rank) instead of alpha / rank (arXiv 2312.03732).
        gradient_checkpointing: whether activations are recomputed in the backward pass: "unsloth", True or False, as
            unsloth takes it.  "auto" is "unsloth" on a GPU; on a CPU the trainer's plan recomputes if memory is short.
        thinking: False renders every prompt with thinking off, wherever the policy is used, saved copies included; True
            leaves it on.  A number is a budget: a thought still open after so many tokens is closed by a </think>
            that is not trained on (:mod:`rloo_kit.policy.thinking` says why that is exact).  None keeps the setting of
            the checkpoint, or of the saved adapter.
        seed: for the LoRA's initial values.
        kwargs: unsloth's names for these (model_name, r, random_state, ...) and further arguments of its
            ``from_pretrained`` (token, revision, fast_inference, dtype, ...).

    Raises:
        PolicyNotFoundError: no such name, folder or repository, or the hub cannot be reached.
        OutOfMemoryError: the weights do not fit; the message has the bytes and the smaller checkpoints.
        ConfigError: a setting out of range, or a tokenizer that lacks a pad or eos token.
        ArgumentError: an argument that load_policy does not take, with what to do instead.
    """
    arguments = dict(locals())
    asked = settled({**arguments.pop("kwargs"), **arguments})
    import_unsloth()
    name, thinking = model_choice.chosen(asked.name, asked.four_bit, asked.thinking)
    asked = replace(asked, name=name, thinking=thinking)
    place = {n: asked.further[n] for n in ("token", "revision", "cache_dir") if n in asked.further}
    return _loaded(resolve.resolve(name, asked.four_bit, **place), asked)


ALIASES = {"model_name": "name", "r": "lora_rank", "random_state": "seed", "torch_dtype": "dtype"}
ALIASES["use_gradient_checkpointing"] = "gradient_checkpointing"
"""Unsloth's names for arguments that the kit names differently."""

HARMLESS: Arguments = {
    "lora_dropout": Annotated[float, Interval(ge=0, le=0)],
    "bias": Literal["none"],
    "load_in_8bit": Literal[False] | None,
    "load_in_fp8": Literal[False] | None,
    **dict.fromkeys(("loftq_config", "modules_to_save")),
}
"""Other arguments that unsloth's notebooks write out, each with the type of the values that change nothing."""

DEFAULTS: Arguments = dict(load_policy.__wrapped__.__kwdefaults__, name=None)  # type: ignore[attr-defined]
HINTS: Arguments = {
    **typing.get_type_hints(load_policy, localns={"Policy": Any}, include_extras=True),
    **HARMLESS,
    "target_modules": list[Literal[PROJECTIONS]] | None,  # type: ignore[valid-type]
    **dict.fromkeys(("load_in_16bit", "fast_inference", "float8_kv_cache"), bool),
    "gpu_memory_utilization": PositiveShare,
    "max_lora_rank": Count,
    "dtype": Literal["float32", "bfloat16", "float16", "auto"] | None,
    "token": str | bool | None,
    "revision": str | None,
}
ADVICE = {
    "target_modules": f"a list of some of {', '.join(PROJECTIONS)}, or 'all-linear' for all seven",
    "lora_dropout": "leave it out: with dropout the on-policy ratio would differ from 1",
}

NAMES = {*HINTS, *ALIASES, "device_map"} - {"kwargs", "return"}
"""Every argument that ``load_policy`` handles itself; others go to unsloth, unless they look like a misspelling."""

OF_LORA = ("load_in_4bit", "fast_inference", "lora_rank", "lora_alpha", "target_modules", "use_rslora")


@dataclass(frozen=True)
class Asked:
    name: str | os.PathLike[str] | None  # None means the model for a first run on this device
    max_seq_length: int
    gradient_checkpointing: bool | str
    thinking: bool | int | None
    seed: int
    four_bit: bool | None  # None means that the checkpoint decides
    lora: Arguments | None  # by PEFT's names; None if all weights are trained
    further: Arguments  # passed to ``FastLanguageModel.from_pretrained`` unchanged

    @property
    def recomputing(self) -> bool | str:
        return "unsloth" if self.gradient_checkpointing == "auto" else self.gradient_checkpointing


def settled(arguments: Arguments) -> Asked:
    """Check ``load_policy``'s arguments and return them under one name each; raise ArgumentError or ConfigError."""
    if isinstance(token := arguments.get("token"), str):
        redact.hide("load_policy(token)", token)
    given = _by_our_names(arguments)
    if given.get("dtype") is not None:
        given["dtype"] = str(given["dtype"]).removeprefix("torch.")
    if given["target_modules"] == "all-linear":
        given["target_modules"] = None
    given |= argument_types.check(given, HINTS, "load_policy", ADVICE)
    if given.pop("load_in_16bit", False):
        if given["load_in_4bit"]:
            raise _clash(arguments, "load_in_4bit", "load_in_16bit", "weights are loaded in one precision")
        given["load_in_4bit"] = False
    for name in OF_LORA:
        if given["full_finetuning"] and given.get(name) not in (None, False, DEFAULTS.get(name)):
            what = f"full_finetuning trains every weight in 16 bit, and {name} is for a LoRA"
            raise _clash(given, "full_finetuning", name, what)
    further = {name: value for name, value in given.items() if name not in {*DEFAULTS, *HARMLESS}}
    kept = ("name", "max_seq_length", "gradient_checkpointing", "thinking", "seed")
    asked = {name: given[name] for name in kept}
    if given["full_finetuning"]:
        return Asked(**asked, four_bit=False, lora=None, further={**further, "full_finetuning": True})
    chosen = given["target_modules"] or PROJECTIONS
    lora = {
        "r": given["lora_rank"],
        "lora_alpha": given["lora_alpha"] or given["lora_rank"],
        "target_modules": [name for name in PROJECTIONS if name in chosen],
        "use_rslora": given["use_rslora"],
    }
    return Asked(**asked, four_bit=given["load_in_4bit"], lora=lora, further=further)


def _clash(given: Arguments, one: str, other: str, what: str) -> ConfigError:
    shown = ", ".join(f"{name}={redact.shown(name, given[name])}" for name in (one, other))
    return ConfigError(what, where=f"load_policy({shown})", todo="leave one of them out")


def _by_our_names(given: Arguments) -> Arguments:
    arguments = DEFAULTS | given
    for theirs, ours in ALIASES.items():
        if theirs in given:
            value, default = arguments.pop(theirs), DEFAULTS.get(ours)
            if given.get(ours, default) not in (default, value):
                raise _clash(given, theirs, ours, f"{theirs} and {ours} are two names of one setting")
            arguments[ours] = value
    for name in arguments.keys() - NAMES:
        todo = argument_types.did_you_mean(name, NAMES, "")
        if todo and not name.endswith("_revision"):  # unsloth has two of its own
            where = f"load_policy({name}={redact.shown(name, given[name])})"
            raise ArgumentError(f"load_policy takes no {name}", where=where, todo=todo)
    return arguments


def _loaded(source: Source, asked: Asked) -> Policy:
    from unsloth import FastLanguageModel

    from rloo_kit.policy.policy import Policy

    of_use = source.checkpoint is None or source.checkpoint.four_bit
    if asked.four_bit and not of_use:
        what, todo = f"{asked.name} is too small for 4 bit", "leave it out, and the weights stay in 16 bit"
        raise ConfigError(what, where="load_policy(load_in_4bit=True)", todo=todo)
    four_bit = asked.lora is not None and (of_use if asked.four_bit is None else asked.four_bit)
    saved = resolve.check_adapter(source.path, asked.lora) if source.is_adapter else set()
    explained = _out_of_memory_explained(source, four_bit)
    with resolve.portable(source) as path, explained, quiet(), without_bars(), _without_zero3():
        with resolve.hub_explained(source.base):
            trained = resolve.trained_length(source, asked.further)
            longest = min(asked.max_seq_length, trained or asked.max_seq_length)
            model, tokenizer = _load(path, longest, four_bit, asked)
        if source.is_adapter:
            resolve.check_attached(model, saved, source.path)
        if not source.is_adapter and asked.lora is not None:
            how = {"lora_dropout": 0.0, "bias": "none", "random_state": asked.seed, **asked.lora}
            how["use_gradient_checkpointing"] = asked.recomputing
            model = FastLanguageModel.get_peft_model(model, **how)
        if asked.gradient_checkpointing == "auto":
            model.auto_checkpointing = True
    policy = Policy(model, tokenizer, source.checkpoint)  # type: ignore[arg-type]  # None: read from the config
    if asked.thinking is not None:
        set_thinking(tokenizer, policy.checkpoint, asked.thinking)
    if longest < asked.max_seq_length != DEFAULTS["max_seq_length"]:
        shorter = f"max_seq_length is {longest}, not {asked.max_seq_length}"
        output.warn(f"{shorter}: the checkpoint was trained for no more tokens.")
    return policy


@contextlib.contextmanager
def _without_zero3() -> Iterator[None]:
    """Works around: after an ``RLOOConfig(deepspeed=...)`` of ZeRO-3, transformers refuses unsloth's ``device_map``."""
    from transformers.integrations import deepspeed

    configured = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = configured


def _load(path: str, longest: int, four_bit: bool, asked: Asked) -> tuple[Any, PreTrainedTokenizerBase]:
    import torch
    from unsloth import FastLanguageModel

    further, on_gpu = dict(asked.further), torch.cuda.is_available()
    # On a CPU with bfloat16, unsloth would take it if it was imported before the kit.
    dtype = further.pop("dtype", None) or (None if on_gpu else prepare.compute_dtype())
    if dtype == "auto":  # the checkpoint's own type, which is unsloth's default on a GPU
        further |= {} if on_gpu else {"dtype": "auto"}
    elif dtype is not None:
        further["dtype"] = getattr(torch, dtype)
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=path,
        max_seq_length=longest,
        load_in_4bit=four_bit,
        use_gradient_checkpointing=asked.recomputing,
        random_state=asked.seed,
        **further,
    )
    # Works around: transformers puts unquantised layers that do not fit on the GPU into the computer's memory.
    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if on_gpu and "device_map" not in further and places & {"cpu", "disk"}:
        raise torch.OutOfMemoryError("some of the model's layers do not fit on the GPU")
    return model, tokenizer


@contextlib.contextmanager
def _out_of_memory_explained(source: Source, four_bit: bool) -> Iterator[None]:
    from rloo_kit.memory import out_of_memory

    try:
        yield
    except (RuntimeError, MemoryError, ValueError) as error:
        if not out_of_memory.is_out_of_memory(error) and not any(text in str(error) for text in SPILLED):
            raise
        out_of_memory.let_go(error)
        free, total = prepare.device_memory()
        need = source.checkpoint.weight_bytes(four_bit) if source.checkpoint else None
        smaller = [c.name for c in CATALOGUE.values() if need and c.weight_bytes(four_bit) < need]
        raise OutOfMemoryError(
            "the weights do not fit into the device's memory",
            where=f"load_policy, {source.path}: needs {need or 'unknown'} bytes for them; {free} of {total} are free",
            todo=f"load a smaller one ({', '.join(reversed(smaller)) or 'see rloo_kit.CATALOGUE'}), keep "
            "load_in_4bit=True, or free the GPU: call rloo_kit.release() and end other programs that use it",
        ) from error
