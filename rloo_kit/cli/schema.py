"""A run as one YAML file, checked as a whole before anything is loaded.

For every verb that takes a ``CONFIG.yaml``.  Its sections::

    policy:    load_policy's arguments
    task:      a name of rloo_kit.tasks with its arguments, or a file of questions and answers
    rewards:   a list, each entry in one of the forms of rloo_kit.cli.calls
    trainer:   RLOOConfig's fields
    evaluate:  evaluate's n, samples, greedy, temperature, ...; measures before and after training
    save:      the adapter's folder

No name, type or range is written here: they are those of the functions that take them.  What the configuration reads is
looked for beside it, what it writes in the working directory.
"""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rloo_kit import tasks
from rloo_kit.cli import calls
from rloo_kit.cli.document import Document, Key, read, written
from rloo_kit.errors import ConfigError, RLOOKitError
from rloo_kit.evaluation.compare import SAMPLING
from rloo_kit.evaluation.evaluate import check_asked, evaluate
from rloo_kit.memory.hardware import device_of
from rloo_kit.memory.planning import Plan, fit, plan
from rloo_kit.policy import options
from rloo_kit.policy.policy import Policy
from rloo_kit.tasks.task import FILES
from rloo_kit.train import fields
from rloo_kit.train.config import RLOOConfig, known_names
from rloo_kit.train.names import CONFIG_GONE, CONFIG_OLD, modern_names

SECTIONS = ("policy", "task", "rewards", "trainer", "evaluate", "save")
NEEDED = ("task", "rewards")
GIVEN_BY_KIT = {
    "evaluate": ("policy", "dataset", "reward_funcs", "correct", "reward_weights", "generate"),
    "task": ("policy",),
}
"""Parameters that a configuration does not set: the kit gives them itself."""


@dataclass(frozen=True)
class Config:
    """A configuration that holds.

    Attributes:
        document: the file it was read from.
        policy: ``load_policy``'s arguments.
        task: a name of :mod:`rloo_kit.tasks`.
        task_arguments: that function's, without the policy.
        rewards: entries, as :mod:`.calls` reads them.
        trainer: the trainer's settings.
        evaluate: ``evaluate``'s arguments, as far as they are not those of training; None where nothing is measured.
        save: the folder for the adapter, or None.
    """

    document: Document
    policy: dict[str, Any]
    task: str
    task_arguments: dict[str, Any]
    rewards: list[Any]
    trainer: RLOOConfig
    evaluate: dict[str, Any] | None
    save: str | None

    def resolved(self) -> str:
        """The configuration as YAML, with what ``--set`` changed, and with whole paths of what it reads."""
        data = {name: self.document.data[name] for name in SECTIONS if name in self.document.data}
        data |= {"policy": self.policy, "task": {self.task: self.task_arguments}}
        data["rewards"] = [absolute(entry, self.document.folder) for entry in self.rewards]
        return written(data)


def load_config(file: str | os.PathLike[str], settings: Sequence[str] = ()) -> Config:
    """A configuration, every part of it checked.

    Raises:
        ConfigError: the file cannot be read, or a setting has no place.
        ExceptionGroup: of a ConfigError for each fault, with the file, the line and the key.
    """
    checker = _Checker(read(file, settings))
    checker.run()
    if checker.faults:
        raise ExceptionGroup(f"{len(checker.faults)} faults in {os.fspath(file)}", checker.faults)
    data, trainer = checker.document.data, checker.trainer
    assert trainer is not None, "without a fault it was made"
    task, arguments = next(iter(data["task"].items()))
    return Config(
        document=checker.document,
        policy=_beside(data.get("policy") or {}, ("name", "model_name"), checker.document.folder),
        task=task,
        task_arguments=_beside(arguments, FILES, checker.document.folder),
        rewards=data["rewards"],
        trainer=trainer,
        evaluate=data.get("evaluate"),
        save=data.get("save"),
    )


def _beside(arguments: dict[str, Any], names: Iterable[str], folder: Path) -> dict[str, Any]:
    """The arguments, with whole paths for files and folders that are there beside the configuration."""
    paths = {n: folder / v for n in names if isinstance(v := arguments.get(n), str)}
    return arguments | {name: str(path) for name, path in paths.items() if path.exists()}


def absolute(entry: Any, folder: Path) -> Any:
    """A reward's entry with whole paths of its files."""
    if isinstance(entry, str) and (match := calls.IN_FILE.fullmatch(entry)):
        return f"{folder / match['file']}:{match['name']}"
    if isinstance(entry, list):
        return [absolute(one, folder) for one in entry]
    if isinstance(entry, dict):
        return {absolute(name, folder): absolute(value, folder) for name, value in entry.items()}
    return entry


@dataclass
class _Checker:
    """Walks over a document and keeps what is wrong with it."""

    document: Document
    faults: list[ConfigError] = field(default_factory=list)
    trainer: RLOOConfig | None = None

    def fault(self, key: Key, what: str, todo: str) -> None:
        self.faults.append(ConfigError(what, where=self.document.where(key), todo=todo))

    def run(self) -> None:
        data = self.document.data
        for name in data:
            if name not in SECTIONS:
                near = difflib.get_close_matches(str(name), SECTIONS, n=1)
                todo = f"did you mean {near[0]}?" if near else f"the sections are {', '.join(SECTIONS)}"
                self.fault((name,), f"there is no section {name!r}", todo)
        for name in NEEDED:
            if not data.get(name):
                self.fault((name,), f"the configuration names no {name}", f"add a section '{name}:'")
        for name in ("policy", "trainer", "evaluate"):
            if not isinstance(data.get(name), dict | None):
                todo = f"write them under '{name}:', or leave it out for none"
                self.fault((name,), f"{name} is a section of names and values", todo)
            elif check := getattr(self, f"_{name}"):
                check(data.get(name) or {})
        self._task(data.get("task"))
        self._rewards(data.get("rewards"))
        if not isinstance(data.get("save"), str | None):
            self.fault(("save",), "save is a folder", "write save: out/adapter")

    def _call(
        self, target: Callable[..., Any], arguments: object, key: Key, name: str, taken: Sequence[str] = ()
    ) -> None:
        found = calls.problems_of_call(target, arguments, key, self.document.folder, name, tuple(taken))
        for problem in found:
            self.fault(*problem)

    def _policy(self, given: dict[str, Any]) -> None:
        """Each argument alone, and where each holds, all of them together."""
        before, known = len(self.faults), options.NAMES
        for name, value in given.items():
            key = ("policy", name)
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                todo = f"did you mean {near[0]}?" if near else f"it takes {', '.join(options.DEFAULTS)}"
                self.fault(key, f"load_policy takes no {name}", todo)
            else:
                with self._noted(key):
                    options.settled({name: value})
        if len(self.faults) == before:
            with self._noted(("policy",)):
                options.settled(given)

    def _task(self, given: object) -> None:
        if not given:
            return
        if not calls.is_call(given):
            self.fault(("task",), "a task is one name with its arguments", "write 'addition: {n_train: 500}'")
            return
        name, arguments = next(iter(given.items()))  # type: ignore[attr-defined]
        makers = [one for one in tasks.__all__ if inspect.isfunction(getattr(tasks, one))]
        if name not in makers:
            near = difflib.get_close_matches(str(name), makers, n=1)
            todo = (
                f"did you mean {near[0]}?" if near else f"the tasks are {', '.join(makers)}, or give a file"
            )
            self.fault(("task", name), f"there is no task {name!r}", todo)
        else:
            where = ("task", name)
            self._call(getattr(tasks, name), arguments, where, f"tasks.{name}", GIVEN_BY_KIT["task"])

    def _rewards(self, given: object) -> None:
        if given and not isinstance(given, list):
            self.fault(("rewards",), "rewards are a list", "begin each with '- ', as in '- task.correct'")
            return
        for index, entry in enumerate(given or ()):  # type: ignore[arg-type, var-annotated]
            found = calls.problems_of_reward(entry, self.document.folder, ("rewards", index))
            for problem in found:
                self.fault(*problem)

    def _evaluate(self, given: dict[str, Any]) -> None:
        """Each argument alone, those of the sampling among them, and where each holds, all of them together."""
        before, key = len(self.faults), ("evaluate",)
        drawn = {name: value for name, value in given.items() if name in SAMPLING}
        others = {name: value for name, value in given.items() if name not in SAMPLING}
        self._call(evaluate, others, key, "evaluate", GIVEN_BY_KIT["evaluate"])
        not_drawn = [name for name in inspect.signature(Policy.generate).parameters if name not in SAMPLING]
        self._call(Policy.generate, drawn, key, "evaluate", not_drawn)
        if len(self.faults) == before:
            with self._noted(key):
                check_asked(**given)

    def _trainer(self, given: dict[str, Any]) -> None:
        """Each setting alone, and where each holds, all of them together."""
        before = len(self.faults)
        for name, value in given.items():
            with self._noted(("trainer", name)):
                _checked(name, value)
        if len(self.faults) > before:
            return
        try:
            self.trainer = RLOOConfig(**given)
        except RLOOKitError as error:
            said = f"{error.what} {error.where}"
            culprit = max((name for name in given if str(name) in said), key=len, default=None)
            self.fault(("trainer", culprit) if culprit else ("trainer",), error.what, error.todo)

    @contextmanager
    def _noted(self, key: Key) -> Iterator[None]:
        """Keep an error as a fault at this place."""
        try:
            yield
        except RLOOKitError as error:
            self.fault(key, error.what, error.todo)


def _checked(name: str, value: object) -> None:
    """That there is such a setting of the trainer, and that it takes the value."""
    modern = modern_names({name: value}, CONFIG_OLD, CONFIG_GONE, known_names(), "RLOOConfig", stacklevel=2)
    fields.checked(modern)


def planned(config: Config, card: str | None = None, prompt_tokens: int | None = None) -> Plan:
    """The memory of a run, from its policy's shape alone."""
    asked = options.settled(config.policy)
    shape: dict[str, Any] = {"load_in_4bit": asked.four_bit, "gradient_checkpointing": asked.checkpointing}
    if asked.lora is None:
        shape["full_finetuning"] = True
    else:
        shape |= {"lora_rank": asked.lora.rank, "target_modules": asked.lora.modules}
    vllm = ("fast_inference", "gpu_memory_utilization")
    shape |= {name: asked.further[name] for name in vllm if name in asked.further}
    device = device_of(card)
    name = asked.name or (fit(device).model.checkpoint.name if device.on_gpu else "tiny")
    return plan(name, config.trainer, device, prompt_tokens=prompt_tokens, **shape)
