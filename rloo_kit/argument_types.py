"""Types and ranges of arguments, and the check of values against them.

Types are Python's own, with ranges as ``typing.Annotated``; pydantic compares them, strictly: no text for a number, no
1.5 for a count, and no NaN or infinity but where a type says so.  Values that have to go together are not checked here.
"""

from __future__ import annotations

import difflib
import enum
import functools
import operator
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, MultipleOf

from rloo_kit.errors import ConfigError
from rloo_kit.redact import shown

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
Share = Annotated[float, Interval(ge=0, le=1)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]
Temperature = Annotated[float, Interval(ge=0.01, le=100)]
"""Below it a prompt's completions are all equal, above it they are noise."""
Seed = Annotated[int, Interval(ge=0, le=2**32 - 1)]
"""What numpy, random and torch all take."""


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
        ConfigError: the first value that is not of its type, in pydantic's words.
    """
    from pydantic import ValidationError

    found = dict(given)
    for name in [name for name in given if name in hints]:
        said = ""
        for form in _forms(given[name]):
            try:
                _adapter(hints[name]).validate_python(form)
            except ValidationError as error:
                messages = [one["msg"].removeprefix("Input should be ") for one in error.errors()]
                plainer = [one for one in messages if not one.startswith("an instance of")]
                said = said or " or ".join(dict.fromkeys(plainer or messages))
            else:
                found[name] = form
                break
        else:
            todo = _suggestion(name, given[name], hints[name]) or (advice or {}).get(name)
            at = f"{where}({name}={shown(name, given[name])})"
            raise ConfigError(f"{name} must be {said}", where=at, todo=todo or f"leave {name} out")
    return found


def _suggestion(name: str, value: object, hint: Hint) -> str:
    """The same value in the right form, "2" as 2, or the most similar choice."""
    from pydantic import ValidationError

    choices = [str(one) for part in parts(hint) for one in _choices(part)]
    if close := difflib.get_close_matches(str(value).lower(), choices, n=1):
        return f"did you mean {name}={close[0]!r}?"
    for part in () if isinstance(value, bool) else parts(hint):
        try:
            read = None if part is str else _adapter(part).validate_python(value, strict=False)
        except ValidationError:
            continue
        if read is not None and not isinstance(read, dict):
            return f"write {name}={read!r}"
    return ""


def parts(hint: Hint) -> tuple[Hint, ...]:
    """The types of a union, or the one type."""
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
    return [value, list(value), tuple(value)] if isinstance(value, list | tuple) else [value]


@functools.cache
def _adapter(hint: Hint) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    how = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(_for_pydantic(hint), config=how)


def _for_pydantic(hint: Hint) -> Hint:
    """The type as pydantic takes it: of an enumeration beside ``str`` its values, so that not any text will do."""
    from pydantic import AllowInfNan

    several, origin = parts(hint), get_origin(hint)
    if named := [one for one in several if isinstance(one, type) and issubclass(one, enum.Enum)]:
        choices = tuple(value for one in named for value in _choices(one))
        return Union[(Literal[choices], *(one for one in several if one is not str))]
    if len(several) > 1:
        return functools.reduce(operator.or_, map(_for_pydantic, several))
    if origin is Annotated and INFINITE in get_args(hint):
        kind, *marks = get_args(hint)
        return Annotated[(kind, AllowInfNan(True), *(mark for mark in marks if mark != INFINITE))]
    if origin in (list, tuple):
        return origin[tuple(map(_for_pydantic, get_args(hint)))]  # type: ignore[index]
    return hint


def did_you_mean(name: str, choices: Iterable[str], otherwise: str) -> str:
    """What to do about a misspelt name: take the nearest, or something else where none is near."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f"did you mean {close[0]}?" if close else otherwise
