"""The types and ranges of ``RLOOConfig``'s fields: TRL's own annotations, narrowed where a value is never meant.

For :mod:`.guards`.  A range refuses what cannot train, not what trains badly: :mod:`rloo_kit.watch` speaks of that.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Interval, MinLen

from rloo_kit import values
from rloo_kit.errors import ConfigError
from rloo_kit.policy.tokenizer import check_template
from rloo_kit.session.versions import TESTED, version_of
from rloo_kit.train.own import Own
from rloo_kit.values import (
    INFINITE,
    Count,
    Hint,
    Natural,
    NotNegative,
    Positive,
    PositiveShare,
    Seed,
    Share,
    Steps,
    Temperature,
)

Decay = Annotated[float, Interval(ge=0, lt=1)]
Small = Annotated[float, Interval(ge=1e-37, le=1)]

NARROWED: dict[str, Hint] = {
    # the run
    "output_dir": Annotated[str, MinLen(1)] | None,
    "max_steps": Annotated[int, Interval(ge=1, le=10**9)] | Literal[-1],
    "num_train_epochs": Annotated[float, Interval(gt=0, le=10**6)],
    "seed": Seed,
    "data_seed": Seed | None,
    "logging_steps": Steps,
    "save_steps": Steps,
    "eval_steps": Steps | None,
    "eval_delay": NotNegative,
    "save_total_limit": Natural | None,
    "dataloader_num_workers": Natural,
    "dataloader_prefetch_factor": Count | None,
    "ddp_timeout": Count,
    # the batch
    "num_generations": Annotated[int, Ge(2)],
    "num_generations_eval": Count | None,
    "per_device_train_batch_size": Count,
    "per_device_eval_batch_size": Count,
    "gradient_accumulation_steps": Count,
    "eval_accumulation_steps": Count | None,
    "steps_per_generation": Count | None,
    "generation_batch_size": Count | None,
    "num_iterations": Count,
    "pad_to_multiple_of": Count | None,
    "num_completions_to_print": Natural | None,
    # sampling
    "max_completion_length": Count,
    "temperature": Temperature,
    "top_p": PositiveShare,
    "top_k": Natural,
    "min_p": Share | None,
    "repetition_penalty": Annotated[float, Interval(gt=0, le=100)],
    "generation_kwargs": dict[str, Any] | str | None,
    "vllm_gpu_memory_utilization": PositiveShare,
    "vllm_tensor_parallel_size": Count,
    # the optimizer
    "learning_rate": Annotated[float, Interval(ge=0, le=10)],
    "weight_decay": Share,
    "adam_beta1": Decay,
    "adam_beta2": Decay,
    "adam_epsilon": Small,
    "max_grad_norm": Annotated[float, Ge(0), INFINITE],
    "warmup_steps": NotNegative,
    "neftune_noise_alpha": NotNegative | None,
    "torch_empty_cache_steps": Count | None,
    # the method
    "beta": Annotated[float, Interval(ge=0, le=1000)],
    "epsilon": Annotated[float, Interval(gt=0, lt=1)],
    "epsilon_high": Positive | None,
    "reward_weights": list[float] | None,
    "reward_clip_range": tuple[Annotated[float, INFINITE], Annotated[float, INFINITE]] | None,
    "ref_model_mixup_alpha": Share,
    "ref_model_sync_steps": Count,
    "router_aux_loss_coef": NotNegative | None,
}

ADVICE = {
    "advantage_estimator": "give one of those, or your function itself: in a YAML file FILE.py:NAME",
    "num_generations": "the leave-one-out baseline needs at least 2 completions per prompt; 4 to 8 is usual",
    "temperature": "1.0 is usual; greedy completions of a prompt are all equal, and so are their rewards",
    "beta": "0.05 is the default; 0 switches the KL term off",
    "learning_rate": "1e-5 is usual for a LoRA on a real Qwen3",
    "max_steps": "-1 trains num_train_epochs epochs instead",
    "epsilon": "0.2 is usual",
    "epsilon_high": "0.28 is DAPO's; None takes epsilon's",
    "top_p": "1.0 restricts nothing",
    "top_k": "0 restricts nothing",
    "min_p": "None restricts nothing",
    "max_grad_norm": "1.0 is the default; 0 switches clipping off",
    "reward_weights": "give a list with one number per reward function: [1.0, 0.5]",
    "reward_clip_range": "give (low, high) with low < high, or None",
    "steps_per_generation": "None takes gradient_accumulation_steps",
    "importance_sampling_level": "None is RLOO's: one ratio for the whole completion",
    "vllm_importance_sampling_clip_max": "3.0 is TRL's; None is no bound",
    "vllm_importance_sampling_clip_min": "None is no bound",
    "generation_rows": "None samples as many completions at once as fit",
    "generation_batch_size": "None takes per_device_train_batch_size x steps_per_generation",
    "adam_epsilon": "1e-8 is the default; at 0 a weight that never had a gradient becomes NaN",
    "output_dir": "give the folder for the run: output_dir='out/run'",
}
"""What to do about a value; for the others, the default."""

ESTIMATORS = ("rloo", "grpo", "dr_grpo", "reinforce")
"""Names in :mod:`rloo_kit.advantages`, which imports torch, before a user's function is added."""

SETTLED = (
    "accelerator_config",
    "fsdp",
    "fsdp_config",
    "debug",
    "deepspeed",
    "liger_kernel_config",
    "report_to",
)
"""Fields that transformers replaces by objects of its own when a configuration is made; it checks them itself."""


DICTS = ("generation_kwargs", "chat_template_kwargs", "model_init_kwargs", "lr_scheduler_kwargs")
"""Settings that are dicts, or the JSON text of one."""


@functools.cache
def hints() -> Mapping[str, Hint]:
    """The type of every field.  Kept: to resolve TRL's takes a millisecond, and an import asks for each field's."""
    import trl

    return typing.get_type_hints(trl.RLOOConfig) | of_own()


def of_own() -> dict[str, Hint]:
    """The types that the kit adds or narrows."""
    return typing.get_type_hints(Own, include_extras=True) | NARROWED


@functools.cache
def written_down() -> Mapping[str, Hint]:
    """The type of every argument as ``signature.pyi`` has it, which was written from :func:`hints`: for a look at
    settings without TRL and unsloth, whose imports take seconds.  Empty beside other releases than it was written for.
    """
    if any(version_of(name) != TESTED[name] for name in ("trl", "transformers")):
        return {}
    (signature,) = ast.parse(Path(__file__).with_name("signature.pyi").read_bytes()).body[-1:]
    made = next(node for node in ast.walk(signature) if isinstance(node, ast.FunctionDef))
    names = {"Any": Any, "Literal": Literal, "Callable": Callable}
    found = {
        one.arg: eval(ast.unparse(one.annotation or ast.Constant(None)), names)
        for one in [*made.args.args[1:], *made.args.kwonlyargs]
    }
    return found | of_own()


def checked(given: Mapping[str, Any], known: Mapping[str, Hint] | None = None) -> dict[str, Any]:
    """A configuration's values as plain Python has them, each of its type and within its range.

    Args:
        given: settings by name.
        known: their types; by default TRL's, which imports it.

    Raises:
        ConfigError: the first that is not, with the nearest that is.
    """
    for name in DICTS:
        as_dict(name, given.get(name))
    check_template(as_dict("chat_template_kwargs", given.get("chat_template_kwargs")), "RLOOConfig")
    types = {name: hint for name, hint in (known or hints()).items() if name not in SETTLED}
    if (
        given.get("advantage_estimator", "rloo") != "rloo"
    ):  # its choices grow, where that module, and torch, is loaded
        loaded = sys.modules.get("rloo_kit.advantages")
        types["advantage_estimator"] = Literal[tuple(loaded.ESTIMATORS if loaded else ESTIMATORS)]
    return values.check(given, types, "RLOOConfig", ADVICE)


def as_dict(name: str, given: object) -> dict[str, Any]:
    """A setting that is a dict: a command line gives its JSON text.

    Raises:
        ConfigError: it is neither.
    """
    found = {} if given is None else given
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            found = json.loads(given)
    if not isinstance(found, dict):
        raise ConfigError(
            f"{name} must be a dict, and this is a {type(given).__name__}",
            where=f"RLOOConfig({name}={values.shown(name, given)})",
            todo=f"write {name}={{'name': value}}",
        )
    return found
