"""A run as one YAML file, checked before anything is loaded.

:func:`load_config` reports all faults of names and types at once, before any code runs.  It then runs the .py files
that are named, and checks settings that must fit together.  Files to read are looked for beside the configuration;
files to write go to the working directory.
"""

import inspect
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Len
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from rloo_kit import argument_types, redact, tasks
from rloo_kit.cli import reward_entries
from rloo_kit.cli.reward_entries import check_arguments, check_known, mapped
from rloo_kit.errors import ConfigError
from rloo_kit.evaluation.evaluate import SAMPLING, check_asked, evaluate
from rloo_kit.models import is_folder
from rloo_kit.policy import load
from rloo_kit.policy.policy import check_sampling
from rloo_kit.policy.resolve import expanded
from rloo_kit.tasks.task import FILES
from rloo_kit.tasks.within_reach import check_asked as check_reach
from rloo_kit.train import check_config, renamed_args
from rloo_kit.train.config import RLOOConfig, known_names, types

SECTIONS: dict[str, argument_types.Hint] = {
    "policy": dict[str, Any],
    "task": Annotated[dict[str, dict[str, Any]], Len(1, 1)],
    "rewards": Annotated[list[Any], Len(1)],
    "trainer": dict[str, Any],
    "within_reach": dict[str, Any],
    "evaluate": dict[str, Any],
    "save": str,
}
ADVICE = {
    "policy": "write a name, 'policy: qwen3-1.7b', or load_policy's arguments below it",
    "task": "write one task: 'task: questions.csv', or its name and arguments, 'addition: {n_train: 500}'",
    "rewards": "write a list: 'rewards: [task.correct]'",
}

TASKS = [n for n in tasks.__all__ if getattr(getattr(tasks, n), "__annotations__", {}).get("return") == "Task"]
OF_THE_RUN = {"policy", "dataset", "reward_funcs", "reward_weights", "correct", "generate"}
MEASURED = {*inspect.signature(evaluate).parameters, *SAMPLING} - OF_THE_RUN
"""The arguments of ``evaluate`` that a configuration may set."""
REACHED = {*inspect.signature(tasks.within_reach).parameters, *SAMPLING} - {"dataset", "policy", "reward", "sampling"}


@dataclass
class Config:
    """A run whose names and types are right: its sections, and the trainer's settings made from them."""

    file: str
    task: dict[str, dict[str, Any]]  # a function of rloo_kit.tasks and its arguments, without the policy
    rewards: list[Any]  # as in reward_entries
    policy: dict[str, Any] = field(default_factory=dict)  # load_policy's arguments
    trainer: dict[str, Any] = field(default_factory=dict)  # RLOOConfig's arguments by today's names, and "suggested"
    within_reach: dict[str, Any] | None = None  # Task.within_reach's arguments; None trains on all problems
    evaluate: dict[str, Any] | None = None  # what differs from training; None measures nothing
    save: str | None = None
    args: RLOOConfig | None = None  # None if they are to be suggested for a policy and a task

    @property
    def settings(self) -> dict[str, Any]:
        return {name: value for name, value in self.trainer.items() if name != "suggested"}

    def args_for(self, policy: Any, task: Any, card: Any = None, named: Any = None) -> RLOOConfig:
        """Return :attr:`args`; with ``suggested: true``, choose missing settings for a policy, a task and a card."""
        if self.args is not None:
            return self.args
        with self.at("trainer", "suggested"):
            return RLOOConfig.suggested(policy, task, card=card, named=named, **self.settings)

    def at(self, *key: str | int) -> AbstractContextManager[None]:
        """Add the key of the file to an error that is raised inside."""
        return _at(self.file, None, *key)

    def resolved(self) -> str:
        """Return the configuration as YAML, with ``--set`` applied, absolute paths of files to read, and no secret."""
        data = {section: value for section in SECTIONS if (value := getattr(self, section)) is not None}
        for section in ("policy", "trainer"):
            data[section] = {n: value for n, value in data[section].items() if not redact.is_secret(n, value)}
        return written(redact.without_secrets(data))


def load_config(file: str | os.PathLike[str], settings: Sequence[str] = ()) -> Config:
    """Load and check a configuration, with each ``key=value`` of ``settings`` in its place.

    Raises:
        ExceptionGroup: holds a ConfigError for each fault.
        ConfigError: the file is not YAML, or a setting has no place in it.
    """
    data, faults = read(file), list[ConfigError]()
    for setting in settings:
        _put(data, setting)
    at = partial(_at, os.fspath(file), faults)
    for section in ("evaluate", "within_reach", "save"):
        with at(section):
            if section in data and data[section] is None:
                least = "FOLDER" if section == "save" else "{} for its defaults"
                raise ConfigError("the section is empty", todo=f"write {section}: {least}, or leave it out")
    data = _beside(_spelled_out(data), Path(file).absolute().parent)
    for section, value in {**dict.fromkeys(("task", "rewards")), **data}.items():
        with at(section):
            check_known(section, SECTIONS, "there is no section")
            argument_types.check({section: value}, SECTIONS, "a configuration", ADVICE)
            for name, entry in _entries(value):
                with at(section, name):
                    _check_entry(section, name, entry)
    if not faults:
        config = Config(os.fspath(file), **data)
        for index, entry in enumerate(config.rewards):
            with at("rewards", index):  # runs the named files
                mapped(entry, lambda _, name: reward_entries.in_file(name) and reward_entries.function_of(name))
        with at("evaluate"):
            check_asked(**config.evaluate or {})
        with at("within_reach"):
            check_reach(**config.within_reach or {})
            check_sampling(False, **config.within_reach or {})
        with at("policy"):
            load.settled(config.policy)
        with at("trainer"):
            todays = renamed_args.todays(config.settings, known_names(RLOOConfig), "RLOOConfig")
            suggested = {"suggested": True} if config.trainer.get("suggested") else {}
            config.trainer, config.args = suggested | todays, None if suggested else RLOOConfig(**todays)
    if faults:
        raise ExceptionGroup(f"{len(faults)} faults in {os.fspath(file)}", faults)
    return config


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())


def _check_entry(section: str, name: Any, value: Any) -> None:
    """Check one entry of a section by itself: its name, type and range."""
    if section == "policy":
        check_known(name, load.NAMES, "load_policy takes no")
        load.settled({name: value})
    elif section == "task":
        check_known(name, TASKS, "there is no task", f"a file, or one of {', '.join(TASKS)}")
        check_arguments(getattr(tasks, name), value, f"tasks.{name}")
        if missing := [path for key in FILES if isinstance(path := value.get(key), str) and not Path(path).exists()]:
            raise ConfigError("there is no such file", where=missing[0], todo="name it from the folder of this file")
    elif section == "rewards":
        reward_entries.check_entry(value)
    elif section in ("evaluate", "within_reach"):
        check_known(name, MEASURED if section == "evaluate" else REACHED, f"{section} takes no")
    elif name == "suggested":
        argument_types.check({name: value}, {name: bool}, "trainer")
    else:
        _check_setting(name, value)


def _check_setting(name: str, value: Any) -> None:
    if isinstance(value, dict) and (code := {"custom_generate", "trust_remote_code"} & value.keys()):
        raise ConfigError(f"{code.pop()} would run code from the hub", todo=f"remove it from {name}")
    with warnings.catch_warnings(action="ignore"):  # the warning comes when the settings are made
        todays = renamed_args.todays({name: value}, known_names(RLOOConfig), "RLOOConfig")
    check_config.checked(todays, types())


@contextmanager
def _at(file: str, faults: list[ConfigError] | None, *key: str | int) -> Iterator[None]:
    """Add the key, as in ``mine.yaml, rewards[0]``, to an error that is raised inside; raise or collect it."""
    try:
        yield
    except (ValueError, TypeError) as error:  # errors of the kit and of ``rewards`` have three parts
        what, *rest = str(error).splitlines() or [type(error).__name__]
        parts = dict(line.partition(": ")[::2] for line in rest)
        dotted = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key)
        place = ": ".join(filter(None, [f"{file}, {dotted.removeprefix('.')}", parts.get("Where", "")]))
        fault = ConfigError(what, where=place, todo=parts.get("What to do", "look at what is written there"))
        if faults is None:
            raise fault from error
        faults.append(fault)


def _beside(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the given sections, with absolute paths for files to read that lie beside the configuration."""

    def whole(section: str, name: object, value: Any) -> Any:
        if not isinstance(value, str) or not 0 < len(value) <= 200:
            return value
        is_read = {
            "policy": name in ("name", "model_name") and is_folder(value, folder / value),
            "task": name in FILES,
            "rewards": reward_entries.in_file(value),
        }
        if not is_read.get(section):
            return value
        beside, here = folder / expanded(value), Path.cwd() / expanded(value)  # of --set, a path may be from here
        return str(here if section == "task" and here.exists() and not beside.exists() else beside)

    given = {section: value for section, value in data.items() if value is not None}
    return {section: mapped(value, partial(whole, section)) for section, value in given.items()}


def _spelled_out(data: dict[str, Any]) -> dict[str, Any]:
    """Replace a section that is only a name by the mapping that it stands for."""
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
            inside[last]  # a list's entry must exist already
        inside[last] = parsed(text, f"--set {setting}")
    except (TypeError, IndexError, KeyError):
        todo = "write SECTION.NAME=VALUE, or an entry's number from 0: --set trainer.max_steps=5"
        raise ConfigError("there is no place for this setting", where=f"--set {setting}", todo=todo) from None


# --- YAML 1.2: 1e-5 is a number; no and on are texts ------------------------------------------------------


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.width = 110
    yaml.default_flow_style = yaml.sort_base_mapping_type_on_output = False
    return yaml


def read(file: str | os.PathLike[str]) -> dict[str, Any]:
    data = parsed(Path(file).read_bytes(), os.fspath(file))
    if not isinstance(data, dict):
        todo = "write 'policy:', 'task:', 'rewards:' and 'trainer:', as configs/tiny.yaml does"
        raise ConfigError("a configuration must have names and values", where=os.fspath(file), todo=todo)
    return data


def written(data: dict[str, Any]) -> str:
    text = io.StringIO()
    _yaml().dump(data, text)
    return text.getvalue()


def parsed(text: str | bytes, where: str) -> Any:
    try:
        return _yaml().load(text)
    except RecursionError:
        what = "lists within lists that do not end"
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or " ".join(str(error).split())
        where += f", line {mark.line + 1}" if mark else ""
    todo = "indent with spaces, write 'key: value', quote texts with ': ' or '!', keep one document in a file"
    raise ConfigError(f"this is no YAML: {what}", where=where, todo=todo)
