"""How a reward, a task or a policy was made: the function's name, and what it was given.

With it a run in a notebook can be written down and repeated (``rloo-kit export``).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Call:
    """A call by its function's public name, "rewards.answer_reward", and what it was given, defaults left out."""

    function: str
    arguments: Mapping[str, Any]


def recorded(
    *,
    without: Sequence[str] = (),
    files: Sequence[str] = (),
    named: str = "",
    also: Callable[[Any, Call], None] | None = None,
) -> Callable[[Callable[P, Made]], Callable[P, Made]]:
    """A decorator: what the function makes remembers the call, as ``made_by``.

    ``without``: arguments that are not kept, as what is large; ``files``: those that may name a file or a folder, kept
    as a whole path where it is there; ``also``: called with what was made and the call.
    """

    def decorated(function: Callable[P, Made]) -> Callable[P, Made]:
        signature = inspect.signature(function)
        name = named or f"{function.__module__.partition('.')[0]}.{function.__name__}"

        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Made:
            made = function(*args, **kwargs)
            given: dict[str, Any] = {}
            for argument, value in signature.bind(*args, **kwargs).arguments.items():
                several = signature.parameters[argument].kind is inspect.Parameter.VAR_KEYWORD
                given |= value if several else {argument: value}
            if any(value is made for value in given.values()):  # given back as it came
                return made
            # A list as it is now.
            kept = {n: list(v) if isinstance(v, list) else v for n, v in given.items() if n not in without}
            call = Call(name, kept | {n: _whole(kept[n]) for n in files if n in kept})
            with contextlib.suppress(AttributeError):  # a bound method takes none
                object.__setattr__(made, "made_by", call)  # frozen dataclasses among them
            if also is not None:
                also(made, call)
            return made

        return make

    return decorated


def made_by(thing: object) -> Call | None:
    """The call that made it, where that is known."""
    found = getattr(thing, "made_by", None)
    return found if isinstance(found, Call) else None


def _whole(value: Any) -> Any:
    if not isinstance(value, str | os.PathLike):
        return value
    path = Path(os.path.expanduser(value))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    return str(path.absolute()) if path.exists() else os.fspath(value)
