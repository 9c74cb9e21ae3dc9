"""The errors of this package, each with three parts: what is wrong, where, what to do.

The package imports nothing from rloo_kit, so these errors derive from the built-ins they resemble.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable


def _three_parts(what: str, where: str, todo: str) -> str:
    return f"{what.rstrip('.')}.\nWhere: {where.rstrip('.')}.\nWhat to do: {todo.rstrip('.')}."


def invalid(what: str, where: str, todo: str, kind: type[Exception] = ValueError) -> Exception:
    """Return the error for an argument that makes no sense: what is wrong, where, what to do."""
    return kind(_three_parts(what, where, todo))


def check_choice(value: object, choices: Iterable[str], argument: str, where: str, more: str = "") -> None:
    choices = tuple(choices)
    if value not in choices:
        todo = f"choose one of {', '.join(map(repr, choices))}{more}"
        raise invalid(f"There is no {argument} {value!r}", f"{where}({argument}={value!r})", todo)


class RewardValueError(ValueError):
    """A reward function returned a value that a policy must not be trained on.

    ``what`` says what is wrong, ``todo`` what to do; ``sample`` is the completion's index in the batch, None if the
    whole return value is wrong.
    """

    def __init__(
        self, what: str, *, reward_name: str, sample: int | None = None, value: object = None, todo: str = ""
    ) -> None:
        self.what, self.todo = what, todo
        self.reward_name, self.sample, self.value = reward_name, sample, value
        culprit = "" if sample is None else f", sample {sample}, value {shown(value)}"
        super().__init__(_three_parts(what, f"reward '{reward_name}'{culprit}", todo))

    def __reduce__(self) -> tuple[object, ...]:
        # Exception.__reduce__ passes only positional arguments, so a worker process could not return this error.
        named = {name: getattr(self, name) for name in ("reward_name", "sample", "value", "todo")}
        return functools.partial(type(self), **named), (self.what,)


class RewardSignatureError(RewardValueError, TypeError):
    """A reward function cannot take the keywords that TRL passes to every reward."""


class RewardCallError(RewardValueError, RuntimeError):
    """A reward function raised; the original error, with its traceback, is the ``__cause__``."""


def shown(value: object, width: int = 80) -> str:
    return shortened(" ".join(repr(value).split()), width)


def shortened(text: str, width: int = 300) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."
