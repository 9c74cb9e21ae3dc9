"""What transformers and TRL refuse themselves, with the setting that their message is about.

For the configuration and the trainer: a net below :mod:`.guards`, for settings whose rules are the libraries' own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rewards import RewardValueError
from rloo_kit.errors import ConfigError, RLOOKitError
from rloo_kit.values import shown

REFUSALS = (ValueError, TypeError, KeyError, ImportError, NotImplementedError, OSError)
"""Not RuntimeError, which torch raises where memory is short."""

LONGEST = 300  # characters of a library's message


@contextmanager
def explained(where: str, given: Mapping[str, object]) -> Iterator[None]:
    """Turn a library's refusal into one with three parts.

    Args:
        where: the call, for the message.
        given: its arguments by name; those that the library's message names are shown.

    Raises:
        ConfigError: in place of the library's error, which is its cause.
    """
    try:
        yield
    except (RLOOKitError, RewardValueError):
        raise
    except REFUSALS as error:
        said = " ".join(str(error).split())
        culprits = [
            f"{name}={shown(name, value)}" for name, value in given.items() if _is_named(name, value, said)
        ]
        raise ConfigError(
            f"{_library(error)} refuses it: {said[:LONGEST]}",
            where=f"{where}({', '.join(culprits)})",
            todo="change what the message names",
        ) from error


def _is_named(name: str, value: object, said: str) -> bool:
    by_value = isinstance(value, str) and len(value) > 3 and value in said
    return by_value or bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", said))


def _library(error: BaseException) -> str:
    """The library in which it was raised."""
    traceback, name = error.__traceback__, ""
    while traceback is not None:
        name, traceback = traceback.tb_frame.f_globals.get("__name__", ""), traceback.tb_next
    return str(name).partition(".")[0] or "Python"
