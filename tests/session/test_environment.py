"""prepare(): what it reads, sets and shows."""

import json
import os
import sys
import types
from typing import Any

import pytest

from rloo_kit.errors import ConfigError, VersionError
from rloo_kit.session import environment, imports

from .conftest import NO_PROXY, NOWHERE, SECRET


def test_prepare_shows_one_screen_and_sets_what_it_shows(first_cells: Any) -> None:
    screen, state = first_cells.shown["prepare"], json.loads(first_cells.shown["state"])
    assert len(screen.splitlines()) <= 30
    shown = ["device    cpu", "memory", "compute   float32", "hub       offline", "trl 1.15.0", "seed      7"]
    assert [line for line in shown if line not in screen] == []
    assert "PYTORCH_ALLOC_CONF=max_split_size_mb:64\n            yours, left as it is" in screen
    assert (state["UNSLOTH_CPU_BF16"], state["env.bf16"]) == ("0", False)
    assert first_cells.shown["dtype"].strip() == "torch.float32"
    assert state["env.offline"] is state["hub.offline"] is True, "set before the hub library reads it"


def test_a_variable_that_is_set_wins_over_the_file_and_no_value_of_it_is_shown(first_cells: Any) -> None:
    state = json.loads(first_cells.shown["state"])
    assert (state["MINE"], state["ABOVE"], state["HF_TOKEN"]) == ("from-shell", "from-above", SECRET)
    assert "HF_TOKEN=(not shown)" in first_cells.shown["prepare"]
    assert [name for name, text in first_cells.shown.items() if SECRET in text] == ["state"]
    assert SECRET not in first_cells.stderr + state["repr"]


def test_what_came_too_late_and_a_named_file_that_is_missing_are_reported(first_cells: Any) -> None:
    late = first_cells.shown["late"]
    assert "OMP_NUM_THREADS was changed after torch read it" in late
    assert "UNSLOTH_COMPILE_LOCATION in late.env came too late: unsloth had read it" in late
    assert late.rstrip().endswith("False"), "and it is not set"
    assert "nowhere.env was not found" in first_cells.shown["missing"]


def test_a_cell_shows_the_screen_once_and_a_late_prepare_reports_the_hub(children: Any) -> None:
    for screen in children["cells"]["result"]:
        assert (screen.count("device  "), "Environment(" in screen) == (1, False)
        assert "hub       out of reach, not switched off\n" in screen
        assert "The hub is out of reach, but huggingface_hub had read HF_HUB_OFFLINE" in screen
        assert "PYTORCH_ALLOC_CONF" not in screen, "unsloth's variables are not the user's"


def test_an_unreachable_hub_is_found_out_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**NO_PROXY, "HF_ENDPOINT": NOWHERE}.items():
        monkeypatch.setenv(name, value)
    assert environment._hub_reachable(seconds=1.0) is False


def test_another_trl_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    environment._check_trl()
    monkeypatch.setattr(environment, "outside", lambda: {"trl": "is outside"})
    monkeypatch.setattr(environment, "version_of", lambda name: "1.16.0")
    with pytest.raises(VersionError, match=r"trl 1\.16\.0[\s\S]*pip install trl==1\.15\.0"):
        environment._check_trl()


def test_a_cpu_computes_in_bfloat16_only_where_the_user_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where unsloth was imported before the kit, too late to set the variable: then it is None."""
    for values, dtype in (((None, "0", ""), "float32"), (("1", " True"), "bfloat16")):
        for value in values:
            monkeypatch.setitem(imports.read, imports.CPU_BF16, value)
            assert environment.compute_dtype() == dtype, value


@pytest.mark.parametrize(
    ("bf16", "system", "release", "spills"),
    [
        (True, "posix", "6.8.0-generic", False),
        (False, "posix", "5-microsoft-WSL2", True),
        (True, "nt", "10", True),
    ],
)
def test_on_a_gpu_its_dtype_is_shown_and_windows_driver_is_warned_of(
    bf16: bool, system: str, release: str, spills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    unsloth = types.SimpleNamespace(is_bfloat16_supported=lambda: bf16)
    uname = types.SimpleNamespace(uname=lambda: types.SimpleNamespace(release=release))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "RTX 3060")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 2**33))
    monkeypatch.setitem(sys.modules, "unsloth", unsloth)
    monkeypatch.setattr(environment, "platform", uname)
    monkeypatch.setattr(imports, "read", {name: os.environ.get(name) for name in imports.settings()})
    monkeypatch.setattr(environment, "os", types.SimpleNamespace(name=system, environ=os.environ))
    found = environment._describe(False, "in use", 0, (), [])
    assert (environment.SPILLS in found.warnings) is spills
    assert f"compute   {'bfloat16' if bf16 else 'float16'}\n" in str(found)
    assert imports.CPU_BF16 not in str(found), "of no effect on a GPU"
    assert imports.FUSED_4BIT in str(found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert imports.FUSED_4BIT not in str(environment._describe(False, "in use", 0, (), [])), (
        "nor this on a CPU"
    )


def test_two_variables_switch_a_notebooks_policy_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLOO_KIT_MODEL", "qwen3-4b")
    monkeypatch.setenv("RLOO_KIT_STEPS", "5")
    asked = environment.prepare(dotenv=None, offline=True)
    assert (asked.model, asked.steps) == ("qwen3-4b", 5)
    assert "model     qwen3-4b, in place of the notebook's" in str(asked)
    for name in ("RLOO_KIT_MODEL", "RLOO_KIT_STEPS"):
        monkeypatch.setenv(name, "")
    asked = environment.prepare(dotenv=None, offline=True)
    assert (asked.model, asked.steps) == (None, None)
    assert "in place of" not in str(asked)


@pytest.mark.parametrize("text", ["0", "-1", "many", "1.5"])
def test_a_length_that_is_no_number_of_steps_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLOO_KIT_STEPS", text)
    with pytest.raises(ConfigError, match="RLOO_KIT_STEPS must be a whole number above 0"):
        environment.prepare(dotenv=None, offline=True)
