"""Log-probabilities of sampled tokens on a CPU, with less work: the head in tiles, and each distinct prompt once.

The head works on tiles of the vocabulary that stay in cache, not on unsloth's chunks of whole rows
(unsloth_zoo/cpu/ops.py, ``_ChunkedLogProbs``), if that is exact (:func:`is_exact`).  Each prompt runs once, not once
per completion: its keys and values enter transformers' own cache, with their gradient, and its K completions continue
from there, if that is possible (:func:`fits`).  Columns and positions match the plain pass, left padding included.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import softplus
from transformers import DynamicCache

from rloo_kit.policy.onednn_linear import product

CPU_TILE = 512  # positions, and tokens of the vocabulary, in a tile of logits: 1 MiB, which fits a core's own cache
FAR = 30.0  # how far a logit may exceed its row's reference: e^30 is far below float32's largest number
FEWEST = 2  # mean rows per prompt: with fewer, two passes cost about as much as the skipped tokens save


@contextmanager
def in_tiles(entropy: bool) -> Iterator[None]:
    """Make TRL's fused head, if it is unsloth's for CPUs, compute in exact tiles, the entropy only if asked for."""
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
    """Whether tiles are exact: float32 on a CPU, a frozen matrix without bias, no softcap, no further outputs."""
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
    log-probabilities is formed in the forward pass; the entropies are only logged and have none."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Take hidden (positions, H), weight (V, H), targets (positions,), slope, and flags entropy and gradient."""
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
        """Return a gradient for the hidden states only."""
        return ctx.saved_tensors[0] * of_log_probs.unsqueeze(1), *[None] * 5


def _of_rows(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, means: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Log-probabilities of a block of rows, and if ``means`` entropies and gradients (rows, H).  1 - p is not computed
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
    total.clamp_(min=torch.finfo(total.dtype).tiny)  # all other logits may lie far below the target's
    log_others = total.log() + reference
    log_prob, log_rest = -softplus(log_others - logit), -softplus(logit - log_others)
    if mean_row is None:
        return log_prob.squeeze(1), None, None
    mean_row /= total
    rest = log_rest.exp()
    of_others = log_others - (hidden * mean_row).sum(1, keepdim=True)  # q's entropy: logits are linear in rows
    entropies = rest * (of_others - log_rest) - log_prob.exp() * log_prob
    return log_prob.squeeze(1), entropies.squeeze(1), (own - mean_row).mul_(rest)


class PromptCache(DynamicCache):
    """Keys and values of distinct prompts; once ``rows`` is set, they are read for each row and no longer extended."""

    rows: torch.Tensor | None = None  # index of each row's prompt

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values (rows, heads, tokens, width) of the prompts, followed by those of the given tokens."""
        if self.rows is None:
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)
        held: Any = self.layers[layer_idx]
        return (
            torch.cat([held.keys.index_select(0, self.rows), key_states], dim=-2),
            torch.cat([held.values.index_select(0, self.rows), value_states], dim=-2),
        )


def sharing(model: Any, ids: torch.Tensor, mask: torch.Tensor, width: int) -> Any:
    """Return what computes completions of ``width`` columns: a pass that shares prompts if it fits, else the model."""
    # A prompt's last token goes with its completions, since it predicts their first token.
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
    """Whether continuing from a cache equals the whole pass: transformers' own forward on a CPU, attention to all
    earlier tokens in each layer, no layer recomputed for its gradient (there is no cache then), no prompt learning."""
    config = backbone.config
    return (
        backbone.embed_tokens.weight.device.type == "cpu"
        and type(backbone).forward.__module__.startswith("transformers.")
        and config._attn_implementation in ("sdpa", "eager")
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and not (backbone.is_gradient_checkpointing and backbone.training)
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
    """Run each prompt once, then the rows from the cache; log-probabilities cover only the completions' tokens."""
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
