"""Log-probability and entropy of sampled tokens on a CPU: one pass over tiles of the vocabulary that stay in cache.

For the rollout, in place of unsloth's chunks of whole rows (unsloth_zoo/cpu/ops.py, ``_ChunkedLogProbs``), which pass
several times over logits that no cache holds; only where that is exact (:func:`is_exact`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import softplus

from rloo_kit.forward_passes import CPU_TILE

FAR = 30.0  # how far a logit may be above its row's reference: e^30 is far from float32's largest number


@contextmanager
def in_tiles(entropy: bool) -> Iterator[None]:
    """While inside, TRL's fused head, if unsloth's for CPUs, computes in exact tiles, the entropy only if asked for."""
    from trl.trainer import utils

    kernel = utils._ChunkedLogProbFunction
    if getattr(kernel, "_unsloth_cpu_dispatch", False):
        utils._ChunkedLogProbFunction = SimpleNamespace(apply=partial(_head, kernel.apply, entropy))
    try:
        yield
    finally:
        utils._ChunkedLogProbFunction = kernel


def _head(
    otherwise: Callable[..., Any], entropy: bool, hidden: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor | None, ...]:
    bias, targets, temperature, _, softcap, scale, outputs = rest
    if not is_exact(hidden, weight, bias, softcap, outputs):
        return otherwise(hidden, weight, *rest)
    wanted, grad = entropy and "entropy" in outputs, torch.is_grad_enabled()
    log_probs, entropies = LogProbs.apply(hidden, weight.detach(), targets, scale / temperature, wanted, grad)
    return log_probs, entropies, None, None, None


def is_exact(
    hidden: torch.Tensor, weight: torch.Tensor, bias: object, softcap: object, outputs: Sequence[str]
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
    """Log-probabilities (positions,), and entropies or None, of softmax(slope x hidden weight^T).  The gradient of the
    first is formed in the forward pass; the entropies, which are logged, have none."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of hidden (positions, H), weight (V, H), targets (positions,), slope; whether entropies and a gradient."""
        hidden, weight, targets, slope, entropy, gradient = given
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
        return ctx.saved_tensors[0] * of_log_probs.unsqueeze(1), *[None] * 5


def _of_rows(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, means: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Log-probabilities of a block of rows, and if ``means`` entropies and gradients (rows, H).  1 - p is never found
    by subtraction: with q the softmax of the other tokens, log p = -softplus(log sum of others - logit), dlog p /
    dhidden = (1 - p)(row - E_q[row]), and the entropy is that of {p, 1 - p} plus (1 - p) times q's."""
    own = weight[targets]
    logit = reference = (hidden * own).sum(1, keepdim=True)  # exponentials are relative to the reference
    total, mean_row = torch.zeros_like(logit), torch.zeros_like(hidden) if means else None
    space = hidden.new_empty(len(hidden) * CPU_TILE)
    for start in range(0, len(weight), CPU_TILE):
        tile = weight[start : start + CPU_TILE]
        logits = torch.mm(hidden, tile.t(), out=space[: len(hidden) * len(tile)].view(len(hidden), len(tile)))
        here = ((targets >= start) & (targets < start + len(tile))).nonzero().squeeze(1)
        logits[here, targets[here] - start] = -torch.inf
        top = logits.amax(1, keepdim=True)
        far = top > reference + FAR
        if far.any():
            raised = torch.where(far, top, reference)
            shrink = (reference - raised).exp()
            mean_row = None if mean_row is None else mean_row.mul_(shrink)
            total, reference = total * shrink, raised
        chances = logits.sub_(reference).exp_()
        total += chances.sum(1, keepdim=True)
        if mean_row is not None:
            mean_row.addmm_(chances, tile)
    total.clamp_(min=torch.finfo(total.dtype).tiny)  # all may lie far below the target
    log_others = total.log() + reference
    log_prob, log_rest = -softplus(log_others - logit), -softplus(logit - log_others)
    if mean_row is None:
        return log_prob.squeeze(1), None, None
    mean_row /= total
    rest = log_rest.exp()
    of_others = log_others - (hidden * mean_row).sum(
        1, keepdim=True
    )  # the mean of a linear function's values
    entropies = rest * (of_others - log_rest) - log_prob.exp() * log_prob
    return log_prob.squeeze(1), entropies.squeeze(1), (own - mean_row).mul_(rest)
