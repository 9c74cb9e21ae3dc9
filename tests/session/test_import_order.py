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
    assert (result["unsloth warns"], result["hooks"]) == (False, 0)
    assert result["same"], "the module that unsloth patched is not the one that is used"
    assert result["specs"]
    assert children["without the kit"]["result"]["unsloth warns"], "the check can fail"


def test_a_library_imported_before_is_named_and_a_failed_import_leaves_the_hook(children: Any) -> None:
    todo = "restart the kernel and make `import rloo_kit` its first line"
    for text in children["too early"].values():  # the warning at import, and prepare's error
        assert re.search(f"(?s)unsloth has to be imported before.*trl came before rloo_kit.*{todo}", text)
    assert children["failing"]["result"] == ["transformers", "trl"]


def test_a_variable_that_is_set_already_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    settings = {"PYTORCH_ALLOC_CONF": import_order.Setting("x", "torch", "")}
    monkeypatch.setattr(import_order, "settings", lambda: settings)
    for name, empty in (("values_read", {}), ("set_by_user", set()), ("set_by_kit", {})):
        monkeypatch.setattr(import_order, name, empty)
    import_order.apply_settings()
    assert (import_order.set_by_user, import_order.set_by_kit) == ({"PYTORCH_ALLOC_CONF"}, {})


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
    """As pynvml raises it where there is no driver."""


@pytest.mark.parametrize(
    ("megahertz", "bits", "gigabytes", "fused"),
    [(9751, 384, 936, "1"), (5001, 256, 320, "1"), (2619, 5120, 3350, None), (None, None, 0, "1")],
    ids=["RTX 3090", "T4", "H100", "no GPU"],
)
def test_4_bit_products_are_for_memory_that_is_slow_by_the_data_sheet(
    megahertz: int | None, bits: int | None, gigabytes: int, fused: str | None, monkeypatch: Any
) -> None:
    def start() -> None:
        if megahertz is None:
            raise NVMLError

    nvml = {"NVMLError": NVMLError, "NVML_CLOCK_MEM": 2, "nvmlInit": start}
    clocks, visible = [megahertz] * 2, "GPU-1" if megahertz == 5001 else "1"
    nvml |= {
        "nvmlDeviceGetHandleByIndex": {1: clocks}.get,
        "nvmlDeviceGetHandleByUUID": {"GPU-1": clocks}.get,
    }
    nvml |= {
        "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: gpu[0],
        "nvmlDeviceGetMemoryBusWidth": lambda gpu: bits,
    }
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(**nvml))
    assert import_order.gpu_bandwidth() == pytest.approx(gigabytes * 1e9, rel=0.01)
    assert import_order.settings()[import_order.FUSED_4BIT].value == fused
