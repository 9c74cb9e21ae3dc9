"""Runs that a launcher starts."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import CLEAN_ENVIRONMENT, PATIENCE, ROOT

collect_ignore_glob = ["worker.py"]  # a script, not a module with doctests

SMALL = {"max_steps": 2, "per_device_train_batch_size": 2, "save_strategy": "no"}


def start(folder: Path, processes: int, *options: str, **settings: Any) -> subprocess.Popen[str]:
    """Start the worker in ``processes`` processes by torchrun with these options; do not wait for it."""
    target = [str(Path(__file__).with_name("worker.py")), str(folder), json.dumps(SMALL | settings)]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(processes), *options]
    env = {**CLEAN_ENVIRONMENT, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
    how: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": folder}
    return subprocess.Popen([*command, *target], env=env, **how)


def finish(run: subprocess.Popen[str], fails: bool = False) -> tuple[str, str]:
    """Wait for a run and return its stdout and stderr."""
    try:
        out, err = run.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        run.terminate()  # torchrun ends its processes
        raise
    assert bool(run.returncode) is fails, err[-4000:]
    return out, err


def seen(folder: Path, processes: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"seen_{rank}.json").read_text()) for rank in range(processes)]


def problems(told: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Return step -> the problems of all processes, sorted."""
    found: dict[int, list[str]] = {}
    for one in told:
        for step, text, _ in one["seen"]:
            found.setdefault(step, []).append(text)
    return {step: sorted(texts) for step, texts in found.items()}
