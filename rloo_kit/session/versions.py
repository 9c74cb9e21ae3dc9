"""Supported releases of the stack: the ranges of pyproject.toml, read from the installed kit's metadata.

A kit that is on the path but not installed checks nothing.
"""

from functools import cache

from rloo_kit.session import output

STACK = ("torch", "unsloth", "unsloth_zoo", "trl", "transformers", "peft", "bitsandbytes", "datasets")


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
        for name, version in {name: version_of(name) for name in STACK if name in ranges}.items()
        if version != "missing" and not ranges[name].contains(version, prereleases=True)
    }


@cache
def warn_once() -> None:
    for text in outside().values():
        output.warn(text)
