"""Supported releases of the stack: the ranges of pyproject.toml, and the versions that the tests ran on.

The ranges are read from the installed kit's metadata; a kit that is on the path but not installed checks nothing.
"""

from __future__ import annotations

from functools import cache

from rloo_kit.session import output

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
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def outside() -> dict[str, str]:
    """Return, for each package installed in a release outside the range in the kit's metadata, what to do."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        needs = [Requirement(line) for line in requires("rloo-kit") or ()]
    except PackageNotFoundError:
        return {}
    todo = "Before you trust a run, run the contract tests in the kit's repository: pytest tests/contract"
    ranges = {need.name.replace("-", "_"): need.specifier for need in needs if need.marker is None}
    return {
        name: f"{name} {version} is outside {ranges[name]}, the releases that the kit was tried on. {todo}"
        for name, version in {name: version_of(name) for name in TESTED if name in ranges}.items()
        if version != "missing" and not ranges[name].contains(version, prereleases=True)
    }


@cache
def warn_once() -> None:
    for text in outside().values():
        output.warn(text)
