"""Let only finite gradients reach the weights, and end fp16's search for a loss scale."""

import torch
from accelerate import Accelerator

from rloo_kit.errors import NonFiniteError

FIRST_LOSS_SCALE = 1024.0
"""Where fp16's loss scaler starts.  torch starts at 65536, which suits a loss that is a mean over tokens.  RLOO's is a
sum over a completion's hundreds of tokens, and each overflow wastes a step's completions to halve the scale."""

NO_SCALE_LEFT = 1.0  # below this scale, the gradient itself is too large


def check_gradients(model: torch.nn.Module, accelerator: Accelerator, step: int) -> None:
    """Works around: clipping a gradient of infinite norm multiplies it by zero, and inf x 0 is NaN.  In fp16 the scaler
    skips a step whose gradient overflows, and halves its scale; it would do so forever.

    Raises:
        NonFiniteError: a gradient is not finite; the weights, not yet updated, are those of the last good step.
    """
    scaler = _scaler_of(accelerator)
    if scaler is not None and scaler.get_scale() >= NO_SCALE_LEFT:
        return
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if gradients and not torch.nn.utils.get_total_norm(gradients).isfinite():
        model.zero_grad()
        tried = "" if scaler is None else f", at every loss scale down to {scaler.get_scale():g}"
        raise NonFiniteError(
            f"the gradient is not finite{tried}; the weights are those of the last good step",
            where=f"step {step}",
            todo="look at the last rewards, lower learning_rate, and train(resume_from_checkpoint=True)",
        )


def reset_loss_scale(accelerator: Accelerator) -> None:
    """Works around: a step that stopped between unscaling and updating leaves its state in fp16's loss scaler, and the
    trainer's next run fails with "unscale_() has already been called".  (A resumed run loads its checkpoint's.)"""
    if (scaler := _scaler_of(accelerator)) is not None:
        scaler.scale(torch.zeros((), device=accelerator.device))  # a scaler that was never used cannot be updated
        scaler.update(new_scale=FIRST_LOSS_SCALE)


def _scaler_of(accelerator: Accelerator) -> torch.amp.GradScaler | None:
    scaler: torch.amp.GradScaler | None = accelerator.scaler
    return scaler if scaler is not None and scaler.is_enabled() else None
