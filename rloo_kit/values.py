"""Check a value against the type that is written at it, and say in words what would be right.

For every room that takes settings: ``RLOOConfig``, ``load_policy``, ``Policy.generate``.  Types are Python's own, with
ranges as ``typing.Annotated``; pydantic compares them, strictly: no text for a number, no 1.5 for a count, and no NaN
or infinity but where a type says so.  Values that have to go together are not this module's affair.
"""

from __future__ import annotations

import difflib
import enum
import functools
import operator
import re
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, MultipleOf

from rloo_kit.errors import ConfigError
from rloo_kit.redact import INSTEAD, without_hidden

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Hint = Any
"""A type as it is written in an annotation."""

INFINITE = "infinity too"
"""As ``Annotated[float, INFINITE]``: a number that may also be infinite."""

Count = Annotated[int, Ge(1)]
Steps = Annotated[float, Interval(gt=0, lt=1)] | Annotated[float, Ge(1), MultipleOf(1)]
"""An interval of steps: below 1 a share of the run."""
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]
Temperature = Annotated[float, Interval(ge=0.01, le=100)]
"""Below it a prompt's completions are all equal, above it they are noise."""
Seed = Annotated[int, Interval(ge=0, le=2**32 - 1)]
"""What numpy, random and torch all take."""

WORDS = {int: "a whole number", float: "a finite number", str: "text", dict: "a dict"}
WORDS |= {type(None): "None", list: "a list"}
MOST_NAMED = 12  # choices in a message
SIGNS = {
    "ge": "of at least {}",
    "gt": "above {}",
    "le": "at most {}",
    "lt": "below {}",
    "multiple_of": "whole",
}
SECRET = re.compile(r"token(?!s|izer)|key|secret|password", re.IGNORECASE)


def check(
    given: Mapping[str, Any], hints: Mapping[str, Hint], where: str, advice: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The values as plain Python has them: a numpy number as a number, a tuple for a list as a list.

    Args:
        given: values by name; those without a type are passed through.
        hints: types by name.
        where: the call that takes them, for the message.
        advice: what to do about a value, by name, where that is not to write it in another form.

    Raises:
        ConfigError: the first value that is not of its type, with the nearest that is.
    """
    found = dict(given)
    for name in [name for name in given if name in hints]:
        for form in _forms(given[name]):
            if _fits(hints[name], form):
                found[name] = form
                break
        else:
            raise ConfigError(
                f"{name} must be {described(hints[name])}",
                where=f"{where}({name}={shown(name, given[name])})",
                todo=nearest(name, given[name], hints[name])
                or (advice or {}).get(name)
                or f"leave {name} out",
            )
    return found


def described(hint: Hint) -> str:
    """A type in words: "a whole number of at least 1 or None"."""
    parts = _parts(hint)
    chosen = any(map(_choices, parts))  # then any text is not meant
    *first, last = dict.fromkeys(
        word for part in parts if not (chosen and part is str) for word in _words(part)
    )
    return f"{', '.join(first)} or {last}" if first else last


def _words(hint: Hint) -> list[str]:
    origin: Any = get_origin(hint)
    arguments = get_args(hint)
    if choices := _choices(hint):
        return list(map(repr, choices)) if len(choices) <= MOST_NAMED else [f"one of {len(choices)} names"]
    if origin is Annotated:
        kind = "a number" if INFINITE in arguments else described(arguments[0])
        return [f"{kind} {_bounds(arguments[1:])}".strip()]
    if origin is tuple:
        return [f"({', '.join(map(described, arguments))})"]
    if origin is list:
        return [f"a list with {described(arguments[0])} each"]
    return ["True", "False"] if hint is bool else [WORDS.get(origin or hint, str(hint))]


def _bounds(marks: Iterable[object]) -> str:
    limits = [(side, getattr(mark, side, None)) for mark in marks for side in SIGNS]
    return " and ".join(SIGNS[side].format(value) for side, value in limits if value is not None)


def nearest(name: str, value: object, hint: Hint) -> str | None:
    """What to write instead: the same value in the right form, or the choice with the most similar name."""
    if (written := _written(value, hint)) is not None:
        return f"write {name}={written!r}"
    choices = [one for part in _parts(hint) for one in _choices(part)]
    close = difflib.get_close_matches(str(value).lower(), map(str, choices), n=1)
    return f"did you mean {name}={close[0]!r}?" if close else None


def _written(value: object, hint: Hint) -> Any:
    """The value in the form that was meant, "2" as 2 and 1.0 as 1; None where there is none."""
    for form in () if isinstance(value, bool) else _forms(value):
        for part in _parts(hint):
            found = None if part is str else _read(form, part)
            if found is not None:
                return found
    return None


def _read(value: object, hint: Hint) -> Any:
    from pydantic import ValidationError

    try:
        found = _adapter(hint).validate_python(value, strict=False)
    except ValidationError:
        return None
    return found if _fits(hint, found) and not isinstance(found, dict) else None


def _parts(hint: Hint) -> tuple[Hint, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _choices(hint: Hint) -> tuple[Any, ...]:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return tuple(one.value for one in hint)
    return get_args(hint) if get_origin(hint) is Literal else ()


def _forms(value: object) -> list[Any]:
    """A value and its equals: a numpy number's own, a path's text, a tuple's list and a list's tuple."""
    if hasattr(value, "__fspath__"):
        return [value.__fspath__()]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return [value.item()]
    if isinstance(value, list | tuple):
        return [value, list(value), tuple(value)]
    return [value]


def _fits(hint: Hint, value: object) -> bool:
    from pydantic import ValidationError

    try:
        _adapter(hint).validate_python(value)
    except ValidationError:
        return False
    return True


@functools.cache
def _adapter(hint: Hint) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    how = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(_with_choices(hint), config=how)


def _with_choices(hint: Hint) -> Hint:
    """The type as pydantic takes it: a choice by its value as well as by its name, so that not any text will do."""
    from pydantic import AllowInfNan

    parts = _parts(hint)
    if named := [part for part in parts if isinstance(part, type) and issubclass(part, enum.Enum)]:
        values = tuple(value for part in named for value in _choices(part))
        others = tuple(part for part in parts if part is not str)
        return Union[(Literal[values], *others)]
    if len(parts) > 1:
        return functools.reduce(operator.or_, map(_with_choices, parts))
    if get_origin(hint) is Annotated and INFINITE in get_args(hint):
        kind, *marks = get_args(hint)
        return Annotated[(kind, AllowInfNan(True), *(mark for mark in marks if mark != INFINITE))]
    origin: Any = get_origin(hint)
    if origin in (list, tuple):
        return origin[tuple(map(_with_choices, get_args(hint)))]
    return hint


def shown(name: str, value: Any) -> str:
    """A value for a message, cut short; never one that could be a secret."""
    text = repr(value)
    if SECRET.search(name) or "hf_" in text:
        return INSTEAD
    return text if len(text) <= 60 else text[:57] + "..."


def is_secret(name: str, value: object) -> bool:
    """Whether a setting is left out of what is written down of a run."""
    return isinstance(value, str | Mapping | list | tuple) and without_secrets(value, name) != value


def without_secrets(value: Any, name: str = "") -> Any:
    """A setting as it may be written down: at any depth no hidden value, and no text under a secret's name.

    Args:
        name: of the setting, or the key in one that is a dict; with a secret's its text is left out whole.
    """
    if isinstance(value, str):
        return INSTEAD if SECRET.search(name) else without_hidden(value)
    if isinstance(value, Mapping):
        return {key: without_secrets(part, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = (without_secrets(part, name) for part in value)
        return list(parts) if isinstance(value, list) else tuple(parts)
    return value
