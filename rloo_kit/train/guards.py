"""Validate a configuration before GPU time is spent: values alone, and values that go together.

For ``RLOOConfig`` and the trainer.  Each check raises a :class:`ConfigError` with the culprit and the mend, and changes
nothing.  Datasets and rewards are checked by :mod:`rloo_kit.inputs`.  What stock TRL under unsloth makes of
the same inputs: benchmarks/results/bad_inputs.md.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING, NoReturn

from rloo_kit import advantages
from rloo_kit.errors import ConfigError
from rloo_kit.train import losses
from rloo_kit.train.own import HANDLERS, Own
from rloo_kit.watch.health import checked

if TYPE_CHECKING:
    import trl

NUMBERS = ("beta", "temperature", "top_p", "learning_rate", "epsilon")
COUNTS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_iterations",
    "max_completion_length",
)


def _refuse(what: str, where: str, todo: str) -> NoReturn:
    raise ConfigError(what, where=f"RLOOConfig({where})", todo=todo)


def check_config(args: trl.RLOOConfig, own: Own, processes: int = 1) -> None:
    """Check the values of a configuration, each alone and against each other.

    Args:
        args: the configuration, the kit's or TRL's, or anything with its attributes.
        own: the kit's own settings of it.
        processes: of the run; each has its own batch.

    Raises:
        ConfigError: the first value that is wrong.
    """
    for name in NUMBERS:
        value = getattr(args, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(f"{name} must be a number", f"{name}={value!r}", f"write {name}=0.5, without quotes")
    for name in COUNTS:
        value = getattr(args, name)
        if not isinstance(value, int) or value < 1:
            _refuse(
                f"{name} must be a whole number of at least 1",
                f"{name}={value!r}",
                f"set {name} to 1 or more",
            )
    _check_ranges(args, own)
    _check_clipping(args)
    _check_choices(args, own)
    _check_best(args)
    _check_batch(args, processes)


def _check_ranges(args: trl.RLOOConfig, own: Own) -> None:
    k = args.num_generations
    if not isinstance(k, int) or k < 2:
        _refuse(
            "the leave-one-out baseline needs at least 2 completions per prompt",
            f"num_generations={k}",
            "set num_generations to 2 or more; 4 to 8 is usual",
        )
    for name, value, todo in (
        ("beta", args.beta, "0.05 is the default; 0 switches the KL term off"),
        ("learning_rate", args.learning_rate, "1e-5 is usual"),
    ):
        if not (math.isfinite(value) and value >= 0):
            _refuse(f"{name} must be a finite number of at least 0", f"{name}={value}", todo)
    if not own.reward_limit > 0:
        _refuse("reward_limit must be positive", f"reward_limit={own.reward_limit}", "1e6 is the default")
    if not (math.isfinite(args.temperature) and args.temperature > 0):
        _refuse(
            "temperature must be above 0: greedy completions of a prompt are all equal, and so are their rewards",
            f"temperature={args.temperature}",
            "set temperature=1.0",
        )
    if not 0 < args.top_p <= 1:
        _refuse("top_p must lie in (0, 1]", f"top_p={args.top_p}", "1.0 restricts nothing")


def _check_clipping(args: trl.RLOOConfig) -> None:
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    if not (0 < args.epsilon < 1 and high > 0 and math.isfinite(high)):
        _refuse(
            "the ratio is clipped to [1 - epsilon, 1 + epsilon_high], and that range is empty or open",
            f"epsilon={args.epsilon}, epsilon_high={args.epsilon_high}",
            "0.2 for both is usual; 0.28 for epsilon_high is DAPO's",
        )
    clip = args.reward_clip_range
    if clip is not None and (len(clip) != 2 or not clip[0] < clip[1]):
        _refuse(
            "the range that rewards are clipped to is inverted or empty, so every reward would be the same",
            f"reward_clip_range={clip}",
            "give (low, high) with low < high, or None",
        )


def _check_choices(args: trl.RLOOConfig, own: Own) -> None:
    for name, value, allowed in (
        ("advantage_estimator", own.advantage_estimator, tuple(advantages.ESTIMATORS)),
        ("kl_placement", own.kl_placement, ("reward", "loss")),
        ("kl_estimator", own.kl_estimator, tuple(advantages.KL_ESTIMATORS)),
        ("loss_aggregation", own.loss_aggregation, losses.AGGREGATIONS),
        ("prompt_sampling", own.prompt_sampling, ("uniform", "informative")),
        ("skip_dead_groups", own.skip_dead_groups, (None, True, False)),
    ):
        if value not in allowed:
            near = difflib.get_close_matches(str(value), map(str, allowed), n=1)
            todo = f"{name}={near[0]!r}?" if near else f"{allowed[0]!r} is the default"
            _refuse(f"{name} is none of {', '.join(map(str, allowed))}", f"{name}={value!r}", todo)
    if own.on_unhealthy not in HANDLERS:
        checked(own.on_unhealthy, where="RLOOConfig")
    if own.prompt_sampling == "informative" and not args.shuffle_dataset:
        _refuse(
            "informative prompts are drawn at random, and shuffle_dataset=False asks for the dataset's order",
            "prompt_sampling='informative', shuffle_dataset=False",
            "remove one of the two",
        )


def _check_best(args: trl.RLOOConfig) -> None:
    """Works around: transformers chooses the best checkpoint by the loss, which reads about 0 in every RLOO run."""
    asked = args.load_best_model_at_end or args.save_strategy == "best"
    if asked and args.metric_for_best_model in ("loss", "eval_loss"):
        _refuse(
            "the best checkpoint would be chosen by the loss, which reads about 0 in every RLOO run",
            f"metric_for_best_model={args.metric_for_best_model!r}",
            "metric_for_best_model='eval_reward', greater_is_better=True",
        )


def _check_batch(args: trl.RLOOConfig, processes: int) -> None:
    """The completions of a generation batch must be whole groups; unsloth would change the batch instead."""
    per_step = args.per_device_train_batch_size * processes
    steps = args.steps_per_generation or args.gradient_accumulation_steps
    size, k = args.generation_batch_size or per_step * steps, args.num_generations
    if size % k:
        fitting = sorted({max(k, size // k * k), (size // k + 1) * k})
        _refuse(
            f"a generation batch of {size} completions does not divide into groups of {k}",
            f"per_device_train_batch_size={args.per_device_train_batch_size}, processes={processes}, "
            f"steps_per_generation={steps}, num_generations={k}",
            f"make batch x accumulation a multiple of {k}: {' or '.join(map(str, fitting))}",
        )


CUT = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
"""Settings that change what is sampled, at the values that change nothing."""


def doubts(args: trl.RLOOConfig, own: Own) -> list[str]:
    """Combinations that are legal but probably unintended, a sentence or two each; the caller warns of them."""
    found = []
    in_loss = own.kl_placement == "loss"
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
    # TRL samples from the policy as these cut it, and takes log-probabilities of all of it.
    asked = {name: getattr(args, name) for name in CUT}
    cut = [f"{name}={value}" for name, value in asked.items() if value not in (CUT[name], None)]
    if cut:
        found.append(
            f"{', '.join(cut)}: completions are sampled from another distribution than the one that is trained, so the "
            "gradient is slightly biased, and so are ratio and KL. Remove it for training; policy.generate takes it "
            "for sampling afterwards."
        )
    return found
