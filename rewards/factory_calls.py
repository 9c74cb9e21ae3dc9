"""Record the call that made a reward, task or policy, for ``rloo-kit export``."""

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
    """A call: the function's public name, such as "rewards.answer_reward", and the arguments that were given."""

    function: str
    arguments: Mapping[str, Any]


def recorded(
    *, without: Sequence[str] = (), files: Sequence[str] = (), also: Callable[[Any, Call], None] | None = None
) -> Callable[[Callable[P, Made]], Callable[P, Made]]:
    """Return a decorator that stores a function's call on the result, as ``made_by``.

    ``without``: arguments that are not kept, such as large ones; ``files``: arguments that may name a file or a folder,
    kept as absolute paths if they exist; ``also``: a function that is called with the result and the call.
    """

    def decorated(function: Callable[P, Made]) -> Callable[P, Made]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def make(*args: P.args, **kwargs: P.kwargs) -> Made:
            made = function(*args, **kwargs)
            arguments = dict(signature.bind(*args, **kwargs).arguments)
            for name, parameter in signature.parameters.items():
                if parameter.kind is parameter.VAR_KEYWORD:
                    arguments |= arguments.pop(name, {})
            if any(value is made for value in arguments.values()):  # an argument, returned unchanged
                return made
            kept = {name: _kept(arguments[name], name in files) for name in arguments if name not in without}
            call = Call(f"{function.__module__.partition('.')[0]}.{function.__name__}", kept)
            with contextlib.suppress(AttributeError):  # a bound method takes no attribute
                object.__setattr__(made, "made_by", call)  # also on frozen dataclasses
            if also is not None:
                also(made, call)
            return made

        return make

    return decorated


def made_by(thing: object) -> Call | None:
    call = getattr(thing, "made_by", None)
    return call if isinstance(call, Call) else None


def _kept(value: Any, may_be_file: bool) -> Any:
    if isinstance(value, list):
        return list(value)  # a copy: the caller may change the list later
    if may_be_file and isinstance(value, str | os.PathLike):
        path = os.path.expanduser(value)  # noqa: PTH111 - Path.expanduser raises for an unknown user
        return os.path.abspath(path) if Path(path).exists() else os.fspath(value)  # noqa: PTH100
    return value
