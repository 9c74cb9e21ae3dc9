"""How good is a policy: accuracy and mean reward on a dataset, each with a 95 % interval.

For before and after training, on problems that training never saw.  It samples with ``Policy.generate`` and
calls reward functions as TRL does.  It does not train, and it does not decide what an answer is: a task's
``answer_of`` does.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import rewards
from rewards.answers import gold_text
from rewards.assertions import readable
from rewards.compose import call_reward
from rewards.quantities import to_number
from rloo_kit import inputs, tasks
from rloo_kit.errors import ArgumentError, DatasetError

if TYPE_CHECKING:
    from rloo_kit.policy.policy import Completion, Policy

Z_95 = 1.959963984540054
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; a format such as ``+.2f`` is applied to all three.

    Values without spread say nothing of the spread behind them, and one value never does: there ``low`` and
    ``high`` are NaN.

    >>> print(Interval(0.5, 0.4, 0.6), f"{Interval(0.5, 0.4, 0.6):+.1f}", Interval(1.0, math.nan, math.nan))
    0.500 [0.400, 0.600] +0.5 [+0.4, +0.6] 1.000 (no interval: no spread)
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return format(self, ".3f")

    def __format__(self, spec: str) -> str:
        value, low, high = (format(x, spec or ".3f") for x in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]" if self.is_bounded else f"{value} (no interval: no spread)"

    @property
    def is_bounded(self) -> bool:
        """Whether there is an interval at all."""
        return not math.isnan(self.low)


@dataclass(frozen=True)
class Evaluation:
    """What :func:`evaluate` found.

    Attributes:
        accuracy: share of completions that assert the row's answer; None where the dataset has no answers, or none
            that can be read.
        reward: mean of the weighted sums, each prompt counting alike; None without reward functions.
        reward_means: each function's mean over the completions that it scored.
        mean_length: tokens per completion.
        truncated: share of completions that were cut at the length limit.
        completions: all of them, in the dataset's order.
        rewards: the weighted sum of each, None where no function applied.
        greedy: whether the most probable token was taken each time.
        samples: completions per prompt.  From 2 on both intervals are bootstraps over prompts; at 1 the
            accuracy's is Wilson's.
        correct: whether each completion asserts the row's answer, None where the row has none.
    """

    accuracy: Interval | None
    reward: Interval | None
    reward_means: dict[str, float]
    mean_length: float
    truncated: float
    completions: tuple[Completion, ...] = field(repr=False)
    rewards: tuple[float | None, ...] = field(repr=False)
    greedy: bool = True
    samples: int = 1
    correct: tuple[bool | None, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        several = self.samples > 1
        how = f"{'greedy' if self.greedy else 'sampled'}{f', {self.samples} per prompt' if several else ''}"
        rows = [("completions", f"{len(self.completions)}, {how}")]
        bootstrapped = "bootstrap over prompts" if several else "bootstrap"
        if self.accuracy:
            graded = sum(one is not None for one in self.correct)
            part = f", of {graded} completions" if graded < len(self.correct) else ""
            method = bootstrapped if several else "Wilson"
            rows.append(("accuracy", _with_method(self.accuracy, method) + part))
        if self.reward:
            rows.append(("reward", _with_method(self.reward, bootstrapped)))
        rows += [(f"  {name}", f"{mean:.3f}") for name, mean in self.reward_means.items()]
        rows.append(("length", f"{self.mean_length:.1f} tokens, {self.truncated:.0%} cut"))
        width = max(len(label) for label, _ in rows) + 2
        return "\n".join(f"{label:<{width}}{text}" for label, text in rows)


def _with_method(interval: Interval, method: str) -> str:
    return f"{interval} (95 %, {method})" if interval.is_bounded else str(interval)


def evaluate(
    policy: Policy,
    dataset: Any,
    reward_funcs: Any = (),
    *,
    n: int | None = None,
    samples: int = 1,
    greedy: bool = True,
    max_new_tokens: int = 256,
    batch_size: int | None = None,
    answer_of: Callable[[Any], str | None] | None = None,
    reward_weights: Sequence[float] | None = None,
    seed: int = 0,
    **generate: Any,
) -> Evaluation:
    """Sample completions of a dataset's prompts and grade them.

    The intervals are for other prompts of the same kind.  Completions of one prompt are alike, so more of them
    narrow an interval less than more prompts do.

    Args:
        policy: as ``load_policy`` gives it.
        dataset: with a column ``prompt`` and, for accuracy, ``answer``; or a ``Task``, whose held-out set is
            taken.  An ``answer`` may be a whole solution: what follows "####", or its last box, counts.
        reward_funcs: TRL reward callables; their weighted sum is the reward.
        n: the first n rows; None for all.
        samples: completions per prompt, when not greedy.
        greedy: take the most probable token each time; False samples at ``temperature``.
        max_new_tokens: as in training, or the comparison is with another task.
        batch_size: rows in the model at once; None sizes it to the memory that is free.
        reward_weights: one per function, as in training; None weighs all alike.
        answer_of: how to read the answer off a completion's text; the number it asserts by default, so that rows
            whose answer is no number are not counted.
        seed: of the sampling; the random state outside is left as it was.
        generate: further arguments of ``Policy.generate``.

    Raises:
        ArgumentError: a model or a trainer in place of the policy.
        ConfigError: a prompt as long as the policy's limit, or a number out of range.
        DatasetError: no rows, or no ``prompt`` column.
        RewardError: weights that do not match the functions.
        rewards.RewardValueError: a reward function that returned something that is no reward.
    """
    _check_policy(policy)
    funcs = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if funcs:
        inputs.check_rewards(funcs, reward_weights, where="evaluate")
    if isinstance(dataset, tasks.Task):
        answer_of, dataset = answer_of or dataset.answer_of, dataset.held_out
    rows = _rows(dataset, n)
    samples = 1 if greedy else samples
    completions = policy.generate(
        [row["prompt"] for row in rows],
        n=samples,
        greedy=greedy,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
        seed=seed,
        **generate,
    )
    rows = [row for row in rows for _ in range(samples)]
    scores = score(rows, completions, funcs)
    totals = _totals(scores, reward_weights or [1.0] * len(funcs))
    correct = _graded(rows, completions, answer_of)
    return Evaluation(
        accuracy=_accuracy(correct, samples, seed),
        reward=bootstrap(means_by_prompt(totals, samples), seed) if scores else None,
        reward_means={name: _mean(values) for name, values in scores.items()},
        mean_length=sum(len(c.ids) for c in completions) / len(completions),
        truncated=sum(not c.finished for c in completions) / len(completions),
        completions=tuple(completions),
        rewards=tuple(totals) or (None,) * len(completions),
        greedy=greedy,
        samples=samples,
        correct=tuple(correct),
    )


def _check_policy(policy: Any) -> None:
    if hasattr(policy, "config") or not hasattr(policy, "generate"):
        raise ArgumentError(
            "evaluate samples with a policy",
            where=f"evaluate({type(policy).__name__})",
            todo="pass what rloo_kit.load_policy returned, which training has changed in place",
        )


def _rows(dataset: Any, n: int | None) -> list[dict[str, Any]]:
    rows = list(itertools.islice(dataset, n))
    if rows and not isinstance(rows[0], Mapping):
        inputs.refuse_dataset(dataset, "dataset", where="evaluate")
    rows = [dict(row) for row in rows]
    if not rows or "prompt" not in rows[0]:
        raise DatasetError(
            "there is nothing to evaluate" if not rows else "the dataset has no column 'prompt'",
            where=f"evaluate, dataset of {len(rows)} rows with columns {sorted(rows[0]) if rows else []}",
            todo="give a dataset with the columns prompt and answer, such as task.held_out",
        )
    return rows


def score(
    rows: Sequence[dict[str, Any]], completions: Sequence[Completion], reward_funcs: Sequence[Any]
) -> dict[str, list[float | None]]:
    """Call reward functions with TRL's keywords; return each one's scores under its name.

    A conversational prompt gets its completion as ``[{"role": "assistant", "content": text}]``, as TRL does.
    """
    texts = [
        c.text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": c.text}]
        for row, c in zip(rows, completions, strict=True)
    ]
    keywords: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    keywords |= {
        "prompts": [row["prompt"] for row in rows],
        "completions": texts,
        "completion_ids": [list(c.ids) for c in completions],
        "trainer_state": SimpleNamespace(global_step=0, max_steps=0, epoch=0.0),
        "log_extra": lambda column, values: None,
        "log_metric": lambda name, value: None,
    }
    guarded = [rewards.guarded(func) for func in reward_funcs]
    names = inputs.distinct([func.__name__ for func in guarded])
    return {name: call_reward(func, **keywords) for name, func in zip(names, guarded, strict=True)}


def _totals(scores: dict[str, list[float | None]], weights: Sequence[float]) -> list[float | None]:
    totals = []
    for values in zip(*scores.values(), strict=True):
        applied = [weight * value for weight, value in zip(weights, values, strict=True) if value is not None]
        totals.append(sum(applied) if applied else None)
    return totals


def _mean(values: Sequence[float | None]) -> float:
    applied = [value for value in values if value is not None]
    return sum(applied) / len(applied) if applied else math.nan


def _graded(
    rows: Sequence[dict[str, Any]],
    completions: Sequence[Completion],
    answer_of: Callable[[Any], str | None] | None,
) -> list[bool | None]:
    """Which completions are right; None where nobody can say."""
    golds = [None if row.get("answer") is None else gold_text(str(row["answer"])).strip() for row in rows]
    if answer_of is None:
        answer_of = tasks.answer_of
        numbers = [gold if gold and _is_asserted(gold) else None for gold in golds]
        if any(golds) and not any(numbers):
            warnings.warn(
                "no accuracy: the answers are no numbers. evaluate(..., answer_of=...) says how to read one off a "
                "completion; rewards.answer_reward('math') or ('choice') as a reward grades by itself.",
                stacklevel=3,
            )
        golds = numbers
    return [
        None if gold is None else completion.finished and _same(answer_of(completion.text), gold)
        for gold, completion in zip(golds, completions, strict=True)
    ]


def _is_asserted(gold: str) -> bool:
    """Whether a gold answer is a number that ``tasks.answer_of`` would read off a completion: $12 and 50% are, 1/2 is
    not."""
    return _same(tasks.answer_of(gold), gold)


def _same(answer: str | None, gold: str) -> bool:
    """Whether an answer is the gold one, as text or as a number: 42 is 42.0, and 1000 is 1,000."""
    if answer is None or answer == gold:
        return answer is not None
    mine, golds = to_number(readable(answer)), to_number(readable(gold))
    return mine is not None and golds is not None and mine.same(golds)


def _accuracy(correct: Sequence[bool | None], samples: int, seed: int) -> Interval | None:
    shares = means_by_prompt(correct, samples)
    if samples == 1 and shares:
        return wilson(int(sum(shares)), len(shares))
    return bootstrap(shares, seed)


def means_by_prompt(values: Sequence[float | None], samples: int) -> list[float]:
    """The mean of each prompt's ``samples`` values, which stand together; prompts without a value left out.

    >>> means_by_prompt([1.0, 0.0, None, 0.5, None, None], samples=2)
    [0.5, 0.5]
    """
    groups = (values[start : start + samples] for start in range(0, len(values), samples))
    present = ([value for value in group if value is not None] for group in groups)
    return [statistics.fmean(group) for group in present if group]


def wilson(successes: int, trials: int) -> Interval:
    """Wilson's score interval for a share (Wilson 1927), which holds near 0 and 1 too.

    >>> print(wilson(8, 10))
    0.800 [0.490, 0.943]
    """
    share, z2 = successes / trials, Z_95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def has_no_spread(values: Sequence[float]) -> bool:
    """Whether all are equal, but for the rounding of the sums that they may be.

    >>> has_no_spread([1.0 - 0.2, 0.9 - 0.1]), has_no_spread([0.0, 0.001])
    (True, False)
    """
    return math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-12)


def bootstrap(values: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Interval | None:
    """Percentile bootstrap of the mean (Efron 1979); None without values, no bounds where all are equal.

    The values must be independent.  Where several completions share a prompt, these are the prompts' means: the
    cluster bootstrap (Davison & Hinkley 1997, section 3.8; Field & Welsh 2007).  Of few values, a run's
    seeds for instance, it covers less than 95 %.
    """
    if not values:
        return None
    mean = statistics.fmean(values)
    if has_no_spread(values):
        return Interval(mean, math.nan, math.nan)
    rng = random.Random(seed)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(resamples))
    return Interval(mean, means[int(0.025 * resamples)], means[int(0.975 * resamples) - 1])
