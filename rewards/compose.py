"""Build one reward out of others: weigh, gate, clip, scale, restrict, cache, and guard.

For everybody who has more than one reward, or one that is slow or not to be trusted.  Every function
takes TRL reward callables and returns another one, so compositions nest and need no trainer of ours.
``guarded`` is what rloo_kit's trainer puts around every reward.

It does not run ``torch.nn.Module`` reward models: TRL calls those itself.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rewards.errors import RewardCallError, RewardSignatureError, RewardValueError, shown, three_parts

Reward = Callable[..., Any]
Scores = list[float | None]

#: What TRL 1.15 passes to every reward besides the dataset's columns (``_calculate_rewards``).
TRL_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


def reward_name(reward: Reward) -> str:
    """The name under which TRL logs a reward: partials unwrapped, callable objects by name or class."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return str(getattr(reward, "__name__", type(reward).__name__))


def is_async(reward: Reward) -> bool:
    """Whether calling the reward gives a coroutine: the rule by which TRL decides to await it."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    call = getattr(reward, "__call__", None)  # noqa: B004 - the bound method is inspected, not just looked for
    return inspect.iscoroutinefunction(reward) or inspect.iscoroutinefunction(call)


# --------------------------------------------------------------------------------------- guard


def check_signature(reward: Reward, columns: Iterable[str] | None = None) -> None:
    """Refuse, before any call, a reward that cannot take what TRL passes by keyword.

    TRL calls ``reward(prompts=..., completions=..., completion_ids=..., trainer_state=..., log_extra=...,
    log_metric=..., **columns)``; a signature without ``**kwargs`` fails there with a bare TypeError.

    Args:
        reward: a function, a partial or a callable object.
        columns: names of the dataset's columns besides ``prompt``; None where they are not known, and
            then a required argument is taken to be one of them.

    Raises:
        RewardSignatureError: not callable, no ``**kwargs`` and a keyword missing, a positional-only
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
    try:
        parameters = inspect.signature(reward).parameters.values()
    except (ValueError, TypeError):  # a builtin or an extension type that does not tell its signature
        return
    _check_parameters(name, list(parameters), None if columns is None else set(columns))


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
        raise RewardSignatureError(
            f"It requires '{unknown[0]}', which is neither passed by TRL nor a column of the dataset",
            reward_name=name,
            todo=f"give the argument a default, or the dataset the column (it has {sorted(columns)})",
        )


def guarded(reward: Reward, *, limit: float = 1e6, columns: Iterable[str] | None = None) -> Reward:
    """The same reward, which now raises instead of handing TRL a value that ruins a run in silence.

    TRL 1.15 takes +-inf (every weight NaN after one step), 1e30 (infinite gradient), a dict (its keys
    become the rewards), and reads NaN as None.  A guarded reward returns a list with one float or None
    per completion, or raises.  Numbers of numpy and torch, bools, ints and one-dimensional arrays and
    tensors become floats.  None still means 'does not apply to this sample'.

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
        raise ValueError(three_parts("limit must be positive", f"guarded(limit={limit})", "leave it at 1e6"))
    return (_AsyncGuarded if is_async(reward) else _Guarded)(reward, limit)


class _Guarded:
    def __init__(self, reward: Reward, limit: float) -> None:
        self.reward, self.limit, self.__name__ = reward, limit, reward_name(reward)

    def __repr__(self) -> str:
        return f"guarded({self.__name__})"

    def __call__(self, *args: Any, **kwargs: Any) -> Scores:
        try:
            returned = self.reward(*args, **kwargs)
        except RewardValueError:  # an inner guard has already named its function
            raise
        except Exception as error:
            raise self._failed(error) from error
        return self._checked(returned, args, kwargs)

    def _failed(self, error: Exception) -> RewardCallError:
        return RewardCallError(
            f"The reward raised {type(error).__name__}: {error}",
            reward_name=self.__name__,
            value=error,
            todo="mend the function at the last line of the traceback above, which is its own",
        )

    def _checked(self, returned: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Scores:
        return checked_scores(returned, count_of(args, kwargs), name=self.__name__, limit=self.limit)


class _AsyncGuarded(_Guarded):
    async def __call__(self, *args: Any, **kwargs: Any) -> Scores:  # type: ignore[override]
        try:
            returned = await self.reward(*args, **kwargs)
        except RewardValueError:
            raise
        except Exception as error:
            raise self._failed(error) from error
        return self._checked(returned, args, kwargs)


def count_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """How many completions a call is about, by its keywords or first argument; None if unknown."""
    for key in ("completions", "completion_ids", "prompts"):
        if kwargs.get(key) is not None:
            return len(kwargs[key])
    return len(args[0]) if args and hasattr(args[0], "__len__") else None


def checked_scores(returned: Any, count: int | None, *, name: str, limit: float = 1e6) -> Scores:
    """The returned value as a list of floats and Nones, or a RewardValueError that says why it is none."""
    values = _as_list(returned, name)
    if count is not None and len(values) != count:
        raise RewardValueError(
            f"It returned {len(values)} values for {count} completions",
            reward_name=name,
            value=returned,
            todo="return one number or None per completion, in their order",
        )
    return [_as_score(value, index, name, limit) for index, value in enumerate(values)]


def _as_list(returned: Any, name: str) -> list[Any]:
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
            "It returned a coroutine that nobody awaits",
            "define the reward itself with async def",
        )
    if hasattr(returned, "tolist"):  # numpy, torch and pandas alike, without importing them
        returned = returned.tolist()
    if not isinstance(returned, Iterable):
        raise refuse(
            f"It returned one {type(returned).__name__}, {shown(returned)}, for the whole batch",
            "return a list with one number per completion",
        )
    return list(returned)


def _as_score(value: Any, index: int, name: str, limit: float) -> float | None:
    if value is None:
        return None

    def refuse(what: str, todo: str) -> RewardValueError:
        return RewardValueError(what, reward_name=name, sample=index, value=value, todo=todo)

    number = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
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
