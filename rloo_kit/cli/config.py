"""A run as one YAML file, checked in two looks, each of which says all faults at once, with file, line and key.

For every verb that takes a ``CONFIG.yaml``.  Its sections::

    policy:    load_policy's arguments
    task:      a name of rloo_kit.tasks with its arguments, or a file of questions and answers
    rewards:   a list, each entry in one of the forms of rloo_kit.cli.grammar
    trainer:   RLOOConfig's fields
    evaluate:  evaluate's n, samples, greedy, temperature, ...; measures before and after training
    save:      the adapter's folder

:func:`load_config` looks at names, types and ranges, without torch and unsloth, whose imports take seconds, and before
any code runs; :attr:`Config.completed` runs the .py files that are named, and looks at what has to go together.  Types
and ranges are those of the functions that take them.  What the configuration reads is looked for beside it, what it
writes in the working directory.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit import tasks, values
from rloo_kit.cli.document import Document, Key, read, written
from rloo_kit.cli.grammar import IN_FILE, Grammar, Make, meant
from rloo_kit.errors import ConfigError, RLOOKitError
from rloo_kit.policy import load
from rloo_kit.tasks.task import FILES
from rloo_kit.train import renamed_args, validate
from rloo_kit.values import Count, Natural, PositiveShare, Seed, Share, Temperature

if TYPE_CHECKING:
    from rloo_kit.memory.plan import Plan
    from rloo_kit.train.config import RLOOConfig

SECTIONS = ("policy", "task", "rewards", "trainer", "evaluate", "save")
MEASURED: Mapping[str, Any] = {
    **{
        "n": Count | None,
        "samples": Count,
        "greedy": bool,
        "max_new_tokens": Count,
        "batch_size": Count | None,
    },
    **{
        "seed": Seed,
        "temperature": Temperature,
        "top_p": PositiveShare,
        "top_k": Natural,
        "min_p": Share | None,
    },
    "chat_template_kwargs": dict[str, object] | None,
}
"""What ``evaluate`` takes of a configuration, as it and ``Policy.generate`` have it; their modules import torch."""

FUNCTIONS = ("advantage_estimator", "on_unhealthy")
"""Settings of the trainer's that may be a function of a file."""


@dataclass(frozen=True)
class Config:
    """A configuration whose names and types are right.

    Attributes:
        document: the file it was read from.
        policy: ``load_policy``'s arguments.
        task: a name of :mod:`rloo_kit.tasks`.
        task_arguments: that function's, without the policy.
        evaluate: ``evaluate``'s arguments, as far as they are not those of training; None where nothing is measured.
        save: the folder for the adapter, or None.
    """

    document: Document
    policy: dict[str, Any]
    task: str
    task_arguments: dict[str, Any]
    evaluate: dict[str, Any] | None
    save: str | None

    @property
    def trainer(self) -> RLOOConfig:
        """The trainer's settings; raises as :attr:`completed` does."""
        return self.completed[0]

    @property
    def template(self) -> dict[str, Any]:
        """The arguments of the chat template in training."""
        return dict(self.trainer.chat_template_kwargs or {})

    @cached_property
    def completed(self) -> tuple[RLOOConfig, list[Make]]:
        """The trainer's settings, and how to make each reward.

        Raises:
            ExceptionGroup: of a ConfigError for each fault.
        """
        look = _Look(self.document, runs_files=True)
        rewards, trainer = look.rewards(), look.settings()
        if self.evaluate:
            from rloo_kit.evaluation.evaluate import check_asked

            with look.noted(("evaluate",)):
                check_asked(**self.evaluate)
        look.end()
        assert trainer is not None, "without a fault it was made"
        return trainer, rewards

    def resolved(self) -> str:
        """The configuration as YAML, with what ``--set`` changed, whole paths of what it reads, and no secret."""

        def whole(text: str) -> str:
            match = IN_FILE.fullmatch(text)
            return f"{self.document.folder / match['file']}:{match['name']}" if match else text

        data = {name: self.document.data[name] for name in SECTIONS if name in self.document.data}
        data |= {name: mapped(data[name], whole) for name in ("rewards", "trainer") if name in data}
        data |= {"policy": self.policy, "task": {self.task: self.task_arguments}}
        for name in {"policy", "trainer"} & data.keys():
            given = (data[name] or {}).items()
            data[name] = {n: value for n, value in given if not values.is_secret(str(n), value)}
        return written(values.without_secrets(data))


def mapped(entry: Any, change: Callable[[str], str]) -> Any:
    """The same lists and names, with every text in them changed."""
    if isinstance(entry, dict):
        return {mapped(name, change): mapped(value, change) for name, value in entry.items()}
    if isinstance(entry, list):
        return [mapped(one, change) for one in entry]
    return change(entry) if isinstance(entry, str) else entry


def load_config(file: str | os.PathLike[str], settings: Sequence[str] = ()) -> Config:
    """A configuration, its names, types and ranges checked.

    Raises:
        ConfigError: the file cannot be read.
        ExceptionGroup: of a ConfigError for each fault, with the file, the line and the key.
    """
    look = _Look(read(file, settings), runs_files=False)
    look.all()
    look.end()
    data, folder = look.data, look.document.folder
    ((task, arguments),) = data["task"].items()
    return Config(
        document=look.document,
        policy=_beside(data.get("policy") or {}, ("name", "model_name"), folder),
        task=task,
        task_arguments=_beside(arguments, FILES, folder),
        evaluate=data.get("evaluate"),
        save=data.get("save"),
    )


def _beside(arguments: dict[str, Any], names: Iterable[str], folder: Path) -> dict[str, Any]:
    """The arguments, with whole paths for files and folders that are there beside the configuration."""
    paths = {n: folder / v for n in names if isinstance(v := arguments.get(n), str)}
    return arguments | {name: str(path) for name, path in paths.items() if path.exists()}


class _Look:
    """Looks at a document and keeps what is wrong with it."""

    def __init__(self, document: Document, runs_files: bool) -> None:
        self.document, self.data = document, document.data
        self.faults = list(document.faults)
        self.grammar = Grammar(document.folder, self.fault, runs_files)

    def fault(self, key: Key, what: str, todo: str) -> None:
        self.faults.append(ConfigError(what, where=self.document.where(key), todo=todo))

    def end(self) -> None:
        if self.faults:
            raise ExceptionGroup(f"{len(self.faults)} faults in {self.document.name}", self.faults)

    @contextmanager
    def noted(self, key: Key) -> Iterator[None]:
        """Keep an error as a fault at this place."""
        try:
            yield
        except RLOOKitError as error:
            self.fault(key, error.what, error.todo)

    def all(self) -> None:
        """Every name, type and range."""
        for name in self.data:
            if name not in SECTIONS:
                self.fault(
                    (name,), f"there is no section {name!r}", meant(name, SECTIONS, "the sections are")
                )
        for name in ("task", "rewards"):
            if not self.data.get(name):
                self.fault((name,), f"the configuration names no {name}", f"add a section '{name}:'")
        for check in (self.policy, self.trainer, self.evaluate):
            name = check.__name__
            given = self.data.get(name)
            if not isinstance(given, dict | None):
                todo = f"write them under '{name}:', or leave it out for none"
                self.fault((name,), f"{name} is a section of names and values", todo)
                continue
            before = len(self.faults)
            for argument, value in (given or {}).items():
                with self.noted((name, argument)):
                    check(str(argument), value)
            if name == "policy" and len(self.faults) == before:
                with self.noted((name,)):
                    load.settled(given or {})
        self.task(self.data.get("task"))
        self.rewards()
        if not isinstance(self.data.get("save"), str | None):
            self.fault(("save",), "save is a folder", "write save: out/adapter")

    def policy(self, name: str, value: object) -> None:
        if name not in load.NAMES:
            todo = meant(name, load.NAMES, "it takes", load.DEFAULTS)
            raise ConfigError(f"load_policy takes no {name}", todo=todo)
        load.settled({name: value})

    def evaluate(self, name: str, value: object) -> None:
        if name not in MEASURED:
            raise ConfigError(f"evaluate takes no {name}", todo=meant(name, MEASURED))
        values.check({name: value}, MEASURED, "evaluate")

    def trainer(self, name: str, value: object) -> None:
        """By the names that ``RLOOConfig`` takes, older ones and GRPO's among them."""
        if name in FUNCTIONS and isinstance(value, str) and "." in value:
            self.grammar.named(value)
        elif known := validate.written_down():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # said when the settings are made
                today = renamed_args.todays({name: value}, set(known), "RLOOConfig")
            validate.checked(today, known)

    def task(self, given: object) -> None:
        if not given:
            return
        if not isinstance(given, dict) or len(given) != 1:
            self.fault(("task",), "a task is one name with its arguments", "write 'addition: {n_train: 500}'")
            return
        ((name, arguments),) = given.items()
        makers = [one for one in tasks.__all__ if inspect.isfunction(getattr(tasks, one))]
        if name in makers:
            self.grammar.call(getattr(tasks, name), arguments, ("task", name), f"tasks.{name}", ("policy",))
        else:
            self.fault(("task", name), f"there is no task {name!r}", meant(name, makers, "a file, or one of"))

    def rewards(self) -> list[Make]:
        given = self.data.get("rewards") or []
        if isinstance(given, list):
            return [self.grammar.reward(entry, ("rewards", index)) for index, entry in enumerate(given)]
        self.fault(("rewards",), "rewards are a list", "begin each with '- ', as in '- task.correct'")
        return []

    def settings(self) -> RLOOConfig | None:
        """The trainer's settings, made; what it warns of is said with the file and its line."""
        from rloo_kit.train.config import RLOOConfig

        given = {str(name): value for name, value in (self.data.get("trainer") or {}).items()}
        for name in FUNCTIONS:
            if isinstance(value := given.get(name), str) and IN_FILE.fullmatch(value):
                del given[name]
                with self.noted(("trainer", name)):
                    given[name] = self.grammar.named(value)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                made = RLOOConfig(**given)
        except RLOOKitError as error:
            self.fault(self._culprit(f"{error.what} {error.where}"), error.what, error.todo)
            return None
        for one in said:
            file, _, line = self.document.where(self._culprit(str(one.message))).partition(", line ")
            number = line.partition(",")[0]
            warnings.warn_explicit(one.message, one.category, file, int(number) if number.isdecimal() else 1)
        return made

    def _culprit(self, said: str) -> Key:
        """The setting that a message names."""
        named = [str(name) for name in self.data.get("trainer") or () if str(name) in said]
        return ("trainer", max(named, key=len)) if named else ("trainer",)


def planned(config: Config, card: str | None = None, prompt_tokens: int | None = None) -> Plan:
    """The memory of a run, from its policy's shape alone."""
    import rloo_kit
    from rloo_kit.memory.hardware import device_of

    asked = load.settled(config.policy)
    shape: dict[str, Any] = {"load_in_4bit": asked.four_bit, "gradient_checkpointing": asked.checkpointing}
    if asked.lora is None:
        shape["full_finetuning"] = True
    else:
        shape |= {"lora_rank": asked.lora.rank, "target_modules": asked.lora.modules}
    vllm = ("fast_inference", "gpu_memory_utilization")
    shape |= {name: asked.further[name] for name in vllm if name in asked.further}
    device, trainer = device_of(card), config.trainer
    name = asked.name or (rloo_kit.fit(device).model.checkpoint.name if device.on_gpu else "tiny")
    return rloo_kit.plan(name, trainer, device, prompt_tokens=prompt_tokens, **shape)
