"""What a run was started with, as ``rloo-kit export`` reads it: ``run.json`` in the run's folder.

For the trainer, which writes it before the first step: policy, task, rewards and settings in the words of a
configuration (``rloo_kit/cli/schema.py``), the source of rewards that were written in a notebook, and what cannot be
written down, with the reason and the mend.  What cannot be described stops no run.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rewards.made import made_by
from rewards.thinking import ThinkTokens
from rloo_kit.advantages import ESTIMATORS
from rloo_kit.hidden import without_hidden
from rloo_kit.policy import options
from rloo_kit.tasks.task import Origin, origin_of
from rloo_kit.train.config import RLOOConfig
from rloo_kit.train.own import HANDLERS
from rloo_kit.train.sources import CannotBeWrittenError, Sources, importable, is_installed
from rloo_kit.values import SECRET, without_secrets
from rloo_kit.watch.checkpoint import replace_text
from rloo_kit.watch.run_folder import NOTEBOOK, RECIPE

if TYPE_CHECKING:
    import trl
    from torch import nn

OWN_ESTIMATORS = frozenset(ESTIMATORS)
"""Those that have a name in any process: at import, before a user's function is added."""

NOT_DESCRIBED = ("callbacks", "optimizers", "peft_config", "reward_processing_classes", "quantization_config")
"""Arguments of the trainer that a configuration has no word for."""


class Asked(NamedTuple):
    """What a trainer was given, beside its model and its settings."""

    rewards: Sequence[object]
    train_dataset: object
    eval_dataset: object
    others: Sequence[str]

    @classmethod
    def of(cls, given: Mapping[str, Any], train_dataset: object) -> Asked:
        """From the trainer's arguments, with the dataset as it was given."""
        others = [name for name in NOT_DESCRIBED if given.get(name)]
        return cls(given["reward_funcs"], train_dataset, given.get("eval_dataset"), others)


@dataclass
class Recipe:
    """A run in the words of a configuration.

    Attributes:
        config: the sections that could be written.
        cannot: what could not: the section, what is in the way, what to do.
        notes: what is left out and changes no reward.
        sources: functions of a notebook.
    """

    config: dict[str, Any] = field(default_factory=dict)
    cannot: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sources: Sources = field(default_factory=Sources)

    def section(self, name: str, describe: Callable[[], Any]) -> None:
        """Describe a section, or say what is in the way."""
        try:
            self.config[name] = describe()
        except CannotBeWrittenError as error:
            self.cannot.append((name, error.what, error.todo))
        except Exception as error:  # a description must not cost the run
            what = f"{name} cannot be described: {type(error).__name__}: {error}"
            self.cannot.append((name, " ".join(what.split()), "write this section by hand"))

    def as_json(self) -> str:
        """The text of ``run.json``."""
        data = {"config": self.config, "cannot": self.cannot, "notes": self.notes}
        return without_hidden(json.dumps(data | {"functions": self.sources.text()}, indent=1))


def write(folder: Path, asked: Asked, model: nn.Module, args: trl.RLOOConfig, resumed: bool) -> None:
    """Write ``run.json`` into a run's folder."""
    text = described(asked, model, args, resumed).as_json()
    replace_text(folder / RECIPE, text)


def described(asked: Asked, model: nn.Module, args: trl.RLOOConfig, resumed: bool) -> Recipe:
    """A run in the words of a configuration, as far as there are words for it."""
    recipe, origin = Recipe(), origin_of(asked.train_dataset)
    correct = None if origin is None else origin.correct
    recipe.section("policy", lambda: _policy(recipe, model, resumed))
    recipe.section("task", lambda: _task(origin))
    recipe.section("rewards", lambda: [_reward(recipe, one, correct) for one in asked.rewards])
    recipe.section("trainer", lambda: settings_of(args, recipe.notes))
    measured = origin_of(asked.eval_dataset)
    if asked.eval_dataset is not None and (measured is None or measured.side != "held_out"):
        recipe.cannot.append(
            ("task", "eval_dataset is not the task's held-out side", "pass eval_dataset=task.held_out")
        )
    recipe.notes += [f"the trainer's {name}" for name in asked.others]
    return recipe


def _policy(recipe: Recipe, model: nn.Module, resumed: bool) -> dict[str, Any]:
    call = made_by(model)
    if call is None:
        raise CannotBeWrittenError(
            "the model did not come from load_policy",
            "load it with rloo_kit.load_policy(...), and train that",
        )
    saved = Path(call.arguments["name"])
    if saved.is_dir():
        recipe.notes.append(f"what the policy of {saved} may have learned between load_policy and this run")
    elif not resumed and _is_trained(model):
        raise CannotBeWrittenError(
            "the policy had been trained before this run",
            "policy.save(folder), and start the run with load_policy(folder)",
        )
    if further := [n for n in call.arguments if n not in options.NAMES]:
        raise CannotBeWrittenError(
            f"load_policy was given {', '.join(further)}, which a configuration does not take",
            f"leave {further[0]} out, or load the policy in a notebook",
        )
    return {name: _plain(value) for name, value in call.arguments.items()}


def _is_trained(model: nn.Module) -> bool:
    """Whether a LoRA has been changed since it was made: its second factor begins at 0."""
    return any(bool(p.detach().any()) for n, p in model.named_parameters() if "lora_B.default" in n)


def _task(origin: Origin | None) -> dict[str, Any]:
    if origin is None or origin.side != "train":
        raise CannotBeWrittenError(
            "train_dataset is no task's train side as it was made",
            "write its rows into a file (dataset.to_json), make tasks.from_file(file), and train on task.train",
        )
    return {origin.call.function: {name: _plain(value) for name, value in origin.call.arguments.items()}}


def _reward(recipe: Recipe, reward: object, correct: object) -> Any:
    """A reward as an entry of a configuration."""
    if reward is correct:
        return "task.correct"
    if (call := made_by(reward)) is not None:
        if call.function == "rewards.guarded":
            return _reward(recipe, call.arguments["reward"], correct)
        return {call.function: {n: _argument(recipe, v, correct) for n, v in call.arguments.items()}}
    if not callable(reward):
        raise CannotBeWrittenError(
            f"a reward is a {type(reward).__name__}", "load it in a .py file with rewards.reward_model"
        )
    if importable(reward):
        return f"{reward.__module__}.{reward.__qualname__}"  # type: ignore[attr-defined]
    if inspect.isfunction(reward) and (file := _file_of(reward)):
        return f"{file}:{reward.__name__}"
    return f"{NOTEBOOK}:{recipe.sources.add(reward)}"


def _file_of(function: Callable[..., Any]) -> Path | None:
    """The user's file that has the function under its name; a script's would run again if it were imported."""
    there = getattr(function, "__globals__", {})
    file = there.get("__file__")
    if not file or there.get("__name__") == "__main__" or there.get(function.__name__) is not function:
        return None
    return None if is_installed(function.__module__) else Path(file).absolute()


def _argument(recipe: Recipe, value: Any, correct: object) -> Any:
    """A factory's argument: a reward, several, tokens, or a plain value."""
    if isinstance(value, ThinkTokens):
        return dataclasses.asdict(value) | {"eos_ids": list(value.eos_ids)}
    if hasattr(value, "apply_chat_template"):
        return "policy.tokenizer"
    if isinstance(value, list | tuple) and any(map(callable, value)):
        return [_reward(recipe, one, correct) for one in value]
    return _reward(recipe, value, correct) if callable(value) else _plain(value)


def _plain(value: Any) -> Any:
    """A value as JSON and YAML have it.

    Raises:
        CannotBeWrittenError: they do not.
    """
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CannotBeWrittenError(
        f"a {type(value).__name__} cannot be written into a file", "give a number, a text, or a list of them"
    )


def settings_of(args: trl.RLOOConfig, notes: list[str]) -> dict[str, Any]:
    """The settings that were given.

    Raises:
        CannotBeWrittenError: one of them is no plain value, or it is not known which were given.
    """
    given = args.given() if isinstance(args, RLOOConfig) else {}
    if not given:
        raise CannotBeWrittenError(
            f"it is not known which settings this {type(args).__name__} was given",
            "make it as rloo_kit.RLOOConfig(...), not read from a file",
        )
    found = {}
    for name, value in given.items():
        named = name.endswith("_token") or (isinstance(value, str) and SECRET.search(name))
        if named or (isinstance(value, dict) and without_secrets(value) != value):
            notes.append(f"{name}, which belongs into .env")
        elif isinstance(value, str) and value in HANDLERS:
            notes.append(f"{name}, a function")
        elif name == "advantage_estimator" and value not in OWN_ESTIMATORS:
            raise CannotBeWrittenError(
                "advantage_estimator is a function", "take one of the kit's by its name"
            )
        else:
            found[name] = _plain(value)
    return found
