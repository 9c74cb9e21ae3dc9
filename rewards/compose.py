"""Build one reward out of others: weigh, gate, clip, scale, restrict, cache, and guard.

For combining several rewards, and for one that is slow or untrusted.  Every function takes TRL reward callables and
returns another one, so compositions nest and work in any TRL trainer.  rloo_kit's trainer puts ``guarded`` around every
reward.

It does not run ``torch.nn.Module`` reward models: TRL calls those itself.
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from rewards.calls import copied, hints, log_extra_checked, log_metric_checked, place, unreached
from rewards.errors import (
    RewardCallError,
    RewardSignatureError,
    RewardValueError,
    invalid,
    shortened,
    shown,
    three_parts,
)

Reward = Callable[..., Any]
Scores = list[float | None]
Judges = Literal["answer", "form", "length"]
"""What a reward pays for, where it is one thing: set ``reward.judges`` on a function of your own."""

#: What TRL 1.15 passes to every reward besides the dataset's columns (``_calculate_rewards``).
TRL_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


def reward_name(reward: Reward) -> str:
    """The name under which TRL logs a reward: partials unwrapped, callable objects by name or class."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return str(getattr(reward, "__name__", type(reward).__name__))


def judges_of(*rewards: object) -> Judges | None:
    """What rewards say that they pay for, by their attribute ``judges``; None where they differ or do not say.

    Raises:
        ValueError: a value that is not one of :data:`Judges`.
    """
    said = {_said_by(reward) for reward in rewards}
    return said.pop() if len(said) == 1 else None


def _said_by(reward: object) -> Judges | None:
    judges: Judges | None = getattr(_unwrapped(reward, "judges"), "judges", None)
    if judges not in (None, *get_args(Judges)):
        raise invalid(
            "A reward's judges must be answer, form or length",
            f"reward '{reward_name(reward)}', judges {shown(judges)}",  # type: ignore[arg-type]
            'set judges to "answer", "form" or "length", or remove it',
        )
    return judges


def columns_of(*rewards: object) -> tuple[str, ...]:
    """Columns of the dataset that rewards need, by their attribute ``columns``."""
    said = [getattr(_unwrapped(reward, "columns"), "columns", ()) for reward in rewards]
    return tuple(
        dict.fromkeys(name for names in said for name in ([names] if isinstance(names, str) else names))
    )


def _unwrapped(reward: object, attribute: str) -> object:
    """What a partial is of, unless it has the attribute itself."""
    while isinstance(reward, functools.partial) and not hasattr(reward, attribute):
        reward = reward.func
    return reward


def is_async(reward: Reward) -> bool:
    """Whether calling the reward gives a coroutine: the rule by which TRL decides to await it."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    call = getattr(reward, "__call__", None)  # noqa: B004 - the bound method is inspected, not just looked for
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(call)


# --------------------------------------------------------------------------------------- guard


def check_signature(reward: Reward, columns: Iterable[str] | None = None) -> None:
    """Raise, before any call, if a reward cannot take the keywords that TRL passes.

    TRL calls ``reward(prompts=..., completions=..., completion_ids=..., trainer_state=..., log_extra=...,
    log_metric=..., **columns)``; a signature without ``**kwargs`` fails there with a bare TypeError.

    Args:
        reward: a function, a partial or a callable object.
        columns: names of the dataset's columns besides ``prompt``; None if unknown: any required argument
            then counts as a column.

    Raises:
        RewardSignatureError: not callable, a class, no ``**kwargs`` and a keyword missing, a positional-only
            argument, or a required argument that no column provides.
    """
    name = reward_name(reward)
    if not callable(reward):
        raise RewardSignatureError(
            f"A reward must be callable, not {type(reward).__name__}",
            reward_name=shown(reward),
            value=reward,
            todo="pass a function: def reward(completions, **kwargs): return [0.0 for _ in completions]",
        )
    _refuse_class(reward)
    if columns is not None:
        columns = set(columns)
        for needed in columns_of(reward):
            if needed not in columns:
                raise _lacks(name, needed, columns)
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (ValueError, TypeError):  # a builtin or an extension type without a readable signature
        return
    _check_parameters(name, list(parameters), None if columns is None else set(columns))


def _refuse_class(reward: Reward) -> None:
    if inspect.isclass(reward):
        raise RewardSignatureError(
            f"{reward.__name__} is a class, and its instances are the rewards",
            reward_name=reward.__name__,
            value=reward,
            todo=f"pass an instance, {reward.__name__}(...)",
        )


def _check_parameters(name: str, parameters: list[inspect.Parameter], columns: set[str] | None) -> None:
    passed = set(TRL_KEYWORDS) | (columns or set())
    kinds = {p.name: p.kind for p in parameters}
    required = [p for p in parameters if p.default is p.empty]
    positional = [p.name for p in required if p.kind is p.POSITIONAL_ONLY]
    missing = sorted(passed - {p.name for p in parameters})
    if positional:
        raise RewardSignatureError(
            f"Its argument '{positional[0]}' is positional-only, and TRL passes keywords",
            reward_name=name,
            todo="remove the '/' from the signature",
        )
    if inspect.Parameter.VAR_KEYWORD not in kinds.values() and missing:
        raise RewardSignatureError(
            f"Its signature has no **kwargs and does not take {', '.join(missing)}, which TRL passes",
            reward_name=name,
            todo="add **kwargs as the last argument",
        )
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    unknown = [p.name for p in required if p.kind in named and p.name not in passed]
    if columns is not None and unknown:
        raise _lacks(name, unknown[0], columns, mend="give the argument a default, or ")


def _lacks(name: str, needed: str, columns: set[str], mend: str = "") -> RewardSignatureError:
    held = f"it has {', '.join(sorted(columns))}" if columns else "it has no column besides the prompts"
    near = difflib.get_close_matches(needed, columns, n=1)
    rename = (
        f"dataset.rename_column({near[0]!r}, {needed!r})"
        if near
        else f"add the column {needed!r} to the dataset"
    )
    return RewardSignatureError(
        f"It requires '{needed}', which is neither passed by TRL nor a column of the dataset",
        reward_name=name,
        todo=f"{mend}{rename} ({held})",
    )


def guarded(reward: Reward, *, limit: float = 1e6, columns: Iterable[str] | None = None) -> Reward:
    """The same reward, which now raises instead of returning a value that would silently ruin a run.

    TRL 1.15 takes +-inf (every weight NaN after one step), 1e30 (infinite gradient), a dict (its keys
    become the rewards), and reads NaN as None.  A guarded reward returns a list with one float or None
    per completion, or raises.  Numbers of numpy and torch, bools, ints and one-dimensional arrays and
    tensors become floats.  None still means "does not apply to this sample".

    Args:
        reward: any TRL reward callable, synchronous or ``async``; a guarded one comes back as it is.
        limit: largest magnitude allowed.
        columns: names of the dataset's columns, where known; see :func:`check_signature`.

    Returns:
        A picklable callable with the reward's ``__name__``; ``async`` when the reward is.

    Raises:
        RewardSignatureError: at once; see :func:`check_signature`.
        RewardValueError: at a call, with ``reward_name``, ``sample`` and ``value``.
        RewardCallError: at a call, from the reward's own error.

    >>> def reward(completions, **kwargs):
    ...     return [1, float("inf")]
    >>> guarded(reward)(completions=["a", "b"])
    Traceback (most recent call last):
    ...
    rewards.errors.RewardValueError: A reward must be finite, and this one is inf.
    Where: reward 'reward', sample 1, value inf.
    What to do: return a finite number, or None for a sample the reward does not apply to.
    """
    if isinstance(reward, _Guarded):
        return reward
    check_signature(reward, columns)
    if not limit > 0:
        raise invalid("limit must be positive", f"guarded(limit={limit})", "leave it at 1e6")
    return (_AsyncGuarded if is_async(reward) else _Guarded)(reward, limit)


class _Guarded:
    def __init__(self, reward: Reward, limit: float) -> None:
        self.reward, self.limit, self.__name__ = reward, limit, reward_name(reward)
        self.judges, self.columns = judges_of(reward), columns_of(reward)

    def __repr__(self) -> str:
        return f"guarded({self.__name__})"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Scores:
        try:
            returned = self.reward(*copied(args), **self._given(args, kwargs))
        except RewardValueError:  # from an inner guard, which names its own function
            raise
        except (Exception, SystemExit) as error:
            raise self._failed(error, kwargs) from error
        return self._checked(returned, args, kwargs)

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """A call's keywords: its own lists, a copy of the trainer's state, and logs that are checked."""
        given: dict[str, Any] = copied(dict(kwargs))
        if given.get("trainer_state") is not None:
            given["trainer_state"] = copy.copy(given["trainer_state"])
        if (log_metric := given.get("log_metric")) is not None:
            given["log_metric"] = functools.partial(log_metric_checked, self.__name__, log_metric)
        if (log_extra := given.get("log_extra")) is not None:
            count = count_of(args, kwargs)
            given["log_extra"] = functools.partial(log_extra_checked, self.__name__, log_extra, count)
        return given

    def _failed(self, error: BaseException, kwargs: Mapping[str, Any]) -> RewardCallError:
        columns = set(kwargs) - set(TRL_KEYWORDS)
        if (silence := unreached(error)) is not None:
            what = f"What the reward asks did not answer ({type(silence).__name__}: {silence})"
            mend = "see that the service is up, its address and the network, then train(resume_from_checkpoint=True)"
        else:
            what = f"The reward raised {type(error).__name__}{f': {error}' if str(error) else ''}"
            mend = "; ".join([f"fix the reward {place(error)}", *hints(error, kwargs, columns)])
        what = " ".join(what.split())  # a library's message may have lines of its own
        return RewardCallError(shortened(what), reward_name=self.__name__, value=error, todo=mend)

    def _checked(self, returned: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Scores:
        return checked_scores(returned, count_of(args, kwargs), name=self.__name__, limit=self.limit)


class _AsyncGuarded(_Guarded):
    async def __call__(self, /, *args: Any, **kwargs: Any) -> Scores:  # type: ignore[override]
        try:
            returned = await self.reward(*copied(args), **self._given(args, kwargs))
        except RewardValueError:
            raise
        except (Exception, SystemExit) as error:
            raise self._failed(error, kwargs) from error
        return self._checked(returned, args, kwargs)


def count_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The number of completions in a call, by its keywords or first argument; None if unknown."""
    for key in ("completions", "completion_ids", "prompts"):
        if kwargs.get(key) is not None:
            return len(kwargs[key])
    return len(args[0]) if args and hasattr(args[0], "__len__") else None


def checked_scores(returned: Any, count: int | None, *, name: str, limit: float = 1e6) -> Scores:
    """The returned value as a list of floats and Nones; a RewardValueError if it cannot be one."""
    values = _as_list(returned, name, None if count is None else count + 1)
    if count is not None and len(values) != count:
        number = len(values) if hasattr(returned, "__len__") or len(values) < count else f"more than {count}"
        raise RewardValueError(
            f"It returned {number} values for {count} completions",
            reward_name=name,
            value=returned,
            todo="return one number or None per completion, in their order",
        )
    return [_as_score(value, index, name, limit) for index, value in enumerate(values)]


def _as_list(returned: Any, name: str, most: int | None) -> list[Any]:
    """Of something without a length, which may never end, at most so many values."""

    def refuse(what: str, todo: str) -> RewardValueError:
        return RewardValueError(what, reward_name=name, value=returned, todo=todo)

    if returned is None:
        raise refuse("It returned None, not a list", "end the function with return scores")
    if isinstance(returned, Mapping):
        raise refuse(
            f"It returned a dict, {shown(returned)}, whose keys TRL would take for the rewards",
            "return a list with one number per completion; log the parts through log_metric",
        )
    if isinstance(returned, (str, bytes, set, frozenset)):
        raise refuse(
            f"It returned a {type(returned).__name__}, {shown(returned)}, not a list of numbers",
            "return a list with one number per completion",
        )
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            returned.close()
        raise refuse(
            "It returned a coroutine, which TRL does not await",
            "define the reward itself with async def",
        )
    if hasattr(returned, "tolist"):  # numpy, torch and pandas alike, without importing them
        try:
            returned = returned.tolist()
        except Exception as error:  # a sparse tensor, or one on the device "meta", has no numbers to give
            raise refuse(
                f"It returned a {type(returned).__name__} whose values cannot be read, {shown(returned)}",
                "return a list of floats, or a dense tensor on the CPU or the GPU",
            ) from error
    if not isinstance(returned, Iterable):
        raise refuse(
            f"It returned one {type(returned).__name__}, {shown(returned)}, for the whole batch",
            "return a list with one number per completion",
        )
    return list(returned if hasattr(returned, "__len__") else itertools.islice(returned, most))


def _as_score(value: Any, index: int, name: str, limit: float) -> float | None:
    if value is None:
        return None

    def refuse(what: str, todo: str) -> RewardValueError:
        return RewardValueError(what, reward_name=name, sample=index, value=value, todo=todo)

    try:
        number = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    except Exception as error:  # as above
        raise refuse(
            f"A reward must be one real number, and this {type(value).__name__} has none to give",
            "return floats",
        ) from error
    if not isinstance(number, numbers.Real):
        raise refuse(
            f"A reward must be one real number, and this one is a {type(number).__name__}",
            "return a flat list of floats; take the parts of a nested one apart",
        )
    if number != number:
        raise refuse(
            "A reward must be finite, and this one is NaN, which TRL would read as None",
            "return a number, or None for a sample the reward does not apply to",
        )
    if abs(number) == math.inf:
        raise refuse(
            f"A reward must be finite, and this one is {number}",
            "return a finite number, or None for a sample the reward does not apply to",
        )
    if abs(number) > limit:  # type: ignore[operator]
        raise refuse(
            f"A reward's magnitude must not exceed {limit:g}",
            "scale it down (rewards.scaled, rewards.clipped), or raise guarded(limit=...)",
        )
    return float(number)


# ---------------------------------------------------------------------------------- composition


def call_reward(reward: Reward, **kwargs: Any) -> Scores:
    """Call a reward, awaiting it if it is ``async``, and check what it returns as ``guarded`` does."""
    returned = reward(**kwargs)
    if inspect.isawaitable(returned):
        returned = _awaited(returned)
    return checked_scores(returned, count_of((), kwargs), name=reward_name(reward))


def _awaited(coroutine: Any) -> Any:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def result() -> Any:
        return await coroutine

    # A notebook's thread already runs an event loop, and a thread can have only one.
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, result()).result()


def take(kwargs: Mapping[str, Any], rows: Sequence[int], count: int) -> dict[str, Any]:
    """A call's keywords for some of its rows; ``log_extra`` gets None for the others."""
    taken = {
        key: [value[i] for i in rows] if isinstance(value, (list, tuple)) and len(value) == count else value
        for key, value in kwargs.items()
    }
    log_extra = kwargs.get("log_extra")
    if log_extra is not None:
        taken["log_extra"] = lambda column, values: log_extra(column, spread(values, rows, count))
    return taken


def spread(values: Sequence[Any], rows: Sequence[int], count: int) -> list[Any]:
    """The values placed at their rows, None elsewhere."""
    spaced: list[Any] = [None] * count
    for row, value in zip(rows, values, strict=True):
        spaced[row] = value
    return spaced


def _members(rewards: Iterable[Reward], where: str) -> list[Reward]:
    members = list(rewards)
    for member in members:
        if not callable(member):
            raise TypeError(
                three_parts(
                    f"A composition takes reward callables, not {type(member).__name__}",
                    f"{where}, {shown(member)}",
                    "pass the function itself, such as rewards.answer_reward()",
                )
            )
        _refuse_class(member)
    return members


class _Weighted:
    def __init__(self, rewards: list[Reward], weights: list[float], name: str | None) -> None:
        self.rewards, self.weights = rewards, weights
        parts = (f"{weight:g}*{reward_name(r)}" for r, weight in zip(rewards, weights, strict=True))
        self.__name__ = name or "+".join(parts).replace("+-", "-")
        self.judges, self.columns = judges_of(*rewards), columns_of(*rewards)

    def __call__(self, log_metric: Callable[[str, float], None] | None = None, **kwargs: Any) -> Scores:
        columns = [call_reward(reward, log_metric=log_metric, **kwargs) for reward in self.rewards]
        if log_metric is not None:
            for reward, column in zip(self.rewards, columns, strict=True):
                log_mean(log_metric, f"{self.__name__}/{reward_name(reward)}", column)
        return [self._sum(scores) for scores in zip(*columns, strict=True)]

    def _sum(self, scores: Sequence[float | None]) -> float | None:
        known = [w * s for w, s in zip(self.weights, scores, strict=True) if s is not None]
        return math.fsum(known) if known else None


def log_mean(log_metric: Callable[[str, float], None], name: str, scores: Sequence[float | None]) -> None:
    """Log the mean of the scores that are not None, if there is one."""
    known = [score for score in scores if score is not None]
    if known:
        log_metric(name, math.fsum(known) / len(known))


def weighted(
    rewards: Sequence[Reward], weights: Sequence[float] | None = None, *, name: str | None = None
) -> Reward:
    """The weighted sum of several rewards, each one's mean logged beside it.

    As in TRL, a reward that is None for a sample drops out of its sum, and a sample for which all are None
    is None.  Unlike ``RLOOConfig.reward_weights`` this nests: the sum can be gated or clipped.

    Args:
        rewards: the rewards.
        weights: one per reward; all 1 where None.
        name: the metric's name; "0.8*answer_reward+0.2*thinking_reward" by default.

    Raises:
        ValueError: no rewards, or not one finite weight for each.

    >>> from rewards import length_reward, sentence_reward
    >>> both = weighted([length_reward((1, 5)), sentence_reward()], [1.0, 0.5])
    >>> both.__name__, both(completions=["It is so."])
    ('1*length_reward+0.5*sentence_reward', [1.5])
    """
    members = _members(rewards, "weighted")
    values = [1.0] * len(members) if weights is None else [float(weight) for weight in weights]
    if not members or len(values) != len(members) or not all(map(math.isfinite, values)):
        raise invalid(
            f"{len(members)} rewards need as many finite weights, and there are {len(values)}",
            f"weighted(weights={weights!r})",
            "pass one finite weight per reward, and at least one reward",
        )
    return _Weighted(members, values, name)


class _Gated:
    def __init__(self, by: Reward, reward: Reward, above: float, otherwise: float) -> None:
        self.by, self.reward, self.above, self.otherwise = by, reward, above, otherwise
        self.__name__ = f"{reward_name(reward)} if {reward_name(by)}"
        self.aim = "both"
        # Nothing is paid without either of the two, so one that judges the answer decides.
        self.judges = "answer" if "answer" in map(judges_of, (by, reward)) else judges_of(by, reward)
        self.columns = columns_of(by, reward)

    def __call__(self, **kwargs: Any) -> Scores:
        gate, scores = call_reward(self.by, **kwargs), call_reward(self.reward, **kwargs)
        return [
            None if open_ is None else score if open_ > self.above else self.otherwise
            for open_, score in zip(gate, scores, strict=True)
        ]


def gated(by: Reward, reward: Reward, *, above: float = 0.0, otherwise: float = 0.0) -> Reward:
    """Pay ``reward`` only where ``by`` pays more than ``above``, and ``otherwise`` elsewhere.

    With a correctness reward as the gate, form alone earns nothing.  Where the gate is None, so is the result.

    Args:
        by: the gate.
        reward: paid where the gate is open.
        above: the score that the gate must exceed to be open.
        otherwise: paid where it is closed.

    >>> from rewards import length_reward, sentence_reward
    >>> reward = gated(by=sentence_reward(), reward=length_reward((1, 5)))
    >>> reward.__name__, reward(completions=["It is so.", "It is so"])
    ('length_reward if sentence_reward', [1.0, 0.0])
    """
    _members([by, reward], "gated")
    return _Gated(by, reward, above, otherwise)


class _Mapped:
    """A reward whose every score goes through ``scale * score + offset`` and is then clipped."""

    def __init__(
        self, reward: Reward, name: str, scale: float, offset: float, low: float, high: float
    ) -> None:
        self.reward, self.__name__ = reward, name
        self.scale, self.offset, self.low, self.high = scale, offset, low, high
        self.aim = getattr(reward, "aim", "answer")
        self.judges, self.columns = judges_of(reward), columns_of(reward)

    def __call__(self, **kwargs: Any) -> Scores:
        return [None if s is None else self._map(s) for s in call_reward(self.reward, **kwargs)]

    def _map(self, score: float) -> float:
        return min(max(self.scale * score + self.offset, self.low), self.high)


def clipped(reward: Reward, low: float = -1.0, high: float = 1.0) -> Reward:
    """The reward, kept within [low, high].

    Raises:
        ValueError: ``low`` is not below ``high``.

    >>> from rewards import length_reward
    >>> clipped(length_reward((1, 5), inside=9), high=2)(completions=["It is so."])
    [2.0]
    """
    _members([reward], "clipped")
    if not low < high:
        raise invalid(
            "low must be below high", f"clipped(low={low}, high={high})", "swap them, or change one"
        )
    return _Mapped(reward, f"clipped({reward_name(reward)})", 1.0, 0.0, float(low), float(high))


def scaled(reward: Reward, scale: float, offset: float = 0.0) -> Reward:
    """``scale * reward + offset``.

    Raises:
        ValueError: a scale or an offset that is not finite.

    >>> from rewards import sentence_reward
    >>> scaled(sentence_reward(), 2.0, -1.0)(completions=["It is so.", "It is"])
    [1.0, -1.0]
    """
    _members([reward], "scaled")
    if not (math.isfinite(scale) and math.isfinite(offset)):
        raise invalid("scale and offset must be finite", f"scaled({scale}, {offset})", "pass two numbers")
    name = f"{scale:g}*{reward_name(reward)}" + (f"{offset:+g}" if offset else "")
    return _Mapped(reward, name, float(scale), float(offset), -math.inf, math.inf)


class _OnlyFor:
    def __init__(self, reward: Reward, columns: dict[str, frozenset[Any]]) -> None:
        self.reward, self.only = reward, columns
        wanted = ", ".join(f"{c}={'|'.join(sorted(map(str, values)))}" for c, values in columns.items())
        self.__name__ = f"{reward_name(reward)}[{wanted}]"
        self.aim = getattr(reward, "aim", "answer")
        self.judges, self.columns = judges_of(reward), (*columns, *columns_of(reward))

    def __call__(self, **kwargs: Any) -> Scores:
        count = count_of((), kwargs) or 0
        missing = [column for column in self.only if column not in kwargs]
        if missing:
            raise RewardValueError(
                f"The dataset has no column '{missing[0]}'",
                reward_name=self.__name__,
                todo=f"add it, or name one of {sorted(set(kwargs) - set(TRL_KEYWORDS))} in only_for",
            )
        rows = [i for i in range(count) if all(kwargs[c][i] in v for c, v in self.only.items())]
        scores = call_reward(self.reward, **take(kwargs, rows, count)) if rows else []
        return spread(scores, rows, count)


def only_for(reward: Reward, **columns: Any) -> Reward:
    """The reward for rows whose columns have these values, and None ("does not apply") elsewhere.

    The reward is called with those rows alone, so it may rely on their columns.

    Args:
        reward: the reward.
        **columns: column to value, or to a set, list or tuple of values; all must hold.

    Raises:
        ValueError: no column named.

    >>> from rewards import sentence_reward
    >>> reward = only_for(sentence_reward(), kind="prose")
    >>> reward.__name__, reward(completions=["It is.", "x = 1"], kind=["prose", "code"])
    ('sentence_reward[kind=prose]', [1.0, None])
    """
    _members([reward], "only_for")
    if not columns:
        raise invalid(
            "No column is named", f"only_for({reward_name(reward)})", "pass one: only_for(r, kind='math')"
        )
    values = {
        c: frozenset(v if isinstance(v, (set, frozenset, list, tuple)) else [v]) for c, v in columns.items()
    }
    return _OnlyFor(reward, values)


class _Cached:
    def __init__(self, reward: Reward, size: int) -> None:
        self.reward, self.size, self.__name__ = reward, size, reward_name(reward)
        self.scores: dict[bytes, float | None] = {}
        self.hits = self.misses = 0
        self.aim = getattr(reward, "aim", "answer")
        self.judges, self.columns = judges_of(reward), columns_of(reward)

    def __call__(self, **kwargs: Any) -> Scores:
        keys = _row_keys(kwargs)
        rows = list({key: i for i, key in enumerate(keys) if key not in self.scores}.values())
        self.misses += len(rows)
        self.hits += len(keys) - len(rows)
        if rows:
            fresh = call_reward(self.reward, **take(kwargs, rows, len(keys)))
            self.scores |= {keys[row]: score for row, score in zip(rows, fresh, strict=True)}
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
    columns = [
        value.tolist() if hasattr(value, "tolist") else value
        for key, value in sorted(kwargs.items())
        if key not in skip and hasattr(value, "__len__")
    ]
    columns = [column for column in columns if len(column) == count]
    rows = (repr([column[i] for column in columns]) for i in range(count))
    return [hashlib.blake2b(row.encode("utf-8", "surrogatepass"), digest_size=16).digest() for row in rows]


def cached(reward: Reward, *, size: int = 100_000) -> Reward:
    """The reward, computed once for each completion: for slow judges and reward models.

    Two rows are the same if their completion ids, prompt and columns are.  Only for rewards that depend on nothing
    else: not on ``trainer_state``, chance or the rest of the batch (``rewards.audit`` checks that).

    Args:
        reward: the reward.
        size: how many scores are kept; the oldest go first.

    Returns:
        A reward with the same name, which counts its ``hits`` and ``misses``.

    Raises:
        ValueError: a size under 1.
    """
    _members([reward], "cached")
    if size < 1:
        raise invalid("size must be at least 1", f"cached(size={size})", "leave it at 100000")
    return _Cached(reward, size)
