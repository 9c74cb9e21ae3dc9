"""The entries of a configuration's list of rewards, which nest where a factory takes rewards::

    task.correct                             # the reward that grades the task
    mine.py:in_time                          # a function of a file beside the configuration
    rewards.answer_reward: {form: boxed}     # a factory with its arguments

A YAML file alone runs no code: every other name is refused before anything is imported or called.  A .py file that the
configuration names is run.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_origin

import rewards
from rewards.answers import Form
from rewards.thinking import ThinkTokens
from rewards.trl_interface import Reward
from rloo_kit import argument_types
from rloo_kit.errors import ConfigError

IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
RUN_AS = "rloo_kit_config_file_"  # what the name of a file's module begins with
PLAIN = (bool, int, float, str, type(None))
# Names that annotations use and their modules import for type checkers alone.
KNOWN = {"Policy": Any, "Form": Form, "Reward": Reward, "ThinkTokens": ThinkTokens}


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of its parameters and of what it returns."""
    return typing.get_type_hints(function, localns=KNOWN, include_extras=True)


_functions = {f"rewards.{n}": f for n in rewards.__all__ if inspect.isfunction(f := getattr(rewards, n))}
FACTORIES = {name: one for name, one in _functions.items() if hints_of(one).get("return") == Reward}


def check_entry(entry: Any) -> Any:
    """The entry, checked by its text and the factories' signatures; nothing is run."""
    name, arguments = _call(entry)
    if name in FACTORIES and arguments is None:
        raise ConfigError(f"{name} makes rewards and is none", todo=f"write '{name}: {{}}'")
    if name not in FACTORIES and entry != "task.correct" and not IN_FILE.fullmatch(str(entry)):
        todo = (
            "name a factory of 'rewards' with its arguments, task.correct, or a file's function: FILE.py:NAME"
        )
        raise ConfigError(f"there is no reward {name[:60]}", todo=todo)
    made(entry)
    return entry


def made(value: Any, known: Mapping[str, Any] | None = None) -> Any:
    """What a value stands for: a reward, several, a name that is ``known`` once there is a policy, or itself.

    Where nothing is known yet it is only checked.
    """
    if isinstance(value, list):
        return [made(one, known) for one in value]
    name, arguments = _call(value)
    if arguments is None and IN_FILE.fullmatch(name):
        return check_file(name) if known is None else function_of(name)
    if arguments is not None and name in FACTORIES:
        check_arguments(FACTORIES[name], arguments, name)
        given = {key: made(one, known) for key, one in arguments.items()}
        return None if known is None else FACTORIES[name](**given)
    if isinstance(value, dict) and "open_id" in value:
        return ThinkTokens(**value | {"eos_ids": tuple(value.get("eos_ids") or ())})
    return known.get(value, value) if known and isinstance(value, str) else value


def _call(value: Any) -> tuple[str, Any]:
    """The name that an entry is or begins with, and its arguments, None where it has none."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, arguments),) = value.items()
        return str(name), arguments or {}
    return str(value), None


def mapped(entry: Any, change: Callable[[Any], Any]) -> Any:
    """The same lists and mappings, with every value in them changed."""
    if isinstance(entry, dict):
        return {name: mapped(value, change) for name, value in entry.items()}
    return [mapped(one, change) for one in entry] if isinstance(entry, list) else change(entry)


def check_known(name: object, known: Iterable[str], what: str, otherwise: str = "") -> None:
    """Raise a ConfigError for a name that is not known: ``what`` and the name, with the nearest that is, or all."""
    known = list(known)
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=1)
        todo = f"did you mean {near[0]}?" if near else otherwise or f"one of {', '.join(known) or 'none'}"
        raise ConfigError(f"{what} {name}", todo=todo)


def check_arguments(function: Callable[..., Any], given: Any, name: str) -> None:
    """Check a call's arguments: by their names, and by their types as far as those are written in YAML."""
    if not isinstance(given, dict):
        raise ConfigError(f"{name} takes arguments by name", todo=f"write {name}: {{argument: value}}")
    signature, hints = inspect.signature(function), hints_of(function)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    for key, value in given.items():
        if not takes_any:
            check_known(key, {*signature.parameters} - {"policy"}, f"{name} takes no")
        if all(get_origin(one) is Literal or one in PLAIN for one in argument_types.parts(hints.get(key))):
            argument_types.check({key: value}, hints, name)
    try:
        signature.bind(**given)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}", todo=f"write {name}: {{argument: value}}") from None


# --- files ------------------------------------------------------------------------------------------------


def check_file(name: str) -> None:
    """Check that the file of a function is there."""
    if not (file := Path(name.rpartition(":")[0])).is_file():
        check_known(file.name, [one.name for one in file.parent.glob("*.py")], f"in {file.parent} is no file")


def function_of(name: str) -> Callable[..., Any]:
    """What a file calls so; the file is run once in a process, so that its functions are the same ones each time."""
    path, _, own = name.rpartition(":")
    file, key = Path(path), f"{RUN_AS}{Path(path).resolve()}"
    if key not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(key, file.resolve())
        module = sys.modules[key] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # a user's file raises what it likes
            del sys.modules[key]
            what = " ".join(f"{file.name} cannot be run: {type(error).__name__}: {error}".split())
            raise ConfigError(what, todo=f"repair it; python {file.name} shows more") from error
    there = {key: value for key, value in vars(sys.modules[key]).items() if not key.startswith("_")}
    check_known(own, there, f"{file.name} defines no")
    if not callable(there[own]) or inspect.isclass(there[own]):
        what = f"{own} of {file.name} is a {type(there[own]).__name__}, and no function"
        raise ConfigError(what, todo="name a function")
    return typing.cast(Callable[..., Any], there[own])
