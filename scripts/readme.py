"""Run the README's three training cells exactly as they are written, in a temporary folder, and time them.

python scripts/readme.py          the cells of "In a notebook"; outside a notebook shutdown_kernel() does nothing
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def cells(section: str) -> list[str]:
    """The Python blocks of a section of the README."""
    text = README.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0].split("\n### ")[0]
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def main() -> None:
    """Run them, one after the other, as a notebook would."""
    started, names = time.monotonic(), {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for cell in cells("In a notebook"):
            exec(compile(cell, "README.md", "exec"), names)
        os.chdir(README.parent)
    print(f"\n{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
