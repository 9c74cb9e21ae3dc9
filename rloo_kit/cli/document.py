"""A YAML file as plain values, and the line on which each of them stands.

For :mod:`.schema`, whose errors name lines.  Scalars are read as YAML 1.2 has them, and not as 1.1: 1e-5 is a number,
and no, on and 2026-01-01 are texts.  What the values mean is not this module's affair.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import yaml

from rloo_kit.errors import ConfigError

Key = tuple[str | int, ...]
"""The way to a value: ("trainer", "max_steps"), ("rewards", 0)."""

FLOAT = re.compile(
    r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
REPLACED = ("bool", "float", "timestamp")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, rule) for tag, rule in rules if tag.rpartition(":")[2] not in REPLACED]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(rf"^(?:{FLOAT.pattern})$"), list("-+0123456789.")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(rf"^(?:{BOOL.pattern})$"), list("tTfF"))


@dataclass(frozen=True)
class Document:
    """A configuration file's values.

    Attributes:
        name: of the file, as it was given.
        data: its values, with what ``--set`` put in their place.
        places: where a value is written: "mine.yaml, line 12", or "--set trainer.max_steps=5".
    """

    name: str
    data: dict[str, Any]
    places: dict[Key, str]

    @property
    def folder(self) -> Path:
        """The file's: what a configuration reads is looked for beside it."""
        return Path(self.name).absolute().parent

    def where(self, key: Key) -> str:
        """A value's place, or that of the nearest one around it, and its name."""
        known = next((key[:end] for end in range(len(key), 0, -1) if key[:end] in self.places), ())
        return ", ".join(filter(None, [self.places.get(known, self.name), shown(key)]))


def shown(key: Key) -> str:
    """``rewards[0].weights``."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return "".join(parts).removeprefix(".")


def read(file: str | os.PathLike[str], settings: Sequence[str] = ()) -> Document:
    """A file's values, with each ``key=value`` of ``settings`` put in its place.

    Raises:
        ConfigError: there is no such file, it is no YAML, a key is written twice, or a setting has no "=" or no place.
    """
    name = os.fspath(file)
    places: dict[Key, str] = {}
    data = _parsed(_text(Path(name)), name, places)
    if data is None or not isinstance(data, dict):
        raise ConfigError(
            "the file holds no configuration" if data is None else "a configuration has names and values",
            where=f"{name}, line 1",
            todo="write 'policy:', 'task:', 'rewards:' and 'trainer:', as configs/tiny.yaml does",
        )
    document = Document(name, data, places)
    _spell_out(document)
    for setting in settings:
        _put(document, setting)
    return document


def written(data: dict[str, Any]) -> str:
    """Values as YAML."""
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)


def is_written(file: Path) -> bool:
    """Whether a file is as :func:`written` makes it, so that no comment and no other text is lost with it."""
    try:
        text = file.read_text(encoding="utf-8")
        return written(yaml.safe_load(text)) == text
    except (OSError, ValueError, yaml.YAMLError):
        return False


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        beside = sorted(path.name for path in file.absolute().parent.glob("*.y*ml"))[:8]
        raise ConfigError(
            "the configuration is no text in UTF-8"
            if isinstance(error, UnicodeDecodeError)
            else f"the configuration cannot be read: {error.strerror}",
            where=str(file),
            todo=f"give a YAML file{'; there is ' + ', '.join(beside) if beside else ''}",
        ) from None


def _parsed(text: str, place: str, places: dict[Key, str]) -> Any:
    """A text's value; ``places`` gets the line of each key."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _note_lines(node, (), place, places)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{place}, line {mark.line + 1}, column {mark.column + 1}" if mark else place
        raise ConfigError(
            f"this is no YAML: {getattr(error, 'problem', None) or 'a character that it does not allow'}",
            where=at,
            todo="look at this line and the one before: indent with spaces, write 'key: value', quote texts with ': '",
        ) from None
    finally:
        loader.dispose()


def _note_lines(node: yaml.Node, key: Key, place: str, places: dict[Key, str]) -> None:
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            places[(*key, index)] = f"{place}, line {item.start_mark.line + 1}"
            _note_lines(item, (*key, index), place, places)
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            inner, line = (*key, str(name.value)), f"{place}, line {name.start_mark.line + 1}"
            if inner in places:
                raise ConfigError(
                    f"{shown(inner)} is written twice, first on {places[inner].rpartition(', ')[2]}",
                    where=line,
                    todo="keep one of them",
                )
            places[inner] = line
            _note_lines(value, inner, place, places)


def _spell_out(document: Document) -> None:
    """Write a section that is only a name as the mapping that it stands for."""
    data = document.data
    if isinstance(data.get("policy"), str):
        data["policy"] = {"name": data["policy"]}
    if isinstance(task := data.get("task"), str):
        is_file = bool(Path(task).suffix)
        data["task"] = {"from_file": {"path": task}} if is_file else {task: {}}
    elif isinstance(task, dict):
        data["task"] = {name: {} if given is None else given for name, given in task.items()}


def _put(document: Document, setting: str) -> None:
    path, equals, text = setting.partition("=")
    where = f"--set {setting}"
    if not equals or not path.strip():
        raise ConfigError(
            "a setting is a name, '=' and a value", where=where, todo="write --set trainer.max_steps=5"
        )
    parts = [int(part) if part.isdecimal() else part for part in path.strip().split(".")]
    value = _parsed(text, where, {})
    inside: Any = document.data
    for depth, part in enumerate(parts[:-1]):
        step = inside.setdefault(part, {}) if isinstance(inside, dict) else _item(inside, part)
        if not isinstance(step, dict | list):
            raise ConfigError(
                f"{shown(tuple(parts[: depth + 1]))} has no settings of its own",
                where=where,
                todo="name a section, a dot and a setting: --set trainer.max_steps=5",
            )
        inside = step
    if isinstance(inside, list) and _item(inside, parts[-1]) is None:
        raise ConfigError(
            f"the list has {len(inside)} entries, numbered from 0", where=where, todo="name one of them"
        )
    inside[parts[-1]] = value
    document.places[tuple(parts)] = where
    _spell_out(document)


def _item(entries: list[Any], number: str | int) -> Any:
    return entries[number] if isinstance(number, int) and number < len(entries) else None
