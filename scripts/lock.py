"""Write the versions that are installed into requirements/constraints.txt; called by ``make lock``."""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "requirements" / "constraints.txt"
HEAD = "# The versions that the tests ran on, of pyproject.toml's ranges and all below them: make lock writes it."
# They belong to the installation itself.
LEFT_OUT = {"rloo-kit", "uv", "pip", "setuptools"}


def main() -> None:
    """Rewrite the file."""
    # torch's build, after the plus, differs by device.
    installed = {
        re.sub(r"[-_.]+", "-", d.metadata["Name"]).lower(): d.version.split("+")[0] for d in distributions()
    }
    lines = [f"{name}=={version}" for name, version in sorted(installed.items()) if name not in LEFT_OUT]
    CONSTRAINTS.write_text("\n".join([HEAD, *lines]) + "\n")
    print(f"{len(lines)} versions")


if __name__ == "__main__":
    main()
