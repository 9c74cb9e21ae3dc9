"""A run as one YAML file, checked in two looks.

:func:`load_config` looks at names, types and ranges and says all faults at once, without torch and unsloth, whose
imports take seconds, and before any code runs; :attr:`Config.args` runs the .py files that are named, and looks at what
has to go together.  What the configuration reads is looked for beside it, what it writes in the working directory.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import yaml
from annotated_types import Len
from pydantic import AfterValidator, BaseModel, PrivateAttr, ValidationError

from rloo_kit import redact, tasks
from rloo_kit.cli.reward_entries import (
    IN_FILE,
    check_arguments,
    check_entry,
    check_known,
    function_of,
    mapped,
)
from rloo_kit.errors import ConfigError
from rloo_kit.policy import load
from rloo_kit.train import check_config, renamed_args

if TYPE_CHECKING:
    from rloo_kit.train.config import RLOOConfig

TASKS = {name: make for name in tasks.__all__ if hasattr(make := getattr(tasks, name), "__wrapped__")}
MEASURED = ("n", "samples", "greedy", "max_new_tokens", "room", "batch_size", "seed", "chat_template_kwargs")
MEASURED += ("temperature", "top_p", "top_k", "min_p")  # type: ignore[assignment]
"""What ``evaluate`` takes of a configuration."""

AS = {
    "task": "write one name with its arguments: 'addition: {n_train: 500}'",
    "rewards": "begin each with '- ', as in '- task.correct'",
    "save": "write save: out/adapter",
}
"""How a section is written that is not names and values."""


class SeveralFaults(ValueError):
    """The faults of a section, by name."""


def each(check: Callable[[str, Any], None]) -> AfterValidator:
    """Check every name and value of a section by itself."""

    def checked(given: dict[str, Any]) -> dict[str, Any]:
        faults = {}
        for name, value in given.items():
            try:
                check(name, value)
            except ConfigError as error:
                faults[name] = error
        if faults:
            raise SeveralFaults(faults)
        return given

    return AfterValidator(checked)


def _policy(name: str, value: object) -> None:
    check_known(name, load.NAMES, "load_policy takes no")
    load.settled({name: value})


def _task(name: str, arguments: object) -> None:
    check_known(name, TASKS, "there is no task", f"a file, or one of {', '.join(TASKS)}")
    check_arguments(TASKS[name], arguments, f"tasks.{name}")


def _setting(name: str, value: object) -> None:
    if name == "suggested" and isinstance(value, bool):
        return
    if isinstance(value, dict) and (code := {"custom_generate", "trust_remote_code"} & value.keys()):
        raise ConfigError(f"{code.pop()} would run code of the hub's", todo=f"remove it from {name}")
    if known := check_config.written_down():  # beside another TRL they are checked when the settings are made
        with warnings.catch_warnings(action="ignore"):  # said then, too
            check_config.checked(renamed_args.todays({name: value}, set(known), "RLOOConfig"), known)


def _measured(name: str, value: object) -> None:
    check_known(name, MEASURED, "evaluate takes no")


class Config(BaseModel, extra="forbid", strict=True):
    """A run whose names and types are right; the attributes are the file's sections.

    Attributes:
        policy: ``load_policy``'s arguments.
        task: a name of :mod:`rloo_kit.tasks` with that function's arguments, without the policy.
        rewards: entries as of :mod:`.reward_entries`.
        trainer: ``RLOOConfig``'s arguments; with ``suggested: true`` the others are ``RLOOConfig.suggested``'s.
        evaluate: ``evaluate``'s, as far as they are not those of training; None where nothing is measured.
        save: the adapter's folder.
    """

    policy: Annotated[dict[str, Any], each(_policy)] = {}
    task: Annotated[dict[str, dict[str, Any]], Len(1, 1), each(_task)]
    rewards: Annotated[list[Annotated[Any, AfterValidator(check_entry)]], Len(1)]
    trainer: Annotated[dict[str, Any], each(_setting)] = {}
    evaluate: Annotated[dict[str, Any], each(_measured)] | None = None
    save: str | None = None
    _file: str = PrivateAttr("")

    @cached_property
    def args(self) -> RLOOConfig:
        """The trainer's settings, after every file that is named was run.

        Raises:
            ConfigError: the first that is wrong, with its place.
        """
        from rloo_kit.evaluation.evaluate import check_asked
        from rloo_kit.train.config import RLOOConfig

        for index, entry in enumerate(self.rewards):
            with self.at("rewards", index):
                mapped(entry, lambda name: IN_FILE.fullmatch(str(name)) and function_of(name))
        with self.at("evaluate"):
            check_asked(**self.evaluate or {})
        with self.at("policy"):
            load.settled(self.policy)
        with self.at("trainer"):
            return RLOOConfig(**self._given)

    @property
    def _given(self) -> dict[str, Any]:
        return {name: value for name, value in self.trainer.items() if name != "suggested"}

    def args_for(self, policy: Any, task: Any, card: Any = None) -> RLOOConfig:
        """:attr:`args`; with ``suggested: true`` what is not given is chosen for a policy, a task and a card."""
        if not self.trainer.get("suggested"):
            return self.args
        with self.at("trainer", "suggested"):
            return type(self.args).suggested(policy, task, card=card, **self._given)

    @contextmanager
    def at(self, *key: str | int) -> Iterator[None]:
        """Say of an error inside at which key it is; those of the kit and of ``rewards`` have three parts."""
        try:
            yield
        except (ValueError, TypeError) as error:
            what, *rest = str(error).splitlines() or [type(error).__name__]
            said = dict(line.partition(": ")[::2] for line in rest)
            place = ": ".join(filter(None, [_place(self._file, *key), said.get("Where", "").rstrip(".")]))
            todo = said.get("What to do", "look at what is written there")
            raise ConfigError(what, where=place, todo=todo) from error

    def resolved(self) -> str:
        """The configuration as YAML, with what ``--set`` changed, whole paths of what it reads, and no secret."""
        data = self.model_dump(exclude_unset=True)
        for name in {"policy", "trainer"} & data.keys():
            data[name] = {n: value for n, value in data[name].items() if not redact.is_secret(n, value)}
        return written(redact.without_secrets(data))


def _place(file: str, *key: str | int) -> str:
    """``mine.yaml, rewards[0]``."""
    dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
    return ", ".join(filter(None, [file, dotted.removeprefix(".")]))


def load_config(file: str | os.PathLike[str], settings: Sequence[str] = ()) -> Config:
    """A configuration, its names, types and ranges checked, with each ``key=value`` of ``settings`` in its place.

    Raises:
        ExceptionGroup: of a ConfigError for each fault.
    """
    name = os.fspath(file)
    data = read(file)
    for setting in settings:
        _put(data, setting)
    try:
        config = Config.model_validate(_beside(_spelled_out(data), Path(file).absolute().parent))
    except ValidationError as error:
        faults = [fault for one in error.errors() for fault in _faults(name, **one)]
        raise ExceptionGroup(f"{len(faults)} faults in {name}", faults) from None
    config._file = name
    return config


def _faults(
    file: str, type: str, loc: tuple[Any, ...], msg: str, input: Any, **more: Any
) -> Iterator[ConfigError]:
    """What pydantic found, in the kit's words."""
    error, section = more.get("ctx", {}).get("error"), str(loc[0])
    if isinstance(error, SeveralFaults):
        for name, one in error.args[0].items():
            yield ConfigError(one.what, where=_place(file, *loc, name), todo=one.todo)
        return
    try:
        if isinstance(error, ConfigError):
            raise error
        if type == "extra_forbidden":
            check_known(section, Config.model_fields, "there is no section")
        if type == "missing":
            raise ConfigError(f"the configuration names no {section}", todo=f"add a section '{section}:'")
        todo = AS.get(section, f"write names and values under '{section}:', or leave it out")
        raise ConfigError(
            f"{section} is {redact.shown(section, input)}; {msg[0].lower()}{msg[1:]}", todo=todo
        )
    except ConfigError as one:
        yield ConfigError(one.what, where=_place(file, *loc), todo=one.todo)


def _beside(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The sections that are given, with whole paths for what is there beside the configuration."""

    def whole(value: Any) -> Any:
        if not isinstance(value, str) or len(value) > 200:
            return value
        match = IN_FILE.fullmatch(value)
        return str(folder / value) if match or (value and (folder / value).exists()) else value

    found = {name: given for name, given in data.items() if given is not None}
    return found | {name: mapped(found[name], whole) for name in {"policy", "task", "rewards"} & found.keys()}


# --- YAML -------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Scalars as in YAML 1.2: 1e-5 is a number; no, on and 2026-01-01 are texts.  A name stands once."""

    yaml_implicit_resolvers: ClassVar = {
        first: [rule for rule in rules if rule[0].rpartition(":")[2] not in ("bool", "float", "timestamp")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As a dict."""
        names = [name.value for name, _ in node.value]
        for index, (name, _) in enumerate(node.value):
            if name.value in names[:index]:
                raise yaml.MarkedYAMLError(
                    problem=f"{name.value} is written twice", problem_mark=name.start_mark
                )
        return dict(super().construct_mapping(node, deep))


FLOAT = r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
BOOL = r"true|True|TRUE|false|False|FALSE"
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^(?:{FLOAT})$"), list("-+0123456789."))
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(f"^(?:{BOOL})$"), list("tTfF"))


def read(file: str | os.PathLike[str]) -> dict[str, Any]:
    """A file's values."""
    try:
        data = parsed(Path(file).read_text(encoding="utf-8"), os.fspath(file))
    except (OSError, UnicodeDecodeError) as error:
        there = ", ".join(sorted(one.name for one in Path(file).absolute().parent.glob("*.y*ml"))[:8])
        what = f"the configuration cannot be read: {getattr(error, 'strerror', 'it is no text in UTF-8')}"
        todo = f"give a YAML file; there is {there or 'none in this folder'}"
        raise ConfigError(what, where=os.fspath(file), todo=todo) from None
    if not isinstance(data, dict):
        todo = "write 'policy:', 'task:', 'rewards:' and 'trainer:', as configs/tiny.yaml does"
        raise ConfigError("a configuration has names and values", where=os.fspath(file), todo=todo)
    return data


def written(data: dict[str, Any]) -> str:
    """Values as YAML."""
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110))


def parsed(text: str, where: str) -> Any:
    """A text's value."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        what = "lists within lists that do not end"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        where += f", line {mark.line + 1}" if mark else ""
    todo = "indent with spaces, write 'key: value', quote texts with ': ' or '!', keep one document in a file"
    raise ConfigError(f"this is no YAML: {what}", where=where, todo=todo)


def _spelled_out(data: dict[str, Any]) -> dict[str, Any]:
    """The same, where a section that is only a name has become the mapping that it stands for."""
    if isinstance(data.get("policy"), str):
        data["policy"] = {"name": data["policy"]}
    if isinstance(task := data.get("task"), str):
        data["task"] = {"from_file": {"path": task}} if Path(task).suffix else {task: {}}
    elif isinstance(task, dict):
        data["task"] = {name: {} if given is None else given for name, given in task.items()}
    return data


def _put(data: dict[str, Any], setting: str) -> None:
    """Put the value of ``trainer.max_steps=5`` in its place."""
    path, equals, text = setting.partition("=")
    *parts, last = (int(part) if part.isdecimal() else part for part in path.strip().split("."))
    inside: Any = _spelled_out(data)
    try:
        if not equals:
            raise KeyError
        for part in parts:
            if isinstance(inside, dict) and inside.get(part) is None:
                inside[part] = {}
            inside = inside[part]
        if not isinstance(inside, dict):
            inside[last]  # the entry of a list is there already
        inside[last] = parsed(text, f"--set {setting}")
    except (TypeError, IndexError, KeyError):
        todo = "write SECTION.NAME=VALUE, or an entry's number from 0: --set trainer.max_steps=5"
        raise ConfigError("there is no place for this setting", where=f"--set {setting}", todo=todo) from None
