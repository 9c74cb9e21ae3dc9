"""The LoRA of a 4-bit policy is trained in the precision it was loaded in."""

from typing import Any

import torch

from rloo_kit.policy import tiny
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
    trainer = make_trainer(model=str(tiny.checkpoint()), reward_funcs=random_rewards)
    assert trainer.train().global_step == trainer.args.max_steps
