"""Notebooks use public names only, so that what a reader copies keeps working; and how they are executed and stored."""

import ast
import importlib
import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PUBLIC_MODULES = ("rloo_kit", "rloo_kit.tasks", "rloo_kit.advantages", "rloo_kit.errors", "rewards")


@pytest.fixture(scope="module")
def stored() -> ModuleType:
    """The script that executes and stores notebooks."""
    found = importlib.util.spec_from_file_location("notebooks_script", ROOT / "scripts" / "notebooks.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


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


def test_what_is_stored_names_no_folder_of_the_machine(stored: ModuleType) -> None:
    said = f'"{stored.ROOT}/rloo_kit/a.py:3: UserWarning: x", "/tmp/ipykernel_12/345.py:2: UserWarning: y"'
    assert stored.without_machine(said) == '"rloo_kit/a.py:3: UserWarning: x", "UserWarning: y"'


def test_a_notebook_is_stored_with_its_outputs_and_one_that_fails_is_left_as_it_was(
    stored: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "FOLDER", tmp_path)
    for name, code in (("01_good", "print(1, flush=True)\nprint(2)"), ("02_bad", "1 / 0")):
        nbformat.write(new_notebook(cells=[new_code_cell(code)]), tmp_path / f"{name}.ipynb")
    good, bad = stored.chosen([])
    before = bad.read_text()
    stored.store(good)
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        stored.store(bad)
    cell = nbformat.read(good, as_version=4).cells[0]
    assert (cell.execution_count, [output.text for output in cell.outputs]) == (1, ["1\n2\n"])
    assert bad.read_text() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_the_other_two_ways_run_every_cell_and_store_nothing(
    stored: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    code = "open('count', 'a').write('x');"
    nbformat.write(new_notebook(cells=[new_code_cell(code)]), tmp_path / "01_counts.ipynb")
    (path,) = stored.chosen(["01"])
    before = path.read_text()
    stored.run_twice(path)
    stored.run_script(path)
    assert (tmp_path / "count").read_text() == "xxx"
    assert path.read_text() == before
    with pytest.raises(SystemExit, match=r"no notebook under .* begins with 9"):
        stored.chosen(["9"])
