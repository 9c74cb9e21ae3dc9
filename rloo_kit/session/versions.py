"""Which releases of the stack the kit runs on: the ranges of pyproject.toml, and the versions that the tests ran on.

The ranges are read from the installed kit's metadata; a kit that only lies on the path checks nothing.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from rloo_kit.session import output

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

# The versions that the tests ran on (requirements/constraints.txt).
TESTED = {
    "torch": "2.13.0",
    "unsloth": "2026.10.9",
    "unsloth_zoo": "2026.10.9",
    "trl": "1.15.0",
    "transformers": "5.17.0",
    "peft": "0.21.2",
    "bitsandbytes": "0.50.2",
    "datasets": "4.8.5",
}


def version_of(package: str) -> str:
    """The installed version of a package, or "missing"."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def ranges() -> dict[str, SpecifierSet]:
    """The releases that the kit's installation asks for, of the packages of :data:`TESTED`; empty if not installed."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        needed = [Requirement(line) for line in requires("rloo-kit") or ()]
    except PackageNotFoundError:
        return {}
    found = {one.name.replace("-", "_"): one.specifier for one in needed if one.marker is None}
    return {name: found[name] for name in TESTED if name in found}


def outside() -> dict[str, str]:
    """Of each package that is installed in a release outside its range: which, and what to do."""
    installed = {name: (version_of(name), allowed) for name, allowed in ranges().items()}
    todo = "Before you trust a run, run the contract tests in the kit's repository: pytest tests/contract"
    return {
        name: f"{name} {version} is outside {allowed}, the releases that the kit was tried on. {todo}"
        for name, (version, allowed) in installed.items()
        if version != "missing" and not allowed.contains(version, prereleases=True)
    }


@cache
def warn_once() -> None:
    """Warn of every release outside its range, once in a process."""
    for text in outside().values():
        output.warn(text)
