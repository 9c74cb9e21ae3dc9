"""What a log's entries say, of any trainer: figures as numbers, a step for each, or which entry cannot be read.

For :mod:`.run_folder`.  A log may have been through a table, an editor or another program: a figure written as text is
read, null and what is missing are left out, and what is no figure where one belongs is refused with the entry's number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rloo_kit.errors import ConfigError
from rloo_kit.watch.log import Entry

READ = (
    "step",
    "reward",
    "kl",
    "entropy",
    "grad_norm",
    "learning_rate",
    "dead_groups",
    "frac_reward_zero_std",
)
READ_FOLDERS = ("clip_ratio/", "completions/", "rewards/")
"""Metrics that a diagnosis or a picture reads.  Of others, a trainer's own notes for instance, text is left out."""

OLD_NAMES = {"completion_length": "completions/mean_length", "clip_ratio": "clip_ratio/region_mean"}
"""Metrics that earlier releases of TRL logged under another name."""


def entries_of(history: object, where: str) -> list[Entry]:
    """The entries of a log history with figures as floats, each with the step it is of.

    An entry without a step gets the one after the entry before it.

    Raises:
        ConfigError: it is no list, or an entry is no mapping or has something else in place of a figure.
    """
    if isinstance(history, str | bytes | Mapping) or not isinstance(history, Sequence):
        raise ConfigError(
            "a log history is a list of entries",
            where=f"{where}, got {type(history).__name__}",
            todo="pass a trainer's state.log_history, or the file or folder that it is in",
        )
    found: list[Entry] = []
    step = 0
    for number, entry in enumerate(history, 1):
        if not isinstance(entry, Mapping):
            raise _refused(f"an entry is {type(entry).__name__} and no mapping", where, number)
        figures = {name: _figure(name, value, where, number) for name, value in entry.items()}
        # Text that is no figure goes; null stays, as trainers log it.
        known = {_name(n): value for n, value in figures.items() if value is not None or entry[n] is None}
        step = _step(known.get("step"), step, "reward" in known, where, number)
        found.append({**known, "step": step})
    return found


def _name(name: object) -> str:
    """A metric's name today: earlier releases of TRL logged a reward function's mean without the word."""
    text = str(name)
    return (
        f"{text}/mean" if text.startswith("rewards/") and text.count("/") == 1 else OLD_NAMES.get(text, text)
    )


def _step(value: float | None, last: int, is_training: bool, where: str, number: int) -> int:
    if value is None:
        return last + is_training
    if not math.isfinite(value):
        raise _refused(f"its step is {value}", where, number)
    return int(value)


def _figure(name: object, value: object, where: str, number: int) -> float | None:
    """A number, or None for what is none."""
    if value is None or isinstance(value, float):
        return value
    try:
        if isinstance(value, int | str) or hasattr(value, "__float__"):  # NumPy's and torch's scalars too
            return float(value)
    except OverflowError:
        return math.inf
    except (ValueError, TypeError, RuntimeError):
        if isinstance(value, str) and value.strip().lower() in ("", "null", "none", "-"):
            return None
    if str(name) in READ or str(name).startswith(READ_FOLDERS):
        shown = repr(value)
        raise _refused(
            f"{name} is {shown if len(shown) <= 40 else shown[:37] + '...'} and no number", where, number
        )
    return None


def _refused(what: str, where: str, number: int) -> ConfigError:
    return ConfigError(
        f"the log cannot be read: {what}",
        where=f"{where}, entry {number}",
        todo="mend that entry or leave it out; a figure that does not apply is null or missing",
    )
