"""What a run is made of: for ``rloo-kit export`` (``_run.json``), for its model card, and to compare on resuming it.

What cannot be described stops no run, and what looks like a secret is left out, with a word.  Digests tell whether two
things are the same, and nothing of them; a large one is looked at in part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import json
import os
import pkgutil
import sys
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from datasets import Dataset

from rewards.made import made_by
from rewards.thinking import ThinkTokens
from rloo_kit.errors import ConfigError
from rloo_kit.memory.specs import is_lora, quantisation_tensors
from rloo_kit.policy import load, model_card
from rloo_kit.policy.resolve import checkpoint_of_model
from rloo_kit.redact import holds_secret, without_hidden
from rloo_kit.tasks.task import FILES, Origin, origin_of
from rloo_kit.train.config import RLOOConfig
from rloo_kit.train.validate import ESTIMATORS, HANDLERS
from rloo_kit.values import is_secret, without_secrets
from rloo_kit.watch.manifest import replace_text
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


class CannotBeWrittenError(Exception):
    """What is in the way, and what to do about it."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what)
        self.what, self.todo = what, todo


# --- in the words of a configuration ----------------------------------------------------------------------


@dataclass
class Recipe:
    """A run in the words of a configuration: sections that could be written; those that could not, with what is in the
    way and what to do; what is left out and changes no reward; and the source of a notebook's functions by name."""

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
        needed = [used for used in used_by(function) if used != name]
        lines = [f"# {name} also needs {', '.join(needed)}: define them above."] if needed else []
        said = {key: vars(function).get(key) for key in ("judges", "columns")}  # what a reward says of itself
        text = "\n".join([*lines, source, *(f"{name}.{key} = {v!r}" for key, v in said.items() if v)])
        if needed and name not in self.functions:
            self.notes.append(f"{', '.join(needed)}, which {name} needs: define it beside {name}")
        if self.functions.setdefault(name, text) != text:
            raise CannotBeWrittenError(f"two functions are called {name!r}", f"rename one {name}")
        return name


def write(folder: Path, asked: Asked, model: nn.Module, args: trl.RLOOConfig, resumed: bool) -> None:
    """Write ``_run.json`` into a run's folder."""
    recipe, origin = Recipe(), origin_of(asked.train_dataset)
    correct = None if origin is None else origin.correct
    recipe.section("policy", lambda: _policy(recipe, model, resumed))
    recipe.section("task", lambda: _task(origin))
    recipe.section("rewards", lambda: [_reward(recipe, one, correct) for one in asked.rewards])
    recipe.section("trainer", lambda: settings_of(args, recipe.notes))
    measured = origin_of(asked.eval_dataset)
    if asked.eval_dataset is not None and (measured is None or measured.side != "held_out"):
        what = "eval_dataset is not the task's held-out side"
        recipe.cannot.append(("task", what, "pass eval_dataset=task.held_out"))
    recipe.notes += [f"the trainer's {name}" for name in asked.others]
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
    if importable(reward):
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
        what = f"the source of {called} is left out: {LEFT_OUT}"
        raise CannotBeWrittenError(what, "read it from os.environ")
    return source


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
        CannotBeWrittenError: they do not, or it looks as if it holds a secret.
    """
    try:
        text = json.dumps(value, default=_of_json)
    except TypeError:
        what = f"a {type(value).__name__} cannot be written into a file"
        raise CannotBeWrittenError(what, "give a number, a text, or a list of them") from None
    if holds_secret(text):
        raise CannotBeWrittenError(
            f"a text is left out: {LEFT_OUT}", "read it from os.environ, in a .py file"
        )
    return json.loads(text)


def _of_json(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if getattr(value, "ndim", None) == 0:
        return value.item()
    raise TypeError


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


# --- functions --------------------------------------------------------------------------------------------


def used_by(function: types.FunctionType) -> dict[str, Any]:
    """What a function takes from outside, by name: of its module, and of a function around it.

    ``inspect.getclosurevars`` does not look into comprehensions and inner functions, before Python 3.13.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    around = {name: cell.cell_contents for name, cell in cells}
    names = sorted(_names(function.__code__) & function.__globals__.keys())
    return {name: function.__globals__[name] for name in names} | around


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(one) for one in code.co_consts if isinstance(one, types.CodeType))
    return set(code.co_names).union(*inner)


def importable(value: object) -> bool:
    """Whether it can be had by its name from an installed module."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not is_installed(module):
        return False
    try:
        return pkgutil.resolve_name(f"{module}:{name}") is value
    except (ImportError, AttributeError, ValueError):
        return False


def is_installed(module: str) -> bool:
    """Whether a module is Python's own, the kit's, or in the installation, and so found from any folder."""
    top = module.partition(".")[0]
    if top in ("rloo_kit", "rewards") or top in sys.stdlib_module_names:
        return True
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # of __main__, too
        return False
    return spec is not None and bool({"site-packages", "dist-packages"} & {*Path(spec.origin or "").parts})


# --- for the model card -----------------------------------------------------------------------------------

METHOD = "RLOO (Ahmadian et al. 2024, arXiv 2402.14740)"

SHOWN = (
    *("learning_rate", "lr_scheduler_type", "optim", "beta", "epsilon", "num_iterations"),
    *("temperature", "max_completion_length", "mask_truncated_completions", "seed"),
)
OWN = ("kl_placement", "kl_estimator", "loss_aggregation", "importance_sampling_level")
"""Of a configuration, what decides what was learned, beside the sizes of groups and batches."""


def card(trainer: trl.RLOOTrainer) -> str:
    """The card of what a trainer saves."""
    form = "LoRA adapter" if hasattr(trainer.model, "peft_config") else "checkpoint, all weights trained"
    base = checkpoint_of_model(trainer.model, trainer.processing_class)
    results = getattr(trainer.model, "measured", None)  # by the command line, before training
    return model_card.written(base, form, results, run=model_card.remembered(trainer.model))


def facts(trainer: trl.RLOOTrainer, of_data: Mapping[str, object]) -> Facts:
    """Heading -> name -> value, of the kit's trainer at any step and of :func:`data`'s facts."""
    args, own = trainer.args, trainer.own
    weights = zip(trainer.reward_func_names, trainer.reward_weights.tolist(), strict=True)
    lora = getattr(trainer.model, "peft_config", {}).get("default")
    trained = {"LoRA rank": lora.r, "LoRA alpha": lora.lora_alpha} if lora else {"trained": "all weights"}
    values = [(name, getattr(getattr(args, name), "value", getattr(args, name))) for name in SHOWN]
    return {
        "Method": {
            "method": METHOD,
            "advantage estimator": own.advantage_estimator,
            "updates": f"{trainer.state.global_step} of {trainer.state.max_steps}",
            "completions of a prompt": args.num_generations,
            "completions of an update": args.per_device_train_batch_size
            * args.gradient_accumulation_steps
            * args.world_size,
        },
        "Data": of_data,
        "Rewards and their weights": {name: f"{weight:g}" for name, weight in weights},
        "Configuration": {name: f"{one:g}" if isinstance(one, float) else one for name, one in values}
        | {name: getattr(own, name) for name in OWN}
        | trained,
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


# --- to compare -------------------------------------------------------------------------------------------

VERSION = 1
"""Of what :func:`made_of` gives.  A checkpoint with another one, or none, is resumed and not compared."""

AS_IT_WAS = "load the policy as it was; or load_policy(that folder) and train() a new run from its weights"

_COMPARED = """
seed data_seed num_generations per_device_train_batch_size gradient_accumulation_steps steps_per_generation
num_iterations shuffle_dataset train_sampling_strategy
temperature top_p top_k min_p repetition_penalty max_completion_length generation_kwargs chat_template_kwargs use_vllm
beta epsilon epsilon_high reward_clip_range mask_truncated_completions skip_dead_groups normalize_advantages
advantage_estimator kl_placement kl_estimator loss_aggregation importance_sampling_level use_bias_correction_kl
sync_ref_model ref_model_mixup_alpha ref_model_sync_steps router_aux_loss_coef disable_dropout neftune_noise_alpha
label_smoothing_factor
learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps max_steps num_train_epochs
optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm
"""
SETTINGS = tuple(_COMPARED.split())
"""Settings that make a resumed run another one than that which was stopped, and nothing fails."""

ROWS = 10_000
"""Of a larger dataset so many, evenly spaced, are looked at: 0.1 to 0.5 s."""

SAMPLE = 1024
"""Values that are looked at of each tensor; what was trained and merged differs in far more than one of 1,000."""

SMALLEST = 2.0**-14
"""float16 holds what is smaller with fewer digits."""


def made_of(
    trainer: trl.RLOOTrainer, base: Mapping[str, object], of_data: Mapping[str, object]
) -> dict[str, Any]:
    """What the kit's trainer makes its run of, with :func:`base_of` its model and :func:`data` of its dataset."""
    names, weights = trainer.reward_func_names, trainer.reward_weights.tolist()
    settings = {name: value for name, value in vars(trainer.args).items() if name in SETTINGS}
    if str(getattr(trainer.args.lr_scheduler_type, "value", "")).startswith("constant"):
        del settings["max_steps"], settings["num_train_epochs"]  # how far a run goes, and not how
    text = json.dumps(without_secrets(settings), default=lambda one: type(one).__name__)
    return {
        "version": VERSION,
        "base": dict(base),
        "dataset": list(of_data.values()),
        "rewards": [f"{name} x {weight:g}" for name, weight in zip(names, weights, strict=True)],
        "sources": {
            f"the source of {name}": digest(one)
            for name, one in zip(names, trainer.reward_funcs, strict=True)
        },
        "chat template": digest(getattr(trainer.processing_class, "chat_template", None)),
        "settings": json.loads(text),
    }


def changed(now: Mapping[str, Any], then: Mapping[str, Any]) -> list[str]:
    """What differs, each with its new and its old value; of what either does not know nothing is said."""
    flat_now, flat_then = ({**one, **one["sources"], **one["settings"]} for one in (now, then))
    apart = {"version", "base", "sources", "settings"}
    pairs = [(n, v, flat_then[n]) for n, v in flat_now.items() if n in flat_then and n not in apart]
    return [
        f"{name}={now!r} (it was {then!r})"
        for name, now, then in pairs
        if (now[1:] != then[1:] if name == "dataset" else now != then)  # the first is its name
    ]


def base_of(model: nn.Module) -> dict[str, object]:
    """The frozen weights that a LoRA is trained on: name, bits, how they were loaded, and a digest of them."""
    parameters = list(model.parameters())
    bits = 4 if any(map(quantisation_tensors, parameters)) else 16
    first = next(p for p in parameters if p.is_floating_point())
    loaded = f"{first.device.type}, 4 bit" if bits == 4 else str(first.dtype).removeprefix("torch.")
    name = Path(str(getattr(getattr(model, "config", None), "_name_or_path", ""))).name
    return {"name": name, "bits": bits, "loaded": loaded, "digest": _weights(model)}


def _weights(model: nn.Module) -> str:
    """Of values rounded to bfloat16, so that float32 agrees; empty where there are none, or not all are here."""
    found, seen = hashlib.sha256(), 0
    for name, parameter in model.named_parameters():
        if not (parameter.requires_grad or is_lora(name) or "modules_to_save" in name):
            if parameter.is_meta or not parameter.numel():
                return ""
            found.update(name.replace(".base_layer", "").encode())
            for tensor in (parameter, *quantisation_tensors(parameter)):
                found.update(_sampled(tensor.detach()))
            seen += 1
    return found.hexdigest()[:16] if seen else ""


def _sampled(tensor: torch.Tensor) -> bytes:
    flat = tensor.reshape(-1)
    taken = flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE].cpu()
    if taken.is_floating_point():
        taken = taken.float().masked_fill(taken.float().abs() < SMALLEST, 0).bfloat16().view(torch.int16)
    return taken.numpy().tobytes()


def check_base(now: Mapping[str, Any], then: Mapping[str, Any], folder: Path) -> list[str]:
    """Refuse another base than a checkpoint's; return what cannot be told, as of one that was rounded otherwise.

    Raises:
        ConfigError: the base is another one, or in 4 bit where it was in 16.
    """
    if now["bits"] == then["bits"]:
        if now["digest"] == then["digest"]:
            return []
        if now["loaded"] != then["loaded"] or not now["digest"] or not then["digest"]:
            return [f"whether the base is the same cannot be told: {now['loaded']} (it was {then['loaded']})"]
    raise ConfigError(
        f"the policy's base is another one: {now['name']} {now['digest']} in {now['bits']} bit, and the checkpoint's "
        f"was {then['name']} {then['digest']} in {then['bits']}",
        where=f"load_policy(load_in_4bit={now['bits'] == 4}), {folder}",
        todo=AS_IT_WAS,
    )


def rows(dataset: Dataset) -> str:
    """A digest of a dataset's columns and rows, in their order: of :data:`ROWS`, where it has more.

    ``datasets``' own fingerprint is of how a dataset was made, and of generated rows another one in each process.

    >>> some = Dataset.from_dict({"prompt": list("abc")})
    >>> rows(some) == rows(Dataset.from_dict({"prompt": list("abcd")}).select(range(3)))
    True
    >>> rows(some) == rows(Dataset.from_dict({"prompt": list("abd")}))
    False
    """
    found = hashlib.sha256(repr([len(dataset), dataset.column_names]).encode())
    chosen = dataset.with_format("arrow").select(range(0, len(dataset), max(1, -(-len(dataset) // ROWS))))
    for table in chosen.iter(1000):
        found.update(repr(table.to_pylist()).encode())
    return found.hexdigest()[:16]


def digest(thing: object) -> str:
    """Of a text, or of a reward by the call that made it, or by its source with the values that it uses."""
    try:
        return hashlib.sha256(repr(_said(thing)).encode()).hexdigest()[:16]
    except Exception:  # of an odd object; a description must not cost the run
        return ""


def _said(thing: Any, seen: tuple[object, ...] = ()) -> Any:
    """In words that are the same in every process."""
    if (call := made_by(thing)) is not None:
        thing = [call.function, dict(call.arguments)]
    if isinstance(thing, dict):
        return {str(name): _said(value, seen) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_said(one, seen) for one in thing]
    if inspect.isfunction(thing) and thing not in seen and not importable(thing):
        # What may count calls is left out.
        used = {n: v for n, v in used_by(thing).items() if not isinstance(v, list | dict | set)}
        return [inspect.getsource(thing), _said(used, (*seen, thing))]
    plain = thing is None or isinstance(thing, bool | int | float | str)
    return thing if plain else getattr(thing, "__qualname__", type(thing).__qualname__)
