"""Check this card: ``make gpu-check``, or ``python -m benchmarks.gpu`` from the project's folder.

    make gpu-check                                    everything, within 9 minutes
    make gpu-check ARGS="--only speed --only tune"    some parts: correct, memory, speed, tune, hygiene
    make gpu-check PY=python3                         another interpreter, nothing installed
    python -m benchmarks.gpu --rehearse               on a CPU with the tiny policy: tries the harness alone

A machine without a network needs no installation: any interpreter will do that finds the stack.  Where it lacks some
of it, carry the wheels there, unpack them with ``pip install --no-index --no-deps --target FOLDER *.whl``, and put
FOLDER on PYTHONPATH.  Nothing is downloaded: weights are random, or the bundled tiny policy's.

Checks run in the order of their worth, in processes of their own; what the budget does not reach is listed as not run.
Results are written after each check to benchmarks/results/gpu/DEVICE: results.json, results.md, log.txt.  A second
command for the same folder adds to them.  The exit status is 1 where a check failed, 2 without a GPU; a candidate of
tune that cannot run is a result and fails nothing.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import device, report, speed
from .checks import Check, ordered
from .report import FAILED, Outcome
from .runner import ROOT, Worker, run_all
from .worker import load_parts, write_whole

BUDGET_SECONDS = 530.0
RESULTS = ROOT / "benchmarks" / "results" / "gpu"


NO_GPU = """There is no GPU here that torch can use, and these checks are of a GPU.
What to do: see that nvidia-smi answers and that torch.cuda.is_available() is true in this interpreter ({python});
or try the harness alone on the CPU, with --rehearse."""


def main() -> int:
    """Run what the command line asks for."""
    arguments = parse()
    checks = ordered(load_parts().values(), arguments.only)
    if not checks:
        print(f"no check's name begins with {' or '.join(arguments.only)}; --list shows them all")
        return 2
    if arguments.list:
        print("\n".join(f"{one.takes:5.0f} s  {one.name}" for one in checks))
        return 0
    if arguments.collect:
        return collect(arguments.collect, arguments.out)
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that a worker does not outlive a killed command
    started = time.monotonic()
    machine = REHEARSAL if arguments.rehearse else device.machine()
    if not machine:
        print(NO_GPU.format(python=sys.executable))
        return 2
    keeper = Keeper(
        arguments.out or default_folder(machine, arguments.rehearse),
        {**machine, "kit": arguments.commit or commit()},
        " ".join(["python -m benchmarks.gpu", *sys.argv[1:]]),
    )
    print(
        f"{machine['device']}: {len(checks)} checks, {arguments.budget:.0f} s, results in {keeper.out}",
        flush=True,
    )
    run(checks, keeper, arguments.budget - (time.monotonic() - started), arguments.rehearse)
    print("\n" + report.text(keeper.mine, f"{machine['device']}, {time.monotonic() - started:.0f} s"))
    return int(any(one.status == FAILED and not one.name.startswith("tune/") for one in keeper.mine))


REHEARSAL = {"device": "rehearsal on a CPU", "versions": device.versions()}


def default_folder(machine: dict[str, str], is_rehearsal: bool) -> Path:
    """Where results go: a rehearsal's never beside those of devices."""
    return Path(tempfile.mkdtemp(prefix="gpu-rehearsal-")) if is_rehearsal else RESULTS / slug(machine)


def run(checks: list[Check], keeper: Keeper, seconds: float, is_rehearsal: bool) -> None:
    """Run the checks, and hand each outcome to the keeper."""
    memory = float(keeper.machine.get("memory", "inf").split()[0])
    log = keeper.out / "log.txt"
    scratch = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    (scratch / "shapes").mkdir()
    try:
        start = functools.partial(Worker, scratch=scratch, is_rehearsal=is_rehearsal, log=log)
        for outcome in run_all(checks, seconds, start, is_rehearsal, memory):
            keeper.add(outcome)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if not is_rehearsal and any(one.name.startswith("speed/") for one in checks):
        for outcome in speed.goals(keeper.every):
            keeper.add(outcome)


def collect(files: list[Path], out: Path | None) -> int:
    """Put the results of several commands into one folder, the later over the earlier, and run nothing."""
    for file in files:
        data = json.loads(file.read_text())
        machine = data["machine"]
        keeper = Keeper(out or default_folder(machine, machine == REHEARSAL), machine, data["command"])
        for outcome in data["outcomes"]:
            keeper.add(Outcome.from_json(outcome))
    for outcome in speed.goals(keeper.every):
        keeper.add(outcome)
    print("\n" + report.text(keeper.every, str(keeper.out)))
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="checks whose names begin so; may be repeated",
    )
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, metavar="SECONDS")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results go")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, at tiny sizes")
    parser.add_argument("--commit", metavar="HASH", help="the sources', for a copy of them without history")
    parser.add_argument("--list", action="store_true", help="name the checks, in order, and run none")
    parser.add_argument(
        "--collect",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="put results.json of several commands together",
    )
    return parser.parse_args()


class Keeper:
    """Writes results after each check, with those of earlier commands for the same folder.

    Attributes:
        mine: this command's outcomes.
    """

    def __init__(self, out: Path, machine: dict[str, str], command: str) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.machine, self.command = out, machine, command
        self.mine: list[Outcome] = []
        file = out / "results.json"
        before: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"outcomes": []}
        self._earlier = [Outcome.from_json(outcome) for outcome in before["outcomes"]]

    @property
    def every(self) -> list[Outcome]:
        """This command's outcomes and those of earlier ones."""
        return report.merged(self._earlier, self.mine)

    def add(self, outcome: Outcome) -> None:
        """Say and write one outcome."""
        self.mine.append(report.stamped(outcome, self.machine["kit"]))
        figure = report.telling(outcome)
        text = f"{figure.name}: {report.shown(figure)[0]}" if figure else outcome.note
        print(f"{outcome.seconds:6.1f} s  {outcome.status:<11}  {outcome.name}  ({text})", flush=True)
        every = self.every
        data = {
            "machine": self.machine,
            "command": self.command,
            "outcomes": [one.to_json() for one in every],
        }
        write_whole(self.out / "results.json", data)
        (self.out / "results.md").write_text(report.markdown(every, self.machine, self.command))


def commit() -> str:
    """The sources' commit, or "unknown" in a copy without history; with a mark where files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    found = git("rev-parse", "--short", "HEAD") if shutil.which("git") else ""
    return (
        found + (" and changes" if git("status", "--porcelain", "rloo_kit", "benchmarks") else "")
    ) or "unknown"


def slug(machine: dict[str, str]) -> str:
    """A folder's name for a device.

    >>> slug({"device": "NVIDIA GeForce RTX 4070"})
    'nvidia-geforce-rtx-4070'
    """
    return re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
