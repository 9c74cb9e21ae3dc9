"""Helpers for trained weights: copy them, compare them, move them away from the reference; and a run's logged steps."""

import rloo_kit  # isort: skip - unsloth first

from typing import Any

import torch


def trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return a copy of every trained weight."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether both are equal to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def leave_the_reference(model: torch.nn.Module, std: float = 0.05) -> None:
    """Draw the LoRA's B, which starts as zeros: the policy then differs from the base, and A has a gradient."""
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std)


def steps(trainer: rloo_kit.RLOOTrainer) -> list[dict[str, Any]]:
    return [entry for entry in trainer.state.log_history if "reward" in entry]
