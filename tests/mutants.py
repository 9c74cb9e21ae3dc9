"""Put each bug of mutants.toml into the code by itself, and report which ones the tests notice.

Run:  python tests/mutants.py [words of "why" ...]; it works in a copy of the folder, and takes a minute per bug.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def is_noticed(folder: Path, mutant: dict[str, str]) -> bool:
    """Return whether a test fails with the bug; tests/test_packaging.py checks that its old text occurs once."""
    file = folder / mutant["file"]
    text = file.read_text()
    file.write_text(text.replace(mutant["old"], mutant["new"]))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", *mutant["tests"].split()]
        env = {**os.environ, "PYTHONPATH": str(folder)}
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False).returncode == 1
    finally:
        file.write_text(text)


def main() -> None:
    mutants = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]
    asked = [one for one in mutants if all(word in one["why"] for word in sys.argv[1:])]
    found: list[bool] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder, left = Path(scratch) / "copy", shutil.ignore_patterns(".git", ".venv", "out", "__pycache__")
        shutil.copytree(ROOT, folder, symlinks=True, ignore=left)
        for mutant in asked:
            found.append(is_noticed(folder, mutant))
            print("noticed " if found[-1] else "NOT SEEN", mutant["file"], "-", mutant["why"], flush=True)
    print(f"{sum(found)} of {len(found)} are noticed")


if __name__ == "__main__":
    main()
