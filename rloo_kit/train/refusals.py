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
"""Not RuntimeError, which torch raises where memory is short; but a logger raises it where it is not installed."""
LOGGERS = "transformers.integrations"

FROM_THE_HUB = ("reward_funcs", "model")
"""Arguments that TRL takes a repository's name for; a download's error may name none."""

NAMED = "change what the message names"
FOUND = "give the name of a repository that the hub has, or the folder of a model that is here"

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
    except (*REFUSALS, RuntimeError) as error:
        if not isinstance(error, REFUSALS) and not _module(error).startswith(LOGGERS):
            raise
        said = " ".join(str(error).split())
        named, todo = [name for name, value in given.items() if _is_named(name, value, said)], NAMED
        if not named and isinstance(error, OSError):
            named, todo = [name for name in FROM_THE_HUB if _texts(given.get(name))], FOUND
        culprits = [f"{name}={shown(name, given[name])}" for name in named]
        raise ConfigError(
            f"{_module(error).partition('.')[0]} refuses it: {said[:LONGEST]}",
            where=f"{where}({', '.join(culprits)})",
            todo=todo,
        ) from error


def _is_named(name: str, value: object, said: str) -> bool:
    texts = [text.replace("_", "-") for text in _texts(value) if len(text) > 3]
    return any(_in(text, said.replace("_", "-")) for text in texts) or _in(name, said)


def _texts(value: object) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def _in(text: str, said: str) -> bool:
    """As words of their own: "huggingface" is not in "https://huggingface.co"."""
    return bool(re.search(rf"(?<![\w/]){re.escape(text)}(?!\w|\.\w)", said))


def _module(error: BaseException) -> str:
    """Where it was raised."""
    traceback, name = error.__traceback__, ""
    while traceback is not None:
        name, traceback = traceback.tb_frame.f_globals.get("__name__", ""), traceback.tb_next
    return str(name) or "Python"
