"""What a reward is: its name, what it pays for, the columns it needs, and whether TRL can call it."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from rewards.errors import RewardSignatureError, RewardValueError, invalid, shown

Reward = Callable[..., Any]
Scores = list[float | None]
Judges = Literal["answer", "form", "length"]
"""What a reward pays for, where it is one thing: set ``reward.judges`` on a function of your own."""

Aim = Literal["answer", "thought", "both"]
"""What of a completion a reward is about, by its attribute ``aim``; an audit judges it by that."""

#: What TRL 1.15 passes to every reward besides the dataset's columns (``_calculate_rewards``).
TRL_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")


def _inner(reward: Any) -> Any:
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def reward_name(reward: Reward) -> str:
    """The name under which TRL logs a reward: partials unwrapped, callable objects by name or class."""
    inner = _inner(reward)
    return str(getattr(inner, "__name__", type(inner).__name__))


def said_by(reward: object, attribute: str, default: Any = None) -> Any:
    """An attribute of a reward, or of what it is a partial of."""
    return getattr(reward, attribute, getattr(_inner(reward), attribute, default))


def judges_of(*rewards: object) -> Judges | None:
    """What rewards say that they pay for, by ``judges``; None where they differ or do not say.

    Raises:
        ValueError: a value that is not one of :data:`Judges`.
    """
    said: list[Judges | None] = [said_by(reward, "judges") for reward in rewards]
    for reward, judges in zip(rewards, said, strict=True):
        if judges not in (None, *get_args(Judges)):
            where = f"reward '{reward_name(reward)}', judges {shown(judges)}"  # type: ignore[arg-type]
            todo = "set judges to one of them, or remove it"
            raise invalid("A reward's judges must be answer, form or length", where, todo)
    return said[0] if len(set(said)) == 1 else None


def columns_of(*rewards: object) -> tuple[str, ...]:
    """Columns of the dataset that rewards need, by their attribute ``columns``."""
    said = [said_by(reward, "columns", ()) for reward in rewards]
    named = ([names] if isinstance(names, str) else names for names in said)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(named)))


class Wrapped:
    """A reward made of others, which says of itself what they say: what it pays for, and what it needs."""

    def __init__(self, name: str, *rewards: Reward) -> None:
        for reward in rewards:
            check_callable(reward)
        self.__name__, self.rewards = name, rewards
        self.judges, self.columns = judges_of(*rewards), columns_of(*rewards)
        # The audit judges by an aim, and writes its cases with these tokens and in this form.
        aims = {said_by(reward, "aim", "answer") for reward in rewards}
        self.aim = aims.pop() if len(aims) == 1 else "answer"
        for attribute in ("tokens", "form", "kind"):
            said = [value for reward in rewards if (value := said_by(reward, attribute)) is not None]
            if said and all(value == said[0] for value in said):
                setattr(self, attribute, said[0])


def members(reward: object) -> Iterator[object]:
    """The rewards that a composition is made of, however deep; any other reward itself."""
    inner = _inner(reward)
    if isinstance(inner, Wrapped):
        yield from itertools.chain.from_iterable(map(members, inner.rewards))
    else:
        yield inner


def is_async(reward: Reward) -> bool:
    """Whether calling the reward gives a coroutine: the rule by which TRL decides to await it."""
    inner = _inner(reward)
    call = getattr(inner, "__call__", None)  # noqa: B004 - the bound method is inspected, not just looked for
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


def count_of(kwargs: Mapping[str, Any], args: Sequence[Any] = ()) -> int | None:
    """The number of completions in a call, by its keywords or first argument; None if unknown."""
    for key in ("completions", "completion_ids", "prompts"):
        if kwargs.get(key) is not None:
            return len(kwargs[key])
    return len(args[0]) if args and hasattr(args[0], "__len__") else None


def column_in(kwargs: Mapping[str, Any], column: str, reward: str) -> Any:
    """A column of a call's keywords; RewardValueError if the dataset lacks it."""
    if column not in kwargs:
        held = ", ".join(sorted(set(kwargs) - set(TRL_KEYWORDS) - {"prompt"})) or "only prompts"
        todo = f"add the column, or tell {reward} another; the dataset has {held}"
        raise RewardValueError(f"The dataset has no column '{column}'", reward_name=reward, todo=todo)
    return kwargs[column]


def check_callable(reward: Reward) -> None:
    """Raise RewardSignatureError for what cannot be called, and for a class in place of its instance."""
    if inspect.isclass(reward):
        name = reward.__name__
        what, todo = f"{name} is a class, and its instances are the rewards", f"pass an instance, {name}(...)"
        raise RewardSignatureError(what, reward_name=name, todo=todo)
    if not callable(reward):
        what = f"A reward must be callable, not {type(reward).__name__}"
        todo = "pass a function: def reward(completions, **kwargs): return [0.0 for _ in completions]"
        raise RewardSignatureError(what, reward_name=shown(reward), value=reward, todo=todo)


def check_signature(reward: Reward, columns: Iterable[str] | None = None) -> None:
    """Raise, before any call, if a reward cannot take the keywords that TRL passes.

    TRL calls ``reward(prompts=..., completions=..., completion_ids=..., trainer_state=..., log_extra=...,
    log_metric=..., **columns)``; a signature without ``**kwargs`` fails there with a bare TypeError.

    Args:
        reward: a function, a partial or a callable object.
        columns: names of the dataset's columns besides ``prompt``; None if unknown.

    Raises:
        RewardSignatureError: not callable, a class, no ``**kwargs`` and a keyword missing, a positional-only
            argument, or a column that it requires and the dataset lacks.
    """
    check_callable(reward)
    name, known = reward_name(reward), None if columns is None else set(columns)
    try:
        parameters = list(inspect.signature(reward).parameters.values())
    except (ValueError, TypeError):  # a builtin or an extension type without a readable signature
        parameters = [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)]
    passed = set(TRL_KEYWORDS) | (known or set())
    required = [p for p in parameters if p.default is p.empty]
    if positional := [p.name for p in required if p.kind is p.POSITIONAL_ONLY]:
        what = f"Its argument '{positional[0]}' is positional-only, and TRL passes keywords"
        raise RewardSignatureError(what, reward_name=name, todo="remove the '/' from the signature")
    missing = sorted(passed - {p.name for p in parameters})
    if missing and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        what = f"Its signature has no **kwargs and does not take {', '.join(missing)}, which TRL passes"
        raise RewardSignatureError(what, reward_name=name, todo="add **kwargs as the last argument")
    named = [p.name for p in required if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [one for one in (*columns_of(reward), *named) if one not in passed]
    if known is None or not needed:
        return
    held = f"it has {', '.join(sorted(known))}" if known else "it has no column besides the prompts"
    what = f"It requires '{needed[0]}', which is neither passed by TRL nor a column of the dataset"
    raise RewardSignatureError(what, reward_name=name, todo=f"rename a column, or add it ({held})")
