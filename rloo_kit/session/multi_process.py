"""A run in several processes: which one this is, and whether the launch gave what it was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from rloo_kit.errors import ConfigError

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


# --- what a launch asked for ------------------------------------------------------------------------------

BY_LAUNCH = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"  # set by `accelerate launch`, and by nothing else
VARIABLES = {"DeepSpeed": "ACCELERATE_USE_DEEPSPEED", "FSDP": "ACCELERATE_USE_FSDP"}
CPU = "ACCELERATE_USE_CPU"
CONFIGS = "configs/accelerate"  # accelerate's and DeepSpeed's configurations, in a checkout of the kit


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
    by_cpu = f"{CPU}=true torchrun --nproc_per_node {wanted.processes}"
    by_gpu = f"accelerate launch --config_file {CONFIGS}/{engine}.yaml --num_processes {wanted.processes}"
    todo += f"{by_cpu if on_cpu else by_gpu} SCRIPT.py"
    if wanted.launched_alone:
        todo += "; or unset MASTER_ADDR, if one process is meant"
    several = "several" if wanted.launched_alone else str(wanted.processes)
    number = f"{several} process{'es' if wanted.processes > 1 else ''}"
    return ConfigError(
        f"the launch asked for {number} with {wanted.engine or 'DDP'}, and this is {processes} with {found or 'DDP'}",
        where=f"{', '.join(wanted.by)}; accelerate's state is {distributed_type}",
        todo=todo,
    )
