"""The processes of a run: which one this is, what the launcher asked for, and whether accelerate gave it.

accelerate falls back in silence: to one process, to DDP in place of DeepSpeed or FSDP, or to several processes that
each train alone.  The trainer stops there (:func:`downgrade`).  What all processes would say is said by the main one
(:func:`say`, :func:`warn`), and an error by the one that it ends (:func:`named`).
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rloo_kit.errors import ConfigError, RunFolderError
from rloo_kit.session import cell, engines

COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""torchrun's, then mpirun's, in accelerate's order (utils/environment.py, ``get_cpu_distributed_information``).  Its
PMI_SIZE is left out: srun sets it for tasks that have nothing to do with each other."""

BY_LAUNCH = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"
"""Set by every ``accelerate launch``, and by nothing else."""

DEEPSPEED, FSDP = "DeepSpeed", "FSDP"
VARIABLES = {DEEPSPEED: "ACCELERATE_USE_DEEPSPEED", FSDP: "ACCELERATE_USE_FSDP"}
CPU = "ACCELERATE_USE_CPU"

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Where torchrun's report reads a process's error."""


@dataclass(frozen=True)
class Asked:
    """What a launch asked for."""

    processes: int  # 2 where it is known that there are several
    engine: str  # "" for DDP or a process alone
    by: tuple[str, ...]  # the variables and settings that say so
    launched_alone: bool = False  # accelerate launch asked for several and started one


def process_count(environment: Mapping[str, str] | None = None) -> int:
    """Processes of this run, as set by torchrun, ``accelerate launch`` and mpirun."""
    return _first_number(COUNTS, 1, os.environ if environment is None else environment)


def rank() -> int:
    """This process's number, 0 for the main one."""
    return _first_number(RANKS, 0, os.environ) if process_count() > 1 else 0


def is_main() -> bool:
    """Whether this process is a run's only one, or the first of several."""
    return rank() == 0


def say(text: object) -> None:
    """Print, on the main process alone; in a notebook that trains, a line of the cell's one output."""
    if is_main():
        cell.say(str(text))


def warn(message: str, category: type[Warning] = UserWarning, *, main_alone: bool = True) -> None:
    """Warn at the user's line; with ``main_alone`` on the main process, where the others would say it too."""
    if main_alone and not is_main():
        return
    here = sys._getframe(1)
    frame = next(
        (one for one, _ in traceback.walk_stack(here) if not _is_library(one.f_code.co_filename)), here
    )
    names = frame.f_globals
    registry, module = names.setdefault("__warningregistry__", {}), names.get("__name__")
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)


INSTALLED = {"site-packages", "dist-packages", "unsloth_compiled_cache"}
HOMES = (Path(__file__).parents[1], Path(__file__).parents[2] / "rewards", Path(os.__file__).parent)
"""Of the kit, also where it is not installed, and of Python's own library."""


@functools.cache
def _is_library(file: str) -> bool:
    path = Path(file)
    return (
        file.startswith("<frozen ")
        or not INSTALLED.isdisjoint(path.parts)
        or any(map(path.is_relative_to, HOMES))
    )


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


@contextmanager
def named() -> Iterator[None]:
    """While inside, an error that ends one process of several is said with its rank, also in torchrun's report, which
    otherwise gives an exit status alone."""
    try:
        yield
    except Exception as error:
        if process_count() > 1:
            said = f"process {rank()} of {process_count()} ends: {type(error).__name__}: {error}"
            print(said, file=sys.stderr, flush=True)
        if ERROR_FILE in os.environ:
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            get_error_handler().record_exception(error)
        raise


def asked(
    deepspeed: object = None, fsdp: object = None, environment: Mapping[str, str] | None = None
) -> Asked:
    """What the launcher and a configuration, by transformers' settings of these names, ask for."""
    env = os.environ if environment is None else environment
    count = process_count(env)
    by = [f"{name}={env[name]}" for name in (*COUNTS, CPU, *VARIABLES.values()) if name in env]
    # accelerate's simple launcher starts one process, and sets this where it was asked for several.
    alone = count == 1 and BY_LAUNCH in env and "WORLD_SIZE" not in env and "MASTER_ADDR" in env
    if alone:
        by.append(f"MASTER_ADDR={env['MASTER_ADDR']} of accelerate launch")
    engine = ""
    for name, setting, given in ((FSDP, "fsdp", fsdp), (DEEPSPEED, "deepspeed", deepspeed)):
        if given:
            by.append(f"RLOOConfig({setting}=...)")
        if given or env.get(VARIABLES[name], "").lower() in ("true", "1"):
            engine = name
    return Asked(2 if alone else count, engine, tuple(by), alone)


def downgrade(wanted: Asked, processes: int, distributed_type: str, *, on_cpu: bool) -> ConfigError | None:
    """The error where a launch gave something else than was asked for, by accelerate's state; else None."""
    found = {"DEEPSPEED": DEEPSPEED, "FSDP": FSDP}.get(distributed_type, "")
    if processes >= wanted.processes and wanted.engine in ("", found):
        return None
    several = "several processes" if wanted.launched_alone else _number(wanted.processes)
    return ConfigError(
        f"the launch asked for {several}{_with(wanted.engine)}, and this is {_number(processes)}{_with(found)}",
        where=f"{', '.join(wanted.by)}; accelerate's state is {distributed_type}",
        todo=_way(wanted, on_cpu),
    )


def _way(wanted: Asked, on_cpu: bool) -> str:
    script = Path(sys.argv[0]).name if sys.argv and sys.argv[0].endswith(".py") else "SCRIPT.py"
    engine = {DEEPSPEED: "zero2", FSDP: "fsdp2"}.get(wanted.engine, "ddp")
    count = wanted.processes
    if on_cpu and engine == "fsdp2":
        instead = engines.command("ddp", count, [script], on_cpu=True)
        return f"FSDP needs GPUs; on CPUs {instead} without fsdp is DDP"
    way = str(engines.command(engine, count, [script], on_cpu=on_cpu))
    if on_cpu and engine == "zero2":
        file = engines.deepspeed_file(engine)
        way = f"RLOOConfig(use_cpu=True, deepspeed={file!r}), unset {CPU}, and {way}"
    return f"{way}; or unset MASTER_ADDR, if one process is meant" if wanted.launched_alone else way


def _number(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def _with(engine: str) -> str:
    return f" with {engine}" if engine else " without DeepSpeed or FSDP"


def _first_number(names: tuple[str, ...], default: int, environment: Mapping[str, str]) -> int:
    found = (environment.get(name, "") for name in names)
    return next((int(text) for text in found if text.isdecimal()), default)
