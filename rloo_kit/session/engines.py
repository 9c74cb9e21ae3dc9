"""The launcher's command for a run in several processes: accelerate's on GPUs, torchrun on CPUs.

For ``rloo-kit launch``, and for the trainer's message where a launch gave something else than was asked
(:mod:`.processes`).  Engines are accelerate's, DeepSpeed's and torch's own; this composes a command.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from rloo_kit.errors import ConfigError

Engine = Literal["ddp", "zero2", "zero3", "fsdp2"]
ENGINES: tuple[Engine, ...] = get_args(Engine)

CONFIGS = "configs/accelerate"
"""Where the committed configurations of accelerate and DeepSpeed are, in a checkout of the kit."""

PORT = 29500
"""torch's own default for the rendezvous."""

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

    @property
    def argv(self) -> list[str]:
        """The same by this interpreter, whatever is on PATH."""
        return [sys.executable, "-m", MODULES[self.launcher], *self.arguments]

    def run(self) -> int:
        """Start it, wait for it, and return its exit status."""
        return subprocess.run(self.argv, env={**os.environ, **self.environment}, check=False).returncode


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
    machines = machines or Machines()
    _check(engine, processes, on_cpu, machines)
    return (_by_torchrun if on_cpu else _by_accelerate)(engine, processes, tuple(target), machines, configs)


def deepspeed_file(engine: str, configs: str = CONFIGS) -> str | None:
    """DeepSpeed's own configuration of an engine, for ``RLOOConfig(deepspeed=...)``; None of one that is not its."""
    return f"{configs}/deepspeed_{engine}.json" if engine.startswith("zero") else None


def _check(engine: str, processes: int, on_cpu: bool, machines: Machines) -> None:
    where = f"engine={engine!r}, processes={processes}, machines={machines.count}"
    if engine not in ENGINES:
        raise ConfigError("there is no such engine", where=where, todo=f"one of {', '.join(ENGINES)}")
    if engine == "fsdp2" and on_cpu:
        raise ConfigError(
            "FSDP2 needs GPUs: without one accelerate runs DDP in its place, and says nothing",
            where=where,
            todo="engine='ddp', 'zero2' or 'zero3' on CPUs",
        )
    if processes < 1 or machines.count < 1 or processes % machines.count:
        raise ConfigError(
            "processes must be at least 1 and divide evenly among the machines",
            where=where,
            todo=f"give {max(1, processes // max(1, machines.count)) * max(1, machines.count)} processes",
        )
    if not 0 <= machines.rank < machines.count:
        raise ConfigError(
            f"of {machines.count} machines there is no number {machines.rank}",
            where=where,
            todo=f"give a machine's rank from 0 to {machines.count - 1}",
        )


def _by_accelerate(
    engine: str, processes: int, target: tuple[str, ...], machines: Machines, configs: str
) -> Command:
    arguments = ["--config_file", f"{configs}/{engine}.yaml", "--num_processes", str(processes)]
    if machines.count > 1:
        arguments += ["--num_machines", str(machines.count), "--machine_rank", str(machines.rank)]
        arguments += ["--main_process_ip", machines.host, "--main_process_port", str(machines.port)]
    return Command("accelerate launch", (*arguments, *target))


def _by_torchrun(
    engine: str, processes: int, target: tuple[str, ...], machines: Machines, configs: str
) -> Command:
    """``accelerate launch --cpu`` starts one process.  With ACCELERATE_USE_CPU accelerate has no DeepSpeed, and without
    it no gloo but where the configuration says ``use_cpu=True``."""
    arguments = ["--nproc_per_node", str(processes // machines.count)]
    if machines.count > 1:
        arguments += ["--nnodes", str(machines.count), "--node_rank", str(machines.rank)]
        arguments += ["--master_addr", machines.host, "--master_port", str(machines.port)]
    environment = {} if deepspeed_file(engine) else {"ACCELERATE_USE_CPU": "true"}
    return Command("torchrun", (*arguments, *target), environment)


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
