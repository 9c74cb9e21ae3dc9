"""import rloo_kit: the order of imports, the variables read at import, and the public names."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import rloo_kit
from rloo_kit.session import imports


def test_import_rloo_kit_loads_nothing_heavy(first_cells: Any) -> None:
    assert first_cells.shown["import"].strip() == "[]"


@pytest.mark.parametrize("first", ["unsloth", "trl", "transformers", "peft"])
def test_whichever_library_is_imported_first_unsloth_comes_before_it(first: str, children: Any) -> None:
    result = children[first]["result"]
    assert result["loaded"] == sorted((*imports.PATCHED_BY_UNSLOTH, "unsloth")), (
        "the order of later imports matters"
    )
    assert (result["told"], result["late"], result["hooks"]) == (False, [], 0)
    assert result["asked"], "another finder was skipped"
    assert result["same"], "the module that unsloth patched is not the one that is used"
    assert result["specs"]


def test_without_the_kit_the_same_check_fails(children: Any) -> None:
    result = children["without the kit"]["result"]
    assert result["told"]
    assert "transformers" in result["late"]


def test_while_the_hook_waits_a_look_up_gets_the_true_answer(first_cells: Any) -> None:
    assert first_cells.shown["look-up"].strip() == "True True False"


def test_a_library_imported_before_the_kit_is_named_with_what_to_do(children: Any) -> None:
    said = children["too early"]["result"]
    assert said.startswith("ImportOrderError: ")
    assert "trl came first" in said
    assert "restart the kernel and make `import rloo_kit` its first line" in said


def test_a_failed_import_of_unsloth_leaves_the_hook_installed(children: Any) -> None:
    assert children["failing"]["result"] == ["transformers", "trl"]


@pytest.mark.parametrize(
    ("modules", "whose"),
    [({}, "yours, left as it is"), ({"unsloth": None}, "was set before prepare()")],
    ids=["before unsloth", "after it: unsloth may have set it"],
)
def test_a_variable_that_is_set_already_is_kept(
    modules: dict[str, None], whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    for name, value in (("read", {}), ("found", {}), ("set_by_kit", {})):
        monkeypatch.setattr(imports, name, value)
    monkeypatch.setattr(imports.sys, "modules", modules)
    monkeypatch.setattr(
        imports, "settings", lambda: {"PYTORCH_ALLOC_CONF": imports.Setting("x", "torch", "")}
    )
    imports.apply_settings()
    assert imports.found["PYTORCH_ALLOC_CONF"] == whose
    assert not imports.set_by_kit


def test_each_setting_has_a_reason_of_one_line() -> None:
    for name, setting in imports.settings().items():
        assert setting.reason, name
        assert "\n" not in setting.reason


def test_no_other_room_writes_the_environment(package: Path) -> None:
    files = [path for path in package.rglob("*.py") if path.parent.name != "session"]
    assert [p.name for p in files if "os.environ[" in p.read_text() or "putenv" in p.read_text()] == []


def test_the_names_that_type_checkers_see_are_those_that_load_when_used(package: Path) -> None:
    tree = ast.parse((package / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        (node.module, alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    lazy = {(f"rloo_kit.{room}", name) for room, names in rloo_kit._NAMES_IN.items() for name in names}
    assert seen == lazy | {("rloo_kit", "tasks")}
    assert rloo_kit.__all__ == sorted(name for _, name in seen)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rloo_kit.nothing  # noqa: B018
