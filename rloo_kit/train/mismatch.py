"""What vLLM sampled with and what is trained, compared: their log-probabilities, and weights that correct for it.

For the trainer, where completions are sampled by vLLM.  Its kernels round otherwise than the trainer's, so that it
samples from a policy mu beside the trained pi.  The weight pi / mu of a completion turns an expectation over mu into
one over pi: the policy gradient stays unbiased, with a baseline of other completions too, as they were sampled apart.
Such a weight is a product over tokens, and spreads; bounds trade a little bias for that (truncated: Ionides 2008; of
tokens, for vLLM: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training").  Names and
bounds are those of TRL 1.15's GRPOTrainer (``_generate_and_score_completions``), which takes a further pass for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from rloo_kit.train.metrics import TokenMeans
    from rloo_kit.train.own import Own

MODES = ("sequence_mask", "sequence_truncate", "token_mask", "token_truncate")
"""TRL's: what has a weight, and what becomes of one out of bounds: 0, or the bound."""

SAMPLED = "sampling_per_token_logps"
"""The batch's log-probabilities (rows, tokens) under what sampled them, by the name that TRL's GRPOTrainer has."""

DIFFERENCE, RATIO = "sampling/sampling_logp_difference", "sampling/importance_sampling_ratio"
"""Metrics, as TRL's GRPOTrainer calls them."""

Kept = list[list[float]]


@contextmanager
def kept(engine: Any) -> Iterator[Kept]:
    """While inside, have TRL's ``VLLMGeneration`` ask for each sampled token's log-probability, and keep them.

    Works around: TRL's RLOOTrainer asks for none and drops what comes.

    Args:
        engine: None where vLLM does not sample; nothing is kept then.

    Yields:
        Log-probabilities of the completions, NaN where vLLM has none; empty where it returned none at all.
    """
    found: Kept = []
    if engine is None:
        yield found
        return
    generate, asked = engine.generate, engine.logprobs

    def keeping(*args: Any, **kwargs: Any) -> Any:
        made = generate(*args, **kwargs)
        _, ids, logps, tokens = made
        if logps is not None:
            found[:] = [of_the_sampled(*row) for row in zip(ids, logps, tokens, strict=True)]
        return made

    engine.generate, engine.logprobs = keeping, 0
    try:
        yield found
    finally:
        del engine.generate
        engine.logprobs = asked


def of_the_sampled(
    ids: Sequence[int], logps: Sequence[Sequence[float | None]], tokens: Sequence[Sequence[int]]
) -> list[float]:
    """One completion's log-probabilities, of the tokens that were sampled; vLLM may add the likeliest.

    >>> of_the_sampled([7, 8], [[-0.1, -2.0], [None]], [[3, 7], [8]])
    [-2.0, nan]
    """
    found = []
    for token, values, named in zip(ids, logps, tokens, strict=True):
        value = dict(zip(named, values, strict=True)).get(token)
        found.append(math.nan if value is None else value)
    return found


def log_ratios(trained: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """log pi - log mu (rows, tokens), 0 where a token is masked or vLLM has no figure for it."""
    ratio = trained - sampled
    return ratio.masked_fill((mask == 0) | sampled.isnan(), 0.0)


def weights(log_ratio: torch.Tensor, mode: str, low: float | None, high: float | None) -> torch.Tensor:
    """What each completion or token weighs in the policy gradient.

    Args:
        log_ratio: of :func:`log_ratios`.
        mode: one of :data:`MODES`.
        low, high: bounds; None is none.

    Returns:
        (rows,) for a mode of sequences, (rows, tokens) for one of tokens.
    """
    level, _, bound = mode.partition("_")
    ratio = (log_ratio.sum(1) if level == "sequence" else log_ratio).exp()
    low, high = 0.0 if low is None else low, math.inf if high is None else high
    if bound == "truncate":
        return ratio.clamp(low, high)
    return ratio.where((ratio >= low) & (ratio <= high), 0.0)


def compared(
    trained: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor, own: Own
) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
    """The weights, None where no correction is asked for, and by metric the values (any number,) that it is of.

    Args:
        trained, sampled: log-probabilities (rows, tokens) under the trainer, when sampled, and under vLLM.
    """
    log_ratio = log_ratios(trained, sampled, mask)
    seen = {DIFFERENCE: log_ratio.abs()[(mask != 0) & ~sampled.isnan()]}
    if not own.vllm_importance_sampling_correction:
        return None, seen
    low, high = own.vllm_importance_sampling_clip_min, own.vllm_importance_sampling_clip_max
    found = weights(log_ratio, own.vllm_importance_sampling_mode, low, high)
    return found, {**seen, RATIO: found[mask.any(1) if found.ndim == 1 else mask != 0]}


def counts(values: torch.Tensor) -> torch.Tensor:
    """(4,) of one process's values, for :func:`log`: their sum and number, the least, and minus the largest."""
    if not values.numel():
        return torch.tensor([0.0, 0.0, torch.inf, torch.inf], device=values.device)
    return torch.stack([values.sum(), values.new_tensor(values.numel()), values.min(), -values.max()]).float()


def log(kept_metrics: dict[str, list[float]], means: TokenMeans, name: str, gathered: torch.Tensor) -> None:
    """Put mean, least and largest since the last log into TRL's metrics, from the :func:`counts` (processes, 4)."""
    total, number = gathered[:, :2].sum(0).tolist()
    if not number:
        return
    least, most = gathered[:, 2:].amin(0).tolist()
    kept_metrics[f"{name}/mean"] = [means.add(name, total, number)]
    kept_metrics[f"{name}/min"] = [min([least, *kept_metrics.get(f"{name}/min", [])])]
    kept_metrics[f"{name}/max"] = [max([-most, *kept_metrics.get(f"{name}/max", [])])]
