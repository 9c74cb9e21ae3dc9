"""A process that runs checks as they are asked for: ``python -m benchmarks.gpu.worker SCRATCH [rehearse]``.

It reads a line of JSON per check, [name, answer's file], and answers in that file, whole or not at all.  What libraries
print goes to the log.  A check that raises is answered with its error; the caller then starts a fresh process, since
nobody knows in what state CUDA is.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

from .checks import CHECKS, Check, Place

PARTS = ("shapes", "correct", "update", "learn", "memory", "smaller", "speed", "hygiene")


def load_parts() -> dict[str, Check]:
    """The list of all checks."""
    for part in PARTS:
        import_module(f".{part}", __package__)
    return CHECKS


def answer(check: Check, place: Place) -> dict[str, Any]:
    """Run a check: its figures, or its error."""
    started = time.monotonic()
    try:
        found = check.run(place).to_json()
    except BaseException as error:
        traceback.print_exc()
        last = traceback.format_exception_only(error)[-1].strip().splitlines()
        found = {"error": last[0][:400] if last else type(error).__name__}
    clean_up()
    return {**found, "seconds": time.monotonic() - started}


def clean_up() -> None:
    """Leave the card as the next check expects it."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def write_whole(file: Path, data: Any) -> None:
    """Write JSON so that nobody reads a part of it."""
    scratch = file.with_suffix(".part")
    scratch.write_text(json.dumps(data, indent=1) + "\n")
    scratch.replace(file)


def main() -> None:
    """Answer until nobody asks any more."""
    place = Place(Path(sys.argv[1]), sys.argv[2:] == ["rehearse"])
    checks = load_parts()
    for line in sys.stdin:
        name, file = json.loads(line)
        print(f"\n=== {name}", flush=True)
        write_whole(Path(file), answer(checks[name], place))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
