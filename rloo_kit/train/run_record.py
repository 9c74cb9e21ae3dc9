"""What a run was started with, as ``rloo-kit export`` reads it (``_run.json``), and what its model card says of it.

For the trainer: policy, task, rewards and settings in the words of a configuration (``rloo_kit/cli/config.py``), the
source of rewards that were written in a notebook, and what cannot be written down, with the reason and the mend.  What
cannot be described stops no run, and what looks like a secret is left out, with a word.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from datasets import Dataset

from rewards.made import made_by
from rewards.thinking import ThinkTokens
from rloo_kit.policy import load, model_card
from rloo_kit.policy.resolve import checkpoint_of_model
from rloo_kit.redact import holds_secret, without_hidden
from rloo_kit.tasks.task import FILES, Origin, origin_of
from rloo_kit.train import fingerprints
from rloo_kit.train.config import RLOOConfig
from rloo_kit.train.validate import ESTIMATORS, HANDLERS, PLAIN
from rloo_kit.values import is_secret
from rloo_kit.watch.manifest import replace_text
from rloo_kit.watch.run_folder import NOTEBOOK, RECIPE

if TYPE_CHECKING:
    import trl
    from torch import nn

    from rloo_kit.policy.model_card import Facts

HEAD = '''"""Reward functions of a run in a notebook, as they were when it was trained."""

from __future__ import annotations'''

LEFT_OUT = "it looks as if it holds a secret"

METHOD = "RLOO (Ahmadian et al. 2024, arXiv 2402.14740)"

SETTINGS = (
    *("learning_rate", "lr_scheduler_type", "optim", "beta", "epsilon", "num_iterations"),
    *("temperature", "max_completion_length", "mask_truncated_completions", "seed"),
)
"""Of a configuration, those that decide what was learned, beside the sizes of groups and batches."""

OWN = ("kl_placement", "kl_estimator", "loss_aggregation", "importance_sampling_level")
"""The kit's own that do, where they are not what plain TRL does."""

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
        functions: of a notebook: name -> source, with a line that says what else it needs.
    """

    config: dict[str, Any] = field(default_factory=dict)
    cannot: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)

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
        """The text of ``_run.json``."""
        text = "\n\n\n".join([HEAD, *self.functions.values()]) + "\n" if self.functions else ""
        cannot = [[without_hidden(part) for part in one] for one in self.cannot]
        parts = {"config": self.config, "cannot": cannot, "notes": self.notes, "functions": text}
        return json.dumps(parts, indent=1)

    def add(self, function: Any) -> str:
        """Take a notebook's function in; returns its name.

        Raises:
            CannotBeWrittenError: its source is not known, or looks as if it holds a secret.
        """
        source, name = _source(function), function.__name__
        needed = [used for used in fingerprints.used_by(function) if used != name]
        lines = [f"# {name} also needs {', '.join(needed)}: define them above."] if needed else []
        said = {key: vars(function).get(key) for key in ("judges", "columns")}  # what a reward says of itself
        text = "\n".join([*lines, source, *(f"{name}.{key} = {v!r}" for key, v in said.items() if v)])
        if needed and name not in self.functions:
            self.notes.append(f"{', '.join(needed)}, which {name} needs: define it beside {name}")
        if self.functions.setdefault(name, text) != text:
            raise CannotBeWrittenError(f"two functions are called {name!r}", f"rename one {name}")
        return name


class CannotBeWrittenError(Exception):
    """What is in the way, and what to do about it."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what)
        self.what, self.todo = what, todo


def write(folder: Path, asked: Asked, model: nn.Module, args: trl.RLOOConfig, resumed: bool) -> None:
    """Write ``_run.json`` into a run's folder."""
    replace_text(folder / RECIPE, described(asked, model, args, resumed).as_json())


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
        todo = "load it with rloo_kit.load_policy(...), and train that"
        raise CannotBeWrittenError("the model did not come from load_policy", todo)
    saved = Path(call.arguments["name"])
    if saved.is_dir():
        recipe.notes.append(f"what the policy of {saved} may have learned between load_policy and this run")
    elif not resumed and _is_trained(model):
        todo = "policy.save(folder), and start the run with load_policy(folder)"
        raise CannotBeWrittenError("the policy had been trained before this run", todo)
    if further := [n for n in call.arguments if n not in load.NAMES]:
        what = f"load_policy was given {', '.join(further)}, which a configuration does not take"
        raise CannotBeWrittenError(what, f"leave {further[0]} out, or load the policy in a notebook")
    return {name: _plain(value) for name, value in call.arguments.items()}


def _is_trained(model: nn.Module) -> bool:
    """Whether a LoRA has been changed since it was made: its second factor begins at 0."""
    return any(bool(p.detach().any()) for n, p in model.named_parameters() if "lora_B.default" in n)


def _task(origin: Origin | None) -> dict[str, Any]:
    if origin is None or origin.side != "train":
        todo = "write its rows into a file (dataset.to_json), make tasks.from_file(file), and train on task.train"
        raise CannotBeWrittenError("train_dataset is no task's train side as it was made", todo)
    return {origin.call.function: {name: _plain(value) for name, value in origin.call.arguments.items()}}


def _reward(recipe: Recipe, reward: object, correct: object) -> Any:
    """A reward as an entry of a configuration."""
    if reward is correct:
        return "task.correct"
    if (call := made_by(reward)) is not None:
        if call.function == "rewards.guarded":
            return _reward(recipe, call.arguments["reward"], correct)
        if secret := next((n for n, v in call.arguments.items() if is_secret(n, v)), None):
            raise CannotBeWrittenError(
                f"{secret} is left out: {LEFT_OUT}", "read it from os.environ, in a .py file"
            )
        return {call.function: {n: _argument(recipe, v, correct) for n, v in call.arguments.items()}}
    if not callable(reward):
        raise CannotBeWrittenError(
            f"a reward is a {type(reward).__name__}", "load it in a .py file with rewards.reward_model"
        )
    if fingerprints.importable(reward):
        return f"{reward.__module__}.{reward.__qualname__}"  # type: ignore[attr-defined]
    if inspect.isfunction(reward) and (file := _file_of(reward)):
        return f"{file}:{reward.__name__}"
    return f"{NOTEBOOK}:{recipe.add(reward)}"


def _source(function: Callable[..., Any]) -> str:
    called = getattr(function, "__name__", type(function).__name__)
    put = "put it into a .py file as 'def reward(completions, **kwargs)', and pass it from there"
    try:
        source = textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError) as error:
        raise CannotBeWrittenError(f"the source of {called} is not known", put) from error
    if called == "<lambda>":
        raise CannotBeWrittenError("a reward is a lambda, which has no name", put)
    if holds_secret(source):
        raise CannotBeWrittenError(
            f"the source of {called} is left out: {LEFT_OUT}", "read it from os.environ"
        )
    return source


def _file_of(function: Callable[..., Any]) -> Path | None:
    """The user's file that has the function under its name; a script's would run again if it were imported."""
    there = getattr(function, "__globals__", {})
    file = there.get("__file__")
    if not file or there.get("__name__") == "__main__" or there.get(function.__name__) is not function:
        return None
    return None if fingerprints.is_installed(function.__module__) else Path(file).absolute()


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
    if isinstance(value, str) and holds_secret(value):
        raise CannotBeWrittenError(
            f"a text is left out: {LEFT_OUT}", "read it from os.environ, in a .py file"
        )
    if value is None or isinstance(value, bool | int | float | str):
        return value
    what = f"a {type(value).__name__} cannot be written into a file"
    raise CannotBeWrittenError(what, "give a number, a text, or a list of them")


def settings_of(args: trl.RLOOConfig, notes: list[str]) -> dict[str, Any]:
    """The settings that were given.

    Raises:
        CannotBeWrittenError: one of them is no plain value, or it is not known which were given.
    """
    given = args.given() if isinstance(args, RLOOConfig) else {}
    if not given:
        what = f"it is not known which settings this {type(args).__name__} was given"
        raise CannotBeWrittenError(what, "make it as rloo_kit.RLOOConfig(...), not read from a file")
    found = {}
    for name, value in given.items():
        if is_secret(name, value):
            notes.append(f"{name}, which belongs into .env")
        elif isinstance(value, str) and value in HANDLERS:
            notes.append(f"{name}, a function")
        elif name == "advantage_estimator" and value not in ESTIMATORS:
            raise CannotBeWrittenError(
                "advantage_estimator is a function", "take one of the kit's by its name"
            )
        else:
            found[name] = _plain(value)
    return found


# --- model cards ------------------------------------------------------------------------------------------


def card(trainer: trl.RLOOTrainer) -> str:
    """The card of what a trainer saves."""
    form = "LoRA adapter" if hasattr(trainer.model, "peft_config") else "checkpoint, all weights trained"
    base = checkpoint_of_model(trainer.model, trainer.processing_class)
    results = getattr(trainer.model, "measured", None)  # by the command line, before training
    return model_card.written(base, form, results, run=model_card.remembered(trainer.model))


def facts(trainer: trl.RLOOTrainer, of_data: Mapping[str, object]) -> Facts:
    """Heading -> name -> value.

    Args:
        trainer: the kit's, at any step.
        of_data: :func:`data`'s.
    """
    args, own, plain = trainer.args, trainer.own, PLAIN
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    weights = zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
    changed = {name: getattr(own, name) for name in OWN if getattr(own, name) != getattr(plain, name)}
    return {
        "Method": {
            "method": METHOD,
            "advantage estimator": own.advantage_estimator,
            "updates": f"{trainer.state.global_step} of {trainer.state.max_steps}",
            "completions of a prompt": args.num_generations,
            "completions of an update": rows,
        },
        "Data": of_data,
        "Rewards and their weights": {name: f"{weight:g}" for name, weight in weights},
        "Configuration": {name: _shown(getattr(args, name)) for name in SETTINGS}
        | changed
        | _trained(trainer.model),
    }


def _shown(value: Any) -> object:
    value = getattr(value, "value", value)  # transformers has enums
    return f"{value:g}" if isinstance(value, float) else value


def data(dataset: object) -> dict[str, object]:
    """Name, size and fingerprint of a dataset as it was given, which is what has a name; of a stream its name."""
    if not isinstance(dataset, Dataset):
        return {"name": _name(dataset), "prompts": "a stream"}
    return {
        "name": _name(dataset),
        "prompts": len(dataset),
        "fingerprint": fingerprints.rows(dataset),
    }


def _name(dataset: object) -> str:
    """The call that made a task's dataset, or the name under which it was loaded."""
    if (origin := origin_of(dataset)) is None:
        info = getattr(dataset, "info", None)
        named = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None)
        return str(named or "made by hand")
    shown = {
        name: Path(str(value)).name if name in FILES and value is not None else value
        for name, value in origin.call.arguments.items()
    }
    given = ", ".join(f"{name}={value!r}" for name, value in shown.items() if value is not None)
    return f"tasks.{origin.call.function}({given}), {origin.side}"


def _trained(model: Any) -> dict[str, object]:
    config = getattr(model, "peft_config", {}).get("default")
    if config is None:
        return {"trained": "all weights"}
    return {"LoRA rank": config.r, "LoRA alpha": config.lora_alpha}
