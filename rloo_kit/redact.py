"""Keep secrets out of output: values that a .env file gave this process, and what looks like a secret.

Errors, the screen of ``prepare()``, a config's text and a run's record go through :func:`without_hidden`.
"""

import re
from collections.abc import Mapping
from typing import Any

INSTEAD = "(not shown)"

SHORT = 6  # characters; shorter values, such as 1 or true, are not secrets and occur in any text

_NAMES = r"(?i:api[-_]?key|access[-_]?key|secret(?:[-_]?key)?|private[-_]?key|auth[-_]?key|passw(?:or)?d)"
_GIVEN = r"[\"']?\]?\s*[=:]\s*[frb]?[\"']"
"""Matches between a name and its quoted value, in an assignment, an argument or a dict item."""

LOOKS_SECRET = re.compile(
    "|".join(
        (
            # Hugging Face, Groq, npm, GitHub, GitLab, Slack, Stripe, AWS, Google, SendGrid, PyPI, OpenAI and its like
            r"\b(?:(?:hf|gsk|npm|gh[pousr])_[A-Za-z0-9]{12,}|(?:github_pat_|glpat-|xox[abprs]-|[sr]k_live_)[\w-]{12,})",
            r"\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|SG\.[\w-]{16,}\.[\w-]{16,}|pypi-AgE[\w-]{16,})",
            r"\bsk-[A-Za-z0-9-]{0,12}[\w-]{20,}",
            r"\beyJ[\w-]{10,}\.eyJ[\w-]+\.[\w-]+",  # JWT
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\w\s+/=]*",
            r"hooks\.slack\.com/services/[\w/]+|discord(?:app)?\.com/api/webhooks/[\w/-]+",
            r"(?<=://)[^\s/@\"'{}]+:[^\s/@\"']+(?=@)",  # the user and password in a URL
            rf"[?&](?:[\w-]*{_NAMES}|[\w-]*token|key)=(?P<asked>[^\s&\"'{{}}]{{{SHORT},}})",
            rf"(?i:authorization){_GIVEN}(?:\w+ )?+(?P<header>[^\s\"'{{}}]{{{SHORT},}})",
            r"\bBearer (?P<bearer>(?=\S*\d)[\w.~+/=-]{8,})",
            rf"{_NAMES}{_GIVEN}(?P<named>[^\s\"'{{}}]{{{SHORT},}})(?=[\"'])",
            rf"(?i:token){_GIVEN}(?P<token>(?=[^\"']*\d)[\w.+/=~-]{{12,}})(?=[\"'])",
        )
    )
)
"""Matches a provider's own format, a header, or a value under a secret's name."""

_values: dict[str, str] = {}


def hide(name: str, value: str) -> None:
    """Never show this value of a variable again."""
    _values[name] = value


def is_hidden(name: str, value: str | None) -> bool:
    return value is not None and _values.get(name) == value


def without_hidden(text: str) -> str:
    """Replace every hidden value, and what looks like a secret, by "(not shown)".

    >>> without_hidden("https://judge.example/score?model=a&api_key=12345678")
    'https://judge.example/score?model=a&api_key=(not shown)'
    """
    for value in sorted(_values.values(), key=len, reverse=True):
        if len(value) >= SHORT:
            text = text.replace(value, INSTEAD)
    return LOOKS_SECRET.sub(_hidden, text)


def _hidden(match: re.Match[str]) -> str:
    value = next(filter(None, match.groups()), match[0])  # of "api_key=...", only the value
    return match[0].replace(value, INSTEAD)


SECRET = re.compile(r"token(?!s|izer)|key|secret|password", re.IGNORECASE)


def shown(name: str, value: Any) -> str:
    """Format a value for a message, cut short, or without it if it could be a secret."""
    text = repr(value)
    if SECRET.search(name) or "hf_" in text:
        return INSTEAD
    return text if len(text) <= 60 else text[:57] + "..."


def is_secret(name: str, value: object) -> bool:
    """Whether a setting holds a secret, so that the record of a run leaves it out."""
    return isinstance(value, str | Mapping | list | tuple) and without_secrets(value, name) != value


def without_secrets(value: Any, name: str = "") -> Any:
    """Remove secrets from a setting, at any depth: hidden values, and all text under a secret's name.

    Args:
        name: the setting's name, or the key in a dict; if it is a secret's name, the whole text is left out.
    """
    if isinstance(value, str):
        return INSTEAD if SECRET.search(name) else without_hidden(value)
    if isinstance(value, Mapping):
        return {key: without_secrets(part, str(key)) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = (without_secrets(part, name) for part in value)
        return list(parts) if isinstance(value, list) else tuple(parts)
    return value
