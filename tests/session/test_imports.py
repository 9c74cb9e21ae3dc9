"""import rloo_kit: the order of imports, the variables read at import, and the public names."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import rloo_kit
from rloo_kit.session import imports


def test_import_rloo_kit_loads_nothing_heavy_and_a_look_up_gets_the_true_answer(first_cells: Any) -> None:
    assert first_cells.shown["import"].strip() == "[]"
    assert first_cells.shown["look-up"].strip() == "True True False"


def test_the_hook_takes_each_library_that_unsloth_patches_and_no_other() -> None:
    hook = imports._UnslothFirst()
    for name in (*imports.PATCHED_BY_UNSLOTH, "unsloth"):
        spec = hook.find_spec(name)
        assert spec is not None
        assert spec.loader is hook, name
    assert hook.find_spec("torch") is None


@pytest.mark.parametrize("first", ["unsloth", "transformers"])
def test_whichever_library_is_imported_first_unsloth_comes_before_it(first: str, children: Any) -> None:
    said, result = children[first].values()
    assert said == "", "silent also without prepare()"
    assert result["loaded"] == sorted((*imports.PATCHED_BY_UNSLOTH, "unsloth")), "their order matters"
    assert (result["told"], result["late"], result["hooks"]) == (False, [], 0)
    assert result["asked"], "another finder was skipped"
    assert result["same"], "the module that unsloth patched is not the one that is used"
    assert result["specs"]
    without = children["without the kit"]["result"]
    assert without["told"], "the check can fail"
    assert "transformers" in without["late"]


def test_a_library_imported_before_is_named_and_a_failed_import_leaves_the_hook(children: Any) -> None:
    todo = "restart the kernel and make `import rloo_kit` its first line"
    assert re.match(f"(?s)ImportOrderError: .*trl came first.*{todo}", children["too early"]["result"])
    assert "trl came before rloo_kit in this process" in children["too early"]["said"], "at import"
    assert children["failing"]["result"] == ["transformers", "trl"]


def test_a_variable_that_is_set_already_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    settings = {"PYTORCH_ALLOC_CONF": imports.Setting("x", "torch", "")}
    monkeypatch.setattr(imports, "settings", lambda: settings)
    # After unsloth, it may be unsloth that set it.
    for modules, whose in (({}, "yours, left as it is"), ({"unsloth": None}, "was set before prepare()")):
        for name in ("read", "found", "set_by_kit"):
            monkeypatch.setattr(imports, name, {})
        monkeypatch.setattr(imports.sys, "modules", modules)
        imports.apply_settings()
        assert (imports.found["PYTORCH_ALLOC_CONF"], imports.set_by_kit) == (whose, {})


def test_no_other_room_writes_the_environment() -> None:
    files = [path for path in Path(rloo_kit.__file__).parent.rglob("*.py") if path.parent.name != "session"]
    assert [p.name for p in files if "os.environ[" in p.read_text() or "putenv" in p.read_text()] == []


def test_the_names_that_type_checkers_see_are_those_that_load_when_used() -> None:
    tree = ast.parse(Path(rloo_kit.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, alias.name) for node in imported for alias in node.names}
    lazy = {(f"rloo_kit.{room}", name) for room, names in rloo_kit._NAMES_IN.items() for name in names}
    assert seen == lazy | {("rloo_kit", "tasks")}
    assert rloo_kit.__all__ == sorted(name for _, name in seen)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rloo_kit.nothing  # noqa: B018
