"""Values that are never shown: those that a .env file gave this process, hub tokens, and passwords in addresses.

:mod:`rloo_kit.session.env_file` puts them in; errors, the screen of ``prepare()`` and a config's text go through
:func:`without_hidden`.  Nothing is read or set here.
"""

from __future__ import annotations

import re

INSTEAD = "(not shown)"

SHORT = 6
"""Characters from which a value is also left out inside a longer text.  Shorter ones, such as 1 or true, are no
secrets, and stand in every text."""

LOOKS_SECRET = re.compile(r"\bhf_[A-Za-z0-9]{12,}|(?<=://)[^\s/@]+:[^\s/@]+(?=@)")
"""A Hugging Face token, or the user and password of an address, as in a name given by mistake."""

_values: dict[str, str] = {}


def hide(name: str, value: str) -> None:
    """Never show this value of a variable again."""
    _values[name] = value


def is_hidden(name: str, value: str | None) -> bool:
    """Whether this is the value that a .env file has for this variable."""
    return value is not None and _values.get(name) == value


def without_hidden(text: str) -> str:
    """The text with "(not shown)" in place of every hidden value, and of what looks like a token or a password."""
    for value in sorted(_values.values(), key=len, reverse=True):
        if len(value) >= SHORT:
            text = text.replace(value, INSTEAD)
    return LOOKS_SECRET.sub(INSTEAD, text)
