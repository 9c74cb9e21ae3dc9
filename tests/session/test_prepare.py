"""prepare(): what it reads, sets and shows."""

import copy
import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit import redact
from rloo_kit.errors import ConfigError, VersionError
from rloo_kit.session import import_order, prepare
from rloo_kit.train import run_record
from tests.memory.conftest import fake_cuda

from .conftest import NO_PROXY, NOWHERE, SECRET


def test_importing_loads_nothing_heavy_looks_up_the_truth_and_prints_nothing_that_looks_like_a_fault(first_cells):
    assert first_cells.shown["import"].strip() == "[]"
    assert first_cells.shown["look-up"].strip() == "True True False"
    assert first_cells.shown["load"] == first_cells.stderr == ""
    assert "nsloth:" not in first_cells.shown["prepare"]


def test_prepare_shows_a_few_lines_and_sets_what_it_shows(first_cells):
    screen, state = first_cells.shown["prepare"], json.loads(first_cells.shown["state"])
    assert len(screen.splitlines()) == 4
    assert max(map(len, screen.splitlines())) < 100
    shown = ["device     cpu", "GiB free", "computes in float32", "hub        offline", "trl 1.15.0"]
    assert [text for text in (*shown, "2 set by .env", "set before") if text not in screen] == []
    for name, value in (("PYTORCH_ALLOC_CONF", "max_split_size_mb:64"), ("TOKENIZERS_PARALLELISM", "true")):
        assert [name, value, "set before"] in state["variables"]
    assert (state["UNSLOTH_CPU_BF16"], state["env.bf16"]) == ("0", False)
    assert first_cells.shown["dtype"].strip() == "torch.float32"
    assert state["env.offline"] is state["hub.offline"] is True, "set before the hub library reads it"


def test_a_variable_that_is_set_wins_over_the_file_and_no_value_of_it_is_shown(first_cells):
    state = json.loads(first_cells.shown["state"])
    assert (state["MINE"], state["ABOVE"], state["HF_TOKEN"]) == ("from-shell", "from-above", SECRET)
    assert ["HF_TOKEN", "(not shown)", "set by .env"] in state["variables"]
    assert [name for name, text in first_cells.shown.items() if SECRET in text] == ["state"]
    assert SECRET not in first_cells.stderr + state["repr"]


def test_what_came_too_late_and_a_named_file_that_is_missing_are_reported(first_cells):
    late = first_cells.shown["late"]
    assert "UNSLOTH_COMPILE_LOCATION, OMP_NUM_THREADS: set after torch, unsloth had been imported" in late
    assert "nowhere.env was not found" in first_cells.shown["missing"]


def test_a_hub_library_that_has_read_its_variable_is_reported(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    late = prepare.prepare(dotenv=None, offline=True)
    assert late.offline is False
    assert "The hub is out of reach, but huggingface_hub had read HF_HUB_OFFLINE" in str(late)


def test_an_unreachable_hub_is_found_out_within_seconds(monkeypatch):
    for name, value in {**NO_PROXY, "HF_ENDPOINT": NOWHERE}.items():
        monkeypatch.setenv(name, value)
    assert prepare._hub_reachable(seconds=1.0) is False


def test_another_trl_is_an_error(monkeypatch):
    monkeypatch.setattr(prepare, "outside", lambda: {"trl": "is outside"})
    monkeypatch.setattr(prepare, "version_of", lambda name: "1.16.0")
    with pytest.raises(VersionError, match=r"trl 1\.16\.0[\s\S]*pip install 'trl>=1\.15,<1\.16'"):
        prepare.prepare(dotenv=None, offline=True)


def test_a_cpu_computes_in_bfloat16_only_where_the_user_asked(monkeypatch):
    """Also if unsloth was imported before the kit, too late to set the variable: then it is None."""
    for values, dtype in (((None, "0", ""), "float32"), (("1", " True"), "bfloat16")):
        for value in values:
            monkeypatch.setitem(import_order.values_read, import_order.CPU_BF16, value)
            assert prepare.compute_dtype() == dtype, value


def let_nothing_be_late(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {name: os.environ.get(name) for name in import_order.settings()}
    monkeypatch.setattr(import_order, "values_read", values)


@pytest.mark.parametrize(
    ("bf16", "system", "release", "spills"),
    [(True, "posix", "6.8.0", False), (False, "posix", "5-microsoft-WSL2", True), (True, "nt", "10", True)],
)
def test_on_a_gpu_its_dtype_is_shown_and_windows_driver_is_warned_of(bf16, system, release, spills, monkeypatch):
    let_nothing_be_late(monkeypatch)
    fake_cuda(monkeypatch)
    monkeypatch.setitem(sys.modules, "unsloth", SimpleNamespace(is_bfloat16_supported=lambda: bf16))
    monkeypatch.setattr(prepare, "platform", SimpleNamespace(uname=lambda: SimpleNamespace(release=release)))
    monkeypatch.setattr(prepare, "os", SimpleNamespace(name=system, environ=os.environ))
    on_gpu = prepare.prepare(dotenv=None, offline=True)
    assert (prepare.SPILLS in on_gpu.warnings) is spills
    assert f"computes in {'bfloat16' if bf16 else 'float16'}\n" in str(on_gpu)
    fake_cuda(monkeypatch, is_available=False)
    on_cpu = prepare.prepare(dotenv=None, offline=True)
    names = [{name for name, *_ in found.variables} for found in (on_gpu, on_cpu)]
    assert import_order.CPU_BF16 not in names[0], "of no effect on a GPU"
    assert [import_order.FUSED_4BIT in here for here in names] == [True, False], "nor this on a CPU"


def test_two_variables_switch_a_notebooks_policy_and_length(monkeypatch):
    def prepared(model: str, steps: str) -> rloo_kit.Environment:
        monkeypatch.setenv("RLOO_KIT_MODEL", model)
        monkeypatch.setenv("RLOO_KIT_STEPS", steps)
        return prepare.prepare(dotenv=None, offline=True)

    switched, unset = prepared("qwen3-4b", "5"), prepared("", "")
    assert (switched.model, switched.steps, unset.model, unset.steps) == ("qwen3-4b", 5, None, None)
    assert "model      qwen3-4b, in place of the notebook's" in str(switched)
    assert "in place of" not in str(unset)
    with pytest.raises(ConfigError, match="RLOO_KIT_STEPS must be a whole number above 0"):
        prepared("", "0")


VALUE = "a-value-of-the-file"


@pytest.fixture(autouse=True)
def nothing_hidden_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact, "_values", {})
    monkeypatch.setattr(os, "environ", os.environ.copy())


def dotenv(folder: Path, content: str | bytes) -> Path:
    file = folder / "some.env"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_a_second_prepare_shows_no_value_of_the_file_either(tmp_path, monkeypatch):
    """The first call has set the values, so that the second finds them in the environment."""
    file = dotenv(tmp_path, f"HF_HOME={VALUE}\nMINE={VALUE}\n")
    monkeypatch.setenv("MINE", VALUE)
    monkeypatch.setenv("HF_HOME", VALUE)
    let_nothing_be_late(monkeypatch)
    for path in (file, None):
        shown = prepare.prepare(path, offline=True)
        assert VALUE not in str(shown) + repr(shown) + repr(shown.variables)
        assert ("HF_HOME", "(not shown)", "set by .env") in shown.variables


def test_a_value_of_the_file_stays_out_of_errors_and_of_other_variables(tmp_path):
    prepare._load_dotenv(dotenv(tmp_path, f"PASSWORD={VALUE}\nON=1\n"), [])
    error = ConfigError(f"no {VALUE} at 1", where=f"here, {VALUE}/run", todo=f"drop {VALUE}")
    assert VALUE not in str(error) + repr(error) + "".join(vars(error).values())
    assert str(error).startswith("no (not shown) at 1.\nWhere: here, (not shown)/run")
    assert prepare._short(f"/cache/{VALUE}") == "/cache/(not shown)"


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_another_encoding_is_named_without_the_files_bytes(encoding, tmp_path):
    with pytest.raises(ConfigError, match=r"not UTF-8 text[\s\S]*some\.env") as raised:
        prepare._load_dotenv(dotenv(tmp_path, f"A=1\nB={VALUE}é\n".encode(encoding)), [])
    assert VALUE not in "".join(traceback.format_exception(raised.value))


def test_a_config_shows_and_stores_no_token_and_no_value_of_the_file(tmp_path):
    """Not as a cell's last line, nor in a checkpoint's training_args.bin, which people publish; a copy keeps it."""
    prepare._load_dotenv(dotenv(tmp_path, f"WHO={VALUE}\n"), [])
    token, model = "hf_" + "y" * 30, {"token": "a-token-of-another-form", "revision": "v2"}
    model |= {"proxies": [{"https": token}]}
    how: dict[str, Any] = {"hub_token": token, "hub_model_id": f"{VALUE}/policy", "model_init_kwargs": model}
    config = rloo_kit.RLOOConfig(str(tmp_path / "run"), **how)
    pickled = pickle.dumps(config)
    texts = f"{config!r} {config} {config.to_dict()} {config.to_json_string()} {pickled!r}"
    assert [secret for secret in (token, model["token"], VALUE) if secret in texts] == []
    stored = pickle.loads(pickled)
    assert (stored.num_generations, stored.model_init_kwargs["revision"], stored.hub_token) == (4, "v2", None)
    for copied in (copy.copy(config), copy.deepcopy(config)):
        assert (copied.hub_token, copied.model_init_kwargs) == (token, model)
    notes: list[str] = []
    assert not {"hub_token", "model_init_kwargs"} & set(run_record.settings_of(config, notes))
    assert len(notes) == 3
