"""Log-probabilities of sampled tokens on a CPU, with less work: the head in tiles, and each distinct prompt once.

The head's tiles of the vocabulary stay in cache, in place of unsloth's chunks of whole rows (unsloth_zoo/cpu/ops.py,
``_ChunkedLogProbs``); only where that is exact (:func:`is_exact`).  Prompts go once, and not once for each of their K
completions, into transformers' own cache, gradient included, and the completions go on from it; only where that can be
done (:func:`fits`).  Columns and positions are those of the plain pass, so padding on the left stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import softplus
from transformers import DynamicCache

from rloo_kit.policy.cpu_products import product

CPU_TILE = 512  # positions and words whose logits are computed at once: 1 MiB, which a core's own cache holds
FAR = 30.0  # how far a logit may be above its row's reference: e^30 is far from float32's largest number
FEWEST = 2  # rows a prompt, on average: below, two passes cost about what the tokens left out would have


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
    unsloths: Callable[..., Any], entropy: bool, hidden: torch.Tensor, weight: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor | None, ...]:
    bias, targets, temperature, _, softcap, scale, outputs = rest
    if not is_exact(hidden, weight, bias, softcap, outputs):
        return unsloths(hidden, weight, *rest)
    entropy, grad = entropy and "entropy" in outputs, torch.is_grad_enabled()
    log_probs, entropies = LogProbs.apply(hidden, weight.detach(), targets, scale / temperature, entropy, grad)
    return log_probs, entropies, None, None, None


def is_exact(hidden: torch.Tensor, weight: torch.Tensor, bias: object, softcap: object, outputs: Sequence[str]) -> bool:
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
        starts = range(0, len(hidden), CPU_TILE)
        blocks = [
            _of_rows(rows * slope, weight, targets[start : start + CPU_TILE], means=entropy or gradient)
            for start, rows in zip(starts, hidden.split(CPU_TILE), strict=True)
        ]
        log_probs, entropies, gradients = zip(*blocks, strict=True)
        if gradient:
            ctx.save_for_backward(torch.cat(gradients).mul_(slope))
        if not entropy:
            return torch.cat(log_probs), None
        ctx.mark_non_differentiable(joined := torch.cat(entropies))
        return torch.cat(log_probs), joined

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
    for start in range(0, len(weight), CPU_TILE):
        tile = weight[start : start + CPU_TILE]
        logits = product(hidden, tile)
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
            mean_row += product(chances, tile.t())
    total.clamp_(min=torch.finfo(total.dtype).tiny)  # all may lie far below the target
    log_others = total.log() + reference
    log_prob, log_rest = -softplus(log_others - logit), -softplus(logit - log_others)
    if mean_row is None:
        return log_prob.squeeze(1), None, None
    mean_row /= total
    rest = log_rest.exp()
    of_others = log_others - (hidden * mean_row).sum(1, keepdim=True)  # a linear function's mean value
    entropies = rest * (of_others - log_rest) - log_prob.exp() * log_prob
    return log_prob.squeeze(1), entropies.squeeze(1), (own - mean_row).mul_(rest)


class PromptCache(DynamicCache):
    """Keys and values of distinct prompts; with ``rows`` set, read for each row and no longer added to."""

    rows: torch.Tensor | None = None  # the prompt of each row

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (rows, heads, tokens, width) of the prompts and then of the tokens given."""
        if self.rows is None:
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)
        held: Any = self.layers[layer_idx]
        return (
            torch.cat([held.keys.index_select(0, self.rows), key_states], dim=-2),
            torch.cat([held.values.index_select(0, self.rows), value_states], dim=-2),
        )


def sharing(model: Any, ids: torch.Tensor, mask: torch.Tensor, width: int) -> Any:
    """The model, or where it fits what TRL may call in its place, for completions of ``width`` columns."""
    # The prompts' last token goes with the completions: it predicts their first.
    start = ids.size(1) - width - 1
    if start < 1:
        return model
    prompts, rows = torch.stack([ids[:, :start], mask[:, :start]], 1).unique(dim=0, return_inverse=True)
    if len(ids) < FEWEST * len(prompts):
        return model
    backbones = [module for module in model.modules() if hasattr(module, "embed_tokens")]
    if len(backbones) != 1 or not fits(model, backbones[0]):
        return model
    return partial(_shared, model, backbones[0], prompts, rows)


def fits(model: Any, backbone: Any) -> bool:
    """Whether the pass goes on from a cache as it would from the tokens: transformers' own forward on a CPU, attention
    to all earlier tokens in each layer, and no layer computed again for its gradient (there is no cache then)."""
    config = backbone.config
    recomputed = any(getattr(module, "gradient_checkpointing", False) for module in backbone.modules())
    return (
        backbone.embed_tokens.weight.device.type == "cpu"
        and type(backbone).forward.__module__.startswith("transformers.")
        and config._attn_implementation in ("sdpa", "eager")
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and not (recomputed and backbone.training)
        and not getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)
    )


def _shared(
    model: Any,
    backbone: Any,
    prompts: torch.Tensor,
    rows: torch.Tensor,
    *,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    **kwargs: Any,
) -> Any:
    """What the model says of the rows; its log-probabilities are of the completions' tokens alone."""
    cache, start = PromptCache(), prompts.size(-1)
    backbone(input_ids=prompts[:, 0], attention_mask=prompts[:, 1], past_key_values=cache, use_cache=True)
    cache.rows = rows
    return model(
        input_ids=input_ids[:, start:-1],
        attention_mask=attention_mask[:, :-1],
        past_key_values=cache,
        shift_labels=labels[:, start + 1 :],
        **kwargs,
    )
