"""Values that are never shown: those that a .env file gave this process.

:mod:`rloo_kit.session.env_file` puts them in; errors, the screen of ``prepare()`` and a config's text go through
:func:`without_hidden`.  Nothing is read or set here.
"""

from __future__ import annotations

INSTEAD = "(not shown)"

SHORT = 6
"""Characters from which a value is also left out inside a longer text.  Shorter ones, such as 1 or true, are no
secrets, and stand in every text."""

_values: dict[str, str] = {}


def hide(name: str, value: str) -> None:
    """Never show this value of a variable again."""
    _values[name] = value


def is_hidden(name: str, value: str | None) -> bool:
    """Whether this is the value that a .env file has for this variable."""
    return value is not None and _values.get(name) == value


def without_hidden(text: str) -> str:
    """The text with "(not shown)" in place of every hidden value."""
    for value in sorted(_values.values(), key=len, reverse=True):
        if len(value) >= SHORT:
            text = text.replace(value, INSTEAD)
    return text
