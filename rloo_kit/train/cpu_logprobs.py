"""Log-probability and entropy of sampled tokens on a CPU: one pass over tiles of the vocabulary that stay in cache.

For the rollout, in place of unsloth's chunks of whole rows (unsloth_zoo/cpu/ops.py, ``_ChunkedLogProbs``), which pass
several times over logits that no cache holds.  TRL hands a fused head the hidden states of the scored positions; here
they are multiplied with a tile of lm_head's rows, and what the tile adds to the normaliser and to the gradient is
summed before the next.  Only where that is exact (:func:`is_exact`); everything else takes the path that was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import softplus

from rloo_kit.forward_passes import CPU_TILE

FAR = 30.0
"""How far above its reference a row's logit may be before the row's sums are scaled down: e^30 times a vocabulary is
far from float32's largest number."""

Outputs = tuple[torch.Tensor | None, ...]
"""Log-probabilities, entropy, and TRL's three further outputs, each (positions,) or None."""


@contextmanager
def in_tiles(entropy: bool) -> Iterator[None]:
    """While inside, TRL's fused head computes in tiles where that is exact, and no entropy unless it is asked for.

    Nothing changes where unsloth has not put its own CPU path into TRL, as on a GPU.
    """
    from trl.trainer import utils

    kernel = utils._ChunkedLogProbFunction
    if not getattr(kernel, "_unsloth_cpu_dispatch", False):
        yield
        return
    utils._ChunkedLogProbFunction = SimpleNamespace(apply=_head(kernel.apply, entropy))
    try:
        yield
    finally:
        utils._ChunkedLogProbFunction = kernel


def _head(otherwise: Callable[..., Outputs], entropy: bool) -> Callable[..., Outputs]:
    def apply(
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: Sequence[str],
    ) -> Outputs:
        """As TRL calls it: hidden (positions, H), weight (V, H), targets (positions,)."""
        if not is_exact(hidden, weight, bias, softcap, outputs):
            return otherwise(hidden, weight, bias, targets, temperature, chunk_size, softcap, scale, outputs)
        wanted, slope = entropy and "entropy" in outputs, scale / temperature
        grad = torch.is_grad_enabled()
        log_probs, entropies = LogProbs.apply(hidden, weight.detach(), targets, slope, wanted, grad)
        return log_probs, entropies, None, None, None

    return apply


def is_exact(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    softcap: float | None,
    outputs: Sequence[str],
) -> bool:
    """Whether tiles compute what is asked for: float32 on a CPU, a plain frozen matrix, no cap, no further outputs."""
    return (
        hidden.device.type == weight.device.type == "cpu"
        and hidden.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and not (weight.requires_grad and torch.is_grad_enabled())
        and bias is None
        and softcap is None
        and len(hidden) > 0
        and set(outputs) <= {"log_probs", "entropy"}
    )


class LogProbs(torch.autograd.Function):
    """Log-probabilities (positions,), and entropies or None, of softmax(slope x hidden weight^T).

    The gradient of the log-probabilities is formed in the forward pass.  The entropies, which are logged, have none.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        targets: torch.Tensor,
        slope: float,
        entropy: bool,
        gradient: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of hidden (positions, H), weight (V, H), targets (positions,)."""
        log_probs = hidden.new_empty(len(hidden))
        entropies = torch.empty_like(log_probs) if entropy else None
        gradients = torch.empty_like(hidden) if gradient else None
        for start in range(0, len(hidden), CPU_TILE):
            block = slice(start, start + CPU_TILE)
            found = _of_rows(hidden[block] * slope, weight, targets[block], means=entropy or gradient)
            for whole, part in zip((log_probs, entropies, gradients), found, strict=True):
                if whole is not None and part is not None:
                    whole[block] = part
        if gradients is not None:
            ctx.save_for_backward(gradients.mul_(slope))
        if entropies is not None:
            ctx.mark_non_differentiable(entropies)
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, of_log_probs: torch.Tensor, _: object) -> tuple[torch.Tensor | None, ...]:
        """The hidden states' gradient alone."""
        (gradients,) = ctx.saved_tensors
        return (gradients * of_log_probs.unsqueeze(1), None, None, None, None, None)


def _of_rows(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, means: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Log-probabilities of a block of rows, and if ``means`` entropies and gradients (rows, H).

    The sampled token is set apart from the others.  With q their softmax and p its own probability, what is near 1
    is never subtracted from 1: log p = -softplus(log sum of others - its logit), dlog p / dhidden = (1 - p)(its row of
    the matrix - E_q[row]), and the entropy is that of {p, 1 - p} plus (1 - p) times q's.
    """
    own = weight[targets]
    logit = (hidden * own).sum(1)
    log_others, mean_row = _others(hidden, weight, targets, logit, means)
    lead = log_others - logit
    log_prob, log_rest = -softplus(lead), -softplus(-lead)
    if mean_row is None:
        return log_prob, None, None
    rest = log_rest.exp()
    of_others = log_others - (hidden * mean_row).sum(1)  # the mean of a linear function's values
    entropies = rest * (of_others - log_rest) - log_prob.exp() * log_prob
    return log_prob, entropies, (own - mean_row).mul_(rest.unsqueeze(1))


def _others(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, reference: torch.Tensor, means: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Over all entries but each row's target: log of the sum of exponentials (rows,), and softmax's mean of the
    matrix's rows (rows, H), if ``means``.  Exponentials are relative to ``reference`` (rows,) at first."""
    total, mean_row = torch.zeros_like(reference), torch.zeros_like(hidden) if means else None
    space = hidden.new_empty(len(hidden) * CPU_TILE)
    for start in range(0, len(weight), CPU_TILE):
        tile = weight[start : start + CPU_TILE]
        logits = torch.mm(hidden, tile.t(), out=space[: len(hidden) * len(tile)].view(len(hidden), len(tile)))
        here = ((targets >= start) & (targets < start + len(tile))).nonzero().squeeze(1)
        logits[here, targets[here] - start] = -torch.inf
        top = logits.amax(1)
        far = top > reference + FAR
        if far.any():
            raised = torch.where(far, top, reference)
            shrink = (reference - raised).exp()
            total *= shrink
            if mean_row is not None:
                mean_row *= shrink.unsqueeze(1)
            reference = raised
        chances = logits.sub_(reference.unsqueeze(1)).exp_()
        total += chances.sum(1)
        if mean_row is not None:
            mean_row.addmm_(chances, tile)
    total.clamp_(min=torch.finfo(total.dtype).tiny)  # all may lie far below the target
    if mean_row is not None:
        mean_row /= total.unsqueeze(1)
    return total.log() + reference, mean_row
