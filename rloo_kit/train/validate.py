"""The settings of a run: the kit's own, the types and ranges of all, and which do not go together.

For ``RLOOConfig``, the trainer and the command line.  A range refuses what cannot train, not what trains badly, of
which :mod:`rloo_kit.watch` speaks; what transformers and TRL refuse themselves, clearly and before a step, is left to
them.  At import time neither torch nor TRL is loaded, so that a file of settings can be looked at without them.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
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
from rloo_kit import forward_passes, values
from rloo_kit.errors import ConfigError, RLOOKitError
from rloo_kit.policy.tokenizer import check_template
from rloo_kit.session.versions import TESTED, version_of
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

_COUNTS = "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_iterations "
_COUNTS += "max_completion_length ref_model_sync_steps"
_COUNTS_OR_NONE = "num_generations_eval eval_accumulation_steps steps_per_generation generation_batch_size "
_COUNTS_OR_NONE += "pad_to_multiple_of torch_empty_cache_steps"

NARROWED: dict[str, Hint] = {
    **dict.fromkeys(_COUNTS.split(), Count),
    **dict.fromkeys(_COUNTS_OR_NONE.split(), Count | None),
    **dict.fromkeys(("logging_steps", "save_steps"), Steps),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), Annotated[float, Interval(ge=0, lt=1)]),
    **dict.fromkeys(("weight_decay", "ref_model_mixup_alpha"), Share),
    **dict.fromkeys(("top_p", "vllm_gpu_memory_utilization"), PositiveShare),
    **dict.fromkeys(("top_k", "dataloader_num_workers"), Natural),
    "output_dir": Annotated[str, MinLen(1)] | None,
    "max_steps": Annotated[int, Interval(ge=1, le=10**9)] | Literal[-1],
    "num_train_epochs": Annotated[float, Interval(gt=0, le=10**6)],
    "seed": Seed,
    "data_seed": Seed | None,
    "eval_steps": Steps | None,
    "save_total_limit": Natural | None,
    "num_generations": Annotated[int, Ge(2)],
    "temperature": Temperature,
    "min_p": Share | None,
    "repetition_penalty": Annotated[float, Interval(gt=0, le=100)],
    "generation_kwargs": dict[str, Any] | str | None,
    "learning_rate": Annotated[float, Interval(ge=0, le=10)],
    "adam_epsilon": Annotated[float, Interval(ge=1e-37, le=1)],
    "max_grad_norm": Annotated[float, Ge(0), INFINITE],
    "warmup_steps": NotNegative,
    "beta": Annotated[float, Interval(ge=0, le=1000)],
    "epsilon": Annotated[float, Interval(gt=0, lt=1)],
    "epsilon_high": Positive | None,
    "reward_weights": list[float] | None,
    "reward_clip_range": tuple[Annotated[float, INFINITE], Annotated[float, INFINITE]] | None,
}
"""TRL's annotations, narrowed where a value is never meant."""

ADVICE = {
    "advantage_estimator": "give one of those, or your function itself: in a YAML file FILE.py:NAME",
    "num_generations": "the leave-one-out baseline needs at least 2 completions per prompt; 4 to 8 is usual",
    "temperature": "1.0 is usual; greedy completions of a prompt are all equal, and so are their rewards",
    "beta": "0.05 is the default; 0 switches the KL term off",
    "learning_rate": "1e-5 is usual for a LoRA on a real Qwen3",
    "max_steps": "-1 trains num_train_epochs epochs instead",
    "epsilon": "0.2 is usual",
    "top_k": "0 restricts nothing",
    "reward_weights": "give a list with one number per reward function: [1.0, 0.5]",
    "reward_clip_range": "give (low, high) with low < high, or None",
    "adam_epsilon": "1e-8 is the default; at 0 a weight that never had a gradient becomes NaN",
    "output_dir": "give the folder for the run: output_dir='out/run'",
}
"""What to do about a value; for the others, leave it out."""

ESTIMATORS = ("rloo", "grpo", "dr_grpo", "reinforce")
"""Names in :mod:`rloo_kit.advantages`, which imports torch, before a user's function is added."""

DICTS = ("generation_kwargs", "chat_template_kwargs", "model_init_kwargs", "lr_scheduler_kwargs")
"""Settings that are dicts, or the JSON text of one."""

SETTLED = (
    *("accelerator_config", "fsdp", "fsdp_config", "debug", "deepspeed", "liger_kernel_config"),
    "report_to",
)
"""Fields that transformers replaces by objects of its own when a configuration is made; it checks them itself."""


@functools.cache
def hints() -> Mapping[str, Hint]:
    """The type of every field.  Kept: to resolve TRL's takes a millisecond, and an import asks for each field's."""
    import trl

    return typing.get_type_hints(trl.RLOOConfig) | own_hints()


def own_hints() -> dict[str, Hint]:
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
    return found | own_hints()


def checked(given: Mapping[str, Any], known: Mapping[str, Hint] | None = None) -> dict[str, Any]:
    """A configuration's values as plain Python has them, each of its type and within its range.

    Args:
        given: settings by name.
        known: their types; by default TRL's, which imports it.

    Raises:
        ConfigError: the first that is not.
    """
    for name in DICTS:
        as_dict(name, given.get(name))
    check_template(as_dict("chat_template_kwargs", given.get("chat_template_kwargs")), "RLOOConfig")
    types = {name: hint for name, hint in (known or hints()).items() if name not in SETTLED}
    if given.get("advantage_estimator", "rloo") != "rloo":  # a user's functions are in the loaded module
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
        what = f"{name} must be a dict, and this is a {type(given).__name__}"
        _refuse(what, f"{name}={values.shown(name, given)}", f"write {name}={{'name': value}}")
    return found


# --- settings that do not go together ---------------------------------------------------------------------


def _refuse(what: str, where: str, todo: str) -> NoReturn:
    raise ConfigError(what, where=f"RLOOConfig({where})", todo=todo)


def check(args: trl.RLOOConfig, own: Own, processes: int = 1) -> None:
    """Check a configuration that the trainer was given, as it is now: read from a file, or changed since it was made.

    Raises:
        ConfigError: the first value that is wrong, alone or beside the others.
    """
    given = {name: value for name, value in vars(args).items() if not name.startswith("_")}
    checked(given | dataclasses.asdict(own))
    check_together(args, own, processes)


def check_together(args: trl.RLOOConfig, own: Own, processes: int = 1) -> None:
    """Check values, each of its type, against each other.

    Args:
        args: a configuration, the kit's or TRL's, or anything with its attributes.
        own: the kit's own settings of it.
        processes: of the run; each has its own batch.

    Raises:
        ConfigError: the first two that contradict each other.
    """
    _check_generation(args, own)
    _check_choices(args, own)
    _check_batch(args, processes)


TAKEN = (
    *("do_sample", "num_beams", "num_beam_groups", "num_return_sequences", "max_new_tokens"),
    *("max_length", "min_length", "num_assistant_tokens", "custom_generate"),
    *("return_dict_in_generate", "pad_token_id", "eos_token_id", "bos_token_id"),
)
"""What ``generation_kwargs`` must not say, since the trainer does."""

HARMLESS = ("cache_config", "use_cache", "prefill_chunk_size")
"""Of ``generation_kwargs``: how the same distribution is computed."""


def _check_generation(args: trl.RLOOConfig, own: Own) -> None:
    """Works around: TRL lets generation_kwargs override its own settings, whatever was checked of those."""
    from transformers import GenerationConfig

    for engine in ("use_vllm", "use_transformers_continuous_batching"):
        if own.generation_rows is not None and getattr(args, engine):
            _refuse(
                "generation_rows cuts the batch for generate, and that engine schedules its completions itself",
                f"generation_rows={own.generation_rows}, {engine}=True",
                f"remove generation_rows, or {engine}",
            )
    known = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    for name, value in _generation_kwargs(args).items():
        if name in hints():
            todo = f"set RLOOConfig({name}=...) itself"
        elif name in TAKEN:
            todo = "remove it: the trainer samples each completion by itself, to max_completion_length"
        elif name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            todo = f"did you mean {near[0]}?" if near else "remove it: GenerationConfig does not have it"
        else:
            continue
        _refuse(f"generation_kwargs cannot set {name}", f"generation_kwargs={{{name!r}: {value!r}}}", todo)


def _generation_kwargs(args: trl.RLOOConfig) -> dict[str, Any]:
    """Those that change what is sampled."""
    given = {} if args.use_vllm else as_dict("generation_kwargs", args.generation_kwargs)
    return {name: value for name, value in given.items() if name not in HARMLESS}


def _check_choices(args: trl.RLOOConfig, own: Own) -> None:
    from rloo_kit.watch import callbacks

    if own.on_unhealthy not in HANDLERS:
        callbacks.checked(own.on_unhealthy, where="RLOOConfig")
    if args.fp16 and args.bf16:
        _refuse(
            "fp16 and bf16 are two precisions", "fp16=True, bf16=True", "leave both out: the device decides"
        )
    clip = args.reward_clip_range
    if clip is not None and not clip[0] < clip[1]:
        what = "the range that rewards are clipped to is inverted or empty, so every reward would be the same"
        _refuse(what, f"reward_clip_range={clip}", ADVICE["reward_clip_range"])
    if args.remove_unused_columns:
        _refuse(
            "rewards would get none of the dataset's columns: transformers leaves the prompt alone",
            "remove_unused_columns=True",
            "leave it out; what is not needed goes with dataset.remove_columns(...)",
        )
    if own.use_bias_correction_kl and args.beta and own.kl_placement != "loss":
        _refuse(
            "use_bias_correction_kl multiplies a KL term in the loss by the ratio, and it is in the reward",
            f"use_bias_correction_kl=True, kl_placement={own.kl_placement!r}",
            "set kl_placement='loss' and kl_estimator='k3', as GRPO has it, or remove use_bias_correction_kl",
        )
    best = args.load_best_model_at_end or args.save_strategy == "best"
    if best and args.metric_for_best_model in ("loss", "eval_loss"):
        _refuse(
            "the best checkpoint would be chosen by the loss, which reads about 0 in every RLOO run",
            f"metric_for_best_model={args.metric_for_best_model!r}",
            "metric_for_best_model='eval_reward', greater_is_better=True",
        )
    folder = Path(args.output_dir or ".").expanduser()
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if there.exists() and not there.is_dir():
        _refuse(f"{there} is no folder", f"output_dir={args.output_dir!r}", "give another output_dir")


def _check_batch(args: trl.RLOOConfig, processes: int) -> None:
    """The completions of a generation batch must be whole groups; unsloth would change the batch instead."""
    per_step = args.per_device_train_batch_size * processes
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    size, k = args.generation_batch_size or per_step * steps, args.num_generations
    evaluated, k_eval = args.per_device_eval_batch_size * processes, args.num_generations_eval or k
    if args.eval_strategy != "no" and evaluated % k_eval:
        _refuse(
            f"an evaluation's batch of {evaluated} completions does not divide into groups of {k_eval}",
            f"per_device_eval_batch_size={args.per_device_eval_batch_size}, processes={processes}, "
            f"{'num_generations_eval' if args.num_generations_eval else 'num_generations'}={k_eval}",
            f"set per_device_eval_batch_size={k_eval}, or leave it out",
        )
    if size % k:
        fitting = sorted({max(k, size // k * k), (size // k + 1) * k})
        _refuse(
            f"a generation batch of {size} completions does not divide into groups of {k}",
            f"per_device_train_batch_size={args.per_device_train_batch_size}, processes={processes}, "
            f"steps_per_generation={steps}, num_generations={k}",
            f"make batch x accumulation a multiple of {k}: {' or '.join(map(str, fitting))}",
        )


@contextlib.contextmanager
def refused_as_ours(where: str, given: Mapping[str, object]) -> Iterator[None]:
    """Turn what transformers, TRL or a logger refuses into an error with three parts, which shows the arguments that
    its message names.

    Raises:
        ConfigError: in place of the library's error, which is its cause.
    """
    try:
        yield
    except (RLOOKitError, RewardValueError):
        raise
    except (ValueError, TypeError, KeyError, ImportError, NotImplementedError, OSError) as error:
        said = " ".join(str(error).split())[:300]
        named = [name for name, value in given.items() if name in said or _is_in(value, said)]
        raise ConfigError(
            f"TRL or transformers refuses it: {said}",
            where=f"{where}({', '.join(f'{name}={values.shown(name, given[name])}' for name in named)})",
            todo="change what the message names",
        ) from error


def _is_in(value: object, said: str) -> bool:
    texts = value if isinstance(value, list) else [value]
    return any(isinstance(text, str) and len(text) > 3 and text in said for text in texts)


# --- what is legal, and hardly meant ----------------------------------------------------------------------

CUT = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
"""Settings that change what is sampled, at the values that change nothing."""

HIGHEST_RATE = 0.1
"""Of a learning rate that may be meant; plain SGD's steps are as large as the gradient's."""


def doubts(args: trl.RLOOConfig, own: Own) -> list[str]:
    """Combinations that are legal but probably unintended, a sentence or two each; the caller warns of them."""
    found, in_loss = [], own.kl_placement == "loss"
    if args.learning_rate > HIGHEST_RATE and "sgd" not in str(args.optim).lower():
        found.append(
            f"learning_rate={args.learning_rate:g}: {args.optim} moves each weight by about that much in a step, and a "
            "LoRA's are some hundredths. Usual values are 1e-6 to 1e-3."
        )
    if args.beta and in_loss and own.kl_estimator == "k1":
        found.append(
            "kl_estimator='k1' in the loss has no effect: its expected gradient is 0. Use 'k2' or 'k3', or "
            "kl_placement='reward'."
        )
    if args.beta and own.advantage_estimator == "grpo" and not in_loss and not own.skip_dead_groups:
        found.append(
            "advantage_estimator='grpo' divides by each group's spread, which in a group of equal rewards is that "
            "of the KL term alone: noise becomes a full-size advantage. Set kl_placement='loss', as GRPO has it, or "
            "skip_dead_groups=True."
        )
    if args.warmup_steps >= 1 and 0 < args.max_steps <= args.warmup_steps:
        found.append(
            f"warmup_steps={args.warmup_steps:g} is no less than max_steps={args.max_steps}, so learning_rate is never "
            "reached. Below 1 it is a share of the run: warmup_steps=0.1."
        )
    # TRL samples from the policy as these cut it, and takes log-probabilities of all of it.
    asked = {name: getattr(args, name) for name in CUT}
    cut = [f"{name}={value}" for name, value in asked.items() if value not in (CUT[name], None)]
    cut += [f"generation_kwargs {name}={value}" for name, value in _generation_kwargs(args).items()]
    if cut:
        found.append(
            f"{', '.join(cut)}: completions are sampled from another distribution than the one that is trained, so the "
            "gradient is slightly biased, and so are ratio and KL. Remove it for training; policy.generate takes it "
            "for sampling afterwards."
        )
    return found
