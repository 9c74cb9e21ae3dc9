"""The settings that decide about memory, with their forward passes, read from a configuration, a model or a folder."""

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rloo_kit
from benchmarks.gpu.memory import config_of
from rloo_kit.errors import ConfigError
from rloo_kit.memory import formulas, policy_tensors
from rloo_kit.memory.plan_settings import Configured, Settings, settings_of
from rloo_kit.models import CATALOGUE
from tests.memory.conftest import CPU, tiny_plan


def test_the_defaults_are_those_of_the_configuration():
    written = rloo_kit.RLOOConfig()
    for name, value in dataclasses.asdict(Configured()).items():
        assert getattr(written, name) == value, name
    assert settings_of(None) == settings_of(written) == Settings()


def test_the_configuration_decides():
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "steps_per_generation": 4}
    asked = {**batch, "num_generations": 4, "max_completion_length": 300, "beta": 0.0}
    found = settings_of(rloo_kit.RLOOConfig(**asked, top_k=20), prompt_tokens=100)
    assert found == Settings(**asked, prompt_tokens=100, processors=("top_k",))
    assert (found.batch_rows, found.update_rows) == (8, 16)
    assert settings_of(SimpleNamespace(generation_kwargs={"top_k": 5})).processors == ("top_k",)


def test_a_plain_configuration_of_trl_takes_every_pass():
    import trl

    assert settings_of(trl.RLOOConfig(output_dir="out")).single_pass is False


@pytest.mark.parametrize(("longest", "prompt"), [(1024, 124), (32768, 512), (800, 1)])
def test_a_prompt_of_unknown_length_has_the_room_that_a_completion_leaves(longest, prompt):
    assert settings_of(SimpleNamespace(max_completion_length=900), None, longest).prompt_tokens == prompt


MICRO, STEPS = "per_device_train_batch_size", "steps_per_generation"
ACCUMULATED = "gradient_accumulation_steps"


WHOLE_BATCHES = {"num_generations": 4, "beta": 0.0, MICRO: 8, ACCUMULATED: 4, STEPS: 2}
"""Each update takes two whole generation batches, used once."""


@pytest.mark.parametrize(
    ("changed", "single"),
    [
        ({}, True),
        ({STEPS: 1}, True),  # an update is four generation batches
        ({"beta": 0.05, "kl_placement": "loss"}, True),
        ({"beta": 0.05}, False),  # the reward's KL term comes before the loss
        ({"single_pass": False}, False),  # not asked for
        ({"num_iterations": 2}, False),  # the policy moves before the second use
        ({ACCUMULATED: 2, STEPS: 4}, False),  # the policy moves within a generation batch
        ({ACCUMULATED: 3}, False),  # an update takes one and a half generation batches
    ],
)
def test_one_pass_suffices_where_every_loss_is_on_policy(changed, single):
    assert Settings(**WHOLE_BATCHES | changed).old_pass != single


def test_log_probabilities_are_computed_before_the_update_for_a_reference_or_a_second_pass():
    for changed, before in (({}, False), ({"beta": 0.05}, True), ({"single_pass": False}, True)):
        plan = rloo_kit.plan("qwen3-4b", SimpleNamespace(**{"beta": 0.0, "single_pass": True, **changed}), "t4")
        assert ("log-probs" in plan.phases) is before


# --- of a model, a folder and a name ---


def test_a_loaded_policy_or_its_model_counts_itself(policy):
    by_name, loaded = rloo_kit.plan("tiny", card=CPU), rloo_kit.plan(policy, card=CPU)
    assert (loaded.model, loaded.settings.lora_rank, loaded.settings.four_bit) == (by_name.model, 16, True)
    bare = rloo_kit.plan(policy.model, card=CPU)
    assert (bare.phases, bare.settings) == (loaded.phases, loaded.settings)
    on_gpu = rloo_kit.plan("tiny", card="8GB")
    assert rloo_kit.plan(policy, card="8GB").phases == on_gpu.phases, "as it would be loaded there"


def first(model: Any, kind: str) -> torch.nn.Parameter:
    return next(p for name, p in model.named_parameters() if kind in name)


def test_the_reference_is_the_base_until_anything_is_trained(fresh_policy):
    model = fresh_policy.model
    assert policy_tensors.reference_is_base(model), "a fresh LoRA is the zero map"
    model.add_adapter("ref", model.peft_config["default"])
    assert policy_tensors.reference_is_base(model), "a copy is not trained"
    first(model, "norm").requires_grad_()
    assert not policy_tensors.reference_is_base(model), "what is trained beside it moves the base"
    assert not policy_tensors.reference_is_base(torch.nn.Linear(2, 2).requires_grad_(False)), "it has no LoRA"


def test_a_continued_policy_keeps_a_copy_of_its_lora_as_reference(policy):
    before = tiny_plan(policy)
    assert formulas.REFERENCE not in before.parts
    first(policy.model, "lora_B").data.add_(1.0)
    after = tiny_plan(policy)
    assert after.parts[formulas.REFERENCE] == before.phases["optimizer"][formulas.LORA]
    assert after.parts[formulas.OPTIMIZER] == before.parts[formulas.OPTIMIZER]
    assert formulas.REFERENCE not in tiny_plan(policy, beta=0.0).parts


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("qwen3-4b", "qwen3-4b"),
        ("unsloth/Qwen3-4B-unsloth-bnb-4bit", "qwen3-4b"),
        ("/home/somebody/.cache/rloo-kit/tiny-qwen3-0123456789ab", "tiny"),  # made on another machine
    ],
)
def test_a_saved_adapter_is_planned_from_its_base_with_a_copy_as_reference(tmp_path, base, name):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 32}))
    planned = rloo_kit.plan(tmp_path, card="8GB")
    assert planned.model.checkpoint is CATALOGUE[name]
    assert planned.settings.lora_rank == 32
    assert planned.parts[formulas.REFERENCE] == planned.parts[formulas.LORA]


def test_a_folder_is_planned_under_its_name_alone(tmp_path):
    config_of(CATALOGUE["qwen3-0.6b"]).save_pretrained(tmp_path / "mine")
    assert rloo_kit.plan(tmp_path / "mine", card="8GB").model.checkpoint.name == "mine", "paths are private"


def test_a_shape_without_a_formula_is_refused_by_name(tmp_path, monkeypatch):
    shape = SimpleNamespace(**{**config_of(CATALOGUE["qwen3-0.6b"]).to_dict(), "num_experts": 128})
    whole = SimpleNamespace(get_text_config=lambda: shape, tie_word_embeddings=True)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *args, **kwargs: whole)
    with pytest.raises(
        ConfigError, match=r"cannot count a mixture of experts\.[\s\S]*families llama and qwen3 are known"
    ):
        rloo_kit.plan(tmp_path, card=CPU)
