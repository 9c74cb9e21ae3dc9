"""A YAML file as plain values, the line on which each of them stands, and what is wrong with them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml

from rloo_kit.errors import ConfigError, RLOOKitError

Key = tuple[str | int, ...]
"""The way to a value: ("trainer", "max_steps"), ("rewards", 0)."""


class _Loader(yaml.SafeLoader):
    """Scalars as in YAML 1.2: 1e-5 is a number; no, on and 2026-01-01 are texts."""

    yaml_implicit_resolvers: ClassVar = {
        first: [rule for rule in rules if rule[0].rpartition(":")[2] not in ("bool", "float", "timestamp")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


FLOAT = r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
BOOL = r"true|True|TRUE|false|False|FALSE"
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{FLOAT})$"), list("-+0123456789."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(f"^(?:{BOOL})$"), list("tTfF"))

MOST = 10_000
"""Values in a file: a few aliases of aliases are more than any memory holds."""


@dataclass
class Document:
    """A configuration file's values, and what is wrong with them.

    Attributes:
        name: of the file, as it was given.
        data: its values, with what ``--set`` put in their place.
        places: where a value is written: "mine.yaml, line 12", or "--set trainer.max_steps=5".
        faults: found so far.
    """

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Key, str] = field(default_factory=dict)
    faults: list[ConfigError] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The file's: what a configuration reads is looked for beside it."""
        return Path(self.name).absolute().parent

    def where(self, key: Key) -> str:
        """A value's place, or that of the nearest one around it, and its name: ``rewards[0].weights``."""
        near = next((key[:end] for end in range(len(key), 0, -1) if key[:end] in self.places), ())
        return ", ".join(filter(None, [self.places.get(near, self.name), _dotted(key)]))

    @contextmanager
    def noted(self, *key: str | int) -> Iterator[None]:
        """Keep an error as a fault at this place."""
        try:
            yield
        except RLOOKitError as error:
            inner = (*key, error.where)  # an argument of a call
            where = self.where(inner if inner in self.places else key)
            self.faults.append(ConfigError(error.what, where=where, todo=error.todo))

    def end(self) -> None:
        """Raise all faults, if there are any."""
        if self.faults:
            raise ExceptionGroup(f"{len(self.faults)} faults in {self.name}", self.faults)


def _dotted(key: Key) -> str:
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return "".join(parts).removeprefix(".")


def check_known(name: object, known: Iterable[str], what: str, otherwise: str = "") -> None:
    """Raise a ConfigError for a name that is not known: ``what`` and the name, with the nearest that is, or all."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        todo = f"did you mean {near[0]}?" if near else otherwise or f"one of {', '.join(known) or 'none'}"
        raise ConfigError(f"{what} {name}", todo=todo)


def read(file: str | os.PathLike[str], settings: Sequence[str] = ()) -> Document:
    """A file's values, with each ``key=value`` of ``settings`` put in its place."""
    path, name = Path(file), os.fspath(file)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        beside = ", ".join(sorted(one.name for one in path.absolute().parent.glob("*.y*ml"))[:8])
        what = f"the configuration cannot be read: {getattr(error, 'strerror', 'it is no text in UTF-8')}"
        todo = f"give a YAML file; there is {beside or 'none in this folder'}"
        raise ConfigError(what, where=name, todo=todo) from None
    document = Document(name)
    document.data = _parsed(text, name, document.places)
    if not isinstance(document.data, dict):
        todo = "write 'policy:', 'task:', 'rewards:' and 'trainer:', as configs/tiny.yaml does"
        raise ConfigError("a configuration has names and values", where=f"{name}, line 1", todo=todo)
    _spell_out(document.data)
    for setting in settings:
        try:
            _put(document, setting)
        except ConfigError as error:
            document.faults.append(error)
        _spell_out(document.data)
    return document


def written(data: dict[str, Any]) -> str:
    """Values as YAML."""
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110))


def _parsed(text: str, place: str, places: dict[Key, str]) -> Any:
    """A text's value; ``places`` gets the line of each key."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else _value(loader, node, (), place, places)
    except RecursionError:
        what, line = "lists within lists that do not end", 0
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what, line = getattr(error, "problem", None) or " ".join(str(error).split()), mark.line if mark else 0
    todo = "indent with spaces, write 'key: value', quote texts with ': ' or '!', keep one document in a file"
    raise ConfigError(f"this is no YAML: {what}", where=f"{place}, line {line + 1}", todo=todo)


def _value(loader: _Loader, node: yaml.Node, key: Key, place: str, places: dict[Key, str]) -> Any:
    """A node's value, of which no part is shared: an alias is a copy, so that ``--set`` changes one place."""
    if len(places) > MOST:
        raise RecursionError
    if isinstance(node, yaml.ScalarNode) or not node.tag.endswith((":seq", ":map")):
        return loader.construct_object(node, deep=True)  # refuses every tag that would make an object
    if isinstance(node, yaml.SequenceNode):
        pairs: list[tuple[Any, Any, Any]] = [(i, one, one) for i, one in enumerate(node.value)]
    else:
        pairs = [(str(name.value), name, one) for name, one in node.value]
    found: dict[Any, Any] = {}
    for name, written_at, one in pairs:
        inner, line = (*key, name), f"{place}, line {written_at.start_mark.line + 1}"
        if name in found:
            what = f"{_dotted(inner)} is written twice, first on {places[inner].rpartition(', ')[2]}"
            raise ConfigError(what, where=line, todo="keep one of them")
        places[inner] = line
        found[name] = _value(loader, one, inner, place, places)
    return list(found.values()) if isinstance(node, yaml.SequenceNode) else found


def _spell_out(data: dict[str, Any]) -> None:
    """Write a section that is only a name as the mapping that it stands for."""
    if isinstance(data.get("policy"), str):
        data["policy"] = {"name": data["policy"]}
    if isinstance(task := data.get("task"), str):
        data["task"] = {"from_file": {"path": task}} if Path(task).suffix else {task: {}}
    elif isinstance(task, dict):
        data["task"] = {name: {} if given is None else given for name, given in task.items()}


def _put(document: Document, setting: str) -> None:
    path, equals, text = setting.partition("=")
    key = tuple(int(part) if part.isdecimal() else part for part in path.strip().split("."))
    where = f"--set {setting}"
    try:
        if not equals:
            raise KeyError
        value = _parsed(text, where, {})
        inside: Any = document.data
        for part in key[:-1]:
            if isinstance(inside, dict) and inside.get(part) is None:
                inside[part] = {}
            inside = inside[part]
        if not isinstance(inside, dict):
            inside[key[-1]]  # the entry of a list is there already
        inside[key[-1]] = value
    except (TypeError, IndexError, KeyError):
        todo = "write SECTION.NAME=VALUE, or an entry's number from 0: --set trainer.max_steps=5"
        raise ConfigError("there is no place for this setting", where=where, todo=todo) from None
    document.places = {known: place for known, place in document.places.items() if known[: len(key)] != key}
    document.places[key] = where
    for end in range(1, len(key)):  # sections that are not in the file
        document.places.setdefault(key[:end], where)
