"""Notebooks use public names only, so that copied code keeps working; and how they are executed and stored."""

import ast
import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from tests.conftest import ROOT

import install  # isort: skip - of scripts/

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PUBLIC_MODULES = ("rloo_kit", "rloo_kit.tasks", "rloo_kit.advantages", "rloo_kit.errors", "rewards")


def private_names(code: str) -> list[str]:
    """Return attributes with a leading underscore, and names of the two packages that are not public."""
    nodes = list(ast.walk(ast.parse(code)))
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    taken = {f"{n.module}.{alias.name}" for n in nodes if isinstance(n, ast.ImportFrom) for alias in n.names}
    used = {ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)}
    used = {path for path in used if path.split(".")[0] in imported}  # `rewards` may be a local variable
    ours = [path for path in imported | taken | used if re.fullmatch(r"(rloo_kit|rewards)(\.\w+)*", path)]
    return re.findall(r"\._[a-z]\w*", code) + [path for path in ours if not is_public(path)]


def is_public(path: str) -> bool:
    """Return whether a path is a public module, a name in one, or an attribute of such a name."""
    parent, _, name = path.rpartition(".")
    if path in PUBLIC_MODULES or parent not in PUBLIC_MODULES:
        return path in PUBLIC_MODULES or (parent != "" and is_public(parent))
    module = importlib.import_module(parent)
    return name in getattr(module, "__all__", vars(module))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_public_names_only(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert private_names("\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")) == []


def install_cell(notebook: Path) -> str:
    cells = nbformat.read(notebook, as_version=4).cells
    return str(next(cell.source for cell in cells if cell.cell_type == "code"))


def test_every_notebook_begins_with_the_same_cell_that_imports_nothing_of_the_stack():
    (code,) = {install_cell(notebook) for notebook in NOTEBOOKS}
    nodes = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [getattr(node, "module", None) or node.names[0].name for node in nodes]
    assert {name.split(".")[0] for name in names} <= set(sys.stdlib_module_names)
    assert len(code.splitlines()) <= 20


INSTALL = [sys.executable, "../scripts/install.py"]


@pytest.mark.parametrize(
    ("installed", "checkout", "runs"),
    [(True, True, []), (False, True, [INSTALL]), (False, False, [["git", "clone"], INSTALL])],
)
def test_the_first_cell_does_nothing_where_the_kit_is_and_else_installs_the_checkout_or_a_clone_here(
    installed, checkout, runs, tmp_path, monkeypatch
):
    ran: list[list[str]] = []

    def run(command: list[str], **_: object) -> None:
        ran.append(command)
        if command[0] == "git":
            Path(command[-1], "notebooks").mkdir(parents=True)

    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(ROOT / "notebooks" if checkout else tmp_path / "notebooks")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: installed or None)
    monkeypatch.setattr("subprocess.run", run)
    exec(install_cell(NOTEBOOKS[0]), {})
    assert [command[:2] for command in ran] == runs
    assert all(command[2:] == ["--here"] for command in ran[-1:])


KEPT, NEVER = ("torch==2.14.0+cu130", "triton==3.7.0"), ("torchvision", "torchaudio", "xformers")


@pytest.mark.parametrize(
    ("there", "kept"),
    [
        ({"torch": "2.14.0+cu130", "triton": "3.7.0"}, [*KEPT, *(f"{one}; never" for one in NEVER)]),
        ({"pip": "26.0"}, []),
    ],
)
def test_installing_here_neither_changes_nor_adds_to_the_torch_that_is_there(there, kept, monkeypatch):
    ran: dict[str, str] = {}

    def run(command: list[str], **_: object) -> SimpleNamespace:
        if "--override" in command:
            ran[command[-1]] = Path(command[command.index("--override") + 1]).read_text()
        return SimpleNamespace(returncode=0)

    packages = [SimpleNamespace(name=name, version=version) for name, version in there.items()]
    monkeypatch.setattr(install, "distributions", lambda: packages)
    monkeypatch.setattr("subprocess.run", run)
    install.install_here()
    *lines, certifi = ran[str(ROOT)].replace("sys_platform == 'never'", "never").splitlines()
    assert sorted(lines) == sorted(kept)
    assert certifi in (ROOT / "requirements" / "overrides.txt").read_text().splitlines()


NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w]|\.\d)")
NOT_OURS = re.compile(
    r"\[\d\d\]\(|\]\([^)]*\)|`[^`]*`|arXiv[ :]*[\d.]+|^#+.*$|\b(19|20)\d\d\b|Qwen3\S*|\d+ %, |\d+ (minutes|per cent)",
    re.MULTILINE,
)
"""Links, code, papers, headings, years, names of models, levels of intervals, times."""

BY_HAND = {
    "02": {"180": "completions of a problem in an audit, about", "95": "level"},
    "03": {"128": "2 to the 7th", "50": "operands", "0.08": "half of [-0.066, +0.090]"},
    "05": {"15": "labels that are flipped", "95": "level", "135": "million parameters"},
    "06": {"12": "48 demonstrations twice, 8 at a time", "07": "a notebook"},
}
"""Numbers in the text that no output shows: the text explains them, or they follow from numbers shown."""


def shown_numbers(cell: dict[str, Any]) -> set[str]:
    data = [out.get("data", {}) for out in cell["outputs"]]
    texts = [cell["source"], *(out.get("text", "") for out in cell["outputs"])]
    texts += [one.get(kind, "") for one in data for kind in ("text/plain", "text/html")]
    return {number for text in texts for number in NUMBER.findall("".join(text))}


def is_shown(said: str, shown: set[str]) -> bool:
    """Return whether a number in the text is one of those shown, or one of them rounded."""
    digits = len(said.partition(".")[2])
    return said in shown or any(f"{float(one):.{digits}f}" == said for one in shown)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_number_in_a_notebooks_text_stands_in_its_code_its_outputs_or_a_page_that_it_links(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    shown = set().union(*(shown_numbers(cell) for cell in cells if cell["cell_type"] == "code"))
    for cell in cells:
        if cell["cell_type"] == "markdown":
            text = "".join(cell["source"])
            pages = re.findall(r"\]\(([^)#]+\.(?:md|toml|json))", text)
            known = shown.union(*(NUMBER.findall((notebook.parent / page).read_text()) for page in pages))
            said = {number for number in NUMBER.findall(NOT_OURS.sub("", text)) if len(number) > 1}
            said -= BY_HAND.get(notebook.name[:2], {}).keys()
            assert [number for number in said if not is_shown(number, known)] == [], text
