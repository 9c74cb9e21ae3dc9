"""Notebooks use public names only, so that what a reader copies keeps working; and how they are executed and stored."""

import ast
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

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


def install_cell(notebook: Path) -> str:
    """The first code cell."""
    cells = nbformat.read(notebook, as_version=4).cells
    return str(next(cell.source for cell in cells if cell.cell_type == "code"))


def test_every_notebook_begins_with_the_same_cell_that_imports_nothing_of_the_stack() -> None:
    (code,) = {install_cell(notebook) for notebook in NOTEBOOKS}
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [getattr(node, "module", None) or node.names[0].name for node in nodes]
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)
    assert len(code.splitlines()) <= 20


def test_where_the_kit_is_the_first_cell_does_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("subprocess.run", lambda *args, **kwargs: pytest.fail("something was run"))
    exec(install_cell(NOTEBOOKS[0]), {})
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("there", "kept"),
    [
        (
            {"torch": "2.12.0+cu130", "triton": "3.7.0", "pip": "26.0"},
            [
                "torch==2.12.0+cu130",
                "triton==3.7.0",
                "torchvision; never",
                "torchaudio; never",
                "xformers; never",
            ],
        ),
        ({"pip": "26.0"}, []),
    ],
)
def test_elsewhere_it_installs_the_repository_and_neither_changes_nor_adds_to_the_torch_that_is_there(
    there: dict[str, str], kept: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[list[str], str]] = []
    packages = [SimpleNamespace(name=name, version=version) for name, version in there.items()]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("importlib.metadata.distributions", lambda: packages)
    monkeypatch.setattr("subprocess.run", lambda command, input="", **_: ran.append((command, input)))
    exec(install_cell(NOTEBOOKS[0]), {})
    (pip, _), (uv, overrides) = ran
    assert pip == [sys.executable, "-m", "pip", "install", "-q", "uv"]
    assert uv[:5] == [sys.executable, "-m", "uv", "pip", "install"]
    assert uv[-3:] == ["--override", "-", ".."]
    *lines, certifi = overrides.replace("sys_platform == 'never'", "never").split("\n")
    assert sorted(lines) == sorted(kept)
    assert certifi in (ROOT / "requirements" / "overrides.txt").read_text().splitlines()


@pytest.mark.long
def test_what_it_runs_is_what_uv_takes_and_leaves_another_torch_alone() -> None:
    """Asks a package index; on Colab's and Kaggle's platform, whatever this one is."""
    overrides = "torch==2.12.0\ntorchvision==0.27.0\ntriton==3.7.0\nxformers; sys_platform == 'never'\ncertifi>=2026.7"
    command = [sys.executable, "-m", "uv", "pip", "compile", "-q", "--override", "-", "pyproject.toml"]
    linux = ["--python-platform", "linux", "--python-version", "3.12"]
    done = subprocess.run(
        [*command, *linux], cwd=ROOT, input=overrides, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = [line.strip() for line in done.stdout.splitlines() if "==" in line]
    assert {"torch==2.12.0", "triton==3.7.0", "trl==1.15.0"} <= set(found)
    assert not [line for line in found if line.startswith("xformers")]


def test_the_quickstart_in_a_terminal_prints_the_lines_of_a_run_as_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    showing = importlib.import_module("quickstart")._Showing(new_notebook())

    def printed(text: str, display: str | None) -> str:
        content = {"data": {"text/plain": text}, "transient": {"display_id": display} if display else {}}
        return str(showing._new_text("update_display_data", content))

    assert showing._new_text("stream", {"name": "stdout", "text": "Released\n"}) == "Released\n"
    assert showing._new_text("status", {"execution_state": "busy"}) == ""
    assert printed("<picture of a run>", None) == ""
    lines = [
        "step reward",
        "step reward\n1/2 0.5",
        "step reward\n1/2 0.5",
        "step reward\n1/2 0.5\nunhealthy\n2/2 0.6",
    ]
    assert [printed(text, "a run") for text in lines] == [
        "step reward\n",
        "1/2 0.5\n",
        "",
        "unhealthy\n2/2 0.6\n",
    ]


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
