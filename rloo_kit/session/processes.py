"""The processes of a run: which one this is, and what is said by the main one alone."""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rloo_kit.errors import RunFolderError
from rloo_kit.session import output

COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""torchrun's, then mpirun's, in accelerate's order (``get_cpu_distributed_information``).  Its PMI_SIZE is left out:
srun sets it for tasks that have nothing to do with each other."""


def process_count(environment: Mapping[str, str] = os.environ) -> int:
    """Processes of this run, as set by torchrun, ``accelerate launch`` and mpirun."""
    return _first_number(COUNTS, 1, environment)


def rank() -> int:
    """This process's number, 0 for the main one."""
    return _first_number(RANKS, 0, os.environ) if process_count() > 1 else 0


def is_main() -> bool:
    """Whether this process is a run's only one, or the first of several."""
    return rank() == 0


def _first_number(names: tuple[str, ...], default: int, environment: Mapping[str, str]) -> int:
    found = (environment.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdecimal()), default)


def folder() -> Path:
    """The folder that this process works in.

    Raises:
        RunFolderError: it was deleted.
    """
    try:
        return Path.cwd()
    except FileNotFoundError as error:
        raise RunFolderError(
            "the folder that this process works in was deleted, and torch and the run need one",
            where="the working directory, as os.getcwd() has it",
            todo="os.chdir to a folder that is there, or restart the kernel",
        ) from error


def say(text: object) -> None:
    """Print, on the main process alone; in a notebook that trains, a line of the cell's one output."""
    if is_main():
        output.say(str(text))


def warn(message: str, category: type[Warning] = UserWarning, *, main_alone: bool = True) -> None:
    """Warn at the user's line; with ``main_alone`` on the main process, where the others would say it too."""
    if main_alone and not is_main():
        return
    here = sys._getframe(1)
    frames = (one for one, _ in traceback.walk_stack(here))
    frame = next((one for one in frames if not _is_library(one.f_code.co_filename)), here)
    names = frame.f_globals
    registry, module = names.setdefault("__warningregistry__", {}), names.get("__name__")
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


INSTALLED = {"site-packages", "dist-packages", "unsloth_compiled_cache"}
HOMES = (Path(__file__).parents[1], Path(__file__).parents[2] / "rewards", Path(os.__file__).parent)
"""Of the kit, also where it is not installed, and of Python's own library."""


@functools.cache
def _is_library(file: str) -> bool:
    path = Path(file)
    inside = not INSTALLED.isdisjoint(path.parts) or any(map(path.is_relative_to, HOMES))
    return inside or file.startswith("<frozen ")


@contextmanager
def named() -> Iterator[None]:
    """While inside, an error that ends one process of several is said with its rank; torchrun's report has a status."""
    try:
        yield
    except Exception as error:
        if process_count() > 1:
            said = f"process {rank()} of {process_count()} ends: {type(error).__name__}: {error}"
            print(said, file=sys.stderr, flush=True)
        raise
