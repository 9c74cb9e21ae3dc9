"""How good is a policy: accuracy and mean reward on a dataset, each with a 95 % interval.

For before and after training, on problems that training never saw.  It samples with ``Policy.generate`` and
calls reward functions as TRL does.  It does not train, and it does not decide what an answer is: a task's
``answer_of`` does.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import rewards
from rewards.compose import call_reward
from rloo_kit import guards, tasks
from rloo_kit.errors import DatasetError

if TYPE_CHECKING:
    from rloo_kit.models import Completion, Policy

Z_95 = 1.959963984540054
RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Evaluation:
    """What :func:`evaluate` found.

    Attributes:
        accuracy: share of completions that assert the row's answer; None where the dataset has no answers.
        reward: mean of the weighted sums; None without reward functions.
        reward_means: each function's mean over the completions that it scored.
        mean_length: tokens per completion.
        truncated: share of completions that were cut at the length limit.
        completions: all of them, in the dataset's order.
        rewards: the weighted sum of each, None where no function applied.
        greedy: whether the most probable token was taken each time.
    """

    accuracy: Interval | None
    reward: Interval | None
    reward_means: dict[str, float]
    mean_length: float
    truncated: float
    completions: tuple[Completion, ...] = field(repr=False)
    rewards: tuple[float | None, ...] = field(repr=False)
    greedy: bool = True

    def __str__(self) -> str:
        rows = [("completions", f"{len(self.completions)}, {'greedy' if self.greedy else 'sampled'}")]
        if self.accuracy:
            rows.append(("accuracy", f"{self.accuracy} (95 %, Wilson)"))
        if self.reward:
            rows.append(("reward", f"{self.reward} (95 %, bootstrap)"))
        rows += [(f"  {name}", f"{mean:.3f}") for name, mean in self.reward_means.items()]
        rows.append(("length", f"{self.mean_length:.1f} tokens, {self.truncated:.0%} cut"))
        width = max(len(label) for label, _ in rows) + 2
        return "\n".join(f"{label:<{width}}{text}" for label, text in rows)


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

    Args:
        policy: as ``load_policy`` gives it.
        dataset: with a column ``prompt`` and, for accuracy, ``answer``; or a ``Task``, whose held-out set is
            taken.
        reward_funcs: TRL reward callables; their weighted sum is the reward.
        n: the first n rows; None for all.
        samples: completions per prompt, when not greedy.
        greedy: take the most probable token each time; False samples at ``temperature``.
        max_new_tokens: as in training, or the comparison is with another task.
        batch_size: rows in the model at once; None sizes it to the memory that is free.
        reward_weights: one per function, as in training; None weighs all alike.
        answer_of: how to read the answer off a completion's text; the number it asserts by default.
        seed: of the sampling; the random state outside is left as it was.
        generate: further arguments of ``Policy.generate``.

    Raises:
        DatasetError: no rows, or no ``prompt`` column.
        rewards.RewardValueError: a reward function that returned something that is no reward.
    """
    funcs = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if funcs:
        guards.check_rewards(funcs, reward_weights, where="evaluate")
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
    return Evaluation(
        accuracy=_accuracy(rows, completions, answer_of or tasks.answer_of),
        reward=bootstrap([t for t in totals if t is not None], seed) if scores else None,
        reward_means={name: _mean(values) for name, values in scores.items()},
        mean_length=sum(len(c.ids) for c in completions) / len(completions),
        truncated=sum(not c.finished for c in completions) / len(completions),
        completions=tuple(completions),
        rewards=tuple(totals),
        greedy=greedy,
    )


def _rows(dataset: Any, n: int | None) -> list[dict[str, Any]]:
    rows = [dict(row) for row in itertools.islice(dataset, n)]
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
    names = guards.distinct([func.__name__ for func in guarded])
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


def _accuracy(
    rows: Sequence[dict[str, Any]], completions: Sequence[Completion], answer_of: Callable[[Any], str | None]
) -> Interval | None:
    graded = [
        c.finished and _same(answer_of(c.text), str(row["answer"]))
        for row, c in zip(rows, completions, strict=True)
        if row.get("answer") is not None
    ]
    return wilson(sum(graded), len(graded)) if graded else None


def _same(answer: str | None, gold: str) -> bool:
    """Whether an answer is the gold one, as text or as a number: 42 is 42.0."""
    number = tasks.NUMBER.fullmatch(gold.strip())
    return answer is not None and answer in (gold, tasks.canonical(number[0]) if number else gold)


def wilson(successes: int, trials: int) -> Interval:
    """Wilson's score interval for a share (Wilson 1927), which holds near 0 and 1 too.

    >>> print(wilson(8, 10))
    0.800 [0.490, 0.943]
    """
    share, z2 = successes / trials, Z_95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def bootstrap(values: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Interval | None:
    """Percentile bootstrap of the mean (Efron 1979); None without values."""
    if not values:
        return None
    rng = random.Random(seed)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(resamples))
    low, high = means[int(0.025 * resamples)], means[int(0.975 * resamples) - 1]
    return Interval(sum(values) / len(values), low, high)
