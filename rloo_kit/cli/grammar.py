"""What a configuration may name, and what it calls: functions of ``rewards``, the task's reward, and .py files.

A YAML file alone runs no code.  Every other name is refused before anything is imported or called; a .py file that the
configuration names is run, for its own functions.  A reward is one of these, which nest where a factory takes rewards::

    task.correct                             # the reward that grades the task
    mine.py:in_time                          # a function that a file defines, beside the configuration
    rewards.answer_reward: {form: boxed}     # a factory, also one that a file defines, with its arguments
"""

from __future__ import annotations

import ast
import collections.abc
import difflib
import importlib.util
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import rewards
from rewards.answers import Form
from rewards.made import recorded
from rewards.signature import Reward
from rewards.thinking import ThinkTokens
from rloo_kit import values
from rloo_kit.cli.document import Key
from rloo_kit.errors import ConfigError

CORRECT = "task.correct"
IN_FILE = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")
PLAIN = (bool, int, float, str, type(None))
RUN_AS = "rloo_kit_config_file_"
"""What the name of a file's module begins with."""

KNOWN = {"Policy": Any, "Form": Form, "Reward": Reward, "ThinkTokens": ThinkTokens}
"""Names that annotations use and their modules import for type checkers alone."""

Function = Callable[..., Any]
Make = Callable[[Mapping[str, Any]], Any]
"""Makes what an entry stands for, of what is known once there is a policy."""


@dataclass(frozen=True)
class Grammar:
    """Reads entries: checks them, and tells how to make what they stand for.

    Attributes:
        folder: where files are looked for.
        fault: takes what is wrong: where in the document, what, what to do.
        runs_files: run the files that are named.  Without it they are read alone, so that a misspelling is found before
            any code runs.
    """

    folder: Path
    fault: Callable[[Key, str, str], None]
    runs_files: bool

    def reward(self, entry: object, key: Key) -> Make:
        """A reward."""
        if entry == CORRECT:
            return lambda known: known[CORRECT]
        name, given = entry, None
        if isinstance(entry, dict) and len(entry) == 1:
            ((name, given),) = entry.items()
            given = {} if given is None else given
        if not isinstance(name, str):
            return self._refuse(
                key, f"this is no reward but {_shown(entry)}", "write a name, or 'name: {argument: value}'"
            )
        try:
            target = self.named(name)
        except ConfigError as error:
            return self._refuse(key, error.what, error.todo)
        if target is None:  # a file that is not run yet
            return lambda known: None
        if given is not None:
            if not is_own(target):
                todo = "write a function that calls it: def NAME(...)"
                return self._refuse(
                    key, f"{name} is no function that its file defines, and is not called", todo
                )
            if match := IN_FILE.fullmatch(name):  # export repeats the call
                file = (self.folder / match["file"]).absolute()
                target = recorded(named=f"{file}:{match['name']}")(target)
            return self.call(target, given, (*key, name), name)
        if _is_reward(_hints(target).get("return")):
            return self._refuse(
                key, f"{name} makes rewards and is none", f"write '{name}: {{}}', with its arguments inside"
            )
        return lambda known: target

    def call(self, target: Function, given: object, key: Key, name: str, taken: Iterable[str] = ()) -> Make:
        """A call with arguments by name; ``taken`` are those that the kit gives itself."""
        if not isinstance(given, dict):
            return self._refuse(
                key, f"{name} takes arguments by name, not {_shown(given)}", "write {argument: value}"
            )
        parameters = {n: p for n, p in inspect.signature(target).parameters.items() if n not in taken}
        hints = _hints(target)
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        named = [n for n, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        made: dict[str, Make] = {}
        for argument, value in given.items():
            if argument in named or (open_ended and isinstance(argument, str)):
                made[argument] = self._argument(argument, value, hints.get(argument), (*key, argument), name)
            else:
                self.fault((*key, argument), f"{name} takes no {argument}", meant(argument, named))
        for needed in named:
            if parameters[needed].default is inspect.Parameter.empty and needed not in given:
                self.fault(key, f"{name} needs {needed}", f"write {name}: {{{needed}: ...}}")
        return lambda known: target(**{argument: make(known) for argument, make in made.items()})

    def _argument(self, argument: str, value: Any, hint: object, key: Key, name: str) -> Make:
        if (_is_reward(hint) and value is not None) or (isinstance(value, str) and IN_FILE.fullmatch(value)):
            return self.reward(value, key)
        if get_origin(hint) in (list, tuple, collections.abc.Sequence) and Reward in get_args(hint):
            if not isinstance(value, list):
                what = f"{argument} is a list of rewards, not {_shown(value)}"
                return self._refuse(key, what, f"write {argument}: [...]")
            several = [self.reward(one, (*key, index)) for index, one in enumerate(value)]
            return lambda known: [make(known) for make in several]
        if hint is ThinkTokens and isinstance(value, Mapping):
            fields: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in value.items()}
            return lambda known: ThinkTokens(**fields)
        if _is_plain(hint):
            try:
                values.check({argument: value}, {argument: hint}, name)
            except ConfigError as error:
                self.fault(key, error.what, error.todo)
        return lambda known: known.get(value, value) if isinstance(value, str) else value

    def named(self, name: str) -> Function | None:
        """The function that a name stands for; None of a file that is not run.

        Raises:
            ConfigError: there is none, or it is not one that a configuration may name.
        """
        if match := IN_FILE.fullmatch(name):
            file = self.folder / match["file"]
            _check_defined(file, match["name"])
            return in_file(file, match["name"]) if self.runs_files else None
        package, _, attribute = name.rpartition(".")
        every = {one: getattr(rewards, one) for one in rewards.__all__} if package in ("", "rewards") else {}
        factories = {one: made for one, made in every.items() if _is_reward(_hints(made).get("return"))}
        if package and attribute in factories:
            return typing.cast(Function, factories[attribute])
        near = difflib.get_close_matches(attribute, factories, n=1)
        todo = (
            "name a factory of 'rewards', task.correct, or a function that a .py file defines: FILE.py:NAME"
        )
        raise ConfigError(
            f"there is no reward {name!r}", todo=f"did you mean rewards.{near[0]}?" if near else todo
        )

    def _refuse(self, key: Key, what: str, todo: str) -> Make:
        self.fault(key, what, todo)
        return lambda known: None


def meant(name: object, known: Iterable[str], says: str = "it takes", shown: Iterable[str] = ()) -> str:
    """What to do about a name that does not exist: the nearest of those that are ``known``, or all."""
    known = list(known)
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]}?" if near else f"{says} {', '.join(shown or known) or 'nothing'}"


# --- files


def is_own(target: Function) -> bool:
    """Whether it is a function of ``rewards`` or of a file that was named, and not an import under another name."""
    return inspect.isfunction(target) and target.__module__.startswith(("rewards.", RUN_AS))


def _check_defined(file: Path, name: str) -> None:
    """That a file defines a name, by its text alone.

    Raises:
        ConfigError: there is no such file, it is no Python, or it does not define the name, but imports it at most.
    """
    if not file.is_file():
        near = difflib.get_close_matches(
            file.name, (one.name for one in file.parent.glob("*.py")), n=1, cutoff=0.4
        )
        todo = f"did you mean {near[0]}?" if near else "a file is looked for beside the configuration"
        raise ConfigError(f"there is no file {file}", todo=todo)
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError) as error:
        raise _not_run(file, error) from error
    if name not in _defined(body):
        functions = (one.name for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))
        near = difflib.get_close_matches(name, functions, n=1, cutoff=0.4)
        todo = f"did you mean {file.name}:{near[0]}?" if near else f"define it there: def {name}(...)"
        raise ConfigError(f"{file.name} has no {name} of its own", todo=todo)


def _defined(body: Iterable[ast.AST]) -> Iterator[str]:
    """Names that statements define or assign; what they import is another module's."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = (name for one in targets for name in ast.walk(one) if isinstance(name, ast.Name))
            yield from (name.id for name in names if isinstance(name.ctx, ast.Store))
        elif not isinstance(node, ast.ClassDef):
            for part in ("body", "orelse", "handlers", "finalbody"):
                yield from _defined(getattr(node, part, ()))


def in_file(file: Path, name: str) -> Function:
    """What a file calls so, which is run once in a process, so that its functions are the same ones each time.

    Raises:
        ConfigError: the file cannot be run, or this is no function.
    """
    key = f"{RUN_AS}{file.resolve()}"
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
    found = getattr(sys.modules[key], name, None)
    if not callable(found) or inspect.isclass(found):
        raise ConfigError(
            f"{file.name}:{name} is a {type(found).__name__}, and no function", todo="name a function"
        )
    return typing.cast(Function, found)


def _not_run(file: Path, error: Exception) -> ConfigError:
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return ConfigError(f"{file.name} cannot be run: {what}", todo=f"mend it; python {file.name} shows more")


# --- types


def _is_reward(hint: object) -> bool:
    return hint == Reward or (type(None) in get_args(hint) and Reward in get_args(hint))


def _hints(function: Function) -> dict[str, Any]:
    """The types of a function's parameters, and of what it returns, as far as they can be known."""
    try:
        return typing.get_type_hints(function, localns=KNOWN, include_extras=True)
    except Exception:  # an annotation may be any expression
        return {}


def _is_plain(hint: object) -> bool:
    """Whether any value of the type can be written in YAML; others are left to the function itself."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        return all(map(_is_plain, get_args(hint)))
    annotated = get_origin(hint) is Annotated and _is_plain(get_args(hint)[0])
    return hint in PLAIN or get_origin(hint) is Literal or annotated


def _shown(value: object) -> str:
    return "nothing" if value is None else values.shown("value", value)
