"""Log-probability and entropy of sampled tokens on a CPU: one pass over tiles of the vocabulary that stay in cache.

For the rollout, in place of unsloth's chunks of whole rows (unsloth_zoo/cpu/ops.py, ``_ChunkedLogProbs``), which pass
several times over logits that no cache holds.  TRL hands a fused head the hidden states of the scored positions; here
they are multiplied with a tile of lm_head's rows, and what the tile adds to the normaliser and to the gradient is
summed before the next.  Only where that is exact (:func:`is_exact`); everything else takes the path that was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.functional import softplus

from rloo_kit.passes import CPU_TILE

FAR = 30.0
"""How far above its reference a row's logit may be before the row's sums are scaled down: e^30 times a vocabulary is
far from float32's largest number."""

Result = tuple[torch.Tensor | None, ...]
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
    utils._ChunkedLogProbFunction = _Head(kernel.apply, entropy)
    try:
        yield
    finally:
        utils._ChunkedLogProbFunction = kernel


class _Head:
    """Stands where TRL's ``_ChunkedLogProbFunction`` stands."""

    def __init__(self, otherwise: Callable[..., Result], entropy: bool) -> None:
        self.otherwise, self.entropy = otherwise, entropy

    def apply(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None,
        scale: float,
        outputs: Sequence[str],
    ) -> Result:
        """As TRL calls it: hidden (positions, H), weight (V, H), targets (positions,)."""
        rest = (bias, targets, temperature, chunk_size, softcap, scale, outputs)
        if not is_exact(hidden, weight, bias, softcap, outputs):
            return self.otherwise(hidden, weight, *rest)
        wanted = self.entropy and "entropy" in outputs
        again = partial(self._entropy, weight, rest)
        log_probs, entropy = LogProbs.apply(
            hidden, weight.detach(), targets, scale / temperature, wanted, torch.is_grad_enabled(), again
        )
        return log_probs, entropy, None, None, None

    def _entropy(self, weight: torch.Tensor, rest: tuple[Any, ...], hidden: torch.Tensor) -> torch.Tensor:
        """The entropy as it was without this module, with its gradient."""
        found = self.otherwise(hidden, weight, *rest)[1]
        assert found is not None  # it was among the outputs
        return found


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

    The gradient of the log-probabilities is formed in the forward pass.  That of the entropy, which no loss of the
    kit uses, comes from ``entropy_of(hidden)`` where it is asked for.
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
        entropy_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Of hidden (positions, H), weight (V, H), targets (positions,)."""
        ctx.set_materialize_grads(False)
        log_probs = hidden.new_empty(len(hidden))
        entropies = torch.empty_like(log_probs) if entropy else None
        gradients = torch.empty_like(hidden) if gradient else None
        for start in range(0, len(hidden), CPU_TILE):
            block = slice(start, start + CPU_TILE)
            found = _of_rows(hidden[block] * slope, weight, targets[block], entropy, gradient)
            for whole, part in zip((log_probs, entropies, gradients), found, strict=True):
                if whole is not None and part is not None:
                    whole[block] = part
        ctx.save_for_backward(hidden, None if gradients is None else gradients.mul_(slope))
        ctx.entropy_of = entropy_of
        return log_probs, entropies

    @staticmethod
    def backward(
        ctx: Any, of_log_probs: torch.Tensor | None, of_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        """The hidden states' gradient alone."""
        hidden, gradients = ctx.saved_tensors
        found = None if of_log_probs is None else gradients * of_log_probs.unsqueeze(1)
        if of_entropy is not None:
            with torch.enable_grad():
                again = hidden.detach().requires_grad_()
                (more,) = torch.autograd.grad(ctx.entropy_of(again), again, of_entropy)
            found = more if found is None else found + more
        return (found, None, None, None, None, None, None)


def _of_rows(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, entropy: bool, gradient: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Log-probabilities, entropies and gradients (rows, H) of a block of rows; each of the latter two may be None.

    The sampled token is set apart from the others.  With q their softmax and p its own probability, what is near 1
    is never subtracted from 1: log p = -softplus(log sum of others - its logit), dlog p / dhidden = (1 - p)(its row of
    the matrix - E_q[row]), and the entropy is that of {p, 1 - p} plus (1 - p) times q's.
    """
    own = weight[targets]
    logit = (hidden * own).sum(1)
    log_others, mean_row = _others(hidden, weight, targets, logit, entropy or gradient)
    lead = log_others - logit
    log_prob, log_rest = -softplus(lead), -softplus(-lead)
    entropies = gradients = None
    if mean_row is not None:
        rest = log_rest.exp().unsqueeze(1)
        if gradient:
            gradients = (own - mean_row).mul_(rest)
        if entropy:
            of_others = log_others - (hidden * mean_row).sum(1)  # the mean of a linear function's values
            entropies = rest.squeeze(1) * (of_others - log_rest) - log_prob.exp() * log_prob
    return log_prob, entropies, gradients


def _others(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, reference: torch.Tensor, means: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Over all entries but each row's target: log of the sum of exponentials (rows,), and softmax's mean of the
    matrix's rows (rows, H), if ``means``.

    Args:
        hidden: (rows, H), weight: (V, H), targets: (rows,).
        reference: (rows,) logits, to which exponentials are relative at first.
    """
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
    total.clamp_(
        min=torch.finfo(total.dtype).tiny
    )  # all may lie so far below the target that nothing is left
    if mean_row is not None:
        mean_row /= total.unsqueeze(1)
    return total.log() + reference, mean_row
