"""import rloo_kit: import order, releases, variables read at import, and the public names."""

import ast
import importlib.metadata
import json
import re
import sys
import tomllib
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest

import rloo_kit
from rloo_kit.session import import_order, versions
from tests.conftest import ROOT

from .conftest import UNSET

IMPORT_FIRST = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    __import__(sys.argv[1])
    import unsloth
import transformers
import trl.trainer.rloo_trainer as user
print(json.dumps({
    "unsloth warns": any("should be imported before" in str(item.message) for item in caught),
    "hooks": sum(type(hook).__name__ == "_UnslothFirst" for hook in sys.meta_path),
    "one module": user.transformers is transformers is sys.modules["transformers"],
    "loaders": {type(module.__spec__.loader).__name__ for module in (transformers, unsloth)} == {"SourceFileLoader"},
}))
"""


@pytest.mark.parametrize("first", ["unsloth", "transformers"])
def test_whichever_library_is_imported_first_unsloth_comes_before_it(first, script):
    done = script(f"{UNSET}import rloo_kit\n{IMPORT_FIRST}", first)
    assert json.loads(done.stdout) == {"unsloth warns": False, "hooks": 0, "one module": True, "loaders": True}
    assert done.stderr == "", "silent also without prepare()"


def test_without_the_kit_unsloth_warns(script):
    """Shows that the test above can fail."""
    assert json.loads(script(UNSET + IMPORT_FIRST, "transformers").stdout.splitlines()[-1])["unsloth warns"]


TOO_EARLY = """
import sys
sys.modules["trl"] = type(sys)("trl")  # as good as imported
import rloo_kit
rloo_kit.prepare(dotenv=None)
"""


def test_a_library_imported_before_is_named_by_a_warning_and_by_prepare(script):
    said = script(TOO_EARLY, check=False).stderr
    todo = "restart the kernel and make `import rloo_kit` its first line"
    named = f"(?s)unsloth has to be imported before.*?trl came before rloo_kit.*?{todo}"
    assert len(re.findall(named, said)) == 2
    assert said.splitlines()[-3].startswith("rloo_kit.errors.ImportOrderError: ")


FAILING = """
import sys, rloo_kit
sys.modules["unsloth"] = None  # import unsloth now raises
for name in ("transformers", "trl"):
    try:
        __import__(name)
    except ImportError:
        print(name)
"""


def test_a_failed_import_leaves_the_hook(script):
    assert script(FAILING).stdout == "transformers\ntrl\n"


def test_no_other_room_writes_the_environment():
    files = [path for path in Path(rloo_kit.__file__).parent.rglob("*.py") if path.parent.name != "session"]
    assert [p.name for p in files if "os.environ[" in p.read_text() or "putenv" in p.read_text()] == []


def test_the_names_that_type_checkers_see_are_those_that_load_when_used():
    tree = ast.parse(Path(rloo_kit.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imported = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, alias.name) for node in imported for alias in node.names}
    lazy = {(f"rloo_kit.{room}", name) for room, names in rloo_kit._NAMES_IN.items() for name in names}
    assert seen == lazy | {("rloo_kit", "tasks")}
    assert rloo_kit.__all__ == sorted(name for _, name in seen)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rloo_kit.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("megahertz", "bits", "gigabytes", "fused"),
    [(9751, 384, 936, "1"), (5001, 256, 320, "1"), (2619, 5120, 3350, None), (None, None, 0, "1")],
    ids=["RTX 3090", "T4", "H100", "no GPU"],
)
def test_4_bit_products_are_for_memory_that_is_slow_by_the_data_sheet(megahertz, bits, gigabytes, fused, monkeypatch):
    pynvml = Mock(NVMLError=RuntimeError)
    pynvml.nvmlInit.side_effect = None if megahertz else RuntimeError
    pynvml.nvmlDeviceGetMaxClockInfo.return_value = megahertz
    pynvml.nvmlDeviceGetMemoryBusWidth.return_value = bits
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    by_number, by_name = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
    for visible, first, asked in (("1,0", 1, by_number), ("GPU-1,GPU-2", "GPU-1", by_name)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert import_order.gpu_bandwidth() == pytest.approx(gigabytes * 1e9, rel=0.01)
        assert [call.args for call in asked.call_args_list] == ([(first,)] if megahertz else [])
    assert import_order.settings()[import_order.FUSED_4BIT].value == fused


DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


@pytest.mark.parametrize(("policy", "spins"), [({}, "1000"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000")])
@pytest.mark.skipif(sys.platform != "linux", reason="torch has libgomp on Linux alone")
def test_threads_that_wait_do_not_spin_for_long_unless_the_user_says_how_they_wait(policy, spins, script):
    shown = script(UNSET + "import rloo_kit\nrloo_kit.RLOOConfig", OMP_DISPLAY_ENV="VERBOSE", **policy).stderr
    assert f"GOMP_SPINCOUNT = '{spins}'" in shown


def test_a_release_outside_its_range_is_warned_of_once_with_what_to_do(monkeypatch):
    tested = {name: importlib.metadata.version(name) for name in versions.STACK}
    installed = dict(tested)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [*DEPENDENCIES, "trl==0; extra == 'x'"])
    monkeypatch.setattr(versions, "version_of", installed.__getitem__)
    versions.warn_once.cache_clear()
    assert versions.outside() == {}, "what the tests ran on is within"
    installed |= dict.fromkeys(installed, "0.0.1")
    assert versions.outside().keys() == tested.keys(), "every package has a range"
    installed |= {**tested, "torch": "2.15.0+cu130"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        versions.warn_once()
        versions.warn_once()
    (text,) = (str(warning.message) for warning in caught)
    assert text.startswith("torch 2.15.0+cu130 is outside ")
    assert text.endswith("pytest tests/contract")
