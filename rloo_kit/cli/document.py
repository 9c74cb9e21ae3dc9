"""A YAML file as plain values, and the line on which each of them stands.

For :mod:`.config`, whose errors name lines.  Scalars are read as YAML 1.2 has them, and not as 1.1: 1e-5 is a number,
and no, on and 2026-01-01 are texts.  What the values mean is not this module's affair.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.error import MarkedYAMLError
from yaml.reader import ReaderError

from rloo_kit.errors import ConfigError

Key = tuple[str | int, ...]
"""The way to a value: ("trainer", "max_steps"), ("rewards", 0)."""

FLOAT = re.compile(
    r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
REPLACED = ("bool", "float", "timestamp")
MOST = 10_000
"""Values in a file: a few aliases of aliases are more than any memory holds."""

INDENT = "look at this line and the one before: indent with spaces, write 'key: value', quote texts with ': '"
MENDS = {
    "the tag": "leave the tag (!...) out: a configuration holds plain values; quote a text that begins with '!'",
    "another document": "keep one configuration in a file: remove the line '---' and what follows it",
}
"""What to do about an error of the parser's, by a word of it; otherwise :data:`INDENT`."""


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
        faults: the settings that have no "=" or no place.
    """

    name: str
    data: dict[str, Any]
    places: dict[Key, str]
    faults: list[ConfigError] = field(default_factory=list)

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
        ConfigError: there is no such file, it is no YAML, or a key is written twice.
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
        try:
            _put(document, setting)
        except ConfigError as error:
            document.faults.append(error)
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
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _note_lines(node, (), place, places)
        return _apart(loader.construct_document(node))
    except RecursionError:
        raise _too_large(place) from None
    except (MarkedYAMLError, ReaderError) as error:
        if isinstance(error, ReaderError):
            before = text[: error.position]
            line, column = before.count("\n"), error.position - before.rfind("\n") - 1
            what, todo = f"the character U+{error.character:04X} is not allowed", "delete it"
        else:
            mark, what = error.problem_mark, error.problem
            line, column = mark.line, mark.column
            todo = next((mend for said, mend in MENDS.items() if said in what), INDENT)
        at = f"{place}, line {line + 1}, column {column + 1}"
        raise ConfigError(f"this is no YAML: {what}", where=at, todo=todo) from None


def _too_large(place: str) -> ConfigError:
    what = f"a configuration holds at most {MOST} values, and lists that end"
    return ConfigError(
        what, where=place, todo="write out what its aliases (*name) stand for, and look for a loop"
    )


def _apart(data: Any) -> Any:
    """The same values, none of them shared: an alias is a copy, so that ``--set`` changes one place."""
    if isinstance(data, dict):
        return {name: _apart(value) for name, value in data.items()}
    return [_apart(value) for value in data] if isinstance(data, list) else data


def _note_lines(node: yaml.Node, key: Key, place: str, places: dict[Key, str]) -> None:
    if len(places) > MOST:
        raise _too_large(place)
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
    path_to = tuple(parts)
    for key in [key for key in document.places if key[: len(path_to)] == path_to]:
        del document.places[key]
    document.places[path_to] = where
    for end in range(1, len(path_to)):  # a section that is not in the file is made by all its settings
        there = document.places.get(path_to[:end], "--set")
        if there.startswith("--set"):
            document.places[path_to[:end]] = f"{there}, {where}".removeprefix("--set, ")
    _spell_out(document)


def _item(entries: list[Any], number: str | int) -> Any:
    return entries[number] if isinstance(number, int) and number < len(entries) else None
