"""What a benchmark writes: a document under benchmarks/results, headed by the command that made it.

For the scripts of this folder.  It knows nothing of what is measured.
"""

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def document(title: str, *parts: str) -> str:
    """Markdown: the title, then paragraphs, lists and tables; the first part begins with the command."""
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def table(columns: Sequence[str], align: str, rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; ``align`` has a letter, l or r, for each column."""
    rules = "".join({"l": "---|", "r": "---:|"}[letter] for letter in align)
    lines = [" | ".join(cells) for cells in (columns, *rows)]
    return "\n".join([f"| {lines[0]} |", f"|{rules}", *(f"| {line} |" for line in lines[1:])])


def command_line() -> str:
    """How this benchmark was called, as Markdown; ``--stored`` is left out, because it measures nothing."""
    threads = os.environ.get("OMP_NUM_THREADS")
    words = [f"OMP_NUM_THREADS={threads}"] if threads else []
    given = [word for word in sys.argv[1:] if word != "--stored"]
    return f"`{shlex.join([*words, 'python', f'benchmarks/{Path(sys.argv[0]).name}', *given])}`"


def cpu_name() -> str:
    """The processor's name and its number of cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores"
