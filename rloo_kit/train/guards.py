"""Refuse, in words and before GPU time is spent, what TRL takes in silence or answers in riddles.

For the trainer; nothing here is called by users.  Each check is a function of what it checks, raises one of
``rloo_kit.errors`` with culprit and mend, and changes nothing.  What a reward function returns is checked by
``rewards.guarded``.  What stock TRL under unsloth makes of the same inputs: benchmarks/results/bad_inputs.md.
"""

from __future__ import annotations

import difflib
import math
from typing import Any

from rloo_kit import advantages
from rloo_kit.errors import ConfigError
from rloo_kit.train import losses


def _refuse(what: str, where: str, todo: str) -> None:
    raise ConfigError(what, where=f"RLOOConfig({where})", todo=todo)


NUMBERS = ("beta", "temperature", "top_p", "learning_rate", "epsilon")
COUNTS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_iterations",
    "max_completion_length",
)


def check_config(args: Any, processes: int = 1) -> None:
    """Check the numbers of a config, each alone and against each other.

    Args:
        args: anything with the attributes of TRL's ``RLOOConfig``.
        processes: of the run; each has its own batch.

    Raises:
        ConfigError: the first number that is wrong.
    """
    for name in NUMBERS:
        value = getattr(args, name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            _refuse(f"{name} must be a number", f"{name}={value!r}", f"write {name}=0.5, without quotes")
    for name in COUNTS:
        value = getattr(args, name)
        if not isinstance(value, int) or value < 1:
            _refuse(
                f"{name} must be a whole number from 1 up", f"{name}={value!r}", f"set {name} to 1 or more"
            )
    _check_ranges(args)
    _check_choices(args)
    _check_best(args)
    _check_batch(args, processes)


def _check_ranges(args: Any) -> None:
    k = args.num_generations
    if not isinstance(k, int) or k < 2:
        _refuse(
            "the leave-one-out baseline needs at least 2 completions per prompt",
            f"num_generations={k}",
            "set num_generations to 2 or more; 4 to 8 is usual",
        )
    if not (math.isfinite(args.beta) and args.beta >= 0):
        _refuse(
            "beta weighs a penalty and must be a number from 0 up",
            f"beta={args.beta}",
            "0.05 is the default; 0 switches the KL term off",
        )
    if not (math.isfinite(args.temperature) and args.temperature > 0):
        _refuse(
            "temperature must be above 0: greedy completions of one prompt are all equal, so no advantage is left",
            f"temperature={args.temperature}",
            "set temperature=1.0",
        )
    if not 0 < args.top_p <= 1:
        _refuse("top_p must lie in (0, 1]", f"top_p={args.top_p}", "1.0 restricts nothing")
    if not (math.isfinite(args.learning_rate) and args.learning_rate >= 0):
        _refuse(
            "learning_rate must be a number from 0 up", f"learning_rate={args.learning_rate}", "1e-5 is usual"
        )
    _check_clipping(args)


def _check_clipping(args: Any) -> None:
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
    limit = getattr(args, "reward_limit", 1e6)  # TRL's own config has none
    if not limit > 0:
        _refuse("reward_limit must be positive", f"reward_limit={limit}", "1e6 is the default")


def _check_choices(args: Any) -> None:
    """The kit's own settings, of which a plain TRL config has none."""
    choices = {
        "advantage_estimator": tuple(advantages.ESTIMATORS),
        "kl_placement": ("reward", "loss"),
        "kl_estimator": tuple(advantages.KL_ESTIMATORS),
        "loss_aggregation": losses.AGGREGATIONS,
        "prompt_sampling": ("uniform", "informative"),
        "skip_dead_groups": (None, True, False),
    }
    for name, allowed in choices.items():
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            _refuse(
                f"{name} is none of {', '.join(map(str, allowed))}",
                f"{name}={value!r}",
                f"{name}={nearest[0]!r}?"
                if (nearest := difflib.get_close_matches(str(value), map(str, allowed), n=1))
                else f"{allowed[0]!r} is the default",
            )
    if getattr(args, "prompt_sampling", "uniform") == "informative" and not getattr(
        args, "shuffle_dataset", True
    ):
        _refuse(
            "informative prompts are drawn at random, and the order of the dataset was asked for",
            "prompt_sampling='informative', shuffle_dataset=False",
            "leave one of the two out",
        )


def _check_best(args: Any) -> None:
    """Answers: transformers takes the lowest loss for the best checkpoint, and RLOO's reads about 0 in every run."""
    asked = getattr(args, "load_best_model_at_end", False) or getattr(args, "save_strategy", "") == "best"
    if asked and getattr(args, "metric_for_best_model", None) in ("loss", "eval_loss"):
        _refuse(
            "the best checkpoint would be chosen by the loss, which in RLOO says nothing: it reads about 0",
            f"metric_for_best_model={args.metric_for_best_model!r}",
            "metric_for_best_model='eval_reward', greater_is_better=True",
        )


def _check_batch(args: Any, processes: int) -> None:
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


def doubts(args: Any) -> list[str]:
    """What a config may ask for and hardly means, a sentence or two each, for whoever took it to warn of."""
    found = []
    in_loss = getattr(args, "kl_placement", "reward") == "loss"
    if args.beta and in_loss and getattr(args, "kl_estimator", None) == "k1":
        found.append(
            "kl_estimator='k1' in the loss holds nothing back: its expected gradient is 0. Use 'k2' or 'k3', or "
            "kl_placement='reward'."
        )
    grpo = getattr(args, "advantage_estimator", "rloo") == "grpo"
    if args.beta and grpo and not in_loss and not getattr(args, "skip_dead_groups", False):
        found.append(
            "advantage_estimator='grpo' divides by each group's spread, which in a group of equal rewards is that "
            "of the KL term alone: noise becomes a full-size advantage. Set kl_placement='loss', as GRPO has it, or "
            "skip_dead_groups=True."
        )
    # TRL samples from the policy as these cut it, and takes log-probabilities of all of it.
    asked = {name: getattr(args, name, none) for name, none in CUT.items()}
    cut = [f"{name}={value}" for name, value in asked.items() if value not in (CUT[name], None)]
    if cut:
        found.append(
            f"{', '.join(cut)}: completions are sampled from another distribution than the one that is trained, so the "
            "gradient is slightly biased, and so are ratio and KL. Leave it out while training; for sampling "
            "afterwards, policy.generate takes it."
        )
    return found
