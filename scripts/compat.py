"""Run contract and smoke tests on the oldest and newest releases that pyproject.toml allows: ``make compat``.

Sets of releases are installed under out/compat and share files with uv's cache.  A Python that is not found is left
out, and the table says so.  Where the index has no CPU build of torch, its CUDA build runs on the CPU.

    python scripts/compat.py                    # every set, into benchmarks/results/compat.md
    python scripts/compat.py --only 3.12        # sets whose names begin with this; the table keeps the other rows
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import install

ROOT = install.ROOT
OUT = ROOT / "out" / "compat"
RESULTS = ROOT / "benchmarks" / "results" / "compat.json"
SHOWN = ("torch", "unsloth", "trl", "transformers", "peft", "bitsandbytes", "datasets")
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "pyarrow")
UPDATE = "tests/train/test_update.py::test_the_update_is_that_of_stock_trl"
# An update equals TRL's; a stopped run resumes; an adapter is saved and read; 0.1.0's is read.
TESTS = (
    "tests/contract",
    f"{UPDATE}[beta 0]",
    f"{UPDATE}[KL in the reward]",
    "tests/train/test_stop_signals.py::test_a_step_in_progress_is_dropped_and_taken_again[_compute_loss]",
    "tests/policy/test_load.py::test_a_saved_adapter_reads_back_with_its_bases_length",
    "tests/test_written_before.py",
)
NEWEST = ("3.11 newest", "3.12 newest", "3.13 newest")
SETS = {"3.11 oldest": "lowest-direct"} | dict.fromkeys(NEWEST, "highest")
"""A Python and one end of pyproject.toml's ranges -> uv's word for that end."""

HEAD = """# Sets of releases that the kit was tried on

`make compat`, on a machine without a GPU. The tests: the contract tests; an update is stock TRL's; a stopped run
resumes to the same weights; an adapter is saved and read back, and one of 0.1.0 is read. Oldest is the lowest release
of each range in [pyproject.toml](../../pyproject.toml), newest the highest on the package index.

"""
UV = [sys.executable, "-m", "uv"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="sets whose name begins so")
    asked = parser.parse_args().only
    rows = json.loads(RESULTS.read_text())["sets"] if RESULTS.exists() else {}
    tried_now = [name for name in SETS if name.startswith(asked)]
    for name in tried_now:
        rows[name] = tried(name)
    rows = {name: rows[name] for name in SETS if name in rows}
    RESULTS.write_text(json.dumps({"sets": rows}, indent=1) + "\n")
    RESULTS.with_suffix(".md").write_text(report(rows))
    sys.exit(any(rows[name].get("failed") for name in tried_now))


def interpreter(version: str) -> str:
    kept = (".pyenv/versions", ".local/share/uv/python")
    places = [path for place in kept for path in (Path.home() / place).glob(f"*{version}.*/bin/python3")]
    for found in (shutil.which(f"python{version}"), *map(str, sorted(places))):
        if found and subprocess.run([found, "-V"], capture_output=True, check=False).returncode == 0:
            return found
    return ""


def tried(name: str) -> dict[str, Any]:
    folder, base = OUT / name.replace(" ", "-"), interpreter(name.split()[0])
    if not base:
        return {"tests": f"no Python {name.split()[0]} found here"}
    python = str(folder / "bin" / "python")
    make = [*UV, "venv", "-q", "--clear", "--python", base, str(folder)]
    install.step(f"make {folder.name}", make, "look at what uv says above")
    install.install_stack(UV, python, "cpu", ["--resolution", SETS[name], "--editable", str(ROOT)])
    add = [*UV, "pip", "install", "-q", "--python", python, *TOOLS]
    install.step("add pytest", add, "check that uv reaches a package index")
    # With bytecode, processes that tests start import the stack in a quarter of the time.
    clean = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
    command = [python, "-m", "pytest", "-q", *TESTS]
    ran = subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, check=False)
    (folder / "tests.txt").write_text(ran.stdout + ran.stderr)
    said = ran.stdout.splitlines()
    counted = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", said[-1] if said else "")
    failed = [line.split()[1] for line in said if line.startswith(("FAILED", "ERROR"))]
    code = "import json, sys; from importlib.metadata import version; "
    code += f"print(json.dumps([sys.version.split()[0], *map(version, {SHOWN!r})]))"
    found = json.loads(subprocess.check_output([python, "-c", code], text=True))
    return {
        "versions": dict(zip(("python", *SHOWN), found, strict=True)),
        "tests": ", ".join(counted) or "pytest did not end",
        "failed": failed or ([] if counted else ["pytest"]),
    }


def report(rows: dict[str, dict[str, Any]]) -> str:
    text = HEAD + line(("Python", "set", *SHOWN, "tests")) + "|---" * (len(SHOWN) + 3) + "|\n"
    for name, row in rows.items():
        found, (python, end) = row.get("versions", {}), name.split()
        cells = [found.get("python", python), end, *(found.get(one, "") for one in SHOWN), row["tests"]]
        text += line(cells) + "".join(line(["", f"failed: `{one}`"]) for one in row.get("failed", ()))
    return text


def line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |\n"


if __name__ == "__main__":
    main()
