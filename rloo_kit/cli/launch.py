"""The command that starts a run in several processes: accelerate's, or on CPUs torchrun's."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rloo_kit.errors import ConfigError
from rloo_kit.session.multi_process import CONFIGS, CPU

ENGINES = ("ddp", "zero2", "zero3", "fsdp2")


class Command(NamedTuple):
    """A launcher's arguments, after its module's name, and the variables that it needs."""

    arguments: list[str]
    on_cpu: bool
    environment: dict[str, str]

    def __str__(self) -> str:
        """As it is typed in a shell."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return " ".join(
            [*variables, "torchrun" if self.on_cpu else "accelerate launch", shlex.join(self.arguments)]
        )

    def run(self) -> int:
        """Start it by this interpreter, whatever is on PATH, wait for it, and return its exit status."""
        module = "torch.distributed.run" if self.on_cpu else "accelerate.commands.launch"
        argv = [sys.executable, "-m", module, *self.arguments]
        return subprocess.run(argv, env={**os.environ, **self.environment}, check=False).returncode


def command(
    engine: str, processes: int, target: Sequence[str], *, on_cpu: bool = False, configs: str = CONFIGS
) -> Command:
    """The command that runs ``target``, a script or ``-m`` and a module, in so many processes of this machine; on CPUs
    by gloo, where DeepSpeed needs ``RLOOConfig(use_cpu=True, deepspeed=FILE)`` as well.

    Raises:
        ConfigError: an unknown engine, or FSDP without GPUs.

    >>> print(command("zero3", 4, ["train.py"]))
    accelerate launch --config_file configs/accelerate/zero3.yaml --num_processes 4 train.py
    >>> print(command("ddp", 2, ["train.py"], on_cpu=True))
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 train.py
    """
    if engine not in ENGINES or (engine == "fsdp2" and on_cpu):
        what = "FSDP2 needs GPUs" if engine == "fsdp2" else "there is no such engine"
        raise ConfigError(what, where=f"--engine {engine}", todo=f"one of {', '.join(ENGINES[: 4 - on_cpu])}")
    if on_cpu:
        # `accelerate launch --cpu` starts one process.  With ACCELERATE_USE_CPU accelerate has no DeepSpeed, and
        # without it no gloo but where the configuration says use_cpu=True.
        variables = {} if deepspeed_file(engine) else {CPU: "true"}
        return Command(["--nproc_per_node", str(processes), *target], True, variables)
    options = ["--config_file", f"{configs}/{engine}.yaml", "--num_processes", str(processes)]
    return Command([*options, *target], False, {})


def deepspeed_file(engine: str, configs: str = CONFIGS) -> str | None:
    """DeepSpeed's own configuration of an engine, for ``RLOOConfig(deepspeed=...)``; None of one that is not its."""
    return f"{configs}/deepspeed_{engine}.json" if engine.startswith("zero") else None


def check_installed(engine: str, configs: str = CONFIGS, on_cpu: bool = False) -> None:
    """Refuse an engine whose configuration or library is not here; torchrun, on CPUs, reads none of accelerate's."""
    file = Path(configs) / f"{engine}.yaml"
    if not (on_cpu or file.is_file()):
        todo = "start in a checkout of rloo-kit, or name its folder: --configs FOLDER"
        raise ConfigError("accelerate's configuration is not here", where=str(file), todo=todo)
    if deepspeed_file(engine) and importlib.util.find_spec("deepspeed") is None:
        todo = "pip install 'rloo-kit[deepspeed]'; on a CPU it needs g++"
        raise ConfigError("DeepSpeed is not installed", where=f"--engine {engine}", todo=todo)
