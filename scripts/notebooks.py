"""Execute notebooks and store their outputs, or only try them in two other ways that people run them.

    RLOO_KIT_FULL=1 python scripts/notebooks.py            # all, in full: make notebooks
    python scripts/notebooks.py 01 07                      # those whose names begin with 01 or 07
    RLOO_KIT_STEPS=1 python scripts/notebooks.py --as twice 07   # every cell twice; stores nothing
    RLOO_KIT_STEPS=1 python scripts/notebooks.py --as script 07  # exported; stores nothing

A notebook that fails is left as it was.  Stored outputs name no folder of this machine.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import PythonExporter

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
STRIP = ("-m", "nbstripout", "--keep-output", "--keep-count", "--keep-id")
OF_THIS_MACHINE = re.compile(rf"{re.escape(str(ROOT))}/|/tmp/ipykernel_\d+/\d+\.py:\d+: ")
"""Text about this machine in an output: the repository's folder, and the file that a warning names for a cell."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="beginnings of file names; none for all")
    parser.add_argument("--as", dest="form", choices=FORMS, default="stored", help="how to run them")
    asked = parser.parse_args()
    for path in chosen(asked.names):
        began = time.monotonic()
        print(f"{path.name}, {asked.form} ...", flush=True)
        FORMS[asked.form](path)
        print(f"{path.name}, {asked.form}: {time.monotonic() - began:.0f} s", flush=True)


def chosen(names: list[str]) -> list[Path]:
    """Return the notebooks whose names begin with one of ``names``, or all if there are none.

    Raises:
        SystemExit: no notebook's name begins with one.
    """
    found = [path for path in sorted(FOLDER.glob("*.ipynb")) if path.name.startswith(tuple(names or [""]))]
    if not found:
        raise SystemExit(f"no notebook under {FOLDER.name}/ begins with {' or '.join(names)}")
    return found


def store(path: Path) -> None:
    """Execute a notebook and, if it runs to its end, replace it with the result."""
    notebook = executed(nbformat.read(path, as_version=4))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        scratch = Path(folder) / path.name
        scratch.write_text(OF_THIS_MACHINE.sub("", nbformat.writes(notebook)) + "\n")
        subprocess.run([sys.executable, *STRIP, str(scratch)], check=True)
        scratch.replace(path)


def run_twice(path: Path) -> None:
    """Execute a notebook with each cell run twice in a row, as when a user runs a cell again."""
    notebook = nbformat.read(path, as_version=4)
    doubled = []
    for cell in notebook.cells:
        again = copy.deepcopy(cell)
        again.id = f"{cell.id}-again"
        doubled += [cell, again] if cell.cell_type == "code" else [cell]
    notebook.cells = doubled
    executed(notebook)


def run_script(path: Path) -> None:
    """Export a notebook to a script and run that without a kernel; no notebook here has a magic."""
    source, _ = PythonExporter().from_filename(str(path))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{path.stem}.py"
        script.write_text(source)
        environment = {**os.environ, "MPLBACKEND": "agg"}
        subprocess.run([sys.executable, str(script)], cwd=path.parent, env=environment, check=True)


def executed(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Run a notebook in its folder without a time limit; return it, with consecutive printed lines as one output."""
    where = {"metadata": {"path": str(FOLDER)}}
    done: nbformat.NotebookNode = NotebookClient(notebook, timeout=None, resources=where).execute()
    for cell in done.cells:  # nbclient's coalesce_streams would put later lines above a picture
        in_a_row = itertools.groupby(cell.get("outputs", ()), key=lambda one: one.get("name", id(one)))
        for place, (_, outputs) in enumerate([(name, list(outputs)) for name, outputs in in_a_row]):
            if len(outputs) > 1:
                outputs[0].text = "".join(output.text for output in outputs)
            cell.outputs[place : place + len(outputs)] = outputs[:1]
    return done


FORMS: dict[str, Callable[[Path], None]] = {"stored": store, "twice": run_twice, "script": run_script}

if __name__ == "__main__":
    main()
