"""import rloo_kit: the order of imports, the variables read at import, and the public names."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import rloo_kit
from rloo_kit.session import imports

# A stack of empty packages: unsloth imports all that it patches, and each notes that its code has run.
STAND_INS = """
import builtins, itertools, json, os, sys
from pathlib import Path
PATCHED = ("trl", "transformers", "peft", "accelerate")
folder = Path(sys.argv[1])
for name in (*PATCHED, "unsloth", "torch"):
    (folder / f"{name}.py").write_text(f"BEGUN.append({name!r})\\n")
(folder / "torch.py").write_text("class cuda: is_available = staticmethod(lambda: True)")
(folder / "unsloth.py").write_text(f"BEGUN.append('unsloth')\\nimport torch, {', '.join(PATCHED)}")
sys.path.insert(0, str(folder))
builtins.BEGUN = []

def in_a_child(action):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, json.dumps(action()).encode())
        os._exit(0)
    os.wait()
    os.close(write)
    with open(read) as answer:
        return json.load(answer)

def ordered(order):
    import rloo_kit
    for name in order:
        __import__(name)
    return BEGUN[0], len(BEGUN), any(type(hook).__name__ == "_UnslothFirst" for hook in sys.meta_path)

def too_early():
    import trl
    import rloo_kit
    try:
        rloo_kit.prepare(dotenv=None)
    except ImportError as error:
        return f"{type(error).__name__}: {error}"

def failing():
    import rloo_kit
    sys.modules["unsloth"] = None  # import unsloth now raises
    refused = []
    for name in ("transformers", "trl"):
        try:
            __import__(name)
        except ImportError:
            refused.append(name)
    return refused

orders = list(itertools.permutations((*PATCHED, "unsloth")))
print(json.dumps({
    "orders": [(order, *in_a_child(lambda: ordered(order))) for order in orders],
    "too early": in_a_child(too_early),
    "failing": in_a_child(failing),
}))
"""


@pytest.fixture(scope="module")
def stand_ins(script: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(script(STAND_INS, str(tmp_path_factory.mktemp("stack"))).stdout)
    return record


def test_import_rloo_kit_loads_nothing_heavy(first_cells: Any) -> None:
    assert first_cells.shown["import"].strip() == "[]"


def test_unsloth_comes_first_in_every_order_of_imports(stand_ins: dict[str, Any]) -> None:
    assert len(stand_ins["orders"]) == 120
    for order, first, loaded, hook_left in stand_ins["orders"]:
        assert (first, loaded, hook_left) == ("unsloth", 5, False), order


@pytest.mark.parametrize("first", ["unsloth", "trl", "transformers"])
def test_with_the_true_libraries_the_first_import_settles_the_order(first: str, children: Any) -> None:
    result = children[first]["result"]
    assert result["loaded"] == sorted((*imports.PATCHED_BY_UNSLOTH, "unsloth")), "no later order is left"
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


def test_a_library_imported_before_the_kit_is_named_with_what_to_do(stand_ins: dict[str, Any]) -> None:
    said = stand_ins["too early"]
    assert said.startswith("ImportOrderError: ")
    assert "trl came first" in said
    assert "restart the kernel and make `import rloo_kit` its first line" in said


def test_a_failed_import_of_unsloth_leaves_the_hook_installed(stand_ins: dict[str, Any]) -> None:
    assert stand_ins["failing"] == ["transformers", "trl"]


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
