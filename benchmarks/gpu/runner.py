"""Run checks in processes of their own, each within its limit and all within a budget.

A worker that crashes, hangs or raises costs its own check alone.  Outcomes are handed on one by one, so that a command
that is killed keeps what was done.  What the budget did not reach is said to have not run, and never to have passed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from .checks import Check
from .device import NUMBERING
from .report import NOT_RUN, Outcome

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
"""What the first check of a new process may take on top of its limit: the stack's import, on a cold disk."""

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_TOKEN", "WANDB_API_KEY")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
}


def environment(variables: dict[str, str], inherited: dict[str, str] | None = None) -> dict[str, str]:
    """A worker's variables: offline, with this project importable, without secrets, and without the marks of VS Code's
    terminal, by which ``shutdown_kernel()`` would take the notebook's kernel for one of VS Code's."""
    given = dict(os.environ) if inherited is None else inherited
    kept = {
        name: value for name, value in given.items() if name not in SECRETS and not name.startswith("VSCODE_")
    }
    paths = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, [given.get("PYTHONPATH")])]
    return {
        **kept,
        **OFFLINE,
        **NUMBERING,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",
        **variables,
    }


class Running(Protocol):
    """What the loop below needs of a worker."""

    is_new: bool

    def run(self, name: str, seconds: float) -> dict[str, Any]:
        """Figures and details, or an error; ``is_late`` where the limit ended it."""

    def close(self) -> None:
        """End the process."""


class Worker:
    """A process that runs one check after another.

    Args:
        check: the first one, which says what process it wants.
        scratch: for the answers, and for what checks share.
        is_rehearsal: handed on.
        log: what the process prints is added to it.
        command: another program to talk to, for a test.
    """

    def __init__(
        self,
        check: Check,
        scratch: Path,
        is_rehearsal: bool,
        log: Path,
        command: Sequence[str] = (sys.executable, "-m", "benchmarks.gpu.worker"),
    ) -> None:
        self.is_new = True
        self._scratch, self._log = scratch, log
        self._output = log.open("ab")
        self._count = 0
        self._process = subprocess.Popen(
            [*command, str(scratch), *(["rehearse"] if is_rehearsal else [])],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment(check.variables),
            cwd=scratch,  # libraries write into the working directory
            start_new_session=True,
        )

    def run(self, name: str, seconds: float) -> dict[str, Any]:
        """Ask for one check and wait for its answer, ``seconds`` at most."""
        started, self._count, self.is_new = time.monotonic(), self._count + 1, False
        file = self._scratch / f"answer-{self._process.pid}-{self._count}.json"
        with contextlib.suppress(BrokenPipeError):  # a process that is gone is seen below
            assert self._process.stdin is not None
            self._process.stdin.write((json.dumps([name, str(file)]) + "\n").encode())
            self._process.stdin.flush()
        while not file.exists():
            spent = time.monotonic() - started
            if self._process.poll() is not None and not file.exists():
                return {"error": self._last_words(), "seconds": spent}
            if spent > seconds:
                return {"error": f"killed after {spent:.0f} s", "seconds": spent, "is_late": True}
            time.sleep(0.02)
        answer: dict[str, Any] = json.loads(file.read_text())
        file.unlink()
        return answer

    def _last_words(self) -> str:
        lines = self._log.read_bytes()[-4000:].decode(errors="replace").strip().splitlines()
        return f"the process ended with {self._process.returncode}: {''.join(lines[-1:])[:300]}"

    def close(self) -> None:
        """End the process and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()


def run_all(
    checks: Sequence[Check],
    budget: float,
    start: Callable[[Check], Running],
    is_rehearsal: bool = False,
    card_gib: float = math.inf,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[Outcome]:
    """Run the checks in this order and hand on each outcome.

    Args:
        checks: as :func:`benchmarks.gpu.checks.ordered` gives them.
        budget: seconds for all of them together; no check is begun or goes on beyond it.
        start: makes the worker that a check asks for.
        card_gib: memory of the card.
        now: a clock, for a test.
    """
    end, worker, process = now() + budget, None, None
    done: set[str] = set()
    try:
        for check in checks:
            left = end - now()
            reason = why_not(check, left, done, is_rehearsal, card_gib)
            if reason:
                yield Outcome(check.name, NOT_RUN, note=reason)
                continue
            if worker is None or process != check.process:
                if worker is not None:
                    worker.close()
                worker, process = start(check), check.process
            limit = check.seconds + (START_SECONDS if worker.is_new else 0.0)
            answer = worker.run(check.name, min(limit, left))
            outcome = Outcome.of(check.name, answer)
            if answer.get("is_late") and now() >= end:
                outcome = Outcome(
                    check.name, NOT_RUN, note="the budget ended while it ran", seconds=outcome.seconds
                )
            if answer.get("error"):
                worker.close()
                worker = process = None
            else:
                done.add(check.name)
            yield outcome
    finally:
        if worker is not None:
            worker.close()


def why_not(check: Check, left: float, done: set[str], is_rehearsal: bool, card_gib: float) -> str:
    """Why a check is not begun; empty where it is."""
    missing = [need for need in check.needs if need not in done]
    if is_rehearsal and not check.is_rehearsed:
        return "needs CUDA"
    if card_gib < check.card_gib:
        return f"needs a card of {check.card_gib:g} GiB"
    if missing:
        return f"needs {', '.join(missing)}"
    if left < check.takes:
        return f"{max(left, 0):.0f} s of the budget were left, and it takes about {check.takes:.0f} s"
    return ""
