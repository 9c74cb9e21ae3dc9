"""The source of a function that was written in a notebook, with the constants and imports that it needs.

For :mod:`.recipe`.  A function that needs more than its own text, constants, imports and other such functions is
refused: what a notebook's other variables hold cannot be written down.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import inspect
import pkgutil
import re
import symtable
import sysconfig
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rloo_kit.hidden import without_hidden
from rloo_kit.values import SECRET

HEAD = '''"""Reward functions of a run in a notebook, as they were when it was trained."""

from __future__ import annotations'''


class CannotBeWrittenError(Exception):
    """What is in the way, and what to do about it."""

    def __init__(self, what: str, todo: str) -> None:
        super().__init__(what)
        self.what, self.todo = what, todo


class Sources:
    """The text of a file that holds functions, each with what it needs."""

    def __init__(self) -> None:
        self._parts: dict[str, str] = {}

    def text(self) -> str:
        """The file; empty where there are no functions."""
        if not self._parts:
            return ""
        short = [part for part in self._parts.values() if "\n" not in part]
        long = [part for part in self._parts.values() if "\n" in part]
        return "\n\n\n".join(["\n\n".join([HEAD, "\n".join(short)]).rstrip(), *long]) + "\n"

    def add(self, function: Callable[..., Any]) -> str:
        """Take a function in, and what it needs first; returns its name in the file.

        Raises:
            CannotBeWrittenError: its source is not known, or it needs what cannot be written down.
        """
        source, name = _definition(function)
        for needed, value in _needed(function, source, name):
            self._put(needed, self._written(needed, value, name))
        said = vars(function).get("judges"), vars(function).get("columns")  # what a reward says of itself
        lines = [
            f"{name}.{key} = {one!r}" for key, one in zip(("judges", "columns"), said, strict=True) if one
        ]
        self._put(name, "\n".join([source.rstrip(), *lines]))
        return name

    def _put(self, name: str, text: str) -> None:
        if self._parts.setdefault(name, text) != text:
            raise CannotBeWrittenError(f"two functions use {name!r}, each another one", f"rename one {name}")

    def _written(self, name: str, value: object, user: str) -> str:
        """A line that gives a name its value; of another function of the notebook's its source."""
        if isinstance(value, types.ModuleType):
            return f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else "")
        if importable(value) and value.__qualname__.isidentifier():  # type: ignore[attr-defined]
            origin = f"from {value.__module__} import {value.__qualname__}"  # type: ignore[attr-defined]
            return origin + (f" as {name}" if name != value.__qualname__ else "")  # type: ignore[attr-defined]
        if isinstance(value, re.Pattern):
            return f"{name} = __import__('re').compile({value.pattern!r}, {value.flags})"
        if inspect.isfunction(value) and value.__name__ == name:
            self.add(value)
            return self._parts[name]
        if not _is_constant(value):
            raise CannotBeWrittenError(
                f"{user} uses {name!r}, a {type(value).__name__}, which cannot be written down",
                f"put {user} into a .py file that makes {name} itself, and pass it from there",
            )
        if SECRET.search(name) or without_hidden(repr(value)) != repr(value):
            raise CannotBeWrittenError(
                f"{user} uses {name!r}, which may be a secret", f"let {user} read it from os.environ"
            )
        return f"{name} = {value!r}"


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
    """Whether a module is Python's own or in the installation, and so found from any folder."""
    if module == "__main__":
        return False
    try:
        spec = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    if not spec.has_location or spec.origin is None:
        return True
    places = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")]
    kit = Path(__file__).resolve().parents[2]  # an editable installation
    own = spec.name in ("rloo_kit", "rewards") and Path(spec.origin).resolve().is_relative_to(kit)
    return own or any(Path(spec.origin).resolve().is_relative_to(place) for place in places)


def _definition(function: Callable[..., Any]) -> tuple[str, str]:
    """A function's text and the name that it gives it.

    Raises:
        CannotBeWrittenError: a lambda, an object, or a function whose text is not known.
    """
    called = getattr(function, "__name__", type(function).__name__)
    put = "put it into a .py file as 'def reward(completions, **kwargs)', and pass it from there"
    if not inspect.isfunction(function):
        raise CannotBeWrittenError(f"{called} is an object of {type(function).__name__}, not a function", put)
    if function.__name__ == "<lambda>":
        raise CannotBeWrittenError("a reward is a lambda, which has no name", put)
    try:
        source = textwrap.dedent(inspect.getsource(function))
        node = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError) as error:
        raise CannotBeWrittenError(
            f"the source of {called} is not known ({type(error).__name__})", put
        ) from error
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        raise CannotBeWrittenError(f"{called} is not written as a function", put)
    if without_hidden(source) != source:
        raise CannotBeWrittenError(f"the source of {called} holds a secret", "read it from os.environ")
    return source, node.name


def _needed(function: Callable[..., Any], source: str, name: str) -> Iterator[tuple[str, object]]:
    """What a function's text takes from outside, with its value."""
    found = inspect.getclosurevars(function).nonlocals
    outside = {**getattr(function, "__globals__", {}), **found}
    for needed in sorted(_free(symtable.symtable(source, "<reward>", "exec"), top=True) - {name}):
        if needed in outside:
            yield needed, outside[needed]
        elif not hasattr(builtins, needed):
            raise CannotBeWrittenError(f"{name} uses {needed!r}, which is not defined", f"define {needed}")


def _free(table: symtable.SymbolTable, top: bool = False) -> set[str]:
    """Names that a text takes from the module around it, nested functions among them."""
    here = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    defined = {s.get_name() for s in table.get_symbols() if s.is_assigned()} if top else set()
    return (here - defined).union(*(_free(child) for child in table.get_children()))


def _is_constant(value: object) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
