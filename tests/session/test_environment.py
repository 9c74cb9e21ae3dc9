"""import rloo_kit and prepare(): the order of imports, the variables, and what is shown."""

from __future__ import annotations

import json
import os
import types
from pathlib import Path
from typing import Any

import pytest

import rloo_kit
from rloo_kit.errors import ImportOrderError, VersionError
from rloo_kit.session import environment, imports, quiet

ALLOCATOR = imports.settings()["PYTORCH_ALLOC_CONF"]
HEAVY = ("torch", "transformers", "accelerate", "trl", "peft", "unsloth", "datasets", "matplotlib", "IPython")

# Forks one process per order, after what no order concerns: each child imports the libraries themselves.
# An audit hook sees when a library's own code begins to run.
ORDERS = """
import itertools, json, os, sys, warnings
if sys.argv[1] == "with":
    import rloo_kit
import datasets, huggingface_hub, pandas, sympy, tokenizers, torch, torch._inductor.lowering, torchao

PATCHED = ("trl", "transformers", "peft", "accelerate")
for name in (*PATCHED, "unsloth"):
    assert name not in sys.modules, name

BEGUN = []
def watch(event, arguments):
    if event == "exec":
        *_, place, name, file = ["", "", *arguments[0].co_filename.split("/")]
        if place == "site-packages" and file == "__init__.py" and name in (*PATCHED, "unsloth"):
            BEGUN.append(name)

def child(order, write):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    sys.addaudithook(watch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in order:
            __import__(name)
    told = any("should be imported before" in str(item.message) for item in caught)
    late = BEGUN[: BEGUN.index("unsloth")]
    hooks = sum(type(hook).__name__ == "_UnslothFirst" for hook in sys.meta_path)
    os.write(write, json.dumps([order, told, late, hooks]).encode())
    os._exit(0)

orders = list(itertools.permutations(("unsloth", "trl", "transformers", "peft")))[:: int(sys.argv[2])]
running, results = [], []
def collect():
    pid, read = running.pop(0)
    os.waitpid(pid, 0)
    results.append(json.loads(os.read(read, 4096) or b"null"))
    os.close(read)
for order in orders:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(order, write)
    os.close(write)
    running.append((pid, read))
    if len(running) == 2:
        collect()
while running:
    collect()
print(json.dumps(results))
"""


def test_the_import_is_light(script: Any) -> None:
    code = f"import rloo_kit, sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert script(code).stdout.strip() == "[]"


def test_all_24_import_orders_put_unsloth_first(script: Any) -> None:
    results = json.loads(script(ORDERS, "with", "1").stdout)
    assert len(results) == 24
    for order, told, late, hooks in results:
        assert not told, order
        assert not late, order
        assert hooks == 0, f"the hook is still there after {order}"


def test_without_the_kit_the_same_check_fails(script: Any) -> None:
    for order, told, late, _ in json.loads(script(ORDERS, "without", "5").stdout):
        assert (told and bool(late)) == (order[0] != "unsloth"), order


def test_the_hook_gives_the_very_module_that_unsloth_patched(script: Any) -> None:
    code = """
import rloo_kit, transformers, sys
import trl.trainer.rloo_trainer as user
print(user.transformers is transformers is sys.modules["transformers"], transformers.__spec__.origin is not None)
"""
    assert script(code).stdout.strip() == "True True"


def test_while_the_hook_waits_a_look_up_is_answered_truly(script: Any) -> None:
    code = """
import importlib.util, sys
import rloo_kit
found = importlib.util.find_spec("transformers")
print(found.origin.endswith("__init__.py"), bool(found.submodule_search_locations), "unsloth" in sys.modules)
"""
    assert script(code).stdout.strip() == "True True False"


def test_unsloth_imported_by_name_is_quiet_too_and_no_finder_is_skipped(script: Any) -> None:
    code = """
import sys
import rloo_kit
class Watch:
    asked = []
    def find_spec(self, name, path=None, target=None):
        self.asked.append(name)
sys.meta_path.insert(1, Watch())
import unsloth
print("unsloth" in Watch.asked, unsloth.__spec__.origin is not None)
"""
    done = script(code)
    assert done.stdout.strip() == "True True"
    assert done.stderr == ""


def test_a_library_imported_before_the_kit_is_named_with_the_mend(script: Any) -> None:
    code = """
import sys, types
sys.modules["trl"] = types.ModuleType("trl")  # as good as imported
import rloo_kit
try:
    rloo_kit.prepare(dotenv=None)
except ImportError as error:
    print(type(error).__name__, error)
"""
    said = script(code).stdout
    assert said.startswith(ImportOrderError.__name__)
    assert "trl" in said
    assert "restart the kernel and make `import rloo_kit` its first line" in said


def test_a_failed_import_of_unsloth_leaves_the_hook_in_force(script: Any) -> None:
    code = """
import sys, rloo_kit
sys.modules["unsloth"] = None  # import unsloth now raises
for name in ("transformers", "trl"):
    try:
        __import__(name)
    except ImportError as error:
        print(name, "refused")
"""
    assert script(code).stdout.split("\n")[:2] == ["transformers refused", "trl refused"]


PREPARE = """
import rloo_kit, sys, os, json
env = rloo_kit.prepare(dotenv=sys.argv[1] if len(sys.argv) > 1 else None, seed=7)
"""


def test_prepare_shows_one_screen_and_is_harmless_twice(script: Any, tmp_path: Path) -> None:
    code = PREPARE + "\nagain = rloo_kit.prepare(dotenv=None, seed=7)\nassert again.versions == env.versions"
    done = script(code, XDG_CACHE_HOME=str(tmp_path))
    screen = done.stdout[: len(done.stdout) // 2]
    assert len(screen.splitlines()) <= 30
    for shown in ("device", "memory", "bfloat16", "hub", "stack", "trl 1.15.0", "seed      7"):
        assert shown in screen
    assert done.stderr == "", "start-up noise"
    assert "Unsloth" not in done.stdout


def test_real_variables_win_over_dotenv_and_no_value_of_it_is_shown(script: Any, tmp_path: Path) -> None:
    secret = "hf_" + "x" * 30
    file = tmp_path / ".env"
    file.write_text(f"HF_TOKEN={secret}\nMINE=from-file\nHF_HUB_OFFLINE=1\n")
    code = PREPARE + "\nprint('MINE is', os.environ['MINE'], len(os.environ['HF_TOKEN']))\nprint(repr(env))"
    done = script(code, str(file), MINE="from-shell", XDG_CACHE_HOME=str(tmp_path))
    assert "MINE is from-shell 33" in done.stdout
    assert secret not in done.stdout + done.stderr
    assert "HF_TOKEN=(not shown)" in done.stdout


def test_a_variable_that_the_user_set_is_respected_and_reported(script: Any, tmp_path: Path) -> None:
    done = script(PREPARE, PYTORCH_ALLOC_CONF="max_split_size_mb:128", XDG_CACHE_HOME=str(tmp_path))
    assert "PYTORCH_ALLOC_CONF=max_split_size_mb:128" in done.stdout
    assert "yours, left as it is" in done.stdout


def test_the_allocators_old_name_is_the_users_choice_too(script: Any) -> None:
    done = script(PREPARE, PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:64")
    assert "PYTORCH_ALLOC_CONF=max_split_size_mb:64" in done.stdout
    assert "yours, left as it is" in done.stdout


def test_a_file_in_a_folder_above_is_found(script: Any, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MINE=from-above\n")
    (tmp_path / "notebooks").mkdir()
    code = "import os, sys; os.chdir(sys.argv[1])\nimport rloo_kit\nrloo_kit.prepare()\nprint(os.environ['MINE'])"
    assert script(code, str(tmp_path / "notebooks")).stdout.rstrip().endswith("from-above")


def test_a_named_file_that_is_not_there_is_reported(script: Any) -> None:
    assert "nowhere.env was not found" in script(PREPARE, "nowhere.env").stdout


def test_a_variable_changed_by_hand_after_the_import_is_reported(script: Any) -> None:
    code = PREPARE + "\nos.environ['OMP_NUM_THREADS'] = '7'\nrloo_kit.prepare(dotenv=None)"
    assert "OMP_NUM_THREADS was changed after torch read it" in script(code).stdout


def test_a_variable_that_comes_too_late_is_reported_and_not_set(script: Any, tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("UNSLOTH_COMPILE_LOCATION=elsewhere\n")
    code = (
        "import rloo_kit, trl\n" + PREPARE + "\nprint(os.environ['UNSLOTH_COMPILE_LOCATION'] == 'elsewhere')"
    )
    said = script(code, str(file), HF_HUB_OFFLINE="1", XDG_CACHE_HOME=str(tmp_path)).stdout
    assert "UNSLOTH_COMPILE_LOCATION in .env came too late: unsloth had read it" in said
    assert said.rstrip().endswith("False")


def test_offline_is_told_to_the_hub_library_before_it_asks(script: Any, tmp_path: Path) -> None:
    code = """
import rloo_kit
env = rloo_kit.prepare(dotenv=None, offline=True)
from huggingface_hub import constants
print(env.offline, constants.HF_HUB_OFFLINE)
"""
    assert script(code, XDG_CACHE_HOME=str(tmp_path)).stdout.rstrip().endswith("True True")


def test_an_unreachable_hub_is_found_out_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens on the discard port
    assert environment._hub_reachable(seconds=1.0) is False


LATE = """
import io, os
import rloo_kit, trl
assert "PYTORCH_ALLOC_CONF" in os.environ, "unsloth has set it"
from contextlib import redirect_stdout
from IPython.testing.globalipapp import start_ipython
shell = start_ipython()
shell.run_cell("import rloo_kit", store_history=True)
for cell in ("rloo_kit.prepare(dotenv=None)", "env = rloo_kit.prepare(dotenv=None)\\nenv", "env"):
    out = io.StringIO()
    with redirect_stdout(out):
        shell.run_cell(cell, store_history=True)
    print("CELL")
    print(out.getvalue())
"""


@pytest.fixture(scope="module")
def late_cells(script: Any) -> list[str]:
    """What cells show that call prepare() after the stack was imported, without a network."""
    proxies = dict.fromkeys(("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"), "")
    said = script(LATE, HF_ENDPOINT="http://127.0.0.1:9", **proxies).stdout  # nothing listens there
    return said.split("CELL\n")[1:]


def test_a_late_prepare_says_what_is_and_takes_nothing_of_unsloths_for_the_users(
    late_cells: list[str],
) -> None:
    for screen in late_cells:
        assert "hub       out of reach, not switched off\n" in screen
        assert "The hub is out of reach, but huggingface_hub had read HF_HUB_OFFLINE" in screen
        assert "PYTORCH_ALLOC_CONF" not in screen


def test_a_cell_shows_the_screen_once_and_so_does_a_later_one(late_cells: list[str]) -> None:
    shown = [(cell.count("device  "), "Environment(" in cell) for cell in late_cells]
    assert shown == [(1, False)] * 3


def test_a_variable_that_was_there_with_unsloth_may_be_anybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setattr(imports, "read", {})
    whose = {}
    for unsloth in (True, False):
        monkeypatch.setattr(imports, "found", {})
        monkeypatch.setattr(imports.sys, "modules", {"unsloth": None} if unsloth else {})
        monkeypatch.setattr(imports, "settings", lambda: {"PYTORCH_ALLOC_CONF": ALLOCATOR})
        imports.apply_settings()
        whose[unsloth] = imports.found["PYTORCH_ALLOC_CONF"]
    assert whose == {True: "was set before prepare()", False: "yours, left as it is"}


def test_another_trl_is_an_error_and_another_torch_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {**{name: tested[0] for name, tested in imports.TESTED.items()}, "torch": "1.13.1+cu117"}
    monkeypatch.setattr(environment, "version_of", installed.__getitem__)
    notes: list[str] = []
    environment._check_versions(notes)
    assert notes == ["torch 1.13.1+cu117 is installed; tested was 2.13.0."]
    installed["trl"] = "1.16.0"
    with pytest.raises(VersionError, match=r"trl 1\.16\.0"):
        environment._check_versions(notes)


@pytest.mark.parametrize(
    ("line", "dropped"),
    [
        ("🦥 Unsloth: Will patch your computer to enable 2x faster free finetuning.", True),
        ("Unsloth 2026.10.9: no GPU found, training on CPU (x86_64, 1 threads, bfloat16 = False).", True),
        ("Unsloth (CPU): Qwen3ForCausalLM on 1 CPU threads. dtype = torch.float32, 4-bit = True", True),
        ("==((====))==  Unsloth 2026.10.9: Fast Qwen3 patching. Transformers: 5.17.0.", True),
        (
            "Unsloth (CPU): bitsandbytes 4-bit does not work on this CPU, loading 16-bit weights instead.",
            False,
        ),
        ("Unsloth: Switching to float32 training since model cannot work with float16", False),
        ("", False),
    ],
)
def test_only_known_noise_is_dropped(line: str, dropped: bool) -> None:
    assert quiet.is_noise(line) is dropped


def test_each_setting_says_why() -> None:
    for name, setting in imports.settings().items():
        assert setting.reason, name
        assert "\n" not in setting.reason


def test_no_other_room_writes_the_environment() -> None:
    writers = [
        path.name
        for path in Path(rloo_kit.__file__).parent.rglob("*.py")
        if path.parent.name != "session"
        and ("os.environ[" in path.read_text() or "putenv" in path.read_text())
    ]
    assert writers == []


@pytest.mark.parametrize(
    ("system", "release", "said"),
    [
        ("posix", "6.8.0-generic", False),
        ("posix", "5.15.167.4-microsoft-standard-WSL2", True),
        ("nt", "10", True),
    ],
)
def test_a_card_under_windows_driver_is_warned_of(
    system: str, release: str, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It puts what does not fit into the computer's memory, and raises nothing."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "RTX 3060")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 2**33))
    monkeypatch.setattr(
        environment, "platform", types.SimpleNamespace(uname=lambda: types.SimpleNamespace(release=release))
    )
    monkeypatch.setattr(environment, "os", types.SimpleNamespace(name=system, environ=os.environ))
    monkeypatch.setattr(environment, "_variables", lambda *args: iter(()))
    stack = types.ModuleType("unsloth")
    stack.is_bfloat16_supported = lambda: True  # type: ignore[attr-defined]
    found = environment._describe(stack, False, "in use", 0, (), [])
    assert (environment.SPILLS in found.warnings) is said
