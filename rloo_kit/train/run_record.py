"""Record what a run was started with, for ``rloo-kit export`` (``_run.json``) and for its model card.

A part that cannot be described does not stop the run; what looks like a secret is left out, with a note.
"""

import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trl
from datasets import Dataset
from pydantic_core import to_jsonable_python
from torch import nn

from rewards.factory_calls import Call, made_by
from rloo_kit.advantages import BUILT_IN
from rloo_kit.errors import ConfigError
from rloo_kit.models import is_folder
from rloo_kit.policy import model_card
from rloo_kit.policy.model_card import Facts
from rloo_kit.policy.resolve import checkpoint_of_model
from rloo_kit.redact import is_secret, without_hidden
from rloo_kit.tasks.task import FILES, Origin, origin_of
from rloo_kit.train.check_config import HANDLERS
from rloo_kit.train.config import RLOOConfig
from rloo_kit.watch.read_run import NOTEBOOK

HEAD = '''"""Reward functions of a run in a notebook, as they were when it was trained.

They may need imports and names that were defined beside them: add those below the next line.
"""

from __future__ import annotations'''

LEFT_OUT = "it looks as if it holds a secret"

NOT_DESCRIBED = ("callbacks", "optimizers", "peft_config", "reward_processing_classes", "quantization_config")
"""Arguments of the trainer that a configuration cannot express."""

SHOWN = (
    *("learning_rate", "lr_scheduler_type", "optim", "beta", "epsilon", "num_iterations", "temperature"),
    *("max_completion_length", "mask_truncated_completions", "seed"),
    *("kl_placement", "kl_estimator", "loss_aggregation", "importance_sampling_level"),
)
"""Settings that a model card lists, besides the sizes of groups and batches."""

ROWS = 10_000  # first rows of a dataset, which its digest covers


@dataclass
class Recipe:
    """A run as a configuration that repeats it."""

    correct: object = None  # the task's own reward
    config: dict[str, Any] = field(default_factory=dict)
    cannot: list[list[str]] = field(default_factory=list)  # section, why it cannot be described, what to do
    notes: list[str] = field(default_factory=list)  # what is left out
    functions: dict[str, str] = field(default_factory=dict)  # written in a notebook: name -> source

    def section(self, name: str, describe: Callable[..., Any], *arguments: Any) -> None:
        """Describe a section, or record why it cannot be described, which must not stop the run."""
        try:
            self.config[name] = describe(*arguments)
        except ConfigError as error:
            self.cannot.append([name, error.what, error.todo])
        except Exception as error:
            what = without_hidden(f"{name} cannot be described: {type(error).__name__}: {error}")
            self.cannot.append([name, what, "write this section by hand"])

    def as_json(self) -> str:
        functions = "\n\n\n".join([HEAD, *self.functions.values()]) + "\n" if self.functions else ""
        parts = {"config": self.config, "cannot": self.cannot, "notes": self.notes, "functions": functions}
        return json.dumps(parts, indent=1)

    def policy(self, model: nn.Module, resumed: bool) -> dict[str, Any]:
        call = made_by(model)
        if call is None:
            todo = "load it with rloo_kit.load_policy(...), and train that"
            raise ConfigError("the model did not come from load_policy", todo=todo)
        name = call.arguments["name"]
        weights = (weight for key, weight in model.named_parameters() if "lora_B.default" in key)
        if is_folder(name, Path(name)):
            self.notes.append(f"what the policy of {name} may have learned between load_policy and this run")
        elif not resumed and any(bool(weight.detach().any()) for weight in weights):
            todo = "policy.save(folder), and start the run with load_policy(folder)"
            raise ConfigError("the policy had been trained before this run", todo=todo)
        return self.arguments(call)

    def task(self, origin: Origin | None) -> dict[str, Any]:
        if origin is None or origin.side != "train":
            todo = "write its rows into a file (dataset.to_json), make tasks.from_file(file), and train on task.train"
            todo += "; a run of rloo-kit train has its configuration in _run.yaml"
            raise ConfigError("train_dataset is not the unchanged train side of a task", todo=todo)
        return {origin.call.function: self.arguments(origin.call)}

    def arguments(self, call: Call) -> dict[str, Any]:
        if secret := next((name for name, value in call.arguments.items() if is_secret(name, value)), None):
            what = f"{secret} of {call.function} is left out: {LEFT_OUT}"
            raise ConfigError(what, todo="read it from os.environ, in a .py file")
        return {name: self.value(value) for name, value in call.arguments.items()}

    def value(self, value: Any) -> Any:
        """Describe a reward, with the rewards that it is made of, or another argument of a factory."""
        if value is not None and value is self.correct:
            return "task.correct"
        if (call := made_by(value)) is not None:
            guarded = call.function == "rewards.guarded"  # the trainer guards it again
            return self.value(call.arguments["reward"]) if guarded else {call.function: self.arguments(call)}
        if hasattr(value, "apply_chat_template"):
            return "policy.tokenizer"
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return self.function(value) if callable(value) else to_jsonable_python(value)

    def function(self, function: Any) -> str:
        """Return FILE:NAME of a function in the user's file; a notebook's function is copied into :data:`NOTEBOOK`."""
        name, module = getattr(function, "__name__", type(function).__name__), inspect.getmodule(function)
        file, there = getattr(module, "__file__", None), getattr(module, name, None) is function
        if module and file and there and module.__name__ != "__main__":
            return f"{Path(file).absolute()}:{name}"
        source = source_of(function, name)
        if self.functions.setdefault(name, source) != source:
            raise ConfigError(f"two functions are called {name!r}", todo=f"rename one {name}")
        return f"{NOTEBOOK}:{name}"


def recipe_of(given: Mapping[str, Any], args: trl.RLOOConfig, resumed: bool) -> Recipe:
    origin, held_out = origin_of(given["train_dataset"]), origin_of(given.get("eval_dataset"))
    recipe = Recipe(None if origin is None else origin.correct)
    recipe.section("policy", recipe.policy, given["model"], resumed)
    recipe.section("task", recipe.task, origin)
    recipe.section("rewards", recipe.value, given["reward_funcs"])
    recipe.section("trainer", settings_of, args, recipe.notes)
    if given.get("eval_dataset") is not None and (held_out is None or held_out.side != "held_out"):
        recipe.notes.append("eval_dataset: the task's held-out side is evaluated in its place")
    if recipe.functions:
        recipe.notes.append(f"imports and names that {', '.join(recipe.functions)} may use: add them beside")
    recipe.notes += [f"the trainer's {name}" for name in NOT_DESCRIBED if given.get(name)]
    return recipe


def source_of(function: Callable[..., Any], name: str) -> str:
    todo = "put it into a .py file as 'def reward(completions, **kwargs)', and pass it from there"
    if name == "<lambda>":
        raise ConfigError("a reward is a lambda, which has no name", todo=todo)
    try:
        source = textwrap.dedent(inspect.getsource(function)).rstrip()
    except (OSError, TypeError):
        raise ConfigError(f"the source of {name} is not known", todo=todo) from None
    if without_hidden(source) != source:
        raise ConfigError(f"the source of {name} is left out: {LEFT_OUT}", todo="read it from os.environ")
    return source


def digest_of_reward(reward: Any) -> str | None:
    """Hash a function's source or, if a factory of ``rewards`` made it, its arguments; None if they are not known."""
    call = made_by(reward)
    if call is not None and call.function == "rewards.guarded":
        return digest_of_reward(call.arguments["reward"])
    try:
        text = source_of(reward, reward.__name__) if call is None else json.dumps(Recipe().arguments(call))
    except (ConfigError, AttributeError, TypeError, ValueError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def settings_of(args: trl.RLOOConfig, notes: list[str]) -> dict[str, Any]:
    """Return the settings that were given, without secrets and functions; ``notes`` gets a note on each of these."""
    given = args.given() if isinstance(args, RLOOConfig) else {}
    if not given:
        what = f"it is not known which settings this {type(args).__name__} was given"
        raise ConfigError(what, todo="make it as rloo_kit.RLOOConfig(...), not read from a file")
    if given.get("advantage_estimator", BUILT_IN[0]) not in BUILT_IN:
        raise ConfigError("advantage_estimator is a function", todo="take one of the kit's by its name")
    left_out = {name: "which belongs into .env" for name, value in given.items() if is_secret(name, value)}
    left_out |= {"on_unhealthy": "a function"} if given.get("on_unhealthy") in HANDLERS else {}
    notes += [f"{name}, {why}" for name, why in left_out.items()]
    return {name: to_jsonable_python(value) for name, value in given.items() if name not in left_out}


def card(trainer: trl.RLOOTrainer) -> str:
    form = "LoRA adapter" if hasattr(trainer.model, "peft_config") else "checkpoint, all weights trained"
    base = checkpoint_of_model(trainer.model, trainer.processing_class)
    results = getattr(trainer.model, "measured", None)  # set by the command line before training
    run = model_card.remembered(trainer.model, trainer.processing_class)
    return model_card.written(base, form, results, run=run)


def card_facts(trainer: trl.RLOOTrainer, of_data: Mapping[str, object]) -> Facts:
    """Return heading -> name -> value for a model card, from the trainer at any step and :func:`data`'s facts."""
    args, lora = trainer.args, getattr(trainer.model, "peft_config", {}).get("default")
    weights = zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
    trained = {"LoRA rank": lora.r, "LoRA alpha": lora.lora_alpha} if lora else {"trained": "all weights"}
    shown = {name: getattr(getattr(args, name), "value", getattr(args, name)) for name in SHOWN}
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    return {
        "Method": {
            "method": "RLOO (Ahmadian et al. 2024, arXiv 2402.14740)",
            "advantage estimator": args.advantage_estimator,
            "updates": f"{trainer.state.global_step} of {trainer.state.max_steps}",
            "completions of a prompt": args.num_generations,
            "completions of an update": rows,
        },
        "Data": of_data,
        "Rewards and their weights": {name: f"{weight:g}" for name, weight in weights},
        "Configuration": {n: f"{v:g}" if isinstance(v, float) else v for n, v in shown.items()} | trained,
    }


def data(dataset: object) -> dict[str, object]:
    """Return name, size and digest of a dataset as it was given, since a copy has no name; of a stream, the name."""
    if (origin := origin_of(dataset)) is None:
        info = getattr(dataset, "info", None)
        name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None) or "made by hand"
    else:
        given = {n: v for n, v in origin.call.arguments.items() if v is not None}
        shown = ", ".join(f"{n}={Path(str(v)).name if n in FILES else v!r}" for n, v in given.items())
        name = f"tasks.{origin.call.function}({shown}), {origin.side}"
    if not isinstance(dataset, Dataset):
        return {"name": name, "prompts": "a stream"}
    return {"name": name, "prompts": len(dataset), "fingerprint": digest(dataset)}


def digest(dataset: Dataset) -> str:
    """Hash a dataset's columns, its number of rows, and the first :data:`ROWS` rows.

    ``datasets``' own fingerprint is of how a dataset was made, and for generated rows it differs between processes.
    """
    head = dataset.with_format("arrow")[:ROWS].to_pylist()
    content = repr([len(dataset), dataset.column_names, head])
    return hashlib.sha256(content.encode()).hexdigest()[:16]
