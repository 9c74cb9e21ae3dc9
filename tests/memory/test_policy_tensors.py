"""What is read of a model, a folder and a name."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.memory import formulas, policy_tensors
from rloo_kit.models import CATALOGUE, checkpoint_from_config
from tests.memory.conftest import CPU, tiny_plan


def test_a_loaded_policy_or_its_model_counts_itself(policy: Any) -> None:
    by_name, loaded = rloo_kit.plan("tiny", card=CPU), rloo_kit.plan(policy, card=CPU)
    assert (loaded.model, loaded.settings.lora_rank, loaded.settings.four_bit) == (by_name.model, 16, True)
    bare = rloo_kit.plan(policy.model, card=CPU)
    assert (bare.phases, bare.settings) == (loaded.phases, loaded.settings)
    on_gpu = rloo_kit.plan("tiny", card="8GB")
    assert rloo_kit.plan(policy, card="8GB").phases == on_gpu.phases, "as it would be loaded there"


def first(model: Any, kind: str) -> torch.nn.Parameter:
    return next(p for name, p in model.named_parameters() if kind in name)


@pytest.mark.parametrize(
    ("change", "base", "why"),
    [
        (lambda model: None, True, "a fresh LoRA is the zero map"),
        (lambda model: model.add_adapter("ref", model.peft_config["default"]), True, "a copy is not trained"),
        (
            lambda model: first(model, "norm").requires_grad_(),
            False,
            "what is trained beside it moves the base",
        ),
    ],
)
def test_the_reference_is_the_base_until_anything_is_trained(
    fresh_policy: Any, change: Callable[[Any], None], base: bool, why: str
) -> None:
    change(fresh_policy.model)
    assert policy_tensors.reference_is_base(fresh_policy.model) == base, why
    assert not policy_tensors.reference_is_base(torch.nn.Linear(2, 2).requires_grad_(False)), "it has no LoRA"


def test_a_continued_policy_keeps_a_copy_of_its_lora_as_reference(policy: Any) -> None:
    before = tiny_plan(policy)
    assert formulas.REFERENCE not in before.parts
    first(policy.model, "lora_B").data.add_(1.0)
    after = tiny_plan(policy)
    assert after.parts[formulas.REFERENCE] == before.phases["optimizer"][formulas.LORA]
    assert after.parts[formulas.OPTIMIZER] == before.parts[formulas.OPTIMIZER]
    assert formulas.REFERENCE not in tiny_plan(policy, beta=0.0).parts


@pytest.mark.parametrize("base", ["qwen3-4b", "unsloth/Qwen3-4B-unsloth-bnb-4bit"])
def test_a_saved_adapter_is_planned_from_its_base_with_a_copy_as_reference(tmp_path: Path, base: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 32}))
    planned = rloo_kit.plan(tmp_path, card="8GB")
    assert planned.model.checkpoint is CATALOGUE["qwen3-4b"]
    assert planned.settings.lora_rank == 32
    assert planned.parts[formulas.REFERENCE] == planned.parts[formulas.LORA]


def test_a_configuration_in_the_policys_place_is_named() -> None:
    with pytest.raises(ConfigError, match="the first argument is the policy, and it is a RLOOConfig"):
        rloo_kit.plan(rloo_kit.RLOOConfig(), "tiny")  # type: ignore[arg-type]


def test_a_shape_without_a_formula_is_refused_by_name(
    qwen3_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = SimpleNamespace(**{**qwen3_config(CATALOGUE["qwen3-0.6b"]).to_dict(), "num_experts": 128})
    whole = SimpleNamespace(get_text_config=lambda: shape, tie_word_embeddings=True)
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *args, **kwargs: whole)
    with pytest.raises(
        ConfigError, match=r"cannot count a mixture of experts\.[\s\S]*families llama and qwen3 are known"
    ):
        rloo_kit.plan(tmp_path, card=CPU)


def test_the_catalogues_shapes_are_all_counted(qwen3_config: Any) -> None:
    for known in CATALOGUE.values():
        assert not checkpoint_from_config("x", qwen3_config(known), None).uncounted
