"""full_finetuning: all weights are trained, a second model is the reference, and the plan counts both."""

from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.memory import policy_tensors
from tests.conftest import random_rewards
from tests.train.weights import same, trained

STEPS: Any = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2, "learning_rate": 1e-3, "beta": 0.05}

RATES = [("float32", 1e-3), ("bfloat16", 3e-2)]
"""Precision and learning rate: bfloat16 drops changes below 1/256 of a weight, and norm weights are about 1."""


@pytest.mark.parametrize(("dtype", "rate"), RATES)
def test_every_weight_is_trained_and_the_reference_is_the_policy_at_the_start(dtype, rate, make_trainer):
    policy = rloo_kit.load_policy("tiny", full_finetuning=True, dtype=dtype)
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(1.5)  # so the reference differs from the file on disk
    before = trained(policy.model)
    trainer = make_trainer(random_rewards, model=policy, **{**STEPS, "learning_rate": rate})
    assert trainer.ref_model.dtype == policy.model.dtype == getattr(torch, dtype)
    trainer.train()
    after = trained(policy.model)
    assert [name for name in before if torch.equal(before[name], after[name])] == []
    assert same(dict(trainer.ref_model.named_parameters()), before)
    assert trainer.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-3)
    assert trainer.state.log_history[1]["kl"] > 1e-3
    if dtype == "float32":  # the policy is half trained by now, and so would this trainer's reference be
        again = make_trainer(random_rewards, model=policy, **{**STEPS, "max_steps": 3})
        with pytest.raises(ConfigError, match="base_weights="):
            again.train(resume_from_checkpoint=True)
    states = (value for state in trainer.optimizer.state.values() for value in state.values())
    state = policy_tensors.bytes_of(value for value in states if torch.is_tensor(value))
    assert trainer.memory_plan.parts["optimizer state"] == pytest.approx(state, rel=0.01)
