"""import rloo_kit: the order of imports, the variables read at import, and the public names."""

import ast
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit.session import import_order


def test_import_rloo_kit_loads_nothing_heavy_and_a_look_up_gets_the_true_answer(first_cells: Any) -> None:
    assert first_cells.shown["import"].strip() == "[]"
    assert first_cells.shown["look-up"].strip() == "True True False"


@pytest.mark.parametrize("first", ["unsloth", "transformers"])
def test_whichever_library_is_imported_first_unsloth_comes_before_it(first: str, children: Any) -> None:
    said, result = children[first].values()
    assert said == "", "silent also without prepare()"
    assert result["loaded"] == sorted((*import_order.PATCHED_BY_UNSLOTH, "unsloth")), "their order matters"
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
    settings = {"PYTORCH_ALLOC_CONF": import_order.Setting("x", "torch", "")}
    monkeypatch.setattr(import_order, "settings", lambda: settings)
    for name, empty in (("read", {}), ("found", set()), ("set_by_kit", {})):
        monkeypatch.setattr(import_order, name, empty)
    import_order.apply_settings()
    assert (import_order.found, import_order.set_by_kit) == ({"PYTORCH_ALLOC_CONF"}, {})


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


class NVMLError(Exception):
    """As pynvml raises it where there is no driver, or no such GPU."""


def nvml(clock_mhz: int, bus_bits: int) -> Any:
    """pynvml with one GPU, number 0, "GPU-1"."""

    def only(this: object) -> Any:
        def handle(wanted: object) -> object:
            if wanted != this:
                raise NVMLError
            return wanted

        return handle

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_MEM=2,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=only(0),
        nvmlDeviceGetHandleByUUID=only("GPU-1"),
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: clock_mhz,
        nvmlDeviceGetMemoryBusWidth=lambda handle: bus_bits,
    )


@pytest.mark.parametrize(
    ("visible", "card", "gigabytes", "fused"),
    [
        ("0,1", (9751, 384), 936, "1"),  # RTX 3090
        ("GPU-1", (5001, 256), 320, "1"),  # T4
        ("0", (2619, 5120), 3350, None),  # H100
        ("7", (5001, 256), None, "1"),
        ("", (5001, 256), None, "1"),
    ],
)
def test_4_bit_products_are_for_memory_of_the_first_visible_gpu_that_is_slow_by_the_data_sheet(
    visible: str, card: tuple[int, int], gigabytes: int | None, fused: str | None, monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(*card))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = import_order.gpu_bandwidth()
    assert found is None if gigabytes is None else found == pytest.approx(gigabytes * 1e9, rel=0.01)
    assert import_order.settings()[import_order.FUSED_4BIT].value == fused
