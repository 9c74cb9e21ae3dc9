"""Runs that a launcher starts."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CLEAN_ENVIRONMENT

collect_ignore_glob = ["worker.py"]  # a script, not a module with doctests

ROOT = Path(__file__).parents[2]
PATIENCE = 550  # seconds; pytest's own is 600, and a busy machine is slow
SMALL = {"max_steps": 2, "per_device_train_batch_size": 2, "save_strategy": "no"}


def start(folder: Path, processes: int, *options: str, **settings: Any) -> subprocess.Popen[str]:
    """The worker in processes of this machine, by torchrun with its further options; not waited for."""
    target = [str(Path(__file__).with_name("worker.py")), str(folder), json.dumps(SMALL | settings)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), *options]
    env = {**CLEAN_ENVIRONMENT, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    how: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder}
    return subprocess.Popen([*command, *target], env=env, **how)


def finish(run: subprocess.Popen[str], fails: bool = False) -> tuple[str, str]:
    """What it printed, out and err."""
    try:
        out, err = run.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        run.terminate()  # torchrun ends its processes
        raise
    assert bool(run.returncode) is fails, err[-4000:]
    return out, err


def seen(folder: Path, processes: int) -> list[dict[str, Any]]:
    """What each process wrote."""
    return [json.loads((folder / f"seen_{rank}.json").read_text()) for rank in range(processes)]


def problems(told: list[dict[str, Any]]) -> dict[int, list[str]]:
    """step -> the problems of all processes, sorted."""
    found: dict[int, list[str]] = {}
    for one in told:
        for step, text, _ in one["seen"]:
            found.setdefault(step, []).append(text)
    return {step: sorted(texts) for step, texts in found.items()}


@pytest.fixture
def port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        found: int = one.getsockname()[1]
        return found
