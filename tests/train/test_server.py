"""A vLLM server is refused where it would sample from garbage, before anything connects to it."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit.train import server

SERVER = {"use_vllm": True, "vllm_mode": "server"}


def test_packed_weights_are_not_sent(policy: rloo_kit.Policy, make_trainer: Any, monkeypatch: Any) -> None:
    packed = [p for p in policy.model.parameters() if hasattr(p, "quant_state")]
    if not packed:  # bitsandbytes has no 4 bit for this processor
        monkeypatch.setattr(next(policy.model.parameters()), "quant_state", object(), raising=False)
    with pytest.raises(ValueError, match="packed bytes of 4-bit weights") as caught:
        make_trainer(**SERVER)
    assert len(str(caught.value).splitlines()) == 3
    assert "load_in_4bit=False" in str(caught.value)


@pytest.mark.parametrize(
    "settings", [SERVER, {"use_vllm": True, "vllm_mode": "colocate"}, {"use_vllm": False}]
)
def test_weights_in_16_bit_pass(settings: dict[str, Any]) -> None:
    args: Any = SimpleNamespace(vllm_mode=None)
    vars(args).update(settings)
    server.check(args, torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("installed", "taken"),
    [("missing", True), ("0.21.0", True), ("0.31.0+cu130", True), ("0.20.2", False), ("0.32.0", False)],
)
def test_the_versions_that_trl_takes(installed: str, taken: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(server, "version_of", lambda name: installed)
    args: Any = SimpleNamespace(**SERVER)
    if taken:
        server.check(args, torch.nn.Linear(2, 2))
        return
    with pytest.raises(ImportError, match=installed):
        server.check(args, torch.nn.Linear(2, 2))


def test_they_are_those_of_trls_source_and_of_the_extra() -> None:
    import tomllib
    from pathlib import Path

    from trl.import_utils import is_vllm_available

    source = inspect.getsource(is_vllm_available)
    assert f'Version("{server.OLDEST}") <= _vllm_base_version <= Version("{server.NEWEST}")' in source
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["vllm"] == [f"vllm=={server.NEWEST}"]


def test_trl_sends_a_parameters_data_as_it_is_stored() -> None:
    """Pinned: neither the walk nor the update looks at a quantised parameter."""
    from trl.generation.vllm_generation import VLLMGeneration

    source = inspect.getsource(VLLMGeneration._iter_named_params)
    assert "yield name, param.data" in source
    assert "quant" not in source
