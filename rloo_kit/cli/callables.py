"""What a configuration may name, and what it calls: functions of ``rewards``, the task's reward, and .py files.

A YAML file alone runs no code.  Every other name is refused before anything is imported or called; a .py file that the
configuration names is run, for its own functions.  A reward is one of these, which nest where a factory takes rewards::

    task.correct                             # the reward that grades the task
    mine.py:in_time                          # a function that a file defines, beside the configuration
    rewards.answer_reward: {form: boxed}     # a factory, also one that a file defines, with its arguments
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import symtable
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import rewards
from rewards.answers import Form
from rewards.made import recorded
from rewards.signature import Reward
from rewards.thinking import ThinkTokens
from rloo_kit import values
from rloo_kit.cli.document import check_known
from rloo_kit.errors import ConfigError

Make = Callable[[Mapping[str, Any]], Any]
"""Makes what an entry stands for, of what is known once there is a policy."""

CORRECT = "task.correct"
IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
RUN_AS = "rloo_kit_config_file_"
"""What the name of a file's module begins with."""

KNOWN = {"Policy": Any, "Form": Form, "Reward": Reward, "ThinkTokens": ThinkTokens}
"""Names that annotations use and their modules import for type checkers alone."""


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of its parameters and of what it returns, as far as they can be known."""
    try:
        return typing.get_type_hints(function, localns=KNOWN, include_extras=True)
    except Exception:  # an annotation may be any expression
        return {}


_public = {f"rewards.{name}": getattr(rewards, name) for name in rewards.__all__}
FACTORIES = {name: one for name, one in _public.items() if hints_of(one).get("return") == Reward}


def reward(entry: Any, folder: Path) -> Make:
    """How to make the reward that an entry stands for; nothing is run before it is made.

    Raises:
        ConfigError: the entry, or one inside it, is none of the above.
    """
    name, given = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, None)
    if not isinstance(name, str):
        what = f"this is no reward but {values.shown('value', entry)}"
        raise ConfigError(what, todo="write a name, or 'name: {argument: value}'")
    if name == CORRECT:
        return lambda known: known[CORRECT]
    is_called = isinstance(entry, dict)
    if IN_FILE.fullmatch(name):
        check_defined(name, folder)
        if not is_called:
            return lambda known: function_of(name, folder)
        made = arguments(None, given or {}, name, folder)
        return lambda known: own_factory(name, folder)(**{key: make(known) for key, make in made.items()})
    if name not in FACTORIES:
        short = [one.removeprefix("rewards.") for one in FACTORIES]
        near = difflib.get_close_matches(name.removeprefix("rewards."), short, n=1, cutoff=0.75)
        forms = (
            "name a factory of 'rewards', task.correct, or a function that a .py file defines: FILE.py:NAME"
        )
        todo = f"did you mean rewards.{near[0]}?" if near else forms
        raise ConfigError(f"there is no reward {name}", todo=todo)
    if not is_called:
        what = f"{name} makes rewards and is none"
        raise ConfigError(what, todo=f"write '{name}: {{}}', with its arguments inside")
    factory, made = FACTORIES[name], arguments(FACTORIES[name], given or {}, name, folder)
    return lambda known: factory(**{key: make(known) for key, make in made.items()})


def arguments(function: Callable[..., Any] | None, given: Any, name: str, folder: Path) -> dict[str, Make]:
    """A call's arguments, each of its type as far as that can be written in YAML; of a file's function unchecked.

    Raises:
        ConfigError: the first that is wrong, or one that lacks.
    """
    if not isinstance(given, dict):
        raise ConfigError(f"{name} takes arguments by name", todo=f"write {name}: {{argument: value}}")
    if function is None:
        return {key: argument(value, None, f"{name}, {key}", folder) for key, value in given.items()}
    hints, parameters = hints_of(function), dict(inspect.signature(function).parameters)
    parameters.pop("policy", None)  # the kit gives it
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    named = {key: one for key, one in parameters.items() if one.kind is not one.VAR_KEYWORD}
    for key, one in named.items():
        if one.default is one.empty and key not in given:
            raise ConfigError(f"{name} needs {key}", todo=f"write {name}: {{{key}: ...}}")
    made = {}
    for key, value in given.items():
        try:
            if not takes_any:
                check_known(key, named, f"{name} takes no")
            made[key] = argument(value, hints.get(key), key, folder)
        except ConfigError as error:
            raise ConfigError(error.what, where=key, todo=error.todo) from None
    return made


def argument(value: Any, hint: Any, name: str, folder: Path) -> Make:
    """A value, which may be a reward, several, or a name that has a meaning once there is a policy."""
    takes_several = get_origin(hint) is Sequence and Reward in get_args(hint)
    if takes_several and not isinstance(value, list):
        raise ConfigError(f"{name} is a list of rewards", todo=f"write {name}: [...]")
    if isinstance(value, list):
        parts = [argument(one, Reward if takes_several else None, name, folder) for one in value]
        return lambda known: [make(known) for make in parts]
    entry = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else value
    is_reward = isinstance(entry, str) and (entry in FACTORIES or IN_FILE.fullmatch(entry))
    if is_reward or (value is not None and Reward in (hint, *get_args(hint))):
        return reward(value, folder)
    if hint is ThinkTokens and isinstance(value, dict):
        fields: Any = {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}
        return lambda known: ThinkTokens(**fields)
    if is_plain(hint):
        values.check({name: value}, {name: hint}, name)
    return lambda known: known.get(value, value) if isinstance(value, str) else value


def is_plain(hint: Any) -> bool:
    """Whether any value of the type can be written in YAML; others are left to the function itself."""
    if get_origin(hint) in (typing.Union, type(int | None)):
        return all(map(is_plain, get_args(hint)))
    return get_origin(hint) is Literal or hint in (bool, int, float, str, type(None))


# --- files ------------------------------------------------------------------------------------------------


def whole(name: str, folder: Path) -> str:
    """A function of a file by the file's whole path; any other text as it is."""
    match = IN_FILE.fullmatch(name)
    return f"{folder / match['file']}:{match['name']}" if match else name


def check_defined(name: str, folder: Path) -> None:
    """Check by a file's text alone that it defines a name, and does not merely import it.

    Raises:
        ConfigError: it does not, there is no such file, or it is no Python.
    """
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
    """What a file calls so; the file is run once in a process, so that its functions are the same ones each time.

    Raises:
        ConfigError: the file cannot be run, or this is no function.
    """
    path, _, attribute = whole(name, folder).rpartition(":")
    file, key = Path(path), f"{RUN_AS}{Path(path).resolve()}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, file.resolve())
        assert spec is not None, "of a .py there always is one"
        assert spec.loader is not None
        module = sys.modules[key] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # a user's file raises what it likes
            del sys.modules[key]
            raise _not_run(file, error) from error
    found = getattr(sys.modules[key], attribute, None)
    if not callable(found) or inspect.isclass(found):
        raise ConfigError(f"{name} is a {type(found).__name__}, and no function", todo="name a function")
    return typing.cast(Callable[..., Any], found)


def own_factory(name: str, folder: Path) -> Callable[..., Any]:
    """A function that a file defines, or one of ``rewards`` by another name; what it makes remembers the call.

    Raises:
        ConfigError: it is another module's, such as ``os.system``.
    """
    found = function_of(name, folder)
    if not (inspect.isfunction(found) and found.__module__.startswith(("rewards.", RUN_AS))):
        what = f"{name} is no function that its file defines, and is not called"
        raise ConfigError(what, todo="write a function that calls it: def NAME(...)")
    return recorded(named=whole(name, folder))(found)


def _not_run(file: Path, error: Exception) -> ConfigError:
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return ConfigError(f"{file.name} cannot be run: {what}", todo=f"mend it; python {file.name} shows more")
