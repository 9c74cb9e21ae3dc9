"""Whether what a run has trained is finite, before it is written anywhere.

For ``Policy.save`` and the trainer.  Gradients are looked at before they reach a weight
(:mod:`rloo_kit.train.gradients`); a finite one still makes NaN where the optimizer divides by zero, or decays by NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rloo_kit.errors import NonFiniteError
from rloo_kit.policy.shards import local

if TYPE_CHECKING:
    import torch


def check_finite(model: torch.nn.Module, where: str, todo: Callable[[], str]) -> None:
    """Refuse a model with a trained weight that is NaN or infinite.

    Args:
        model: its trainable parameters and its LoRA are looked at, as far as this process holds them.
        where: of the error.
        todo: gives what to do, where there is an error.

    Raises:
        NonFiniteError: with how many tensors, and the first of them.
    """
    import torch

    trained = {n: local(p) for n, p in model.named_parameters() if p.requires_grad or "lora_" in n}
    trained = {name: p for name, p in trained.items() if p.is_floating_point() and p.numel()}
    # One number for all, and the second look where that overflows.
    if not trained or torch.nn.utils.get_total_norm(list(trained.values())).isfinite():
        return
    if bad := [name for name, weight in trained.items() if not weight.isfinite().all()]:
        raise NonFiniteError(
            f"{len(bad)} of {len(trained)} trained tensors are not finite, and they are not saved",
            where=f"{where}, first {bad[0]}",
            todo=todo(),
        )
