"""A run as one YAML file, checked in two looks, each of which says all faults at once, with file, line and key.

Its sections::

    policy:    load_policy's arguments
    task:      a name of rloo_kit.tasks with its arguments, or a file of questions and answers
    rewards:   a list, each entry in one of the forms of rloo_kit.cli.callables
    trainer:   RLOOConfig's fields
    evaluate:  evaluate's n, samples, greedy, temperature, ...; measures before and after training
    save:      the adapter's folder

:func:`load_config` looks at names, types and ranges, without torch and unsloth, whose imports take seconds, and before
any code runs; :attr:`Config.trainer` runs the .py files that are named, and looks at what has to go together.  What the
configuration reads is looked for beside it, what it writes in the working directory.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit import redact, tasks
from rloo_kit.cli import callables
from rloo_kit.cli.callables import IN_FILE
from rloo_kit.cli.document import Document, check_known, read, written
from rloo_kit.errors import ConfigError
from rloo_kit.policy import load
from rloo_kit.tasks.task import FILES
from rloo_kit.train import check_config, renamed_args

if TYPE_CHECKING:
    from rloo_kit.train.config import RLOOConfig

SECTIONS = ("policy", "task", "rewards", "trainer", "evaluate", "save")
TASKS = {name: make for name in tasks.__all__ if inspect.isfunction(make := getattr(tasks, name))}
MEASURED = ("n", "samples", "greedy", "max_new_tokens", "batch_size", "seed", "chat_template_kwargs")
MEASURED += ("temperature", "top_p", "top_k", "min_p")  # type: ignore[assignment]
"""What ``evaluate`` takes of a configuration."""

FUNCTIONS = ("advantage_estimator", "on_unhealthy")
"""Settings of the trainer's that may be a function of a file."""


@dataclass(frozen=True)
class Config:
    """A configuration whose names and types are right.

    Attributes:
        task: a name of :mod:`rloo_kit.tasks`; ``task_arguments`` are that function's, without the policy.
        evaluate: ``evaluate``'s arguments, as far as they are not those of training; None where nothing is measured.
    """

    document: Document
    policy: dict[str, Any]
    task: str
    task_arguments: dict[str, Any]
    rewards: list[Any]
    evaluate: dict[str, Any] | None
    save: str | None

    @cached_property
    def trainer(self) -> RLOOConfig:
        """The trainer's settings, after every file that is named was run; faults as of :func:`load_config`."""
        from rloo_kit.evaluation.evaluate import check_asked
        from rloo_kit.train.config import RLOOConfig

        document, folder = self.document, self.document.folder
        given = dict(document.data.get("trainer") or {})
        for index, entry in enumerate(self.rewards):
            with document.noted("rewards", index):
                mapped(entry, lambda name: IN_FILE.fullmatch(name) and callables.function_of(name, folder))
        for name in [name for name, value in given.items() if names_function(name, value)]:
            with document.noted("trainer", name):
                given[name] = callables.function_of(given[name], folder)
        with document.noted("evaluate"):
            check_asked(**self.evaluate or {})
        document.end()
        try:
            return RLOOConfig(**given)
        except (ValueError, TypeError) as error:  # transformers' own among them
            named = [name for name in given if name in str(error)]
            with document.noted("trainer", *sorted(named, key=len)[-1:]):
                raise ConfigError(
                    getattr(error, "what", str(error)), todo=getattr(error, "todo", "")
                ) from error
            document.end()
            raise

    @property
    def template(self) -> dict[str, Any]:
        """The arguments of the chat template in training."""
        return dict(self.trainer.chat_template_kwargs or {})

    def resolved(self) -> str:
        """The configuration as YAML, with what ``--set`` changed, whole paths of what it reads, and no secret."""
        data = {name: self.document.data[name] for name in SECTIONS if name in self.document.data}
        for name in {"rewards", "trainer"} & data.keys():
            data[name] = mapped(data[name], lambda text: callables.whole(text, self.document.folder))
        data |= {"policy": self.policy, "task": {self.task: self.task_arguments}}
        for name in {"policy", "trainer"} & data.keys():
            given = (data[name] or {}).items()
            data[name] = {n: value for n, value in given if not redact.is_secret(n, value)}
        return written(redact.without_secrets(data))


def mapped(entry: Any, change: Callable[[str], Any]) -> Any:
    """The same lists and names, with every text in them changed."""
    if isinstance(entry, dict):
        return {mapped(name, change): mapped(value, change) for name, value in entry.items()}
    if isinstance(entry, list):
        return [mapped(one, change) for one in entry]
    return change(entry) if isinstance(entry, str) else entry


def load_config(file: str | os.PathLike[str], settings: Sequence[str] = ()) -> Config:
    """A configuration, its names, types and ranges checked; an ExceptionGroup has a ConfigError for each fault."""
    document = read(file, settings)
    data, folder = document.data, document.folder
    for name in data:
        with document.noted(name):
            check_known(name, SECTIONS, "there is no section")
    for name in ("task", "rewards"):
        with document.noted(name):
            if not data.get(name):
                raise ConfigError(f"the configuration names no {name}", todo=f"add a section '{name}:'")
    for name, check in {"policy": _policy, "trainer": _trainer, "evaluate": _evaluate}.items():
        _check_each(document, name, check)
    task = data.get("task") or {}
    with document.noted("task", *list(task)[:1]):
        if not isinstance(task, dict) or len(task) > 1:
            raise ConfigError(
                "a task is one name with its arguments", todo="write 'addition: {n_train: 500}'"
            )
        for name, arguments in task.items():
            check_known(name, TASKS, "there is no task", f"a file, or one of {', '.join(TASKS)}")
            callables.check_arguments(TASKS[name], arguments, f"tasks.{name}")
    entries = data.get("rewards") or []
    with document.noted("rewards"):
        if not isinstance(entries, list):
            entries = []
            raise ConfigError("rewards are a list", todo="begin each with '- ', as in '- task.correct'")
    for index, entry in enumerate(entries):
        with document.noted("rewards", index):
            callables.check_reward(entry, folder)
    with document.noted("save"):
        if not isinstance(data.get("save"), str | None):
            raise ConfigError("save is a folder", todo="write save: out/adapter")
    document.end()
    ((name, arguments),) = task.items()
    policy = _beside(data.get("policy") or {}, ("name", "model_name"), folder)
    arguments = _beside(arguments, FILES, folder)
    return Config(document, policy, name, arguments, entries, data.get("evaluate"), data.get("save"))


def _check_each(document: Document, section: str, check: Callable[[dict[str, Any], Path], None]) -> None:
    """Check every name and value of a section by itself, so that all faults are said, then all together."""
    given, before = document.data.get(section) or {}, len(document.faults)
    with document.noted(section):
        if not isinstance(given, dict) or document.data.get(section) == 0:
            todo = f"write them under '{section}:', or leave it out for none"
            raise ConfigError(f"{section} is a section of names and values", todo=todo)
        for name, value in given.items():
            with document.noted(section, name):
                check({name: value}, document.folder)
        if len(document.faults) == before:
            check(given, document.folder)


def _policy(given: dict[str, Any], folder: Path) -> None:
    for name in given:
        check_known(name, load.NAMES, "load_policy takes no")
    load.settled(given)


def _trainer(given: dict[str, Any], folder: Path) -> None:
    known = check_config.written_down()
    for name, value in given.items():
        if names_function(name, value):
            callables.check_defined(value, folder)
        elif known and len(given) == 1:  # together they are checked when the settings are made
            with warnings.catch_warnings(action="ignore"):  # said then, too
                check_config.checked(renamed_args.todays(given, set(known), "RLOOConfig"), known)


def names_function(name: str, value: object) -> bool:
    """Whether a setting of the trainer's names a function of a file."""
    return name in FUNCTIONS and isinstance(value, str) and "." in value


def _evaluate(given: dict[str, Any], folder: Path) -> None:
    for name in given:
        check_known(name, MEASURED, "evaluate takes no")


def _beside(arguments: dict[str, Any], names: Iterable[str], folder: Path) -> dict[str, Any]:
    """The arguments, with whole paths for files and folders that are there beside the configuration."""
    paths = {name: folder / value for name in names if isinstance(value := arguments.get(name), str)}
    return arguments | {name: str(path) for name, path in paths.items() if path.exists()}
