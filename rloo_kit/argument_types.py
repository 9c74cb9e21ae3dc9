"""Types and ranges of arguments, and the check of values against them.

Types are Python's own, with ranges as ``typing.Annotated``.  Pydantic checks values strictly: no text for a number, no
1.5 for a count, and no NaN or infinity unless the type allows it.  Combinations of values are not checked here.
"""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval

from rloo_kit.errors import ConfigError
from rloo_kit.redact import shown

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Hint = Any
"""A type as it is written in an annotation."""

Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]
Temperature = Annotated[float, Interval(ge=0.01, le=100)]
"""Below this range a prompt's completions are all equal; above it they are noise."""
Seed = Annotated[int, Interval(ge=0, le=2**32 - 1)]
"""The range that numpy, random and torch all accept."""


def check(
    given: Mapping[str, Any], hints: Mapping[str, Hint], where: str, advice: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the values as plain Python has them: a numpy number as a number, a tuple for a list as a list; values
    without a type pass through.  ``where`` is the call that takes them, ``advice`` what to do about each, by name.

    Raises:
        ConfigError: a value does not have its type; the first one is reported, in pydantic's words.
    """
    return dict(given) | {
        name: _checked(name, value, hints[name], where, (advice or {}).get(name))
        for name, value in given.items()
        if name in hints
    }


def _checked(name: str, value: object, hint: Hint, where: str, advice: str | None) -> Any:
    from pydantic import ValidationError

    expected = ""
    for form in _forms(value):
        try:
            _adapter(hint).validate_python(form)
        except ValidationError as error:
            messages = [fault["msg"].removeprefix("Input should be ") for fault in error.errors()]
            plainer = [message for message in messages if not message.startswith("an instance of")]
            expected = expected or " or ".join(dict.fromkeys(plainer or messages))
        else:
            return form
    todo = _right_form(name, value, hint) or advice or f"leave {name} out"
    raise ConfigError(f"{name} must be {expected}", where=f"{where}({name}={shown(name, value)})", todo=todo)


def _right_form(name: str, value: object, hint: Hint) -> str:
    """Suggest the same value in the right form, such as 2 for "2", or the most similar choice."""
    from pydantic import ValidationError

    choices = [str(choice) for part in parts(hint) if get_origin(part) is Literal for choice in get_args(part)]
    if nearest := difflib.get_close_matches(str(value).lower(), choices, n=1):
        return f"did you mean {name}={nearest[0]!r}?"
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


def _forms(value: object) -> list[Any]:
    """Return the forms to try: a path's text, a numpy number as Python's, a list or tuple also as the other."""
    if hasattr(value, "__fspath__"):
        return [value.__fspath__()]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return [value.item()]
    return [value, list(value), tuple(value)] if isinstance(value, list | tuple) else [value]


@functools.cache
def _adapter(hint: Hint) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    how = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(hint, config=how)


def did_you_mean(name: str, choices: Iterable[str], otherwise: str) -> str:
    """Suggest the choice nearest to a misspelt name, or ``otherwise`` if none is near."""
    close = difflib.get_close_matches(name, list(choices), n=1)
    return f"did you mean {close[0]}?" if close else otherwise
