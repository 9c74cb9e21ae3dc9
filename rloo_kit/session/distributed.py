"""Check a launch of several processes: this process's rank, and whether accelerate started what was asked for."""

import os
from collections.abc import Mapping

from rloo_kit.errors import ConfigError

COUNT = "WORLD_SIZE"
BY_LAUNCH = "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"  # set by `accelerate launch`, and by nothing else
CPU, ENGINES = "ACCELERATE_USE_CPU", {"DEEPSPEED": "zero2", "FSDP": "fsdp2"}
CONFIGS = "configs/accelerate"  # accelerate's and DeepSpeed's configurations, in a checkout of the kit


def process_count(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processes of this run, as set by torchrun or ``accelerate launch``."""
    return int(environment.get(COUNT) or 1)


def is_main() -> bool:
    """Whether this is the process of rank 0."""
    return process_count() == 1 or int(os.environ.get("RANK") or 0) == 0


def downgrade(
    processes: int,
    distributed_type: str,
    *,
    on_cpu: bool,
    deepspeed: object = None,
    fsdp: object = None,
    environment: Mapping[str, str] = os.environ,
) -> ConfigError | None:
    """Return an error if accelerate's state is not what the launch and transformers' settings ask for, else None:
    accelerate silently falls back to one process, to DDP (not DeepSpeed or FSDP), or to processes that train alone."""
    settings = {"DEEPSPEED": deepspeed, "FSDP": fsdp}
    switched = [name for name in settings if environment.get(f"ACCELERATE_USE_{name}", "").lower() in ("true", "1")]
    engine = next((name for name in settings if settings[name] or name in switched), "")
    # accelerate launch was asked for several processes, but its simple launcher started one.
    alone = {BY_LAUNCH, "MASTER_ADDR"} <= environment.keys() and COUNT not in environment
    count = 2 if alone else process_count(environment)
    if processes >= count and engine in ("", distributed_type):
        return None
    sources = [f"{name}={environment[name]}" for name in (COUNT, CPU) if name in environment]
    sources += [f"ACCELERATE_USE_{name}" for name in switched]
    sources += [f"RLOOConfig({name.lower()}=...)" for name in settings if settings[name]]
    todo = f"accelerate launch --config_file {CONFIGS}/{ENGINES.get(engine, 'ddp')}.yaml --num_processes {count}"
    if on_cpu:
        without = "without DeepSpeed and FSDP, which are for GPUs: " if engine else ""
        todo = f"{without}{CPU}=true torchrun --nproc_per_node {count}"
    number = "several processes" if alone else f"{count} process{'es' if count > 1 else ''}"
    running = distributed_type if distributed_type in ENGINES else "DDP"
    return ConfigError(
        f"the launch asked for {number} with {engine or 'DDP'}, and accelerate started {processes} with {running}",
        where=f"{', '.join(sources)}; accelerate's state is {distributed_type}",
        todo=f"{todo} SCRIPT.py" + ("; or unset MASTER_ADDR, if one process is meant" if alone else ""),
    )
