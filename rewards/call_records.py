"""How an object was made: the function that made it, and what that was given.

So that a run in a notebook can be written down and repeated (``rloo-kit export``): a reward, a task and a policy each
remember the call that they came of.
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


@dataclass(frozen=True)
class recorded:
    """A decorator: what the function makes remembers the call, as ``made_by``.

    ``without``: arguments that are not kept, as what is large; ``files``: those that may name a file or a folder, kept
    as a whole path where it is there; ``also``: called with what was made and the call.
    """

    without: Sequence[str] = ()
    files: Sequence[str] = ()
    named: str = ""
    also: Callable[[Any, Call], None] | None = None

    def __call__(self, function: Callable[P, Made]) -> Callable[P, Made]:
        """The function, which leaves its call on what it makes."""
        signature, package = inspect.signature(function), function.__module__.partition(".")[0]

        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Made:
            made = function(*args, **kwargs)
            given = self._given(signature.bind(*args, **kwargs))
            if any(value is made for value in given.values()):  # given back as it came
                return made
            call = Call(self.named or f"{package}.{function.__name__}", given)
            with contextlib.suppress(AttributeError):  # a bound method takes none
                object.__setattr__(made, "made_by", call)  # frozen dataclasses among them
            if self.also is not None:
                self.also(made, call)
            return made

        return make

    def _given(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            several = bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            found |= value if several else {name: value}
        # A list as it is now.
        kept = {n: list(v) if isinstance(v, list) else v for n, v in found.items() if n not in self.without}
        return kept | {name: _whole(kept[name]) for name in self.files if name in kept}


def made_by(thing: object) -> Call | None:
    """The call that made it, where that is known."""
    found = getattr(thing, "made_by", None)
    return found if isinstance(found, Call) else None


def _whole(value: Any) -> Any:
    if not isinstance(value, str | os.PathLike):
        return value
    path = Path(os.path.expanduser(value))  # noqa: PTH111 - Path.expanduser raises for an unknown user
    return str(path.absolute()) if path.exists() else os.fspath(value)
