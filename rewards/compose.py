"""Build one reward out of others: weigh, gate, clip, scale, restrict and cache.

Every function takes TRL reward callables and returns another one, so compositions nest and work in any TRL trainer.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewards.errors import invalid
from rewards.guard import call_reward
from rewards.made import recorded
from rewards.signature import (
    TRL_KEYWORDS,
    Reward,
    Scores,
    Wrapped,
    column_in,
    count_of,
    judges_of,
    reward_name,
)


def _spread(values: Sequence[Any], rows: Sequence[int], count: int) -> list[Any]:
    placed = dict(zip(rows, values, strict=True))
    return [placed.get(row) for row in range(count)]


def _of_rows(reward: Reward, rows: Sequence[int], count: int, kwargs: Mapping[str, Any]) -> Scores:
    """The reward's scores of some rows, which alone it is called with, and None for the others."""
    if not rows:
        return [None] * count

    def part(value: Any) -> Any:
        is_column = isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0  # of numpy or torch
        return [value[i] for i in rows] if is_column and len(value) == count else value

    taken = {key: part(value) for key, value in kwargs.items()}
    if (log_extra := kwargs.get("log_extra")) is not None:
        taken["log_extra"] = lambda column, values: log_extra(column, _spread(values, rows, count))
    return _spread(call_reward(reward, **taken), rows, count)


def log_mean(log_metric: Callable[[str, float], None], name: str, scores: Sequence[float | None]) -> None:
    """Log the mean of the scores that are not None, if there is one."""
    known = [score for score in scores if score is not None]
    if known:
        log_metric(name, math.fsum(known) / len(known))


class _Weighted(Wrapped):
    def __init__(self, rewards: Sequence[Reward], weights: Sequence[float], name: str | None) -> None:
        parts = (f"{weight:g}*{reward_name(r)}" for r, weight in zip(rewards, weights, strict=True))
        super().__init__(name or "+".join(parts).replace("+-", "-"), *rewards)
        self.weights = weights

    def __call__(self, log_metric: Callable[[str, float], None] | None = None, **kwargs: Any) -> Scores:
        columns = [call_reward(reward, log_metric=log_metric, **kwargs) for reward in self.rewards]
        if log_metric is not None:
            for reward, column in zip(self.rewards, columns, strict=True):
                log_mean(log_metric, f"{self.__name__}/{reward_name(reward)}", column)
        rows = zip(*columns, strict=True)
        known = ([w * s for w, s in zip(self.weights, row, strict=True) if s is not None] for row in rows)
        return [math.fsum(parts) if parts else None for parts in known]


@recorded()
def weighted(
    rewards: Sequence[Reward], weights: Sequence[float] | None = None, *, name: str | None = None
) -> Reward:
    """The weighted sum of several rewards, each one's mean logged beside it.

    As in TRL, a reward that is None for a sample drops out of its sum, and a sample for which all are is None.

    Args:
        weights: one per reward; all 1 where None.
        name: the metric's name; "0.8*answer_reward+0.2*thinking_reward" by default.

    Raises:
        ValueError: no rewards, or not one finite weight for each.

    >>> from rewards import length_reward, sentence_reward
    >>> both = weighted([length_reward((1, 5)), sentence_reward()], [1.0, 0.5])
    >>> both.__name__, both(completions=["It is so."])
    ('1*length_reward+0.5*sentence_reward', [1.5])
    """
    members = list(rewards)
    values = [1.0] * len(members) if weights is None else list(weights)
    finite = all(isinstance(weight, numbers.Real) and math.isfinite(weight) for weight in values)
    if not members or len(values) != len(members) or not finite:
        what = f"{len(members)} rewards need as many finite weights, and there are {len(values)}"
        raise invalid(what, f"weighted({weights!r})", "pass at least one reward, and a weight for each")
    return _Weighted(members, [float(weight) for weight in values], name)


class _Gated(Wrapped):
    def __init__(self, by: Reward, reward: Reward, above: float, otherwise: float, name: str) -> None:
        super().__init__(name, by, reward)
        self.above, self.otherwise, self.aim = above, otherwise, "both"
        # Nothing is paid without either of the two, so one that judges the answer decides.
        if "answer" in map(judges_of, (by, reward)):
            self.judges = "answer"

    def __call__(self, **kwargs: Any) -> Scores:
        by, reward = self.rewards
        gate = call_reward(by, **kwargs)
        rows = [i for i, open_ in enumerate(gate) if open_ is not None and open_ > self.above]
        scores = _of_rows(reward, rows, len(gate), kwargs)
        return [
            None if open_ is None else score if open_ > self.above else self.otherwise
            for open_, score in zip(gate, scores, strict=True)
        ]


@recorded()
def gated(
    by: Reward, reward: Reward, *, above: float = 0.0, otherwise: float = 0.0, name: str | None = None
) -> Reward:
    """Pay ``reward`` only where ``by`` pays more than ``above``, and ``otherwise`` elsewhere.

    With a correctness reward as the gate, form alone earns nothing.  Where the gate is None, so is the result.
    The metric's name is "REWARD if BY" by default.

    ``reward`` is called with the rows that pass the gate alone, and not at all if there are none: a judge costs only
    these, and what it logs is of these.  A reward that compares a whole group cannot be gated so.

    >>> from rewards import length_reward, sentence_reward
    >>> reward = gated(by=sentence_reward(), reward=length_reward((1, 5)))
    >>> reward.__name__, reward(completions=["It is so.", "It is so"])
    ('length_reward if sentence_reward', [1.0, 0.0])
    """
    return _Gated(by, reward, above, otherwise, name or f"{reward_name(reward)} if {reward_name(by)}")


class _Mapped(Wrapped):
    """A reward whose every score goes through ``scale * score + offset`` and is then clipped."""

    def __init__(
        self, reward: Reward, name: str, scale: float, offset: float, low: float, high: float
    ) -> None:
        super().__init__(name, reward)
        self.scale, self.offset, self.low, self.high = scale, offset, low, high

    def __call__(self, **kwargs: Any) -> Scores:
        scores = call_reward(self.rewards[0], **kwargs)
        mapped = (None if score is None else self.scale * score + self.offset for score in scores)
        return [None if score is None else min(max(score, self.low), self.high) for score in mapped]


@recorded()
def clipped(reward: Reward, low: float = -1.0, high: float = 1.0) -> Reward:
    """The reward, kept within [low, high]; ValueError where ``low`` is not below ``high``.

    >>> from rewards import length_reward
    >>> clipped(length_reward((1, 5), inside=9), high=2)(completions=["It is so."])
    [2.0]
    """
    if not low < high:
        raise invalid("low must be below high", f"clipped(low={low}, high={high})", "swap or change them")
    return _Mapped(reward, f"clipped({reward_name(reward)})", 1.0, 0.0, float(low), float(high))


@recorded()
def scaled(reward: Reward, scale: float, offset: float = 0.0) -> Reward:
    """``scale * reward + offset``; ValueError where one of the two is not finite.

    >>> from rewards import sentence_reward
    >>> scaled(sentence_reward(), 2.0, -1.0)(completions=["It is so.", "It is"])
    [1.0, -1.0]
    """
    if not (math.isfinite(scale) and math.isfinite(offset)):
        raise invalid("scale and offset must be finite", f"scaled({scale}, {offset})", "pass two numbers")
    name = f"{scale:g}*{reward_name(reward)}" + (f"{offset:+g}" if offset else "")
    return _Mapped(reward, name, float(scale), float(offset), -math.inf, math.inf)


class _OnlyFor(Wrapped):
    def __init__(self, reward: Reward, columns: dict[str, tuple[Any, ...]]) -> None:
        wanted = ", ".join(f"{c}={'|'.join(sorted(set(map(str, values))))}" for c, values in columns.items())
        super().__init__(f"{reward_name(reward)}[{wanted}]", reward)
        self.only, self.columns = columns, (*columns, *self.columns)

    def __call__(self, **kwargs: Any) -> Scores:
        count = count_of((), kwargs) or 0
        columns = {column: column_in(kwargs, column, self.__name__) for column in self.only}
        rows = [i for i in range(count) if all(columns[c][i] in v for c, v in self.only.items())]
        return _of_rows(self.rewards[0], rows, count, kwargs)


@recorded()
def only_for(reward: Reward, **columns: Any) -> Reward:
    """The reward for rows whose columns have these values, and None ("does not apply") elsewhere.

    It is called with those rows alone.  ``columns``: column to value, or to a set, list or tuple of values; all must
    hold, and there must be one.

    >>> from rewards import sentence_reward
    >>> reward = only_for(sentence_reward(), kind="prose")
    >>> reward.__name__, reward(completions=["It is.", "x = 1"], kind=["prose", "code"])
    ('sentence_reward[kind=prose]', [1.0, None])
    """
    if not columns:
        where = f"only_for({reward_name(reward)})"
        raise invalid("No column is named", where, "pass one: only_for(r, kind='math')")
    # Not sets: a row's value may be a list, which has no hash.
    several = (set, frozenset, list, tuple)
    return _OnlyFor(reward, {c: tuple(v) if isinstance(v, several) else (v,) for c, v in columns.items()})


class _Cached(Wrapped):
    def __init__(self, reward: Reward, size: int) -> None:
        super().__init__(reward_name(reward), reward)
        self.size = size
        self.scores: dict[bytes, float | None] = {}
        self.hits = self.misses = 0

    def __call__(self, **kwargs: Any) -> Scores:
        keys = _row_keys(kwargs)
        rows = list({key: i for i, key in enumerate(keys) if key not in self.scores}.values())
        self.misses += len(rows)
        self.hits += len(keys) - len(rows)
        fresh = _of_rows(self.rewards[0], rows, len(keys), kwargs)
        self.scores |= {keys[row]: fresh[row] for row in rows}
        result = [self.scores[key] for key in keys]
        while len(self.scores) > self.size:  # the oldest first: a dict keeps its order
            del self.scores[next(iter(self.scores))]
        return result


def _row_keys(kwargs: Mapping[str, Any]) -> list[bytes]:
    """A digest per row: its completion's ids (its text without them), its prompt, its columns."""
    import hashlib

    count = count_of((), kwargs) or 0
    text_or_ids = "completions" if kwargs.get("completion_ids") is None else "completion_ids"
    skip = set(TRL_KEYWORDS) - {"prompts", text_or_ids}
    values = (value for key, value in sorted(kwargs.items()) if key not in skip and hasattr(value, "__len__"))
    lists = [value.tolist() if hasattr(value, "tolist") else value for value in values]
    columns = [column for column in lists if len(column) == count]
    rows = (repr([column[i] for column in columns]) for i in range(count))
    return [hashlib.blake2b(row.encode("utf-8", "surrogatepass"), digest_size=16).digest() for row in rows]


@recorded()
def cached(reward: Reward, *, size: int = 100_000) -> Reward:
    """The reward, computed once for each completion: for slow judges and reward models.

    Two rows are the same if their completion ids, prompt and columns are.  Only for rewards that depend on nothing
    else: not on ``trainer_state``, chance or the rest of the batch (``rewards.audit`` checks that).  The newest scores,
    ``size`` of them, at least 1, are kept; the attributes ``hits`` and ``misses`` count.
    """
    if size < 1:
        raise invalid("size must be at least 1", f"cached(size={size})", "leave it at 100000")
    return _Cached(reward, size)
