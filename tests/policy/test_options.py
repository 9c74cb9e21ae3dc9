"""Unsloth's arguments under unsloth's names: each works, or is refused in words before anything is loaded."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit import catalogue
from rloo_kit.errors import ArgumentError, ConfigError
from rloo_kit.policy import load as loading
from rloo_kit.policy import options

RECIPE: dict[str, Any] = {"max_seq_length": 512, "dtype": None, "load_in_4bit": True, "fast_inference": False}
RECIPE |= {
    "r": 8,
    "target_modules": ["v_proj", "q_proj"],
    "lora_alpha": 16,
    "lora_dropout": 0,
    "bias": "none",
}
RECIPE |= {"use_gradient_checkpointing": "unsloth", "random_state": 3407, "use_rslora": True}
RECIPE |= {"loftq_config": None, "max_lora_rank": 8, "token": None, "full_finetuning": False}


def test_a_published_recipes_arguments_load_what_they_say_and_are_planned() -> None:
    policy = rloo_kit.load_policy(model_name="tiny", **RECIPE)
    lora = policy.model.peft_config["default"]
    assert (lora.r, lora.lora_alpha, lora.use_rslora) == (8, 16, True)
    assert set(lora.target_modules) == {"q_proj", "v_proj"}
    assert policy.model.max_seq_length == 512
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    found = rloo_kit.plan(policy)
    assert found.parts["LoRA"] == sum(4 * p.numel() for p in trained)
    asked = {"lora_rank": 8, "target_modules": ["q_proj", "v_proj"]}
    by_name = rloo_kit.plan("tiny", **asked)  # type: ignore[arg-type]
    assert by_name.model.lora_sizes == found.model.lora_sizes


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"r": 16, "lora_rank": 8}, "two names of one setting"),
        ({"r": 0}, "lora_rank must be greater than or equal to 1"),
        ({"lora_dropout": 0.1}, "ratio differ from 1"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules must be"),
        ({"target_modules": "q_proj"}, "a list of names"),
        ({"bias": "all"}, "no biases"),
        ({"load_in_8bit": True}, "load_in_4bit=True takes less memory"),
        ({"load_in_4bit": True, "load_in_16bit": True}, "one precision"),
        ({"dtype": "float23"}, "dtype must be"),
        ({"fast_inference": True}, "vLLM, which needs a GPU"),
        ({"full_finetuning": True, "load_in_4bit": True}, "4 bit cannot be trained"),
        ({"full_finetuning": True, "lora_alpha": 4}, "lora_alpha is of a LoRA"),
        ({"random_state": -1}, "seed must be"),
        ({"revision": 3}, "revision must be"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization must be"),
    ],
)
def test_what_cannot_be_is_refused_in_three_parts_before_anything_is_loaded(
    given: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(loading, "import_unsloth", pytest.fail)
    with pytest.raises(ConfigError, match=says) as caught:
        rloo_kit.load_policy("tiny", **given)
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("capability", "vllm", "says"), [(6, True, "compute capability 7"), (8, False, r"pip install vllm==")]
)
def test_fast_inference_is_refused_on_a_gpu_that_cannot_run_it(
    capability: int, vllm: bool, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (capability, 0))
    monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: vllm or None)
    with pytest.raises(ConfigError, match=says):
        options.settled({"fast_inference": True})


def test_fast_inference_is_refused_under_fsdp2_and_where_all_weights_are_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unsloth's GPU code, which does not import without Triton, says whether it is; here a stand-in does."""
    spec = importlib.util.find_spec("unsloth")
    assert spec is not None
    assert spec.origin is not None
    source = (Path(spec.origin).parent / "models" / "loader_utils.py").read_text(encoding="utf-8")
    assert "def fsdp2_requested():" in source
    loader_utils = SimpleNamespace(fsdp2_requested=lambda: False)
    monkeypatch.setitem(sys.modules, "unsloth.models", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "unsloth.models.loader_utils", loader_utils)
    monkeypatch.setattr(options, "import_unsloth", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: True)
    assert options.settled({"fast_inference": True}).further["fast_inference"]
    monkeypatch.setattr(loader_utils, "fsdp2_requested", lambda: True)
    with pytest.raises(ConfigError, match="does not work under FSDP2") as caught:
        options.settled({"fast_inference": True})
    assert "--engine ddp" in str(caught.value)
    with pytest.raises(ConfigError, match="takes a LoRA"):
        options.settled({"fast_inference": True, "full_finetuning": True})


def test_settings_of_vllm_without_vllm_are_said_to_have_no_effect() -> None:
    with pytest.warns(UserWarning, match="gpu_memory_utilization of load_policy: without fast_inference"):
        assert options.settled({"gpu_memory_utilization": 0.6}).further == {}


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="name must be a valid string"):
        rloo_kit.load_policy(5)  # type: ignore[arg-type]


def test_a_token_is_in_no_message_whatever_it_looks_like() -> None:
    options.settled({"token": "secret-of-mine"})
    shown = str(ConfigError("x", where="token secret-of-mine", todo="y"))
    assert "secret-of-mine" not in shown
    with pytest.raises(ArgumentError) as caught:
        options.settled({"tokens": "secret-of-mine"})
    assert "secret-of-mine" not in str(caught.value)
    assert "did you mean token?" in str(caught.value)


def test_all_weights_of_a_catalogue_entry_are_planned_from_its_shape() -> None:
    shape = catalogue.CATALOGUE["qwen3-0.6b"]
    found = rloo_kit.plan("qwen3-0.6b", card="rtx 3090", full_finetuning=True)
    assert sum(found.model.full_sizes) == shape.parameters
    assert found.parts["gradients"] >= 2 * shape.parameters
    assert found.parts["optimizer state"] >= 4 * shape.parameters
    assert found.parts["reference model"] == 2 * shape.parameters
    assert "LoRA" not in found.parts
    assert "all weights trained" in str(found)
