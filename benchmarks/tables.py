"""Write a benchmark's document under benchmarks/results: its command, tables, and means over seeds."""

import math
import os
import platform
import shlex
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rloo_kit.evaluation.intervals import Interval, has_no_spread

RESULTS = Path(__file__).resolve().parent / "results"
T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 0.975 quantile of Student's t with 1, 2, ... degrees of freedom (Fisher & Yates 1963, table III)."""


def document(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def table(columns: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    rules = "".join({"l": "---|", "r": "---:|"}[letter] for letter in align)
    lines = [" | ".join(cells) for cells in (columns, *rows)]
    return "\n".join([f"| {lines[0]} |", f"|{rules}", *(f"| {line} |" for line in lines[1:])])


def write(name: str, report: Callable[[str], str]) -> None:
    """Print what ``report`` returns for the command, and write it to results/NAME.md.  With ``--stored``, which
    measures nothing, the document keeps its old command."""
    file = RESULTS / f"{name}.md"
    threads = os.environ.get("OMP_NUM_THREADS")
    words = [f"OMP_NUM_THREADS={threads}"] if threads else []
    command = f"`{shlex.join([*words, 'python', f'benchmarks/{Path(sys.argv[0]).name}', *sys.argv[1:]])}`"
    if "--stored" in sys.argv:
        command = command_of(file)
    text = report(command)
    print("\n" + text)
    file.write_text(text)


def command_of(file: Path) -> str:
    """Return the command that a document names, as Markdown: its first code span."""
    return f"`{file.read_text().split('`')[1]}`"


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores"


def student(values: Sequence[float]) -> Interval:
    """Return the mean over at most 31 seeds with its two-sided 95 % interval (Student 1908); pass logarithms of ratios.

    There are no bounds if all values are equal, or for one value.  An infinite value leaves the mean unbounded.
    """
    mean = statistics.fmean(values)
    if math.isinf(mean):
        return Interval(mean, -math.inf, math.inf)
    if has_no_spread(values):
        return Interval(mean, math.nan, math.nan)
    half = T_975[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
