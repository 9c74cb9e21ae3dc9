"""What may reach a weight: finite gradients, and in fp16 those that its loss scaler lets through.

For the trainer.  It clips nothing (transformers' Trainer does) and scales nothing (torch's ``GradScaler`` does).
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from rloo_kit.errors import NonFiniteError

FIRST_LOSS_SCALE = 1024.0
"""Where fp16's loss scaler starts.  torch starts at 65536, which suits a loss that is a mean over tokens.  RLOO's is a
sum over some hundred tokens of a completion, and each overflow costs a step's completions to halve the scale."""

NO_SCALE_LEFT = 1.0
"""Below it the scaler has halved as often as it can: not the scale is too large but the gradient."""


class FiniteGradients(TrainerCallback):
    """Answers: clipping a gradient of infinite norm multiplies it by zero, and inf x 0 is NaN.

    In fp16 the scaler skips a step whose gradient overflows, and halves its scale; it would go on like that for ever.

    Args:
        accelerator: of the trainer; its ``scaler`` is None but in fp16.

    Raises:
        NonFiniteError: before the optimizer's step; the weights are those of the last good one.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Stop where the gradient is not finite and no scaler is left to mend it."""
        scaler = _scaler_of(self._accelerator)
        if scaler is not None and scaler.get_scale() >= NO_SCALE_LEFT:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if gradients and not torch.nn.utils.get_total_norm(gradients).isfinite():
            model.zero_grad()
            tried = "" if scaler is None else f", at every loss scale down to {scaler.get_scale():g}"
            raise NonFiniteError(
                f"the gradient is not finite{tried}; the weights are those of the last good step",
                where=f"step {state.global_step + 1}",
                todo="look at the last rewards, lower learning_rate, and train(resume_from_checkpoint=True)",
            )


def begin(accelerator: Any) -> None:
    """Set fp16's loss scaler to :data:`FIRST_LOSS_SCALE` for a run; one that is resumed takes its checkpoint's later.

    Answers: a step that stopped between unscaling and updating leaves its mark in the scaler, and the next run of the
    same trainer fails with "unscale_() has already been called".
    """
    scaler = _scaler_of(accelerator)
    if scaler is not None:
        scaler.scale(torch.zeros((), device=accelerator.device))  # one that was never used cannot be updated
        scaler.update(new_scale=FIRST_LOSS_SCALE)


def _scaler_of(accelerator: Any) -> Any:
    scaler = getattr(accelerator, "scaler", None)
    return scaler if scaler is not None and scaler.is_enabled() else None
