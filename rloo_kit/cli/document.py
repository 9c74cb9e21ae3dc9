"""A YAML file as plain values, the line on which each of them stands, and what is wrong with them.

What the values mean is not this module's affair.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml
from yaml.error import MarkedYAMLError
from yaml.reader import ReaderError

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
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{FLOAT})$"), list("-+0123456789."))
BOOL = r"true|True|TRUE|false|False|FALSE"
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(f"^(?:{BOOL})$"), list("tTfF"))

TAGS = {yaml.SequenceNode: "tag:yaml.org,2002:seq", yaml.MappingNode: "tag:yaml.org,2002:map"}
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
    def noted(self, key: Key) -> Iterator[None]:
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
    """Check that a name is one of those that are known.

    Raises:
        ConfigError: it is not: ``what`` and the name, with the nearest that is, or all.
    """
    known = list(known)
    if name in known:
        return
    near = difflib.get_close_matches(str(name), known, n=1)
    todo = f"did you mean {near[0]}?" if near else otherwise or f"one of {', '.join(known) or 'none'}"
    raise ConfigError(f"{what} {name}", todo=todo)


def read(file: str | os.PathLike[str], settings: Sequence[str] = ()) -> Document:
    """A file's values, with each ``key=value`` of ``settings`` put in its place.

    Raises:
        ConfigError: there is no such file, it is no YAML, or a key is written twice.
    """
    path, name = Path(file), os.fspath(file)
    try:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise OSError(errno.EINVAL, "it is no file")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        beside = ", ".join(sorted(one.name for one in path.absolute().parent.glob("*.y*ml"))[:8])
        why = getattr(error, "strerror", "it is no text in UTF-8")
        todo = f"give a YAML file; there is {beside or 'none in this folder'}"
        raise ConfigError(f"the configuration cannot be read: {why}", where=name, todo=todo) from None
    document = Document(name)
    data = _parsed(text, name, document.places)
    if not isinstance(data, dict):
        todo = "write 'policy:', 'task:', 'rewards:' and 'trainer:', as configs/tiny.yaml does"
        raise ConfigError("a configuration has names and values", where=f"{name}, line 1", todo=todo)
    document.data = data
    for setting in settings:
        _spell_out(data)
        try:
            _put(document, setting)
        except ConfigError as error:
            document.faults.append(error)
    _spell_out(data)
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


def _parsed(text: str, place: str, places: dict[Key, str]) -> Any:
    """A text's value; ``places`` gets the line of each key."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        return None if node is None else _value(loader, node, (), place, places)
    except RecursionError:
        raise _too_large(place) from None
    except (MarkedYAMLError, ReaderError) as error:
        what = error.reason if isinstance(error, ReaderError) else error.problem
        line = (
            text.count("\n", 0, error.position) if isinstance(error, ReaderError) else error.problem_mark.line
        )
        todo = "indent with spaces, write 'key: value', quote texts with ': ' or '!', keep one document in a file"
        raise ConfigError(f"this is no YAML: {what}", where=f"{place}, line {line + 1}", todo=todo) from None


def _too_large(place: str) -> ConfigError:
    what = f"a configuration holds at most {MOST} values, and lists that end"
    return ConfigError(what, where=place, todo="write out what its aliases (*name) stand for")


def _value(loader: _Loader, node: yaml.Node, key: Key, place: str, places: dict[Key, str]) -> Any:
    """A node's value, of which no part is shared: an alias is a copy, so that ``--set`` changes one place."""
    if len(places) > MOST:
        raise _too_large(place)
    if isinstance(node, yaml.ScalarNode) or node.tag != TAGS[type(node)]:
        return loader.construct_object(node, deep=True)  # refuses every tag that would make an object
    if isinstance(node, yaml.SequenceNode):
        found = []
        for index, item in enumerate(node.value):
            places[(*key, index)] = f"{place}, line {item.start_mark.line + 1}"
            found.append(_value(loader, item, (*key, index), place, places))
        return found
    is_first = vars(node).setdefault("first", key) == key  # an alias has its merged names twice
    for name, _ in node.value:
        inner, line = (*key, str(name.value)), f"{place}, line {name.start_mark.line + 1}"
        if inner in places and is_first:
            what = f"{_dotted(inner)} is written twice, first on {places[inner].rpartition(', ')[2]}"
            raise ConfigError(what, where=line, todo="keep one of them")
        places[inner] = line
    loader.flatten_mapping(node)  # the values of <<: *name
    return {
        str(name.value): _value(loader, value, (*key, str(name.value)), place, places)
        for name, value in node.value
    }


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
    where = f"--set {setting}"
    if not equals:
        todo = "write --set trainer.max_steps=5"
        raise ConfigError("a setting is a name, '=' and a value", where=where, todo=todo)
    key = tuple(int(part) if part.isdecimal() else part for part in path.strip().split("."))
    value = _parsed(text, where, {})
    inside: Any = document.data
    try:
        for part in key[:-1]:
            if isinstance(inside, dict) and inside.get(part) is None:
                inside[part] = {}
            inside = inside[part]
        if not isinstance(inside, dict):
            inside[key[-1]]  # the entry of a list is there already
        inside[key[-1]] = value
    except (TypeError, IndexError, KeyError):
        todo = "name a section, a dot and a setting, or an entry's number from 0: --set trainer.max_steps=5"
        raise ConfigError("there is no place for this setting", where=where, todo=todo) from None
    for known in [known for known in document.places if known[: len(key)] == key]:
        del document.places[known]
    document.places[key] = where
    for end in range(1, len(key)):  # sections that are not in the file
        document.places.setdefault(key[:end], where)
