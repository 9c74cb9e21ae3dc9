"""What a configuration may name, and what it calls: functions of ``rewards``, the task's reward, and .py files.

A YAML file alone runs no code.  Every other name is refused before anything is imported or called; a .py file that the
configuration names is run, for its own functions.  A reward is one of these, which nest where a factory takes rewards::

    task.correct                             # the reward that grades the task
    mine.py:in_time                          # a function that a file defines, beside the configuration
    rewards.answer_reward: {form: boxed}     # a factory, also one that a file defines, with its arguments
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import symtable
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, get_origin

import rewards
from rewards.answers import Form
from rewards.call_records import recorded
from rewards.thinking import ThinkTokens
from rewards.trl_interface import Reward
from rloo_kit import argument_types
from rloo_kit.cli.document import check_known
from rloo_kit.errors import ConfigError

CORRECT = "task.correct"
IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
RUN_AS = "rloo_kit_config_file_"
"""What the name of a file's module begins with."""

KNOWN = {"Policy": Any, "Form": Form, "Reward": Reward, "ThinkTokens": ThinkTokens}
"""Names that annotations use and their modules import for type checkers alone."""

PLAIN = (bool, int, float, str, type(None))


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of its parameters and of what it returns."""
    return typing.get_type_hints(function, localns=KNOWN, include_extras=True)


_functions = {f"rewards.{n}": f for n in rewards.__all__ if inspect.isfunction(f := getattr(rewards, n))}
FACTORIES = {name: one for name, one in _functions.items() if hints_of(one).get("return") == Reward}


def check_reward(entry: Any, folder: Path) -> None:
    """Check an entry of the list of rewards by its text and the factories' signatures; nothing is run."""
    name, called = _named(entry)
    if name != CORRECT and not IN_FILE.fullmatch(name) and not (called and name in FACTORIES):
        what = f"{name} makes rewards and is none" if name in FACTORIES else f"there is no reward {name[:60]}"
        todo = (
            "name a factory of 'rewards' with its arguments, task.correct, or a file's function: FILE.py:NAME"
        )
        raise ConfigError(what, todo=f"write '{name}: {{}}'" if name in FACTORIES else todo)
    made(entry, folder)


def made(value: Any, folder: Path, known: Mapping[str, Any] | None = None) -> Any:
    """What a value stands for: a reward, several, a name that is ``known`` once there is a policy, or itself.

    Where nothing is known yet it is only checked.
    """
    if isinstance(value, list):
        return [made(one, folder, known) for one in value]
    name, called = _named(value)
    in_file = IN_FILE.fullmatch(name)
    if not in_file and not (called and name in FACTORIES):
        if isinstance(value, dict) and "open_id" in value:
            fields: Any = {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}
            return ThinkTokens(**fields)
        return value if known is None or not isinstance(value, str) else known.get(value, value)
    if in_file and known is None:
        check_defined(name, folder)
    elif in_file and not called:
        return function_of(name, folder)
    given = (value[name] or {}) if called else {}
    if not in_file:
        check_arguments(FACTORIES[name], given, name)
    arguments = {key: made(one, folder, known) for key, one in given.items()}
    if known is None:
        return None
    return (own_factory(name, folder) if in_file else FACTORIES[name])(**arguments)


def _named(value: Any) -> tuple[str, bool]:
    """The name that an entry is or begins with, and whether it has arguments."""
    called = isinstance(value, dict) and len(value) == 1
    return str(next(iter(value)) if called else value), called


def check_arguments(function: Callable[..., Any], given: Any, name: str) -> None:
    """Check a call's arguments: by their names, and by their types as far as those are written in YAML."""
    if not isinstance(given, dict):
        raise ConfigError(f"{name} takes arguments by name", todo=f"write {name}: {{argument: value}}")
    signature, hints = inspect.signature(function), hints_of(function)
    takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    for key, value in given.items():
        try:
            if not takes_any:
                check_known(key, {*signature.parameters} - {"policy"}, f"{name} takes no")
            if all(
                get_origin(one) is Literal or one in PLAIN for one in argument_types.parts(hints.get(key))
            ):
                argument_types.check({key: value}, hints, name)
        except ConfigError as error:
            raise ConfigError(error.what, where=key, todo=error.todo) from None
    try:
        signature.bind(**given)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}", todo=f"write {name}: {{argument: value}}") from None


# --- files ------------------------------------------------------------------------------------------------


def whole(name: str, folder: Path) -> str:
    """A function of a file by the file's whole path; any other text as it is."""
    match = IN_FILE.fullmatch(name)
    return f"{folder / match['file']}:{match['name']}" if match else name


def check_defined(name: str, folder: Path) -> None:
    """Check by a file's text alone that it defines a name, and does not merely import it."""
    if IN_FILE.fullmatch(name) is None:
        raise ConfigError(f"{name} is no function of a file", todo="write FILE.py:NAME")
    path, _, own = whole(name, folder).rpartition(":")
    file = Path(path)
    if not file.is_file():
        check_known(file.name, [one.name for one in file.parent.glob("*.py")], f"in {file.parent} is no file")
    try:
        symbols = symtable.symtable(file.read_text(encoding="utf-8"), path, "exec").get_symbols()
    except (OSError, SyntaxError, ValueError) as error:
        raise _not_run(file, error) from error
    defined = [one.get_name() for one in symbols if one.is_assigned() and not one.is_imported()]
    check_known(own, defined, f"{file.name} itself defines no")


def function_of(name: str, folder: Path) -> Callable[..., Any]:
    """What a file calls so; the file is run once in a process, so that its functions are the same ones each time."""
    path, _, attribute = whole(name, folder).rpartition(":")
    file, key = Path(path), f"{RUN_AS}{Path(path).resolve()}"
    if key not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(key, file.resolve())
        module = sys.modules[key] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # a user's file raises what it likes
            del sys.modules[key]
            raise _not_run(file, error) from error
    found: Any = getattr(sys.modules[key], attribute, None)
    if not callable(found) or inspect.isclass(found):
        raise ConfigError(f"{name} is a {type(found).__name__}, and no function", todo="name a function")
    return typing.cast(Callable[..., Any], found)


def own_factory(name: str, folder: Path) -> Callable[..., Any]:
    """A function that a file defines, and not another module's; what it makes remembers the call."""
    found = function_of(name, folder)
    if not (inspect.isfunction(found) and found.__module__.startswith(("rewards.", RUN_AS))):
        what = f"{name} is no function that its file defines, and is not called"
        raise ConfigError(what, todo="write a function that calls it: def NAME(...)")
    return recorded(named=whole(name, folder))(found)


def _not_run(file: Path, error: Exception) -> ConfigError:
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return ConfigError(f"{file.name} cannot be run: {what}", todo=f"repair it; python {file.name} shows more")
