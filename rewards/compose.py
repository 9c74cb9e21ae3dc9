"""Build one reward out of others: weigh, gate, clip, scale, restrict and cache.  Compositions nest."""

from __future__ import annotations

import hashlib
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rewards.errors import invalid
from rewards.factory_calls import recorded
from rewards.trl_interface import Reward, Scores, Wrapped, call_reward, column_in, count_of, judges_of, reward_name

CACHED = 100_000  # scores that ``cached`` keeps


def _of_rows(reward: Reward, rows: Sequence[int], count: int, kwargs: Mapping[str, Any]) -> Scores:
    """Call the reward with some rows only; return their scores, and None for the other rows."""

    def part(value: Any) -> Any:
        is_column = isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0  # numpy or torch
        return [value[i] for i in rows] if is_column and len(value) == count else value

    def spread(values: Sequence[Any]) -> list[Any]:
        placed = dict(zip(rows, values, strict=True))
        return [placed.get(row) for row in range(count)]

    if not rows:
        return [None] * count
    of_rows = {key: part(value) for key, value in kwargs.items()}
    if (log_extra := kwargs.get("log_extra")) is not None:
        of_rows["log_extra"] = lambda column, values: log_extra(column, spread(values))
    return spread(call_reward(reward, **of_rows))


class _Composed(Wrapped):
    """A reward whose scores the function ``how`` computes from its members, given ``settings``."""

    def __init__(self, how: Callable[..., Scores], name: str, *rewards: Reward, **settings: Any) -> None:
        super().__init__(name, *rewards)
        self.how, self.settings = how, settings

    def __call__(self, **kwargs: Any) -> Scores:
        return self.how(self, kwargs, **self.settings)


def _sum(whole: Wrapped, kwargs: Mapping[str, Any], weights: Sequence[float]) -> Scores:
    columns = [call_reward(reward, **kwargs) for reward in whole.rewards]
    log_metric = kwargs.get("log_metric")
    for reward, column in zip(whole.rewards, columns, strict=True):
        scored = [score for score in column if score is not None]
        if scored and log_metric is not None:
            log_metric(f"{whole.__name__}/{reward_name(reward)}", math.fsum(scored) / len(scored))
    rows = zip(*columns, strict=True)
    known = ([w * s for w, s in zip(weights, row, strict=True) if s is not None] for row in rows)
    return [math.fsum(parts) if parts else None for parts in known]


@recorded()
def weighted(rewards: Sequence[Reward], weights: Sequence[float] | None = None, *, name: str | None = None) -> Reward:
    """Sum several rewards by weight, and log the mean of each; weights are 1 by default.

    As in TRL, a reward that is None for a sample drops out of the sample's sum; if all are None, so is the sum.
    ``name``: the metric's name, "0.8*answer_reward+0.2*thinking_reward" by default.

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
    parts = (f"{weight:g}*{reward_name(r)}" for r, weight in zip(members, values, strict=True))
    name = name or "+".join(parts).replace("+-", "-")
    whole = _Composed(_sum, name, *members, weights=[float(weight) for weight in values])
    whole.right = None
    return whole


def _gate(whole: Wrapped, kwargs: Mapping[str, Any], above: float, otherwise: float) -> Scores:
    by, reward = whole.rewards
    gates = call_reward(by, **kwargs)
    passed = [i for i, score in enumerate(gates) if score is not None and score > above]
    scores = _of_rows(reward, passed, len(gates), kwargs)
    rows = zip(gates, scores, strict=True)
    return [None if gate is None else score if gate > above else otherwise for gate, score in rows]


@recorded()
def gated(by: Reward, reward: Reward, *, above: float = 0.0, otherwise: float = 0.0, name: str | None = None) -> Reward:
    """Pay ``reward`` only where ``by`` pays more than ``above``, else ``otherwise``; None where ``by`` is None.

    ``reward`` is called only with the rows that pass the gate, if any, so a judge costs only these.  A reward that
    compares a whole group cannot be gated.

    >>> from rewards import length_reward, sentence_reward
    >>> reward = gated(by=sentence_reward(), reward=length_reward((1, 5)))
    >>> reward.__name__, reward(completions=["It is so.", "It is so"])
    ('length_reward if sentence_reward', [1.0, 0.0])
    """
    name = name or f"{reward_name(reward)} if {reward_name(by)}"
    whole = _Composed(_gate, name, by, reward, above=above, otherwise=otherwise)
    whole.aim = "both"
    # Both have to pay, so the composition judges the answer if either of them does.
    whole.judges = "answer" if "answer" in map(judges_of, (by, reward)) else whole.judges
    return whole


def _linear(score: float, scale: float = 1, offset: float = 0, low: float = -math.inf, high: float = math.inf) -> float:
    return min(max(scale * score + offset, low), high)


def _change(whole: Wrapped, kwargs: Mapping[str, Any], **line: float) -> Scores:
    # Of any magnitude: these two are what brings a reward within bounds.
    scores = call_reward(whole.rewards[0], None, **kwargs)
    return [None if score is None else _linear(score, **line) for score in scores]


def _changed(name: str, reward: Reward, **line: float) -> Reward:
    whole = _Composed(_change, name, reward, **line)
    keeps_order = line.get("scale", 1.0) > 0
    whole.right = _linear(whole.right, **line) if keeps_order and whole.right is not None else None
    return whole


@recorded()
def clipped(reward: Reward, low: float = -1.0, high: float = 1.0) -> Reward:
    """Clip the reward to [low, high].

    >>> from rewards import length_reward
    >>> clipped(length_reward((1, 5)), high=0.7)(completions=["It is so."])
    [0.7]
    """
    if not low < high:
        raise invalid("low must be below high", f"clipped(low={low}, high={high})", "swap or change them")
    return _changed(f"clipped({reward_name(reward)})", reward, low=float(low), high=float(high))


@recorded()
def scaled(reward: Reward, scale: float, offset: float = 0.0) -> Reward:
    """Return ``scale * reward + offset``.

    >>> from rewards import sentence_reward
    >>> scaled(sentence_reward(), 2.0, -1.0)(completions=["It is so.", "It is"])
    [1.0, -1.0]
    """
    if not (math.isfinite(scale) and math.isfinite(offset)):
        raise invalid("scale and offset must be finite", f"scaled({scale}, {offset})", "pass two numbers")
    name = f"{scale:g}*{reward_name(reward)}" + (f"{offset:+g}" if offset else "")
    return _changed(name, reward, scale=float(scale), offset=float(offset))


def _only(whole: Wrapped, kwargs: Mapping[str, Any], wanted: Mapping[str, tuple[Any, ...]]) -> Scores:
    count = count_of(kwargs) or 0
    columns = {column: column_in(kwargs, column, whole.__name__) for column in wanted}
    rows = [i for i in range(count) if all(columns[c][i] in values for c, values in wanted.items())]
    return _of_rows(whole.rewards[0], rows, count, kwargs)


@recorded()
def only_for(reward: Reward, **columns: Any) -> Reward:
    """Score only rows whose columns all have these values, or one of a list of values; None elsewhere.

    The reward is called with those rows only.

    >>> from rewards import sentence_reward
    >>> reward = only_for(sentence_reward(), kind="prose")
    >>> reward.__name__, reward(completions=["It is.", "x = 1"], kind=["prose", "code"])
    ('sentence_reward[kind=prose]', [1.0, None])
    """
    if not columns:
        where = f"only_for({reward_name(reward)})"
        raise invalid("No column is named", where, "pass one: only_for(r, kind='math')")
    several = (set, frozenset, list, tuple)
    wanted = {c: tuple(value) if isinstance(value, several) else (value,) for c, value in columns.items()}
    named = ", ".join(f"{c}={'|'.join(sorted(set(map(str, values))))}" for c, values in wanted.items())
    whole = _Composed(_only, f"{reward_name(reward)}[{named}]", reward, wanted=wanted)
    whole.columns = (*wanted, *whole.columns)
    return whole


def _remember(whole: Wrapped, kwargs: Mapping[str, Any], known: dict[bytes, float | None]) -> Scores:
    keys = _row_keys(kwargs)
    rows = list({key: i for i, key in enumerate(keys) if key not in known}.values())
    fresh = _of_rows(whole.rewards[0], rows, len(keys), kwargs)
    known |= {keys[row]: fresh[row] for row in rows}
    result = [known[key] for key in keys]
    while len(known) > CACHED:  # the oldest first: a dict keeps its order
        del known[next(iter(known))]
    return result


def _row_keys(kwargs: Mapping[str, Any]) -> list[bytes]:
    # One digest per row, of the completion's ids (its text if there are none), the prompt and the columns.
    count = count_of(kwargs) or 0
    # What else TRL passes, state and functions to log by, has no length.
    skip = "" if kwargs.get("completion_ids") is None else "completions"
    values = [value for key, value in sorted(kwargs.items()) if key != skip and not isinstance(value, Mapping)]
    columns = [value for value in values if hasattr(value, "__len__") and len(value) == count]
    rows = (repr([_as_list(column[i]) for column in columns]) for i in range(count))
    return [hashlib.blake2b(row.encode("utf-8", "surrogatepass"), digest_size=16).digest() for row in rows]


def _as_list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value  # of a long array, repr leaves out the middle


@recorded()
def cached(reward: Reward) -> Reward:
    """Compute the reward once per completion, and keep the newest 100,000 scores: for slow judges and models.

    Rows with the same completion ids, prompt and columns share a score.  Not for rewards that depend on
    ``trainer_state``, chance or the rest of the batch.
    """
    return _Composed(_remember, reward_name(reward), reward, known={})
