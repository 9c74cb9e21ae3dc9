"""Reading a .env file: where it lies, its lines as variables, and what is said of one that cannot be read.

For :func:`rloo_kit.prepare`, which sets the variables.  A value of the file is never shown, neither here nor later
(:mod:`rloo_kit.hidden`).
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from rloo_kit import hidden
from rloo_kit.errors import ConfigError


def find(path: str | os.PathLike[str]) -> Path | None:
    """The file of this name, here or in a folder above; None where there is none.

    Raises:
        ConfigError: it is a folder, and no virtual environment, which some call .env too.
    """
    from dotenv import find_dotenv

    # A notebook's working directory is its own folder, and .env lies at the project's top.
    if file := find_dotenv(os.fspath(path), usecwd=True):
        return Path(file)
    if (folder := Path(path)).is_dir() and not (folder / "pyvenv.cfg").is_file():
        raise ConfigError(
            "a folder cannot be read as a .env file",
            where=f"prepare(dotenv={os.fspath(path)!r})",
            todo="name a file of NAME=value lines, or dotenv=None to read none",
        )
    return None


def read(file: Path) -> dict[str, str]:
    """The file's variables; from now on their values are shown nowhere.

    Raises:
        ConfigError: the file cannot be opened, or is not UTF-8 text; names the line, and shows nothing of it.
    """
    from dotenv import dotenv_values

    found = dotenv_values(stream=io.StringIO(_text(file)))
    values = {name: value for name, value in found.items() if value is not None}
    for name, value in values.items():
        hidden.hide(name, value)
    return values


def _text(file: Path) -> str:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{file.name} cannot be read ({error.strerror or type(error).__name__})",
            where=f"prepare, {file}",
            todo="let this user read it, or name another file: prepare(dotenv=...)",
        ) from None
    try:
        text, bad = (
            content.decode("utf-8-sig"),
            content.find(b"\0"),
        )  # Windows' editors put a mark before UTF-8
    except UnicodeDecodeError as error:
        text, bad = "", error.start
    if bad < 0:
        return text
    utf_16 = content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content
    raise ConfigError(
        f"{file.name} is not UTF-8 text{' but seems to be UTF-16, which PowerShell writes' if utf_16 else ''}",
        where=f"prepare, {file}, line {content[:bad].count(bytes([10])) + 1}",
        todo="save it as UTF-8 in the editor, or write the line anew without special characters",
    )
