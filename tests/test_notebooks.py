"""Notebooks use public names only, so that what a reader copies from them keeps working."""

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "notebooks").glob("*.ipynb"))
PUBLIC_MODULES = ("rloo_kit", "rloo_kit.tasks", "rloo_kit.advantages", "rloo_kit.errors", "rewards")


def private_names(code: str) -> list[str]:
    """Attributes with a leading underscore, and what is used of the two packages that they do not offer."""
    nodes = list(ast.walk(ast.parse(code)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    taken = {f"{n.module}.{alias.name}" for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names}
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    used = {path for path in used if path.split(".")[0] in imported}  # `rewards` may be a local variable
    ours = [path for path in imported | taken | used if re.fullmatch(r"(rloo_kit|rewards)(\.\w+)*", path)]
    return re.findall(r"\._[a-z]\w*", code) + [path for path in ours if not is_public(path)]


def is_public(path: str) -> bool:
    """Whether it is a public module or a name that one offers; what follows such a name is its attribute."""
    parent, _, name = path.rpartition(".")
    if path in PUBLIC_MODULES or parent not in PUBLIC_MODULES:
        return path in PUBLIC_MODULES or (parent != "" and is_public(parent))
    module = importlib.import_module(parent)
    return name in getattr(module, "__all__", vars(module))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_public_names_only(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert private_names("\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")) == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import rloo_kit; rloo_kit.errors.OutOfMemoryError; rloo_kit.tasks.LEVELS.items()", []),
        ("import rloo_kit; rloo_kit.watch", ["rloo_kit.watch"]),
        ("from rloo_kit.watch.health import watched", ["rloo_kit.watch.health.watched"]),
        ("from rloo_kit.advantages import rloo\nimport rewards.corpus", ["rewards.corpus"]),
        ("rewards = [1]; rewards.append(2)", []),
        ("trainer._step", ["._step"]),
    ],
)
def test_what_is_not_public_is_found(code: str, found: list[str]) -> None:
    assert private_names(code) == found
