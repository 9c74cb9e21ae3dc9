"""Launch several processes, for ``rloo-kit launch``, and tell whether accelerate gave what a launch asked for."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from rloo_kit.errors import ConfigError
from rloo_kit.session.processes import COUNTS, process_count

BY_LAUNCH = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"  # set by `accelerate launch`, and by nothing else
VARIABLES = {"DeepSpeed": "ACCELERATE_USE_DEEPSPEED", "FSDP": "ACCELERATE_USE_FSDP"}
CPU = "ACCELERATE_USE_CPU"


class Asked(NamedTuple):
    """What a launch asked for."""

    processes: int  # 2 where it is known that there are several
    engine: str  # "" for DDP or a process alone
    by: tuple[str, ...]  # the variables and settings that say so
    launched_alone: bool = False  # accelerate launch asked for several and started one


def asked(
    deepspeed: object = None, fsdp: object = None, environment: Mapping[str, str] = os.environ
) -> Asked:
    """What the launcher and a configuration, by transformers' settings of these names, ask for."""
    count = process_count(environment)
    by = [
        f"{name}={environment[name]}" for name in (*COUNTS, CPU, *VARIABLES.values()) if name in environment
    ]
    # accelerate's simple launcher starts one process, and sets this where it was asked for several.
    alone = BY_LAUNCH in environment and "WORLD_SIZE" not in environment and "MASTER_ADDR" in environment
    if alone := alone and count == 1:
        by.append(f"MASTER_ADDR={environment['MASTER_ADDR']} of accelerate launch")
    engine = ""
    for name, given in (("FSDP", fsdp), ("DeepSpeed", deepspeed)):
        by += [f"RLOOConfig({name.lower()}=...)"] if given else []
        if given or environment.get(VARIABLES[name], "").lower() in ("true", "1"):
            engine = name
    return Asked(2 if alone else count, engine, tuple(by), alone)


def downgrade(wanted: Asked, processes: int, distributed_type: str, *, on_cpu: bool) -> ConfigError | None:
    """The error where accelerate's state is not what was asked for, else None: it falls back in silence, to one
    process, to DDP in place of DeepSpeed or FSDP, or to several processes that each train alone."""
    found = {"DEEPSPEED": "DeepSpeed", "FSDP": "FSDP"}.get(distributed_type, "")
    if processes >= wanted.processes and wanted.engine in ("", found):
        return None
    engine = {"DeepSpeed": "zero2", "FSDP": "fsdp2"}.get(wanted.engine, "ddp")
    todo = "without DeepSpeed and FSDP, which are for GPUs: " if on_cpu and wanted.engine else ""
    todo += str(command("ddp" if on_cpu else engine, wanted.processes, ["SCRIPT.py"], on_cpu=on_cpu))
    if wanted.launched_alone:
        todo += "; or unset MASTER_ADDR, if one process is meant"
    several = "several" if wanted.launched_alone else str(wanted.processes)
    number = f"{several} process{'es' if wanted.processes > 1 else ''}"
    return ConfigError(
        f"the launch asked for {number} with {wanted.engine or 'DDP'}, and this is {processes} with {found or 'DDP'}",
        where=f"{', '.join(wanted.by)}; accelerate's state is {distributed_type}",
        todo=todo,
    )


Engine = Literal["ddp", "zero2", "zero3", "fsdp2"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
CONFIGS = "configs/accelerate"  # accelerate's and DeepSpeed's configurations, in a checkout of the kit
MODULES = {"accelerate launch": "accelerate.commands.launch", "torchrun": "torch.distributed.run"}


@dataclass(frozen=True)
class Machines:
    """Several machines of one run; ``host`` and ``port`` are those of machine 0, as the others reach it."""

    count: int = 1
    rank: int = 0
    host: str = "127.0.0.1"
    port: int = 29500


@dataclass(frozen=True)
class Command:
    """A launcher, its arguments, and the variables that it needs."""

    launcher: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """As it is typed in a shell."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
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
    """The command that runs ``target``, a script or ``-m`` and a module, in so many processes of all machines together;
    without GPUs by gloo, where DeepSpeed needs ``RLOOConfig(use_cpu=True, deepspeed=FILE)`` as well.

    Raises:
        ConfigError: an unknown engine, FSDP without GPUs, or processes that do not divide among the machines.

    >>> print(command("zero3", 4, ["train.py"]))
    accelerate launch --config_file configs/accelerate/zero3.yaml --num_processes 4 train.py
    >>> print(command("ddp", 2, ["train.py"], on_cpu=True))
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 train.py
    """
    of = machines or Machines()
    count, rank = of.count, of.rank
    where = f"engine={engine!r}, processes={processes}, machines={count}, machine {rank}"
    if engine not in ENGINES or (engine == "fsdp2" and on_cpu):
        what = "FSDP2 needs GPUs" if engine == "fsdp2" else "there is no such engine"
        raise ConfigError(what, where=where, todo="one of ddp, zero2, zero3" + ", fsdp2" * (not on_cpu))
    if min(processes, count) < 1 or processes % count or not 0 <= rank < count:
        raise ConfigError(
            "processes must be at least 1 and divide evenly among the machines, which count from 0",
            where=where,
            todo="give a multiple of the machines, and a rank below their number",
        )
    if on_cpu:
        # `accelerate launch --cpu` starts one process.  With ACCELERATE_USE_CPU accelerate has no DeepSpeed, and
        # without it no gloo but where the configuration says use_cpu=True.
        options: dict[str, object] = {"nproc_per_node": processes // count}
        several: dict[str, object] = {
            "nnodes": count,
            "node_rank": rank,
            "master_addr": of.host,
            "master_port": of.port,
        }
    else:
        options = {"config_file": f"{configs}/{engine}.yaml", "num_processes": processes}
        several = {"num_machines": count, "machine_rank": rank, "main_process_ip": of.host}
        several["main_process_port"] = of.port
    given = options | (several if count > 1 else {})
    words = (word for name, value in given.items() for word in (f"--{name}", str(value)))
    launcher = "torchrun" if on_cpu else "accelerate launch"
    return Command(
        launcher, (*words, *target), {CPU: "true"} if on_cpu and not deepspeed_file(engine) else {}
    )


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
