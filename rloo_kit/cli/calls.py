"""What a configuration calls by name: rewards, factories of rewards, tasks; checked by their signatures.

For :mod:`.schema`, before anything is loaded, and for :mod:`.run`, which makes them.  A reward is written in one of
these forms, which nest where a factory takes rewards::

    task.correct                             # the reward that grades the task
    mine.py:in_time                          # a function of a file, beside the configuration
    package.module.reward                    # a function that can be imported
    rewards.answer_reward: {form: boxed}     # a factory, also one of a file, with its arguments
"""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import importlib.util
import inspect
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import rewards
from rewards.forms import Form
from rewards.signature import Reward
from rewards.thinking import ThinkTokens
from rloo_kit import values
from rloo_kit.cli.document import Key
from rloo_kit.errors import ConfigError

CORRECT = "task.correct"
IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
PLAIN = (bool, int, float, str, type(None))
KNOWN = {"Policy": Any, "Form": Form, "Reward": Reward, "ThinkTokens": ThinkTokens}
"""Names that annotations use and their modules import for type checkers alone."""

Problem = tuple[Key, str, str]
"""Where in an entry it is, what is wrong, what to do."""


def is_call(entry: object) -> bool:
    """Whether it is ``name: arguments``."""
    return isinstance(entry, dict) and len(entry) == 1


def is_reward(hint: object) -> bool:
    """Whether a parameter's type is that of one reward."""
    return hint == Reward or (type(None) in get_args(hint) and Reward in get_args(hint))


def are_rewards(hint: object) -> bool:
    """Whether a parameter takes several rewards."""
    return get_origin(hint) in (list, tuple, collections.abc.Sequence) and Reward in get_args(hint)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters, and of what it returns, as far as they can be known."""
    try:
        return typing.get_type_hints(function, localns=KNOWN, include_extras=True)
    except Exception:  # an annotation may be any expression
        return {}


def found(name: str, folder: Path) -> Callable[..., Any]:
    """What a name of a reward or of a factory stands for.

    Raises:
        ConfigError: there is no such file, module or name in it; or the file cannot be run.
    """
    if match := IN_FILE.fullmatch(name):
        return _in_file(folder / match["file"], match["name"])
    package, _, attribute = name.rpartition(".")
    if not package:
        near = difflib.get_close_matches(name, rewards.__all__, n=1)
        raise ConfigError(
            f"there is no reward called {name!r}",
            todo=f"did you mean rewards.{near[0]}?"
            if near
            else "write package.module.name, file.py:name or task.correct",
        )
    try:
        return typing.cast(Callable[..., Any], pkgutil.resolve_name(name))
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"there is no {name!r}: {error}", todo=_nearest(package, attribute)) from None


def _nearest(package: str, attribute: str) -> str:
    try:
        there = dir(pkgutil.resolve_name(package))
    except (ImportError, AttributeError, ValueError):
        return f"install the package, or give the file: {attribute}.py:{attribute}"
    near = difflib.get_close_matches(attribute, there, n=1)
    return f"did you mean {package}.{near[0]}?" if near else f"look at dir({package})"


def _in_file(file: Path, name: str) -> Callable[..., Any]:
    if not file.is_file():
        beside = [path.name for path in file.parent.glob("*.py")] if file.parent.is_dir() else []
        near = difflib.get_close_matches(file.name, beside, n=1, cutoff=0.4)
        raise ConfigError(
            f"there is no file {file}",
            todo=f"did you mean {near[0]}?" if near else "a file is looked for beside the configuration",
        )
    module = _module(file.resolve())
    if hasattr(module, name):
        return typing.cast(Callable[..., Any], getattr(module, name))
    near = difflib.get_close_matches(name, vars(module), n=1, cutoff=0.4)
    todo = f"did you mean {file.name}:{near[0]}?" if near else f"define it: def {name}(completions, **kwargs)"
    raise ConfigError(f"{file.name} has no {name}", todo=todo)


def _module(file: Path) -> types.ModuleType:
    """A file's module, run once in a process, so that its functions are the same ones each time."""
    key = f"rloo_kit_config_file_{file}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, file)
    assert spec is not None, "of a .py there always is one"
    assert spec.loader is not None
    module = sys.modules[key] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file raises what it likes
        del sys.modules[key]
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(
            f"{file.name} cannot be run: {what}", todo=f"mend it; python {file.name} shows more"
        ) from error
    return module


# --- checks, of what is not made yet


def problems_of_reward(entry: object, folder: Path, key: Key = ()) -> Iterator[Problem]:
    """What is wrong with an entry that stands for a reward."""
    if entry == CORRECT:
        return
    if isinstance(entry, str):
        name, arguments = entry, None
    elif is_call(entry):
        name, arguments = next(iter(typing.cast(dict[str, Any], entry).items()))
    else:
        yield key, f"this is no reward but {_shown(entry)}", "write a name, or 'name: {argument: value}'"
        return
    try:
        target = found(name, folder)
    except ConfigError as error:
        yield key, error.what, error.todo
        return
    makes = is_reward(hints_of(target).get("return")) if callable(target) else False
    if not callable(target) or (arguments is None and inspect.isclass(target)):
        yield key, f"{name} is a {type(target).__name__}, and a reward is a function", "name a function"
    elif arguments is None and makes:
        yield key, f"{name} makes rewards and is none", f"write '{name}: {{}}', with its arguments inside"
    elif isinstance(entry, dict):
        yield from problems_of_call(target, arguments, (*key, name), folder, name)


def problems_of_call(
    target: Callable[..., Any],
    arguments: object,
    key: Key,
    folder: Path,
    name: str,
    taken: tuple[str, ...] = (),
) -> Iterator[Problem]:
    """What is wrong with a call's arguments, by the signature; ``taken`` are those that the kit gives itself."""
    given = {} if arguments is None else arguments
    if not isinstance(given, dict):
        yield key, f"{name} takes arguments by name, not {_shown(given)}", "write {argument: value}"
        return
    parameters = {n: p for n, p in inspect.signature(target).parameters.items() if n not in taken}
    hints = hints_of(target)
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    for argument, value in given.items():
        if argument not in named:
            if not open_ended:
                yield (*key, argument), f"{name} takes no {argument}", _meant(argument, named)
        else:
            hint = hints.get(argument)
            yield from problems_of_value(argument, value, hint, (*key, argument), folder, name)
    for needed in named:
        if parameters[needed].default is inspect.Parameter.empty and needed not in given:
            yield key, f"{name} needs {needed}", f"write {name}: {{{needed}: ...}}"


def problems_of_value(
    argument: str, value: object, hint: object, key: Key, folder: Path, name: str
) -> Iterator[Problem]:
    """What is wrong with one argument."""
    if is_reward(hint) and value is not None:
        yield from problems_of_reward(value, folder, key)
    elif are_rewards(hint):
        if not isinstance(value, list):
            yield key, f"{argument} is a list of rewards, not {_shown(value)}", f"write {argument}: [...]"
            return
        for index, one in enumerate(value):
            yield from problems_of_reward(one, folder, (*key, index))
    elif _is_plain(hint):
        try:
            values.check({argument: value}, {argument: hint}, name)
        except ConfigError as error:
            yield key, error.what, error.todo


def _meant(argument: str, named: list[str]) -> str:
    near = difflib.get_close_matches(argument, named, n=1)
    return f"did you mean {near[0]}?" if near else f"it takes {', '.join(named) or 'nothing'}"


def _is_plain(hint: object) -> bool:
    """Whether any value of the type can be written in YAML; others are left to the function itself."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        return all(map(_is_plain, get_args(hint)))
    return (
        hint in PLAIN
        or get_origin(hint) is Literal
        or (get_origin(hint) is typing.Annotated and _is_plain(get_args(hint)[0]))
    )


def _shown(value: object) -> str:
    return "nothing" if value is None else values.shown("value", value)


# --- making


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes the rewards of a configuration.

    Attributes:
        folder: where files are looked for.
        known: what arguments may name: ``task.correct``, ``policy.tokenizer`` and ``policy.tokens``.
    """

    folder: Path
    known: Mapping[str, Any]

    def reward(self, entry: Any) -> Reward:
        """The reward that an entry stands for, which has been checked.

        Raises:
            ValueError: the factory refuses an argument.
        """
        if entry == CORRECT:
            return typing.cast(Reward, self.known[CORRECT])
        if isinstance(entry, str):
            return found(entry, self.folder)
        name, arguments = next(iter(entry.items()))
        target = found(name, self.folder)
        hints = hints_of(target)
        given = {n: self._value(value, hints.get(n)) for n, value in (arguments or {}).items()}
        return typing.cast(Reward, target(**given))

    def _value(self, value: Any, hint: object) -> Any:
        if (is_reward(hint) and value is not None) or (isinstance(value, str) and IN_FILE.fullmatch(value)):
            return self.reward(value)
        if are_rewards(hint):
            return [self.reward(one) for one in value]
        if isinstance(value, str) and value in self.known:
            return self.known[value]
        if hint is ThinkTokens and isinstance(value, Mapping):
            fields: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in value.items()}
            return ThinkTokens(**fields)
        return value
