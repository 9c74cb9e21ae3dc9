"""The README's Python: it compiles, uses no name that it does not give, and no argument that is not there."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rewards
import rloo_kit

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
TREES = [ast.parse(block) for block in BLOCKS]
PACKAGES = {"rloo_kit": rloo_kit, "rewards": rewards}


def names(tree: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, context)
    }


def given(tree: ast.AST) -> set[str]:
    found = names(tree, ast.Store)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
    return found


def calls() -> Iterator[tuple[str, Any, set[str]]]:
    """Each call of a public function: how it is written, what it is, and the keywords it gets."""
    for node in (node for tree in TREES for node in ast.walk(tree)):
        path = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        package, *attributes = path.split(".")
        if package in PACKAGES and attributes:
            target: Any = PACKAGES[package]
            for attribute in attributes:
                target = getattr(target, attribute)
            yield path, target, {keyword.arg or "**" for keyword in node.keywords}  # type: ignore[attr-defined]


def arguments(target: Any) -> set[str]:
    parameters = set(inspect.signature(target).parameters)
    return parameters | (
        {f.name for f in dataclasses.fields(target)} if dataclasses.is_dataclass(target) else set()
    )


def test_the_blocks_are_found() -> None:
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("count", range(1, len(BLOCKS) + 1))
def test_a_block_uses_names_of_its_own_or_of_those_before_it(count: int) -> None:
    before = set().union(*(given(tree) for tree in TREES[:count]))
    assert names(TREES[count - 1], ast.Load) <= before | set(dir(builtins))


@pytest.mark.parametrize("which", [0, -1], ids=["the first", "the rewards'"])
def test_these_blocks_need_no_name_from_elsewhere(which: int) -> None:
    assert names(TREES[which], ast.Load) <= given(TREES[which]) | set(dir(builtins))


@pytest.mark.parametrize(("path", "target", "keywords"), list(calls()), ids=[path for path, _, _ in calls()])
def test_a_call_gives_arguments_that_the_function_has(path: str, target: Any, keywords: set[str]) -> None:
    assert keywords <= arguments(target)


def test_the_config_and_the_evaluations_are_among_the_calls() -> None:
    written = [path for path, _, _ in calls()]
    for path in ("RLOOConfig", "RLOOTrainer", "evaluate", "load_policy", "tasks.arithmetic"):
        assert f"rloo_kit.{path}" in written


def test_the_block_on_rewards_runs_and_finds_no_exploit(capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[-1], {})
    assert "no exploit among" in capsys.readouterr().out
