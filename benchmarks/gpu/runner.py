"""Run checks one by one, each in its own process and within its own limit, and all within a budget.

For ``python -m benchmarks.gpu``.  A check that raises, crashes, hangs or runs out of memory fails alone, and a check
that the budget does not reach has not passed: it is "not run".  This file knows no check and loads no torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PASSED, FAILED, MEASURED, NOT_RUN = "passed", "FAILED", "measured", "not run"
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
ALWAYS = {
    **dict.fromkeys((*OFFLINE, "PYTHONUNBUFFERED"), "1"),
    "PYTHONDONTWRITEBYTECODE": "",  # with bytecode the stack imports in a quarter of the time
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # CUDA then numbers GPUs as NVML does
}
# Tokens, and VS Code's variables: with these shutdown_kernel() would take a kernel for one of VS Code's.
LEFT_OUT = ("HF_TOKEN", "HUGGING_FACE", "WANDB", "VSCODE_")


class Figure(NamedTuple):
    """A number with inclusive limits, where None means no limit; or a bool, which must be true."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the value is within its limits; NaN is not within a limit."""
        if isinstance(self.value, bool):
            return self.value
        return (self.low is None or self.value >= self.low) and (self.high is None or self.value <= self.high)

    @property
    def shown(self) -> str:
        return ("yes" if self.value else "no") if isinstance(self.value, bool) else f"{self.value:.4g}"

    @property
    def limits(self) -> str:
        bounds = (("at least", self.low), ("at most", self.high))
        words = ", ".join(f"{word} {bound:.4g}" for word, bound in bounds if bound is not None)
        return "must be" if isinstance(self.value, bool) else words


class Place(NamedTuple):
    """Where a check runs: a folder that a command's checks share, and whether sizes are tiny, for a pretended card."""

    scratch: Path
    is_rehearsal: bool = False


@dataclass(frozen=True)
class Check:
    """A function to call ("module:function", in this package or by full name), and what it needs: earlier checks,
    ``variables`` of its process, a GPU of ``card_gib``, ``packages``.  ``rehearsed``: a pretended card will do.
    ``seconds`` are a guess: the check needs so many left to begin, and is killed at four times that plus a minute."""

    name: str
    call: str
    seconds: float
    arguments: dict[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    card_gib: float = 0.0
    rehearsed: bool = True
    packages: tuple[str, ...] = ()


class Outcome(NamedTuple):
    status: str
    note: str = ""
    seconds: float = 0.0
    figures: dict[str, Figure] = {}  # noqa: RUF012 - never written to


def judged(figures: dict[str, Figure], seconds: float) -> Outcome:
    limited = [figure for figure in figures.values() if figure.limits]
    status = FAILED if not all(figure.holds for figure in limited) else PASSED if limited else MEASURED
    return Outcome(status, "", seconds, figures)


def why_not(check: Check, left: float, passed: set[str], place: Place, card_gib: float) -> str:
    if place.is_rehearsal and not check.rehearsed:
        return "needs a GPU"
    if card_gib < check.card_gib:
        return f"needs a GPU of {check.card_gib:g} GiB"
    if missing := [need for need in check.needs if need not in passed]:
        return f"needs {missing[0]}"
    if absent := [package for package in check.packages if not importlib.util.find_spec(package)]:
        return f"needs the package {absent[0]}, which is not installed"
    return f"{left:.0f} s of the budget left, takes {check.seconds:.0f}" if left < check.seconds else ""


def run_all(
    checks: Iterable[Check],
    budget: float,
    place: Place,
    run_one: Callable[[Check, float], Outcome],
    card_gib: float = math.inf,
    now: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Check, Outcome]]:
    """Run the checks in this order and yield each outcome as it comes.  No check begins or goes on beyond the budget,
    in seconds of the clock ``now``.  ``run_one`` runs a check within so many seconds (:func:`run_in_process`)."""
    end, passed = now() + budget, set[str]()
    for check in checks:
        left = end - now()
        outcome = Outcome(NOT_RUN, why_not(check, left, passed, place, card_gib))
        if not outcome.note:
            # A rehearsal on a busy machine may take any multiple of its guess.
            outcome = run_one(check, left if place.is_rehearsal else min(4 * check.seconds + 60, left))
            if outcome.status == FAILED and now() >= end:
                outcome = Outcome(NOT_RUN, "the budget ended while it ran", outcome.seconds)
        if outcome.status in (PASSED, MEASURED):
            passed.add(check.name)
        yield check, outcome


def run_in_process(check: Check, seconds: float, place: Place, log: Path) -> Outcome:
    """Run a check in a new process, which is killed after ``seconds``, and add what it prints to the log."""
    answer, started = place.scratch / "answer", time.monotonic()
    answer.unlink(missing_ok=True)
    job = json.dumps([check.call, check.arguments, str(place.scratch), place.is_rehearsal])
    with log.open("a") as output:
        print(f"\n=== {check.name}", file=output, flush=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.runner", job],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(check.variables),
            cwd=place.scratch,  # libraries write into the working directory
            start_new_session=True,
        )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Outcome(FAILED, f"killed after {seconds:.0f} s", seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children too
            process.wait()
    took = time.monotonic() - started
    if not answer.exists():
        last = log.read_text(errors="replace")[-2000:].strip().splitlines()[-1]
        return Outcome(FAILED, f"the process ended with {process.returncode}: {last[:300]}", took)
    found = json.loads(answer.read_text())
    if isinstance(found, str):
        return Outcome(FAILED, found, took)
    return judged({name: Figure(*figure) for name, figure in found.items()}, took)


def environment(variables: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
    paths = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, **ALWAYS, "PYTHONPATH": os.pathsep.join(paths), **variables}


def main() -> None:
    call, arguments, scratch, is_rehearsal = json.loads(sys.argv[1])
    place = Place(Path(scratch), is_rehearsal)
    found: dict[str, Figure] | str
    try:
        module, function = call.split(":")
        in_full = module if "." in module else f"benchmarks.gpu.{module}"
        found = getattr(importlib.import_module(in_full), function)(place, **arguments)
    except BaseException as error:
        traceback.print_exc()
        found = "".join(traceback.format_exception_only(error)).strip().splitlines()[0][:400]
    (place.scratch / "part").write_text(json.dumps(found))
    (place.scratch / "part").replace(place.scratch / "answer")
    sys.stdout.flush()
    os._exit(0)  # a library's thread, or a broken CUDA context, could block the exit


if __name__ == "__main__":
    main()
