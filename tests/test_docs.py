"""README, docs/ and SKILL.md: Python matches the code or runs, links resolve, generated parts are up to date."""

import ast
import builtins
import dataclasses
import difflib
import inspect
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import rewards
import rloo_kit
from rloo_kit.policy.bundled import TINY
from tests.conftest import ROOT

import docs  # isort: skip - of scripts/

README, SKILL, EXAMPLES = ROOT / "README.md", ROOT / "SKILL.md", ROOT / "docs" / "examples"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SOURCES = sorted(file for name in ("rloo_kit", "rewards", "scripts") for file in (ROOT / name).rglob("*.py"))
PACKAGES = {"rloo_kit": rloo_kit, "rewards": rewards}


# --- Python -----------------------------------------------------------------------------------------------


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


BLOCKS = [(page, number, block) for page in PAGES for number, block in enumerate(blocks(page))]
IDS = [f"{page.name}, block {number + 1}" for page, number, _ in BLOCKS]


def needed(block: str) -> set[str]:
    nodes = ast.walk(ast.parse(block))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def given(block: str) -> set[str]:
    """Return every name that a block defines or imports, and the builtins."""
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
    """Yield each call of a public function: its source, the function, and the keywords it gets."""
    for node in ast.walk(ast.parse(block)):
        path = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        package, *attributes = path.split(".")
        if isinstance(node, ast.Call) and package in PACKAGES and attributes:
            target = PACKAGES[package]
            for attribute in attributes:
                target = getattr(target, attribute)
            yield path, target, {keyword.arg or "**" for keyword in node.keywords}


@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=IDS)
def test_a_block_uses_names_and_arguments_that_are_there(page, number, block):
    before = [*([] if page == README else blocks(README)), *blocks(page)[:number], block]
    assert needed(block) <= set().union(*map(given, before)), "its own, its page's or the readme's"
    for path, target, keywords in calls(block):
        takes = inspect.signature(target).parameters
        kind = rloo_kit.RLOOConfig if "given" in takes else target  # RLOOConfig.suggested(..., **given)
        fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
        assert keywords <= {*takes, *(field.name for field in fields)}, path


def test_the_readmes_audit_prints_the_lines_that_stand_below_it(capsys):
    section = README.read_text().split("\n## Audit a reward")[1].split("\n## ")[0]
    code, shown = re.findall(r"^```(?:python)?\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    exec(code, {})
    assert set(shown.splitlines()) <= set(capsys.readouterr().out.splitlines())


def test_the_skills_front_matter_has_a_name_and_a_description_within_the_formats_limits():
    found = yaml.safe_load(SKILL.read_text().split("---\n")[1])
    assert set(found) == {"name", "description"}
    assert re.fullmatch(r"[a-z0-9-]{1,64}", found["name"])
    assert 0 < len(found["description"]) <= 1024


def test_the_skills_snippets_run_one_after_the_other(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = "\n".join(blocks(SKILL))
    done = script(snippets, RLOO_KIT_STEPS="2", RLOO_KIT_MODEL="", HF_HUB_OFFLINE="1")
    assert "no exploit" in done.stdout
    assert (tmp_path / "out/skill-adapter/adapter_config.json").exists()


# --- examples: a GRPO script of Unsloth's users, and the few lines that turn it to RLOO ----------------------

SMALL = {
    '"unsloth/Qwen3-4B-Base"': "TINY",
    "max_seq_length = 1024": "max_seq_length = 128",
    "max_completion_length = 512": "max_completion_length = 8",
    "max_steps = 100": "max_steps = 2",
    "warmup_steps=10": "warmup_steps=0",
}
"""Text of a script -> what a test of two steps on the tiny policy puts in its place."""


def example(name: str) -> str:
    return (EXAMPLES / f"{name}.py").read_text()


def test_a_grpo_script_is_turned_to_rloo_by_at_most_five_lines_which_the_readme_shows():
    lines = difflib.ndiff(*(example(name).splitlines() for name in ("unsloth_grpo", "unsloth_rloo")))
    changed = [line[0] + line[2:] for line in lines if line[0] in "+-"]
    gone = [line for line in changed if line[0] == "-"]
    assert 0 < max(len(gone), len(changed) - len(gone)) <= 5
    assert all("GRPO" in line for line in gone)
    (shown,) = re.findall(r"```diff\n(.*?)```", README.read_text(), re.DOTALL)
    assert sorted(line for line in shown.splitlines() if line[0] in "+-") == sorted(changed)


@pytest.mark.training
@pytest.mark.parametrize("name", ["unsloth_grpo", "unsloth_rloo"])
@pytest.mark.filterwarnings("ignore:.*were cut:UserWarning")
def test_an_example_trains_saves_and_samples(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = example(name)
    for written, small in SMALL.items():
        assert code.count(written) == 1, written
        code = code.replace(written, small)
    ran: dict[str, Any] = {"TINY": str(TINY.checkpoint())}
    exec(compile(code, f"{name}.py", "exec"), ran)
    assert ran["trainer"].state.global_step == 2
    assert (tmp_path / "lora" / "adapter_model.safetensors").exists()
    logged = [entry for entry in ran["trainer"].state.log_history if "reward" in entry]
    assert {f"rewards/{reward}_reward/mean" for reward in ("format", "tags", "answer")} <= set(logged[-1])
    assert "What is 17 + 25?" in capsys.readouterr().out


# --- links, generated parts, figures ------------------------------------------------------------------------

LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    text = page.read_text()
    if page.suffix == ".ipynb":
        text = "\n\n".join(
            "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"
        )
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *(ROOT / "notebooks").glob("*.ipynb")], ids=lambda page: page.name)
def test_an_internal_link_leads_to_a_tracked_file_and_to_a_heading_in_it(page):
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


def test_every_page_is_in_the_sites_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"[\w-]+\.md", str(yaml.safe_load(text)["nav"]))
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_a_reference_in_a_docstring_ends_in_a_name_that_exists():
    defined = set().union(*({file.stem, file.parent.name, *given(file.read_text())} for file in SOURCES))
    reference = re.compile(r":(?:mod|class|func|meth|attr|data|exc):`[^`]*?(\w+)>?`")
    found = [(file.name, name) for file in SOURCES for name in reference.findall(file.read_text())]
    assert [(file, name) for file, name in found if name not in defined] == []


def test_a_generated_page_is_what_the_code_gives():
    assert [page.name for page in docs.stale()] == [], "python scripts/docs.py writes them"
    marked = {found["name"] for page in PAGES for found in docs.MARKS.finditer(page.read_text())}
    assert marked == set(docs.BLOCKS)


def test_the_columns_that_a_line_shows_are_explained():
    from rloo_kit.watch import callbacks

    text = (ROOT / "docs" / "reading-a-run.md").read_text()
    header = callbacks.header(30)
    assert header in text
    explained = " ".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    assert set(re.findall(r"`([^`]+)`", explained)) == set(header.split()) - {"step"}


def test_an_interval_is_one_of_a_stored_result():
    results = "".join(file.read_text() for file in (ROOT / "benchmarks" / "results").glob("*.md"))
    intervals = re.findall(r"\[[-+]?\d[^\]]+\]", (ROOT / "docs" / "speed.md").read_text())
    assert len(intervals) >= 5
    assert [interval for interval in intervals if interval not in results] == []


@pytest.mark.parametrize(
    ("page", "result", "said", "found"),
    [
        ("troubleshooting.md", "health_alarms.md", r"in the (\d+) recorded", r"0 in (\d+) runs"),
        ("../README.md", "quickstart_seeds.md", r"accuracy \+(.+), \+(.+), \+(.+) on", r"\| \+(\d\.\d+) \|"),
    ],
)
def test_a_figure_is_that_of_the_stored_result(page, result, said, found):
    text, stored = (ROOT / "docs" / page).read_text(), (ROOT / "benchmarks" / "results" / result).read_text()
    (match,) = re.finditer(said, text)
    assert ", ".join(match.groups()).split(", ") == re.findall(found, stored)
