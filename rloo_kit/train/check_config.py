"""Check a run's settings: types, ranges, and combinations that contradict each other.

A range rejects values that cannot train; values that train badly are left to :mod:`rloo_kit.watch`.  Settings that
transformers and TRL reject clearly, before the first step, are left to them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from annotated_types import Ge, Gt, Interval
from pydantic import AllowInfNan

from rewards.errors import RewardValueError
from rloo_kit import advantages, argument_types
from rloo_kit.argument_types import Count, Hint
from rloo_kit.errors import ConfigError, RLOOKitError
from rloo_kit.memory.plan_settings import IDLE
from rloo_kit.watch.symptoms import Finding

if TYPE_CHECKING:
    import trl

INFINITE = AllowInfNan(True)

HANDLERS: dict[str, Callable[[Finding], object]] = {}
"""Functions given as ``on_unhealthy``, by the name that a configuration stores in their place: the configuration is
saved with every checkpoint, and functions of a notebook cannot be saved."""

DICTS = ("generation_kwargs", "chat_template_kwargs", "model_init_kwargs", "lr_scheduler_kwargs")

RANGES: dict[Hint, str] = {
    Count: "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_iterations "
    "max_completion_length",
    Count | None: "num_generations_eval steps_per_generation generation_batch_size generation_rows",
    Annotated[int, Ge(2)]: "num_generations",
    Annotated[int, Interval(ge=1, le=10**9)] | Literal[-1]: "max_steps",
    Annotated[float, Interval(gt=0, le=10**6)]: "num_train_epochs",
    argument_types.Seed: "seed",
    argument_types.Temperature: "temperature",
    Annotated[float, Interval(gt=0, le=1)]: "top_p",
    argument_types.Natural: "top_k",
    Annotated[float, Interval(ge=0, le=1)] | None: "min_p",
    argument_types.Positive: "repetition_penalty",
    Annotated[float, Interval(ge=0, le=1)]: "learning_rate",
    Annotated[float, Interval(ge=0, le=1000)]: "beta",
    Annotated[float, Interval(gt=0, lt=1)]: "epsilon",
    argument_types.Positive | None: "epsilon_high",
    Annotated[float, Ge(0), INFINITE]: "max_grad_norm",
    Annotated[float, Gt(0), INFINITE]: "reward_limit",
    tuple[Annotated[float, INFINITE], Annotated[float, INFINITE]] | None: "reward_clip_range",
    dict[str, Any] | None: " ".join(DICTS),
    # transformers replaces these values by its own objects, and checks them itself.
    Any: "accelerator_config fsdp fsdp_config debug deepspeed liger_kernel_config report_to",
}
"""Type -> names of its settings; ranges exclude values that are never intended."""

ADVICE = {
    "num_generations": "the leave-one-out baseline needs at least 2 completions per prompt; 4 to 8 is usual",
    "temperature": "1.0 is usual; greedy completions of a prompt are all equal, and so are their rewards",
    "top_k": "0 takes all tokens",
    "max_steps": "give a whole number of steps; -1 trains for num_train_epochs",
    "learning_rate": "1e-5 is usual for a LoRA on a real Qwen3",
    "reward_weights": "give a list with one number per reward function: [1.0, 0.5]",
    "reward_clip_range": "give (low, high) with low < high, or None",
    "on_unhealthy": "leave it at 'warn', or pass a function that takes the Finding",
}
"""Setting -> what to do about a wrong value; the advice for other settings is to leave them out."""


def checked(given: Mapping[str, Any], types: Mapping[str, Hint]) -> dict[str, Any]:
    """Return settings as plain Python has them; raise a ConfigError if one is not of its type or out of range."""
    given = dict(given)
    for name in given.keys() & set(DICTS):
        with contextlib.suppress(ValueError, TypeError):  # the command line passes JSON text
            given[name] = json.loads(given[name])
    registered = {
        "advantage_estimator": Literal[tuple(advantages.ESTIMATORS)],
        "on_unhealthy": Literal[("warn", "stop", *HANDLERS)],
    }
    return argument_types.check(given, {**types, **registered}, "RLOOConfig", ADVICE)


def check_together(args: trl.RLOOConfig, processes: int = 1) -> None:
    """Check settings, each already of its type, against each other, for a run of ``processes`` processes."""
    clip, k = args.reward_clip_range, args.num_generations
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    rows = args.generation_batch_size or args.per_device_train_batch_size * processes * steps
    if rows % k:  # unsloth would change the batch instead
        what = f"a generation batch of {rows} completions does not divide into groups of {k}"
        todo = f"make batch x accumulation x processes ({processes}) a multiple of {k}, such as {rows - rows % k + k}"
        _refuse(args, what, todo, "per_device_train_batch_size", "steps_per_generation", "num_generations")
    by_parts = args.per_device_train_batch_size * processes * steps
    if args.steps_per_generation and rows != by_parts:  # TRL computes one of them, once
        what = f"a generation batch has {rows} completions, and its steps {by_parts}: one was set after args was made"
        todo = "make the RLOOConfig anew with these settings"
        _refuse(args, what, todo, "generation_batch_size", "per_device_train_batch_size", "steps_per_generation")
    if clip is not None and not clip[0] < clip[1]:
        what = "the range that rewards are clipped to is inverted or empty, so every reward would be the same"
        _refuse(args, what, ADVICE["reward_clip_range"], "reward_clip_range")
    _check_generation(args)
    takes_best = args.load_best_model_at_end or args.save_strategy == "best"
    if takes_best and args.metric_for_best_model in ("loss", "eval_loss"):
        what = "the best checkpoint would be chosen by the loss, which reads about 0 in every RLOO run"
        _refuse(args, what, "take 'eval_reward', with greater_is_better=True", "metric_for_best_model")


def _check_generation(args: trl.RLOOConfig) -> None:
    """Works around: transformers takes unknown names silently, and fails at the first step with some that it knows."""
    from transformers import GenerationConfig

    known = vars(GenerationConfig())
    for name in {} if args.use_vllm else args.generation_kwargs or {}:
        look = "look at transformers.GenerationConfig"
        todo = INSTEAD.get(name) or ("" if name in known else argument_types.did_you_mean(name, known, look))
        if todo:
            _refuse(args, f"completions cannot be sampled with generation_kwargs {name!r}", todo, "generation_kwargs")


INSTEAD = {
    "do_sample": "leave it out: greedy completions of a prompt are all equal",
    "num_return_sequences": "set num_generations",
    "stop_strings": "leave it out: a completion ends with the end-of-turn token",
}
"""Name in ``generation_kwargs`` -> what to do instead."""


def check_evaluation(args: trl.RLOOConfig, processes: int) -> None:
    """Check the batch of an evaluation; TRL checks it only if an evaluation is configured."""
    k, rows = args.num_generations_eval or args.num_generations, args.per_device_eval_batch_size * processes
    if rows % k:
        what = f"an evaluation's batch of {rows} completions does not divide into groups of {k}"
        todo = f"make batch x processes ({processes}) a multiple of {k}, or leave it out"
        _refuse(args, what, todo, "per_device_eval_batch_size", "num_generations_eval", "num_generations")


def _refuse(args: trl.RLOOConfig, what: str, todo: str, *names: str) -> NoReturn:
    where = ", ".join(f"{name}={getattr(args, name)!r}" for name in names)
    raise ConfigError(what, where=f"RLOOConfig({where})", todo=todo)


@contextlib.contextmanager
def refused_as_ours(where: str, given: Mapping[str, object]) -> Iterator[None]:
    """Turn an error of transformers, TRL or a logger into a ConfigError that names the arguments."""
    try:
        yield
    except (RLOOKitError, RewardValueError):
        raise
    except (ValueError, TypeError, KeyError, ImportError, NotImplementedError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        # For an unknown choice transformers names only the value: "cosin is not a valid SchedulerType".
        named = [name for name, value in given.items() if name in reason or reason.startswith(f"{value} is not")]
        what, todo = f"TRL or transformers refuses it: {reason}", "change what the message names"
        where = f"{where}({', '.join(named)})" if named else where
        raise ConfigError(what, where=where, todo=todo) from error


def doubts(args: trl.RLOOConfig) -> Iterator[str]:
    """Yield a sentence or two on each combination that is legal but probably unintended; the caller warns."""
    if args.beta and args.kl_placement == "loss" and args.kl_estimator == "k1":
        yield "kl_estimator='k1' in the loss has no effect: its expected gradient is 0. Use 'k2' or 'k3'."
    if args.beta and args.kl_placement != "loss" and args.use_bias_correction_kl:
        yield "use_bias_correction_kl has no effect on a KL term in the reward. Set kl_placement='loss'."
    by_spread = args.advantage_estimator == "grpo" and args.kl_placement != "loss"
    if args.beta and by_spread and not args.skip_zero_variance_groups:
        yield (
            "advantage_estimator='grpo' divides by each group's spread, which in a group of equal rewards is that "
            "of the KL term alone: noise becomes a full-size advantage. Set kl_placement='loss' or "
            "skip_zero_variance_groups=True."
        )
    if args.warmup_steps >= 1 and 0 < args.max_steps <= args.warmup_steps:
        yield (
            f"warmup_steps={args.warmup_steps:g} is no less than max_steps={args.max_steps}, so learning_rate is never "
            "reached. Below 1 it is a share of the run: warmup_steps=0.1."
        )
    if args.remove_unused_columns:
        yield "remove_unused_columns=True leaves the prompt alone: rewards get none of the dataset's other columns."
    # TRL samples from the truncated distribution, and computes log-probabilities under the full one.
    settings = {name: getattr(args, name) for name in IDLE if name != "temperature"}
    cuts = [f"{name}={value}" for name, value in settings.items() if value not in (IDLE[name], None)]
    options = {} if args.use_vllm else args.generation_kwargs or {}
    cuts += [f"generation_kwargs {name}={value}" for name, value in options.items() if "cache" not in name]
    if cuts:
        yield (
            f"{', '.join(cuts)}: completions are sampled from another distribution than the one that is trained, so "
            "the gradient is slightly biased, and so are ratio and KL. Remove it for training; policy.generate takes "
            "top_p, top_k and min_p for sampling afterwards."
        )
