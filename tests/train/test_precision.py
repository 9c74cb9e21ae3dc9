"""The LoRA of a 4-bit policy is trained in the precision it was loaded in."""

import warnings
from typing import Any

import pytest
import torch
import unsloth

import rloo_kit
from rloo_kit.policy.bundled import TINY
from rloo_kit.train import precision
from tests.conftest import random_rewards


def test_a_step_of_a_small_learning_rate_moves_nearly_every_weight(make_trainer: Any, policy: Any) -> None:
    """In bfloat16, as stock TRL has it on a CPU, 3 % of them."""
    torch.manual_seed(1)
    trained = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    for name, weight in trained.items():
        if "lora_B" in name:  # zeros, which would give A no gradient
            weight.data.normal_(std=0.02)
    before = {name: weight.detach().clone() for name, weight in trained.items()}
    trainer = make_trainer(reward_funcs=random_rewards, learning_rate=1e-5, lr_scheduler_type="constant")
    assert all(torch.equal(weight, before[name]) for name, weight in trained.items()), "nothing is rounded"
    trainer.train()
    moved = torch.cat([(w != before[name]).flatten() for name, w in trained.items() if "lora_A" in name])
    assert moved.float().mean() > 0.9


def test_a_model_that_is_only_named_is_left_to_trl(make_trainer: Any) -> None:
    trainer = make_trainer(model=str(TINY.checkpoint()), reward_funcs=random_rewards)
    assert trainer.train().global_step == trainer.args.max_steps


def settled(given: dict[str, Any]) -> tuple[dict[str, bool], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return precision.settled(given), [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("gpu", "variable", "given", "expected", "said"),
    [
        ("", "bf16", {}, "float32", "=bf16 has no effect: the run computes in float32, as on every CPU"),
        ("", "fp8", {}, "float32", "=fp8 has no effect"),
        ("", "no", {}, "float32", ""),
        (
            "",
            "bf16",
            {"bf16": False},
            "",
            "=bf16 has no effect: the run computes in float32, as on every CPU",
        ),
        ("", "bf16", {"bf16": True}, "", "bf16=True of RLOOConfig has no effect on a CPU"),
        ("", "no", {"fp16": True}, "", "fp16=True of RLOOConfig has no effect on a CPU"),
        ("bf16", "no", {}, "bf16", ""),  # accelerate launch sets it where it was told nothing
        ("bf16", "bf16", {}, "bf16", ""),
        ("bf16", "fp16", {}, "fp16", "=fp16 decides: the run computes in fp16, and not in bf16"),
        ("fp16", "bf16", {}, "bf16", "=bf16 decides: the run computes in bf16, and not in fp16"),
        (
            "bf16",
            "fp16",
            {"bf16": True},
            "",
            "=fp16 has no effect: the run computes in bf16, as RLOOConfig says",
        ),
    ],
)
def test_a_variable_decides_about_the_precision_of_a_gpu_alone(
    gpu: str, variable: str, given: dict[str, Any], expected: str, said: str, monkeypatch: Any
) -> None:
    monkeypatch.setenv(precision.VARIABLE, variable)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpu))
    monkeypatch.setattr(unsloth, "is_bfloat16_supported", lambda: gpu == "bf16")
    found, warned = settled(given)
    assert found == ({name: name == expected for name in ("bf16", "fp16")} if expected else {})
    assert [said in one for one in warned] == [True] * bool(said)


def test_a_cpu_computes_in_float32_whatever_the_variable_says(make_trainer: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv(precision.VARIABLE, "bf16")
    with pytest.warns(UserWarning, match="ACCELERATE_MIXED_PRECISION=bf16 has no effect"):
        config = rloo_kit.RLOOConfig(max_steps=1)
    assert config.mixed_precision == "no"
    assert make_trainer(args=config).accelerator.mixed_precision == "no"


def test_what_unsloths_trainer_writes_into_the_variable_is_not_taken_for_the_users(monkeypatch: Any) -> None:
    monkeypatch.setattr(precision, "_by_unsloth", None)
    monkeypatch.delenv(precision.VARIABLE, raising=False)
    with precision.in_its_precision("a name"):
        monkeypatch.setenv(precision.VARIABLE, "bf16")
    assert settled({})[1] == []
