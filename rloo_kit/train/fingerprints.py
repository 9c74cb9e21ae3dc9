"""What a run is made of, for its checkpoints' manifest: base, dataset, rewards, chat template and settings.

For :mod:`.checkpointing`, which writes it, and :mod:`.resume`, which compares it.  Digests tell whether two
things are the same, and nothing of them; a large one is looked at in part.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import json
import pkgutil
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset

from rewards.made import made_by
from rloo_kit.errors import ConfigError
from rloo_kit.memory.specs import is_lora, quantisation_tensors
from rloo_kit.values import without_secrets

if TYPE_CHECKING:
    import trl

    Made = dict[str, Any]

VERSION = 1
"""Of what :func:`of` gives.  A checkpoint with another one, or none, is resumed and not compared."""

_COMPARED = """
seed data_seed num_generations per_device_train_batch_size gradient_accumulation_steps steps_per_generation
num_iterations shuffle_dataset train_sampling_strategy
temperature top_p top_k min_p repetition_penalty max_completion_length generation_kwargs chat_template_kwargs use_vllm
beta epsilon epsilon_high reward_clip_range mask_truncated_completions skip_dead_groups normalize_advantages
advantage_estimator kl_placement kl_estimator loss_aggregation importance_sampling_level use_bias_correction_kl
sync_ref_model ref_model_mixup_alpha ref_model_sync_steps router_aux_loss_coef disable_dropout neftune_noise_alpha
label_smoothing_factor
learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps max_steps num_train_epochs
optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm
"""
SETTINGS = tuple(_COMPARED.split())
"""Settings that make a resumed run another one than that which was stopped, and nothing fails."""

LENGTH = ("max_steps", "num_train_epochs")
"""Where the learning rate does not depend on them, they say how far a run goes and not how."""

NOT_SAID = ("version", "base", "sources", "settings")

ROWS = 10_000
"""Of a larger dataset so many, evenly spaced, are looked at: 0.1 to 0.5 s."""

SAMPLE = 1024
"""Values that are looked at of each tensor; what was trained and merged differs in far more than one of 1,000."""

DIGITS = 16

SMALLEST = 2.0**-14
"""float16 holds what is smaller with fewer digits."""


def of(trainer: trl.RLOOTrainer, base: Mapping[str, object], data: Mapping[str, object]) -> Made:
    """What a trainer's run is made of.

    Args:
        trainer: the kit's.
        base: :func:`base_of` its model, before it is wrapped.
        data: the facts of its dataset.
    """
    template = getattr(trainer.processing_class, "chat_template", None)
    names, weights = trainer.reward_func_names, trainer.reward_weights.tolist()
    sources = [_source(one) for one in trainer.reward_funcs]
    return {
        "version": VERSION,
        "base": dict(base),
        "dataset": list(data.values()),
        "rewards": [f"{name} x {weight:g}" for name, weight in zip(names, weights, strict=True)],
        "sources": {f"the source of {name}": one for name, one in zip(names, sources, strict=True)},
        "chat template": template and _digest(template),
        "settings": settings_of(vars(trainer.args)),
    }


def settings_of(args: Mapping[str, Any]) -> dict[str, Any]:
    """:data:`SETTINGS` as JSON has them."""
    found = {name: args[name] for name in SETTINGS if name in args}
    text = json.dumps(without_secrets(found), default=lambda one: type(one).__name__)
    plain: dict[str, Any] = json.loads(text)
    if str(plain.get("lr_scheduler_type")).startswith("constant"):
        plain = {name: value for name, value in plain.items() if name not in LENGTH}
    return plain


def changed(now: Made, then: Made) -> list[str]:
    """What differs, each with its new and its old value; of what either does not know nothing is said."""
    flat_now, flat_then = ({**one, **one["sources"], **one["settings"]} for one in (now, then))
    pairs = [(n, v, flat_then[n]) for n, v in flat_now.items() if n in flat_then and n not in NOT_SAID]
    return [
        f"{name}={now!r} (it was {then!r})"
        for name, now, then in pairs
        if (now[1:] != then[1:] if name == "dataset" else now != then)  # the first is its name
    ]


# --- the base ---------------------------------------------------------------------------------------------


def base_of(model: torch.nn.Module) -> dict[str, object]:
    """The frozen weights that a LoRA is trained on: name, bits, how they were loaded, and their digest."""
    name = Path(str(getattr(getattr(model, "config", None), "_name_or_path", ""))).name
    parameters = list(model.parameters())
    four_bit = any(map(quantisation_tensors, parameters))
    floats = [p for p in parameters if p.is_floating_point()]
    loaded = f"{floats[0].device.type}, 4 bit" if four_bit else str(floats[0].dtype).removeprefix("torch.")
    return {"name": name, "bits": 4 if four_bit else 16, "loaded": loaded, "digest": weights(model)}


def check_base(now: Mapping[str, Any], then: Mapping[str, Any], folder: Path) -> list[str]:
    """Refuse another base than a checkpoint's; return what cannot be told.

    A digest is of values rounded to bfloat16, so that float32 and bfloat16 agree.  float16 of what was stored in
    float32 may not, nor 4-bit weights that a CPU and a GPU have rounded.

    Raises:
        ConfigError: the base is another one, or in 4 bit where it was in 16.
    """
    if now["bits"] == then["bits"]:
        if now["digest"] == then["digest"]:
            return []
        loaded = now["loaded"], then["loaded"]
        rounded = len({*loaded}) > 1 and ("float16" in loaded or now["bits"] == 4)
        if rounded or not now["digest"] or not then["digest"]:
            return [f"whether the base is the same cannot be told: {loaded[0]} (it was {loaded[1]})"]
    raise ConfigError(
        f"the policy's base is another one: {now['name']} {now['digest']} in {now['bits']} bit, and the checkpoint's "
        f"was {then['name']} {then['digest']} in {then['bits']}",
        where=f"load_policy(load_in_4bit={now['bits'] == 4}), {folder}",
        todo="load the policy as it was; or load_policy(that folder) and train() a new run from its weights",
    )


def weights(model: torch.nn.Module, trained: bool = False) -> str:
    """A digest of a model's frozen weights, the same wherever they lie and in float32 as in bfloat16.

    Args:
        model: any.
        trained: also of those that are not frozen.

    Returns:
        16 digits; empty where there are none, or where some are in other processes or packed for a CPU.
    """
    found, seen = hashlib.sha256(), 0
    for name, parameter in model.named_parameters():
        if not trained and (parameter.requires_grad or is_lora(name) or "modules_to_save" in name):
            continue
        state = getattr(parameter, "quant_state", None)
        if parameter.is_meta or not parameter.numel() or getattr(state, "packing_format_for_cpu", False):
            return ""
        shape = parameter.shape if state is None else state.shape
        found.update(f"{name.replace('.base_layer', '')} {tuple(shape)}".encode())
        for tensor in (parameter, *quantisation_tensors(parameter)):
            found.update(_sampled(tensor.detach()))
        seen += 1
    return found.hexdigest()[:DIGITS] if seen else ""


def _sampled(tensor: torch.Tensor) -> bytes:
    flat = tensor.reshape(-1)
    taken = flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE].cpu()
    if not taken.is_floating_point():
        return taken.numpy().tobytes()
    taken = taken.float()
    rounded = taken.masked_fill(taken.abs() < SMALLEST, 0).bfloat16()
    return rounded.view(torch.int16).numpy().tobytes()


# --- data and functions -----------------------------------------------------------------------------------


def rows(dataset: Dataset) -> str:
    """A digest of a dataset's columns and rows, in their order: of :data:`ROWS`, where it has more.

    ``datasets``' own fingerprint is of how a dataset was made, and of generated rows another one in each process.

    >>> some = Dataset.from_dict({"prompt": list("abc")})
    >>> rows(some) == rows(Dataset.from_dict({"prompt": list("abcd")}).select(range(3)))
    True
    >>> rows(some) == rows(Dataset.from_dict({"prompt": list("abd")}))
    False
    """
    found = hashlib.sha256(repr([len(dataset), dataset.column_names]).encode())
    chosen = dataset.with_format("arrow").select(range(0, len(dataset), max(1, -(-len(dataset) // ROWS))))
    for table in chosen.iter(1000):
        found.update(repr(table.to_pylist()).encode())
    return found.hexdigest()[:DIGITS]


def _source(reward: object) -> str:
    try:
        return _digest(_said(reward))
    except Exception:  # of an odd object; a description must not cost the run
        return ""


def _digest(said: object) -> str:
    return hashlib.sha256(repr(said).encode()).hexdigest()[:DIGITS]


def _said(thing: Any, seen: tuple[object, ...] = ()) -> Any:
    """A reward in words that are the same in every process: its call, or its source with the values that it uses."""
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, re.Pattern):
        return [thing.pattern, thing.flags]
    if isinstance(thing, list | tuple):
        return [_said(one, seen) for one in thing]
    if isinstance(thing, Mapping):
        return {str(name): _said(value, seen) for name, value in thing.items()}
    if (call := made_by(thing)) is not None:
        guarded = call.function == "rewards.guarded"
        return _said(call.arguments["reward"] if guarded else [call.function, call.arguments], seen)
    if isinstance(thing, torch.nn.Module):
        return [type(thing).__name__, weights(thing, trained=True)]
    if isinstance(thing, functools.partial):
        return _said([thing.func, thing.args, thing.keywords], seen)
    name, called = getattr(thing, "__qualname__", type(thing).__qualname__), getattr(thing, "__func__", thing)
    if not isinstance(called, types.FunctionType):
        called = getattr(type(thing), "__call__", None)  # noqa: B004 - of an object its method
    if importable(thing) or called in seen or not isinstance(called, types.FunctionType):
        return name
    # what may count calls is left out
    constants = {n: v for n, v in used_by(called).items() if not isinstance(v, list | dict | set)}
    try:
        source: object = inspect.getsource(called)
    except (OSError, TypeError):  # of text that was executed
        code = called.__code__
        source = [code.co_code.hex(), [one for one in code.co_consts if not isinstance(one, types.CodeType)]]
    return [name, source, _said(constants, (*seen, called))]


def used_by(function: types.FunctionType) -> dict[str, Any]:
    """What a function takes from outside, by name: of its module, and of a function around it.

    ``inspect.getclosurevars`` does not look into comprehensions and inner functions, before Python 3.13.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    around = {name: cell.cell_contents for name, cell in cells}
    names = sorted(_names(function.__code__))
    return {name: function.__globals__[name] for name in names if name in function.__globals__} | around


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*inner)


def importable(value: object) -> bool:
    """Whether it can be had by its name from an installed module."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not is_installed(module):
        return False
    try:
        return pkgutil.resolve_name(f"{module}:{name}") is value
    except (ImportError, AttributeError, ValueError):
        return False


def is_installed(module: str) -> bool:
    """Whether a module is Python's own, the kit's, or in the installation, and so found from any folder."""
    top = module.partition(".")[0]
    if top == "__main__":
        return False
    if top in ("rloo_kit", "rewards") or top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return False
    return spec is not None and bool({"site-packages", "dist-packages"} & {*Path(spec.origin or "").parts})
