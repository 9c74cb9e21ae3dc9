"""README and docs/: their Python fits the code, their links lead somewhere, and what is generated is up to date."""

import ast
import builtins
import dataclasses
import inspect
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

import rewards
import rloo_kit

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import docs  # noqa: E402 - scripts/docs.py

README = ROOT / "README.md"
PAGES = [README, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SKILL.md"))]
PAGES += sorted((ROOT / "docs").glob("*.md"))
SOURCES = sorted(file for name in ("rloo_kit", "rewards", "scripts") for file in (ROOT / name).rglob("*.py"))


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


CELLS = re.findall(
    r"^```python\n(.*?)^```", README.read_text().split("## In a notebook\n")[1].split("\n#")[0], re.S | re.M
)
BLOCKS = [(page, number, block) for page in PAGES for number, block in enumerate(blocks(page))]
IDS = [f"{page.name}, block {number + 1}" for page, number, _ in BLOCKS]
PACKAGES = {"rloo_kit": rloo_kit, "rewards": rewards}


def needed(block: str) -> set[str]:
    nodes = ast.walk(ast.parse(block))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def given(block: str) -> set[str]:
    """Every name that it defines or imports."""
    found = set(dir(builtins))
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return found


def calls(block: str) -> Iterator[tuple[str, Callable[..., object], set[str]]]:
    """Each call of a public function: how it is written, what it is, and the keywords it gets."""
    for node in ast.walk(ast.parse(block)):
        path = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        package, *attributes = path.split(".")
        if isinstance(node, ast.Call) and package in PACKAGES and attributes:
            target = PACKAGES[package]
            for attribute in attributes:
                target = getattr(target, attribute)
            yield path, target, {keyword.arg or "**" for keyword in node.keywords}


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=IDS)
def test_a_block_uses_names_and_arguments_that_are_there(page: Path, number: int, block: str) -> None:
    before = [*([] if page == README else CELLS), *blocks(page)[:number], block]
    assert needed(block) <= set().union(*map(given, before)), "its own, its page's or the readme's"
    for path, target, keywords in calls(block):
        takes = inspect.signature(target).parameters
        kind = rloo_kit.RLOOConfig if "given" in takes else target  # RLOOConfig.suggested(..., **given)
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        assert keywords <= {*takes, *(field.name for field in fields)}, path


def test_the_readmes_command_runs_the_three_cells_that_train_and_they_need_no_others() -> None:
    assert len(CELLS) == 3
    written = {path.removeprefix("rloo_kit.") for cell in CELLS for path, _, _ in calls(cell)}
    assert written >= {"RLOOConfig.suggested", "RLOOTrainer", "evaluate", "load_policy"}
    assert len(README.read_text().splitlines()) <= 120, "two screens"


def test_the_readmes_audit_prints_the_lines_that_stand_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    section = README.read_text().split("\n## Audit a reward")[1].split("\n## ")[0]
    code, shown = re.findall(r"^```(?:python)?\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    exec(code, {})
    assert set(shown.splitlines()) <= set(capsys.readouterr().out.splitlines())


LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_an_internal_link_leads_to_a_tracked_file_and_to_a_heading_in_it(page: Path) -> None:
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    files = {ROOT / name for name in tracked}
    places = files | {folder for file in files for folder in file.parents}
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target in places, link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_sites_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"[\w-]+\.md", str(yaml.safe_load(text)["nav"]))
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


REFERENCE = re.compile(r":(?:mod|class|func|meth|attr|data|exc):`(?:[^`<]*<)?~?([^`>]+)>?`")


def leads_somewhere(reference: str, file: Path) -> bool:
    defined = given(file.read_text())
    if reference.split(".")[0] in {*rloo_kit.__all__} - defined:
        reference = f"rloo_kit.{reference}"  # a public name, in a room that may not import it
    if not reference.startswith((".", "rloo_kit", "rewards")):
        return set(reference.split(".")) <= defined
    package = ".".join(file.relative_to(ROOT).parent.parts)
    path = package + reference if reference.startswith(".") else reference
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        owner, _, name = path.rpartition(".")  # a field without a default is no attribute
        return name in getattr(pkgutil.resolve_name(owner), "__dataclass_fields__", {})
    return True


def test_a_reference_in_a_docstring_leads_to_a_name_that_exists() -> None:
    found = [(reference, file) for file in SOURCES for reference in REFERENCE.findall(file.read_text())]
    assert [(named(file), name) for name, file in found if not leads_somewhere(name, file)] == []


def test_a_generated_page_is_what_the_code_gives() -> None:
    assert [page.name for page in docs.stale()] == [], "python scripts/docs.py writes them"


def test_every_block_that_can_be_generated_is_on_a_page_that_says_by_which_command() -> None:
    marked = {found["name"]: page for page in PAGES for found in docs.MARKS.finditer(page.read_text())}
    assert set(marked) == set(docs.BLOCKS)
    for page in marked.values():
        assert "written by `python scripts/docs.py`" in " ".join(page.read_text().split()), page.name


def test_an_interval_is_one_of_a_stored_result() -> None:
    results = "".join(file.read_text() for file in (ROOT / "benchmarks" / "results").glob("*.md"))
    intervals = re.findall(r"\[[-+]?\d[^\]]+\]", (ROOT / "docs" / "speed.md").read_text())
    assert len(intervals) >= 5
    assert [interval for interval in intervals if interval not in results] == []


def test_the_columns_that_a_line_shows_are_explained() -> None:
    from rloo_kit.watch import callbacks

    text = (ROOT / "docs" / "reading-a-run.md").read_text()
    header = callbacks.header(30)
    assert header in text
    explained = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    assert set(re.findall(r"`([^`]+)`", explained)) == set(header.split()) - {"step"}


@pytest.mark.parametrize(
    ("page", "result", "said", "found"),
    [
        ("troubleshooting.md", "health_alarms.md", r"in the (\d+) recorded", r"0 in (\d+) runs"),
        ("speed.md", "quickstart_seeds.md", r"rose by (.+) and (.+) on", r"\| \+(\d\.\d+) \|"),
    ],
)
def test_a_figure_is_that_of_the_stored_result(page: str, result: str, said: str, found: str) -> None:
    text, stored = (ROOT / "docs" / page).read_text(), (ROOT / "benchmarks" / "results" / result).read_text()
    (match,) = re.finditer(said, text)
    assert ", ".join(match.groups()).split(", ") == re.findall(found, stored)
