"""What a run was started with, for ``rloo-kit export`` (``_run.json``) and for its model card.

What cannot be described stops no run, and what looks like a secret is left out, with a word.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import textwrap
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from pydantic_core import to_jsonable_python

from rewards.call_records import made_by
from rewards.thinking import ThinkTokens
from rloo_kit.policy import load, model_card
from rloo_kit.policy.resolve import checkpoint_of_model
from rloo_kit.redact import holds_secret, is_secret, without_hidden
from rloo_kit.tasks.task import FILES, Origin, origin_of
from rloo_kit.train.check_config import ESTIMATORS, HANDLERS
from rloo_kit.train.checkpoint_integrity import replace_text
from rloo_kit.train.config import RLOOConfig
from rloo_kit.watch.run_folder import NOTEBOOK, RECIPE

if TYPE_CHECKING:
    import trl
    from torch import nn

    from rloo_kit.policy.model_card import Facts

HEAD = '''"""Reward functions of a run in a notebook, as they were when it was trained."""

from __future__ import annotations'''

LEFT_OUT = "it looks as if it holds a secret"

NOT_DESCRIBED = ("callbacks", "optimizers", "peft_config", "reward_processing_classes", "quantization_config")
"""Arguments of the trainer that a configuration has no word for."""

METHOD = "RLOO (Ahmadian et al. 2024, arXiv 2402.14740)"

SHOWN = (
    *("learning_rate", "lr_scheduler_type", "optim", "beta", "epsilon", "num_iterations", "temperature"),
    *("max_completion_length", "mask_truncated_completions", "seed"),
    *("kl_placement", "kl_estimator", "loss_aggregation", "importance_sampling_level"),
)
"""Of a configuration, what a model card says, beside the sizes of groups and batches."""

ROWS = 10_000  # of a dataset, that its digest is of


# --- in the words of a configuration ----------------------------------------------------------------------


class CannotBeWrittenError(Exception):
    """What is in the way, and what to do about it: its two arguments."""


@dataclass
class Recipe:
    """A run in the words of a configuration: sections that could be written; those that could not, with what is in the
    way and what to do; what is left out and changes no reward; and the source of a notebook's functions by name."""

    config: dict[str, Any] = field(default_factory=dict)
    cannot: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)

    def section(self, name: str, describe: Callable[..., Any], *given: Any) -> None:
        """Describe a section, or say what is in the way: a description must not cost the run."""
        try:
            self.config[name] = describe(*given)
        except CannotBeWrittenError as error:
            self.cannot.append((name, *error.args))
        except Exception as error:
            what = f"{name} cannot be described: {type(error).__name__}: {error}"
            self.cannot.append((name, " ".join(what.split()), "write this section by hand"))

    def as_json(self) -> str:
        """The text of ``_run.json``."""
        text = "\n\n\n".join([HEAD, *self.functions.values()]) + "\n" if self.functions else ""
        cannot = [[without_hidden(part) for part in one] for one in self.cannot]
        parts = {"config": self.config, "cannot": cannot, "notes": self.notes, "functions": text}
        return json.dumps(parts, indent=1)

    def add(self, function: Any) -> str:
        """Take a notebook's function in, or the import of a package's; returns its name.

        Raises:
            CannotBeWrittenError: its source is not known, or looks as if it holds a secret.
        """
        name = function.__name__
        if module := _package_of(function):
            self.functions[name] = f"from {module} import {name}"
            return str(name)
        source = _source(function)
        around = function.__globals__.keys() | {*function.__code__.co_freevars}
        needed = sorted((_used_by(function.__code__) & around) - {name})
        lines = [f"# {name} also needs {', '.join(needed)}: define them above."] if needed else []
        said = {key: vars(function).get(key) for key in ("judges", "columns")}  # what a reward says of itself
        text = "\n".join([*lines, source, *(f"{name}.{key} = {v!r}" for key, v in said.items() if v)])
        if needed and name not in self.functions:
            self.notes.append(f"{', '.join(needed)}, which {name} needs: define it beside {name}")
        if self.functions.setdefault(name, text) != text:
            raise CannotBeWrittenError(f"two functions are called {name!r}", f"rename one {name}")
        return name


def write(folder: Path, asked: Mapping[str, Any], args: trl.RLOOConfig, resumed: bool) -> None:
    """Write ``_run.json`` into a run's folder, of the arguments that its trainer was given."""
    recipe, origin = Recipe(), origin_of(asked["train_dataset"])
    correct = None if origin is None else origin.correct
    recipe.section("policy", _policy, recipe, asked["model"], resumed)
    recipe.section("task", _task, origin)
    recipe.section("rewards", lambda: [_reward(recipe, one, correct) for one in asked["reward_funcs"]])
    recipe.section("trainer", settings_of, args, recipe.notes)
    measured = origin_of(evaluated := asked.get("eval_dataset"))
    if evaluated is not None and (measured is None or measured.side != "held_out"):
        what = "eval_dataset is not the task's held-out side"
        recipe.cannot.append(("task", what, "pass eval_dataset=task.held_out"))
    recipe.notes += [f"the trainer's {name}" for name in NOT_DESCRIBED if asked.get(name)]
    replace_text(folder / RECIPE, recipe.as_json())


def _policy(recipe: Recipe, model: nn.Module, resumed: bool) -> dict[str, Any]:
    call = made_by(model)
    if call is None:
        todo = "load it with rloo_kit.load_policy(...), and train that"
        raise CannotBeWrittenError("the model did not come from load_policy", todo)
    saved = Path(call.arguments["name"])
    changed = (bool(p.detach().any()) for n, p in model.named_parameters() if "lora_B.default" in n)
    if saved.is_dir():
        recipe.notes.append(f"what the policy of {saved} may have learned between load_policy and this run")
    elif not resumed and any(changed):
        todo = "policy.save(folder), and start the run with load_policy(folder)"
        raise CannotBeWrittenError("the policy had been trained before this run", todo)
    if further := [n for n in call.arguments if n not in load.NAMES]:
        what = f"load_policy was given {', '.join(further)}, which a configuration does not take"
        raise CannotBeWrittenError(what, f"leave {further[0]} out, or load the policy in a notebook")
    return {name: _plain(value) for name, value in call.arguments.items()}


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
            todo = "read it from os.environ, in a .py file"
            raise CannotBeWrittenError(f"{secret} is left out: {LEFT_OUT}", todo)
        return {call.function: {n: _argument(recipe, v, correct) for n, v in call.arguments.items()}}
    if not callable(reward):
        todo = "load it in a .py file with rewards.reward_model"
        raise CannotBeWrittenError(f"a reward is a {type(reward).__name__}", todo)
    return _place_of(reward) or f"{NOTEBOOK}:{recipe.add(reward)}"


def _place_of(function: Any) -> str:
    """The file of the user's that has it, but not a notebook or a script."""
    there, name = getattr(function, "__globals__", {}), getattr(function, "__name__", "")
    module, file = there.get("__name__", ""), there.get("__file__")
    if not file or module == "__main__" or there.get(name) is not function or _package_of(function):
        return ""
    return f"{Path(file).absolute()}:{name}"


def _package_of(function: Any) -> str:
    """The module of an installed package that it can be imported from."""
    there, name = getattr(function, "__globals__", {}), getattr(function, "__name__", "")
    module = str(there.get("__name__", ""))
    installed = {"site-packages", "dist-packages"} & {*Path(there.get("__file__") or "").parts}
    own = module.partition(".")[0] in ("rloo_kit", "rewards")
    return module if there.get(name) is function and (own or installed) else ""


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
        what = f"the source of {called} is left out: {LEFT_OUT}"
        raise CannotBeWrittenError(what, "read it from os.environ")
    return source


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
    """A value as JSON and YAML have it."""

    def scalar(it: Any) -> Any:
        return str(it).removeprefix("torch.") if isinstance(it, torch.dtype) else it.item()

    try:
        found = to_jsonable_python(value, fallback=scalar)
    except (AttributeError, ValueError, TypeError):
        what = f"a {type(value).__name__} cannot be written into a file"
        raise CannotBeWrittenError(what, "give a number, a text, or a list of them") from None
    if holds_secret(str(found)):
        raise CannotBeWrittenError(
            f"a text is left out: {LEFT_OUT}", "read it from os.environ, in a .py file"
        )
    return found


def settings_of(args: trl.RLOOConfig, notes: list[str]) -> dict[str, Any]:
    """The settings that were given.

    Raises:
        CannotBeWrittenError: one of them is no plain value, or it is not known which were given.
    """
    given = args.given() if isinstance(args, RLOOConfig) else {}
    if not given:
        what = f"it is not known which settings this {type(args).__name__} was given"
        raise CannotBeWrittenError(what, "make it as rloo_kit.RLOOConfig(...), not read from a file")
    if given.get("advantage_estimator", ESTIMATORS[0]) not in ESTIMATORS:
        raise CannotBeWrittenError("advantage_estimator is a function", "take one of the kit's by its name")
    secret = [name for name, value in given.items() if is_secret(name, value)]
    functions = [name for name, value in given.items() if isinstance(value, str) and value in HANDLERS]
    notes += [f"{name}, which belongs into .env" for name in secret]
    notes += [f"{name}, a function" for name in functions]
    return {name: _plain(value) for name, value in given.items() if name not in (*secret, *functions)}


def _used_by(code: types.CodeType) -> set[str]:
    # inspect.getclosurevars does not look into comprehensions before Python 3.12.
    inner = (_used_by(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return {*code.co_names, *code.co_freevars}.union(*inner)


# --- for the model card -----------------------------------------------------------------------------------


def card(trainer: trl.RLOOTrainer) -> str:
    """The card of what a trainer saves."""
    form = "LoRA adapter" if hasattr(trainer.model, "peft_config") else "checkpoint, all weights trained"
    base = checkpoint_of_model(trainer.model, trainer.processing_class)
    results = getattr(trainer.model, "measured", None)  # by the command line, before training
    run = model_card.remembered(trainer.model, trainer.processing_class)
    return model_card.written(base, form, results, run=run)


def facts(trainer: trl.RLOOTrainer, of_data: Mapping[str, object]) -> Facts:
    """Heading -> name -> value, of the kit's trainer at any step and of :func:`data`'s facts."""
    args = trainer.args
    weights = zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
    lora = getattr(trainer.model, "peft_config", {}).get("default")
    trained = {"LoRA rank": lora.r, "LoRA alpha": lora.lora_alpha} if lora else {"trained": "all weights"}
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    chosen = {name: getattr(args, name) for name in SHOWN}
    plain = {name: getattr(value, "value", value) for name, value in chosen.items()}
    return {
        "Method": {
            "method": METHOD,
            "advantage estimator": args.advantage_estimator,
            "updates": f"{trainer.state.global_step} of {trainer.state.max_steps}",
            "completions of a prompt": args.num_generations,
            "completions of an update": rows,
        },
        "Data": of_data,
        "Rewards and their weights": {name: f"{weight:g}" for name, weight in weights},
        "Configuration": {n: f"{v:g}" if isinstance(v, float) else v for n, v in plain.items()} | trained,
    }


def data(dataset: object) -> dict[str, object]:
    """Name, size and digest of a dataset as it was given, which is what has a name; of a stream its name."""
    if (origin := origin_of(dataset)) is None:
        info = getattr(dataset, "info", None)
        name = getattr(info, "dataset_name", None) or getattr(info, "builder_name", None) or "made by hand"
    else:
        given = {n: v for n, v in origin.call.arguments.items() if v is not None}
        shown = ", ".join(f"{n}={Path(str(v)).name if n in FILES else v!r}" for n, v in given.items())
        name = f"tasks.{origin.call.function}({shown}), {origin.side}"
    if not isinstance(dataset, Dataset):
        return {"name": name, "prompts": "a stream"}
    return {"name": name, "prompts": len(dataset), "fingerprint": rows(dataset)}


def rows(dataset: Dataset) -> str:
    """A digest of a dataset's columns, its number of rows, and the first :data:`ROWS` of them.

    ``datasets``' own fingerprint is of how a dataset was made, and of generated rows another one in each process.

    >>> some = Dataset.from_dict({"prompt": list("abc")})
    >>> rows(some) == rows(Dataset.from_dict({"prompt": list("abcd")}).select(range(3)))
    True
    >>> rows(some) == rows(Dataset.from_dict({"prompt": list("abd")}))
    False
    """
    head = dataset.with_format("arrow")[:ROWS].to_pylist()
    said = repr([len(dataset), dataset.column_names, head])
    return hashlib.sha256(said.encode()).hexdigest()[:16]
