"""The settings of a run: the kit's own, the types and ranges of all, and which do not go together.

For ``RLOOConfig``, the trainer and the command line.  A range refuses what cannot train, not what trains badly, of
which :mod:`rloo_kit.watch` speaks; what transformers and TRL refuse themselves, clearly and before a step, is left to
them.  At import time neither torch nor TRL is loaded, so that a file of settings can be looked at without them.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import json
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from annotated_types import Ge, Gt, Interval, MinLen

from rewards.errors import RewardValueError
from rloo_kit import argument_types, forward_passes
from rloo_kit.argument_types import INFINITE, Count, Hint, Natural
from rloo_kit.errors import ConfigError, RLOOKitError
from rloo_kit.memory.plan_inputs import IDLE
from rloo_kit.policy.tokenizer import check_template
from rloo_kit.session.versions import TESTED, version_of

if TYPE_CHECKING:
    import trl

    from rloo_kit.watch.symptoms import Finding

    Handler = Callable[[Finding], object]

HANDLERS: dict[str, Handler] = {}
"""Functions given as ``on_unhealthy``, by the name under which a configuration keeps them: it is saved with every
checkpoint, and a notebook's functions cannot be."""


@dataclass
class Own:
    """The kit's own settings, as :class:`rloo_kit.RLOOConfig` describes them."""

    advantage_estimator: str = "rloo"
    kl_placement: Literal["reward", "loss"] = "reward"
    kl_estimator: Literal["k1", "k2", "k3"] | None = None
    loss_aggregation: Literal[
        "seq-mean-token-sum", "seq-mean-token-mean", "token-mean", "seq-mean-token-sum-norm"
    ] = "seq-mean-token-sum"
    importance_sampling_level: Literal["token", "sequence"] | None = None
    use_bias_correction_kl: bool = False
    single_pass: bool = forward_passes.DEFAULTS.single_pass
    skip_dead_groups: bool | None = None
    fast_sampling: bool = forward_passes.DEFAULTS.fast_sampling
    generation_rows: Count | None = None
    progress: bool = True
    live_plot: bool = True
    on_unhealthy: str = "warn"
    reward_limit: Annotated[float, Gt(0), INFINITE] = 1e6

    @staticmethod
    def of(args: trl.RLOOConfig) -> Own:
        """The settings of a configuration, the kit's or TRL's."""
        there: dict[str, Any] = {name: getattr(args, name) for name in NAMES if hasattr(args, name)}
        return dataclasses.replace(PLAIN, **there)

    @property
    def handler(self) -> str | Handler:
        """What to do with a finding: "warn", "stop", or the function that was given."""
        return HANDLERS.get(self.on_unhealthy, self.on_unhealthy)


NAMES = tuple(one.name for one in dataclasses.fields(Own))

PLAIN = dataclasses.replace(
    Own(kl_estimator="k1", skip_dead_groups=False, live_plot=False), **dict[str, Any](forward_passes.PLAIN)
)
"""What a plain ``trl.RLOOConfig`` means."""

DICTS = ("generation_kwargs", "chat_template_kwargs", "model_init_kwargs", "lr_scheduler_kwargs")

RANGES: dict[Hint, str] = {
    Count: "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_iterations "
    "max_completion_length",
    Count | None: "num_generations_eval steps_per_generation generation_batch_size",
    Annotated[int, Ge(2)]: "num_generations",
    Annotated[int, Interval(ge=1, le=10**9)] | Literal[-1]: "max_steps",
    Annotated[float, Interval(gt=0, le=10**6)]: "num_train_epochs",
    argument_types.Seed: "seed",
    Natural: "top_k",
    argument_types.Share: "weight_decay",
    argument_types.Temperature: "temperature",
    Annotated[float, Interval(ge=0, le=10)]: "learning_rate",
    Annotated[float, Interval(ge=0, le=1000)]: "beta",
    Annotated[float, Interval(gt=0, lt=1)]: "epsilon",
    argument_types.Positive | None: "epsilon_high",
    # At 0 a weight without a gradient becomes NaN.
    Annotated[float, Interval(ge=1e-37, le=1)]: "adam_epsilon",
    Annotated[float, Ge(0), INFINITE]: "max_grad_norm",
    tuple[Annotated[float, INFINITE], Annotated[float, INFINITE]] | None: "reward_clip_range",
    Annotated[str, MinLen(1)] | None: "output_dir",
    dict[str, Any] | None: " ".join(DICTS),
    # transformers replaces them by objects of its own, and checks them itself.
    Any: "accelerator_config fsdp fsdp_config debug deepspeed liger_kernel_config report_to",
}
"""TRL's annotations, narrowed where a value is never meant."""

ADVICE = {
    "advantage_estimator": "give one of those, or your function itself: in a YAML file FILE.py:NAME",
    "num_generations": "the leave-one-out baseline needs at least 2 completions per prompt; 4 to 8 is usual",
    "temperature": "1.0 is usual; greedy completions of a prompt are all equal, and so are their rewards",
    "beta": "0.05 is the default; 0 switches the KL term off",
    "learning_rate": "1e-5 is usual for a LoRA on a real Qwen3",
    "reward_weights": "give a list with one number per reward function: [1.0, 0.5]",
    "reward_clip_range": "give (low, high) with low < high, or None",
    "on_unhealthy": "leave it at 'warn', or pass a function that takes the Finding",
}
"""What to do about a value; for the others, leave it out."""

ESTIMATORS = ("rloo", "grpo", "dr_grpo", "reinforce")


def own_hints() -> dict[str, Hint]:
    """The types that the kit adds or narrows."""
    narrowed = {name: hint for hint, names in RANGES.items() for name in names.split()}
    return typing.get_type_hints(Own, include_extras=True) | narrowed


@functools.cache
def hints() -> Mapping[str, Hint]:
    """The type of every field."""
    import trl

    return typing.get_type_hints(trl.RLOOConfig) | own_hints()


@functools.cache
def written_down() -> Mapping[str, Hint]:
    """The type of every argument as ``signature.pyi`` has it, which was written from :func:`hints`: for a look at
    settings without TRL and unsloth, whose imports take seconds.  Empty beside other releases than it was written for.
    """
    if any(version_of(name) != TESTED[name] for name in ("trl", "transformers")):
        return {}
    tree = ast.parse(Path(__file__).with_name("signature.pyi").read_bytes())
    made = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)).args
    found = {one.arg: ast.unparse(one.annotation) for one in [*made.args, *made.kwonlyargs] if one.annotation}
    names = {"Any": Any, "Literal": Literal, "Callable": Callable}
    return {name: eval(text, names) for name, text in found.items()} | own_hints()


def checked(given: Mapping[str, Any], known: Mapping[str, Hint] | None = None) -> dict[str, Any]:
    """A configuration's values as plain Python has them, each of its type and within its range.

    Args:
        given: settings by name.
        known: their types; by default TRL's, which imports it.

    Raises:
        ConfigError: the first that is not.
    """
    given = dict(given)
    for name in given.keys() & set(DICTS):
        with contextlib.suppress(ValueError, TypeError):  # a command line gives its JSON text
            given[name] = json.loads(given[name])
    types = {**(known or hints()), "on_unhealthy": Literal[("warn", "stop", *HANDLERS)]}
    loaded = sys.modules.get("rloo_kit.advantages")  # not for the command line's first look: it imports torch
    types["advantage_estimator"] = Literal[tuple(loaded.ESTIMATORS if loaded else ESTIMATORS)]
    found = argument_types.check(given, types, "RLOOConfig", ADVICE)
    check_template(found.get("chat_template_kwargs") or (), "RLOOConfig")
    return found


# --- settings that do not go together ---------------------------------------------------------------------

HARMLESS = {"cache_config", "use_cache", "prefill_chunk_size"}
"""Of ``generation_kwargs``: how the same distribution is computed."""


def check(args: trl.RLOOConfig, processes: int = 1) -> None:
    """Check a configuration that the trainer was given, as it is now: read from a file, or changed since it was made.

    Raises:
        ConfigError: the first value that is wrong, alone or beside the others.
    """
    given = {name: value for name, value in vars(args).items() if not name.startswith("_")}
    checked(given | dataclasses.asdict(Own.of(args)))
    check_together(args, processes)


def check_together(args: trl.RLOOConfig, processes: int = 1) -> None:
    """Check values, each of its type, against each other, for a run of that many processes, each with its own batch.

    Raises:
        ConfigError: the first settings that contradict each other.
    """
    from transformers import GenerationConfig

    own, clip, k = Own.of(args), args.reward_clip_range, args.num_generations
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    size = args.generation_batch_size or args.per_device_train_batch_size * processes * steps
    if size % k:  # unsloth would change the batch instead
        what = f"a generation batch of {size} completions does not divide into groups of {k}"
        todo = f"make batch x accumulation x processes ({processes}) a multiple of {k}, such as {size - size % k + k}"
        _refuse(args, what, todo, "per_device_train_batch_size", "steps_per_generation", "num_generations")
    rows, k_eval = args.per_device_eval_batch_size * processes, args.num_generations_eval or k
    if args.eval_strategy != "no" and rows % k_eval:
        what = f"an evaluation's batch of {rows} completions does not divide into groups of {k_eval}"
        todo = f"set per_device_eval_batch_size={k_eval}, or leave it out"
        _refuse(args, what, todo, "per_device_eval_batch_size", "num_generations", "num_generations_eval")
    if args.fp16 and args.bf16:
        _refuse(args, "these are two precisions", "leave both out: the device decides", "fp16", "bf16")
    if own.generation_rows and (args.use_vllm or args.use_transformers_continuous_batching):
        what = "generation_rows cuts the batch for generate, and that engine schedules it itself"
        _refuse(args, what, "remove generation_rows", "generation_rows")
    if clip is not None and not clip[0] < clip[1]:
        what = "the range that rewards are clipped to is inverted or empty, so every reward would be the same"
        _refuse(args, what, ADVICE["reward_clip_range"], "reward_clip_range")
    if own.use_bias_correction_kl and args.beta and own.kl_placement != "loss":
        what = "use_bias_correction_kl multiplies a KL term in the loss by the ratio, and it is in the reward"
        todo = "set kl_placement='loss', as GRPO has it, or remove use_bias_correction_kl"
        _refuse(args, what, todo, "use_bias_correction_kl", "kl_placement")
    best = args.load_best_model_at_end or args.save_strategy == "best"
    if best and args.metric_for_best_model in ("loss", "eval_loss"):
        what = "the best checkpoint would be chosen by the loss, which reads about 0 in every RLOO run"
        _refuse(args, what, "take 'eval_reward', with greater_is_better=True", "metric_for_best_model")
    free = {*vars(GenerationConfig())} - hints().keys() | HARMLESS
    if not args.use_vllm and (wrong := [name for name in args.generation_kwargs or () if name not in free]):
        what = f"generation_kwargs cannot set {wrong[0]}: it is a setting of its own, or no model takes it"
        _refuse(args, what, f"set RLOOConfig({wrong[0]}=...) itself, or remove it", "generation_kwargs")


def _refuse(args: trl.RLOOConfig, what: str, todo: str, *names: str) -> NoReturn:
    where = ", ".join(f"{name}={getattr(args, name)!r}" for name in names)
    raise ConfigError(what, where=f"RLOOConfig({where})", todo=todo)


@contextlib.contextmanager
def refused_as_ours(where: str, given: Mapping[str, object]) -> Iterator[None]:
    """Turn what transformers, TRL or a logger refuses into an error with three parts, which names the arguments.

    Raises:
        ConfigError: in place of the library's error, which is its cause.
    """
    try:
        yield
    except (RLOOKitError, RewardValueError):
        raise
    except (ValueError, TypeError, KeyError, ImportError, NotImplementedError, OSError) as error:
        said = " ".join(str(error).split())[:300]
        what, named = f"TRL or transformers refuses it: {said}", [name for name in given if name in said]
        todo = "change what the message names"
        raise ConfigError(what, where=f"{where}({', '.join(named)})", todo=todo) from error


# --- what is legal, and hardly meant ----------------------------------------------------------------------


def doubts(args: trl.RLOOConfig) -> list[str]:
    """Combinations that are legal but probably unintended, a sentence or two each; the caller warns of them."""
    own = Own.of(args)
    in_loss, found = own.kl_placement == "loss", []
    if args.beta and in_loss and own.kl_estimator == "k1":
        found.append(
            "kl_estimator='k1' in the loss has no effect: its expected gradient is 0. Use 'k2' or 'k3'."
        )
    if args.beta and own.advantage_estimator == "grpo" and not in_loss and not own.skip_dead_groups:
        found.append(
            "advantage_estimator='grpo' divides by each group's spread, which in a group of equal rewards is that "
            "of the KL term alone: noise becomes a full-size advantage. Set kl_placement='loss' or "
            "skip_dead_groups=True."
        )
    if args.warmup_steps >= 1 and 0 < args.max_steps <= args.warmup_steps:
        found.append(
            f"warmup_steps={args.warmup_steps:g} is no less than max_steps={args.max_steps}, so learning_rate is never "
            "reached. Below 1 it is a share of the run: warmup_steps=0.1."
        )
    # TRL samples from the policy as these cut it, and takes log-probabilities of all of it.
    asked = {name: getattr(args, name) for name in IDLE if name != "temperature"}
    cut = [f"{name}={value}" for name, value in asked.items() if value not in (IDLE[name], None)]
    given = {} if args.use_vllm or not args.generation_kwargs else args.generation_kwargs
    cut += [f"generation_kwargs {name}={value}" for name, value in given.items() if name not in HARMLESS]
    if cut:
        found.append(
            f"{', '.join(cut)}: completions are sampled from another distribution than the one that is trained, so the "
            "gradient is slightly biased, and so are ratio and KL. Remove it for training; policy.generate takes it "
            "for sampling afterwards."
        )
    return found
