"""A vLLM server is refused where it would sample from garbage, before anything connects to it."""

import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit.train import server

SERVER = {"use_vllm": True, "vllm_mode": "server"}
COLOCATE = {"use_vllm": True, "vllm_mode": "colocate"}


@pytest.mark.parametrize("where", [SERVER, COLOCATE])
def test_packed_weights_are_not_sent(
    policy: rloo_kit.Policy, make_trainer: Any, monkeypatch: Any, where: dict[str, Any]
) -> None:
    packed = [p for p in policy.model.parameters() if hasattr(p, "quant_state")]
    if not packed:  # bitsandbytes has no 4 bit for this processor
        monkeypatch.setattr(next(policy.model.parameters()), "quant_state", object(), raising=False)
    with pytest.raises(ValueError, match="packed bytes of 4-bit weights") as caught:
        make_trainer(**where)
    assert len(str(caught.value).splitlines()) == 3
    assert "load_in_4bit=False" in str(caught.value)


@pytest.mark.parametrize("settings", [SERVER, COLOCATE, {"use_vllm": False}])
def test_weights_in_16_bit_pass(settings: dict[str, Any]) -> None:
    args: Any = SimpleNamespace(vllm_mode=None)
    vars(args).update(settings)
    server.check(args, torch.nn.Linear(2, 2))


# --- a policy of fast_inference, which has an engine of its own --------------------------------------------


def with_engine(standby: bool) -> torch.nn.Module:
    """A model as unsloth leaves it; its packed weights are vLLM's own, and nothing is sent."""
    model = torch.nn.Linear(2, 2)
    model.weight.quant_state = object()  # type: ignore[attr-defined]
    settings = SimpleNamespace(model_config=SimpleNamespace(enable_sleep_mode=standby))
    model.vllm_engine = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=settings))  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("standby", [True, False])
def test_the_trainers_settings_are_those_of_the_policys_own_engine(standby: bool) -> None:
    args: Any = SimpleNamespace(
        use_vllm=False, vllm_mode="colocate", vllm_enable_sleep_mode=not standby, fsdp=[]
    )
    server.check(args, with_engine(standby))
    assert vars(args) == {
        "use_vllm": True, "vllm_mode": "colocate", "vllm_enable_sleep_mode": standby, "fsdp": []
    }  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "says"), [({"fsdp": ["full_shard"]}, "FSDP2"), (SERVER, "a server is asked for too")]
)
def test_what_unsloths_vllm_cannot_do_is_refused_by_name(settings: dict[str, Any], says: str) -> None:
    args: Any = SimpleNamespace(**{"use_vllm": False, "vllm_mode": "colocate", "fsdp": [], **settings})
    with pytest.raises(ValueError, match=says) as caught:
        server.check(args, with_engine(standby=False))
    assert len(str(caught.value).splitlines()) == 3
    assert "fast_inference=False" in str(caught.value)


def test_unsloth_aligns_sleeping_for_grpo_alone() -> None:
    """Pinned: it switches vLLM on for any trainer, and TRL wakes an engine only where it knows that it sleeps."""
    from trl.generation.vllm_generation import VLLMGeneration

    spec = importlib.util.find_spec("unsloth")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "models" / "rl.py").read_text(encoding="utf-8")
    on, sleep = (
        source.index('"args.use_vllm = True\\n"'),
        source.index('"args.vllm_enable_sleep_mode=True\\n"'),
    )
    assert on < source.index('if "grpo" in trainer_file and trl_version >= Version("0.18.0"):', on) < sleep
    generate = inspect.unwrap(VLLMGeneration.generate)
    assert "self.enable_sleep_mode and self._llm_weights_sleeping" in inspect.getsource(generate)


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
