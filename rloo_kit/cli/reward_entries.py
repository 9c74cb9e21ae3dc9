"""Turn a configuration's list of rewards into reward functions; entries nest where a factory takes rewards::

    task.correct                             # the reward that grades the task
    mine.py:in_time                          # a function of a file beside the configuration
    rewards.answer_reward: {form: boxed}     # a factory with its arguments

A YAML file alone runs no code: every other name is refused before anything is imported or called.  A .py file that the
configuration names is run.
"""

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_origin

import rewards
from rewards.answers import Form
from rewards.thinking import ThinkTokens
from rewards.trl_interface import Reward
from rloo_kit import argument_types
from rloo_kit.argument_types import did_you_mean
from rloo_kit.errors import ConfigError

NAMES = ("task.correct", "policy.tokenizer", "policy.tokens")
PLAIN = (bool, int, float, str, type(None))
# Names in annotations that their modules import only for type checkers.
KNOWN = {"Policy": Any, "Form": Form, "Reward": Reward, "ThinkTokens": ThinkTokens}


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function, locals=KNOWN, eval_str=True)


_functions = {name: one for name in rewards.__all__ if inspect.isfunction(one := getattr(rewards, name))}
FACTORIES = {f"rewards.{n}": f for n, f in _functions.items() if signature_of(f).return_annotation == Reward}


def in_file(name: object) -> bool:
    return re.fullmatch(r".+\.py:\w+", str(name)) is not None


def check_entry(entry: Any) -> None:
    """Check an entry by its text and the factories' signatures; nothing is run."""
    name, arguments = _call(entry)
    if isinstance(entry, dict) and len(entry) > 1 and (first := str(next(iter(entry)))) in FACTORIES:
        raise ConfigError(f"the arguments of {first} are beside it", todo=f"indent them under '{first}:'")
    if in_file(name) and arguments is not None:
        raise ConfigError("a function of a file takes no arguments", todo="set them in the file, by functools.partial")
    if name in FACTORIES and arguments is None:
        raise ConfigError(f"{name} makes rewards, and is not one itself", todo=f"write '{name}: {{}}'")
    if name not in FACTORIES and entry != "task.correct" and not in_file(entry):
        todo = "name a factory of 'rewards', task.correct, or a file's function: FILE.py:NAME"
        raise ConfigError(f"there is no reward {name[:60]}", todo=todo)
    made(entry)


def made(value: Any, known: Mapping[str, Any] | None = None) -> Any:
    """Return what a value stands for: a reward, a list of them, an object named in ``known``, or the value itself.

    ``known``: None, before there is a policy, means that the value is only checked.
    """
    if isinstance(value, list):
        return [made(one, known) for one in value]
    name, arguments = _call(value)
    if arguments is None and in_file(name):
        return None if known is None else function_of(name)
    if arguments is not None and name in FACTORIES:
        check_arguments(FACTORIES[name], arguments, name)
        given = {key: made(one, known) for key, one in arguments.items()}
        return None if known is None else FACTORIES[name](**given)
    if isinstance(value, str) and re.fullmatch(r"(task|policy)\.\w+", value):
        check_known(value, NAMES, "there is no")
    if isinstance(value, dict) and "open_id" in value:
        return ThinkTokens(**value | {"eos_ids": tuple(value.get("eos_ids") or ())})
    return known.get(value, value) if known and isinstance(value, str) else value


def _call(value: Any) -> tuple[str, Any]:
    """Return the name that an entry is or begins with, and its arguments; None if it has none."""
    if isinstance(value, dict) and len(value) == 1:
        ((name, arguments),) = value.items()
        return str(name), arguments or {}
    return str(value), None


def mapped(entry: Any, change: Callable[[Any, Any], Any], name: object = None) -> Any:
    """Copy lists and mappings, with each value in them replaced by ``change(name, value)``."""
    if isinstance(entry, dict):
        return {key: mapped(value, change, key) for key, value in entry.items()}
    return [mapped(one, change, name) for one in entry] if isinstance(entry, list) else change(name, entry)


def check_known(name: object, known: Iterable[str], what: str, otherwise: str = "") -> None:
    """Raise a ConfigError for an unknown name: ``what`` and the name, with the nearest known name, or all of them."""
    if name not in (known := list(known)):
        all_of_them = f"one of {', '.join(known) or 'none'}"
        raise ConfigError(f"{what} {name}", todo=did_you_mean(str(name), known, otherwise or all_of_them))


def check_arguments(function: Callable[..., Any], given: Any, name: str) -> None:
    """Check a call's arguments by their names, and by their types where YAML can express them."""
    how = f"write {name}: {{argument: value}}"
    if not isinstance(given, dict):
        raise ConfigError(f"{name} takes arguments by name", todo=how)
    parameters = (signature := signature_of(function)).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for key in () if takes_any else given:
        check_known(key, [one for one in parameters if one != "policy"], f"{name} takes no")
    hints = {key: one.annotation for key, one in parameters.items() if _is_plain(one.annotation)}
    argument_types.check(given, hints, name)
    try:
        signature.bind(**given)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}", todo=how) from None


def _is_plain(hint: argument_types.Hint) -> bool:
    return all(get_origin(part) is Literal or part in PLAIN for part in argument_types.parts(hint))


def function_of(name: str) -> Any:
    """Return what a file defines by this name; the file is run once per process, so its functions stay the same."""
    path, _, own = name.rpartition(":")
    file, key = Path(path), f"rloo_kit_config_file_{Path(path).resolve()}"
    if key not in sys.modules:
        if (beside := str(file.resolve().parent)) not in sys.path:  # a function may import from there when it is called
            sys.path.append(beside)
        spec: Any = importlib.util.spec_from_file_location(key, file.resolve())
        module = sys.modules[key] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # a user's file may raise anything
            del sys.modules[key]
            what = " ".join(f"{file.name} cannot be run: {type(error).__name__}: {error}".split())
            todo = f"correct its name, or repair it: python {file.name} shows more"
            raise ConfigError(what, todo=todo) from error
    defined = {key: value for key, value in vars(sys.modules[key]).items() if not key.startswith("_")}
    check_known(own, defined, f"{file.name} defines no")
    return defined[own]
