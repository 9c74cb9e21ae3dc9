"""The processes of a run: which one this is, how several are launched, and whether accelerate gave what was asked for.

What all processes would say is said by the main one (:func:`say`, :func:`warn`), and an error by the one that it ends
(:func:`named`).  Engines are accelerate's, DeepSpeed's and torch's own; :func:`command` composes a command.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from rloo_kit.errors import ConfigError, RunFolderError
from rloo_kit.session import output

COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
"""torchrun's, then mpirun's, in accelerate's order (utils/environment.py, ``get_cpu_distributed_information``).  Its
PMI_SIZE is left out: srun sets it for tasks that have nothing to do with each other."""

BY_LAUNCH = (
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"  # set by every `accelerate launch`, and by nothing else
)
VARIABLES = {"DeepSpeed": "ACCELERATE_USE_DEEPSPEED", "FSDP": "ACCELERATE_USE_FSDP"}
CPU = "ACCELERATE_USE_CPU"


def process_count(environment: Mapping[str, str] | None = None) -> int:
    """Processes of this run, as set by torchrun, ``accelerate launch`` and mpirun."""
    return _first_number(COUNTS, 1, os.environ if environment is None else environment)


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


# --- what is said -----------------------------------------------------------------------------------------


reword: Callable[[str], str] = str
"""What is said goes through it: the command line has other words for what a notebook is told to do."""


def say(text: object) -> None:
    """Print, on the main process alone; in a notebook that trains, a line of the cell's one output."""
    if is_main():
        output.say(reword(str(text)))


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
    """While inside, an error that ends one process of several is said with its rank, also in torchrun's report, which
    otherwise gives an exit status alone."""
    try:
        yield
    except Exception as error:
        if process_count() > 1:
            said = f"process {rank()} of {process_count()} ends: {type(error).__name__}: {error}"
            print(said, file=sys.stderr, flush=True)
        if "TORCHELASTIC_ERROR_FILE" in os.environ:
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            get_error_handler().record_exception(error)
        raise


# --- what a launch asked for ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What a launch asked for."""

    processes: int  # 2 where it is known that there are several
    engine: str  # "" for DDP or a process alone
    by: tuple[str, ...]  # the variables and settings that say so
    launched_alone: bool = False  # accelerate launch asked for several and started one


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
    for name, given in (("FSDP", fsdp), ("DeepSpeed", deepspeed)):
        if given:
            by.append(f"RLOOConfig({name.lower()}=...)")
        if given or env.get(VARIABLES[name], "").lower() in ("true", "1"):
            engine = name
    return Asked(2 if alone else count, engine, tuple(by), alone)


def downgrade(wanted: Asked, processes: int, distributed_type: str, *, on_cpu: bool) -> ConfigError | None:
    """The error where accelerate's state is not what was asked for, else None.

    It falls back in silence: to one process, to DDP in place of DeepSpeed or FSDP, or to several processes that each
    train alone.
    """
    found = {"DEEPSPEED": "DeepSpeed", "FSDP": "FSDP"}.get(distributed_type, "")
    if processes >= wanted.processes and wanted.engine in ("", found):
        return None
    engine = {"DeepSpeed": "zero2", "FSDP": "fsdp2"}.get(wanted.engine, "ddp")
    if on_cpu and engine == "fsdp2":
        todo = (
            f"FSDP needs GPUs; without fsdp: {command('ddp', wanted.processes, ['SCRIPT.py'], on_cpu=True)}"
        )
    else:
        todo = str(command(engine, wanted.processes, ["SCRIPT.py"], on_cpu=on_cpu))
    if on_cpu and engine == "zero2":
        todo = f"RLOOConfig(use_cpu=True, deepspeed={deepspeed_file(engine)!r}), unset {CPU}, and {todo}"
    if wanted.launched_alone:
        todo += "; or unset MASTER_ADDR, if one process is meant"
    number = "1 process" if wanted.processes == 1 else f"{wanted.processes} processes"
    number = "several processes" if wanted.launched_alone else number
    return ConfigError(
        f"the launch asked for {number} with {wanted.engine or 'DDP'}, and this is {processes} with {found or 'DDP'}",
        where=f"{', '.join(wanted.by)}; accelerate's state is {distributed_type}",
        todo=todo,
    )


# --- launching --------------------------------------------------------------------------------------------

Engine = Literal["ddp", "zero2", "zero3", "fsdp2"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
CONFIGS = "configs/accelerate"  # accelerate's and DeepSpeed's configurations, in a checkout of the kit
PORT = 29500  # torch's own default for the rendezvous
MODULES = {"accelerate launch": "accelerate.commands.launch", "torchrun": "torch.distributed.run"}


@dataclass(frozen=True)
class Machines:
    """Several machines of one run; ``host`` and ``port`` are those of machine 0, as the others reach it."""

    count: int = 1
    rank: int = 0
    host: str = "127.0.0.1"
    port: int = PORT


@dataclass(frozen=True)
class Command:
    """A launcher, its arguments, and the variables that it needs."""

    launcher: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """As it is typed in a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, self.launcher, shlex.join(self.arguments)])

    def run(self) -> int:
        """Start it by this interpreter, whatever is on PATH, wait for it, and return its exit status."""
        argv = [sys.executable, "-m", MODULES[self.launcher], *self.arguments]
        return subprocess.run(argv, env={**os.environ, **self.environment}, check=False).returncode


def command(
    engine: str,
    processes: int,
    target: Sequence[str],
    *,
    on_cpu: bool = False,
    machines: Machines | None = None,
    configs: str = CONFIGS,
) -> Command:
    """The command that runs ``target``, a script or ``-m`` and a module, in so many processes of all machines together.

    Without GPUs it is by gloo; DeepSpeed there needs ``RLOOConfig(use_cpu=True, deepspeed=FILE)`` as well
    (:func:`deepspeed_file`).

    Raises:
        ConfigError: an unknown engine, FSDP without GPUs, or processes that do not divide among the machines.

    >>> print(command("zero3", 4, ["train.py"]))
    accelerate launch --config_file configs/accelerate/zero3.yaml --num_processes 4 train.py
    >>> print(command("ddp", 2, ["train.py"], on_cpu=True))
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 train.py
    """
    several = machines or Machines()
    where = f"engine={engine!r}, processes={processes}, machines={several.count}, machine {several.rank}"
    if engine not in ENGINES or (engine == "fsdp2" and on_cpu):
        todo = "one of ddp, zero2, zero3" + ("" if on_cpu else ", fsdp2")
        raise ConfigError(
            "FSDP2 needs GPUs" if engine == "fsdp2" else "there is no such engine", where=where, todo=todo
        )
    if (
        processes < 1
        or several.count < 1
        or processes % several.count
        or not 0 <= several.rank < several.count
    ):
        raise ConfigError(
            "processes must be at least 1 and divide evenly among the machines, which count from 0",
            where=where,
            todo="give a multiple of the machines, and a rank below their number",
        )
    address = several.host, str(several.port)
    if not on_cpu:
        arguments = ["--config_file", f"{configs}/{engine}.yaml", "--num_processes", str(processes)]
        if several.count > 1:
            arguments += ["--num_machines", str(several.count), "--machine_rank", str(several.rank)]
            arguments += ["--main_process_ip", address[0], "--main_process_port", address[1]]
        return Command("accelerate launch", (*arguments, *target))
    # `accelerate launch --cpu` starts one process.  With ACCELERATE_USE_CPU accelerate has no DeepSpeed, and without it
    # no gloo but where the configuration says use_cpu=True.
    arguments = ["--nproc_per_node", str(processes // several.count)]
    if several.count > 1:
        arguments += ["--nnodes", str(several.count), "--node_rank", str(several.rank)]
        arguments += ["--master_addr", address[0], "--master_port", address[1]]
    return Command("torchrun", (*arguments, *target), {} if deepspeed_file(engine) else {CPU: "true"})


def deepspeed_file(engine: str, configs: str = CONFIGS) -> str | None:
    """DeepSpeed's own configuration of an engine, for ``RLOOConfig(deepspeed=...)``; None of one that is not its."""
    return f"{configs}/deepspeed_{engine}.json" if engine.startswith("zero") else None


def check_installed(engine: str, configs: str = CONFIGS, on_cpu: bool = False) -> None:
    """Refuse an engine whose configuration or library is not here; torchrun, on CPUs, reads none of accelerate's."""
    file = Path(configs) / f"{engine}.yaml"
    if not (on_cpu or file.is_file()):
        raise ConfigError(
            "accelerate's configuration is not here",
            where=str(file),
            todo="start in a checkout of rloo-kit, or name its folder: --configs FOLDER",
        )
    if deepspeed_file(engine) and importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            "DeepSpeed is not installed",
            where=f"engine={engine!r}",
            todo="pip install 'rloo-kit[deepspeed]'; on a CPU it needs g++",
        )
