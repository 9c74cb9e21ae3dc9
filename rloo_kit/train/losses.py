"""The policy-gradient loss of a micro-batch, and each completion's weight in it: tensors in, tensors out.

The loss of an update is a weighted sum over its completions.  Each weight is computed once, over all completions that
share the update, so it does not matter how they are cut into micro-batches and spread over processes, nor whether those
without a signal are left out.  The generation batches of an update are averaged, or parts of them if neither
``steps_per_generation`` nor ``gradient_accumulation_steps`` divides the other (:func:`.microbatches.micro_batches`).
"""

import torch


def row_weights(
    aggregation: str, tokens: torch.Tensor, total_rows: int, total_tokens: int, longest: int
) -> torch.Tensor:
    """Return each completion's weight in the loss of its update; (rows,) float32.

    Args:
        aggregation: verl's ``loss_agg_mode``, for completions o_i of an update of N:

            - ``seq-mean-token-sum``: 1 / N, TRL's RLOO and Ahmadian et al. 2024.
            - ``seq-mean-token-mean``: 1 / (N |o_i|), GRPO's (Shao et al. 2024, equation 3).
            - ``token-mean``: 1 / sum |o_j|, DAPO's (Yu et al. 2025, arXiv 2503.14476, equation 8).
            - ``seq-mean-token-sum-norm``: 1 / (N longest), Dr. GRPO's (Liu et al. 2025, arXiv 2503.20783).
        tokens: (rows,) scored tokens of each completion.
        total_rows, total_tokens: of all completions that share the update, over all processes.
        longest: ``max_completion_length``.
    """
    one = torch.ones_like(tokens, dtype=torch.float32)
    if aggregation == "seq-mean-token-mean":
        return one / (total_rows * tokens.clamp(min=1))
    if aggregation == "token-mean":
        return one / max(total_tokens, 1)
    if aggregation == "seq-mean-token-sum-norm":
        return one / (total_rows * longest)
    return one / total_rows


def policy_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    level: str,
    clip: tuple[float, float],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the clipped surrogate loss of each completion, summed over its tokens (Schulman et al. 2017, equation 7).

    Args:
        logps, old_logps: (rows, tokens) log-probabilities of the sampled tokens, now and when they were sampled.
        advantages: (rows,).
        mask: (rows, tokens), 0 where a token does not count, whatever its log-probabilities.
        level: "completion": one ratio per completion, the product of its tokens' ratios, as in TRL's RLOO;
            "token": one per token, as in GRPO; "sequence": the geometric mean of a completion's token ratios, used
            for each token, as in GSPO (Zheng et al. 2025, arXiv 2507.18071, equation 7).
            On policy, where all ratios are 1, the three have the same gradient.
        clip: the lower and the upper bound to which the ratio is clipped.

    Returns:
        (rows,) losses, and ratios: (rows, tokens) at level "token", else (rows,).
    """
    log_ratio = (logps - old_logps).masked_fill(mask == 0, 0.0)  # not times mask: 0 x inf is NaN
    tokens = mask.sum(1)
    if level == "token":
        ratio, advantages = log_ratio.exp(), advantages.unsqueeze(1)
    else:
        mean_over = tokens.clamp(min=1) if level == "sequence" else 1
        ratio = (log_ratio.sum(1) / mean_over).exp()
    loss = -torch.min(ratio * advantages, ratio.clamp(*clip) * advantages)
    if level == "token":
        return (loss * mask).sum(1), ratio
    return loss * tokens if level == "sequence" else loss, ratio


def clip_counts(
    ratio: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, clip: tuple[float, float]
) -> torch.Tensor:
    """Count :func:`policy_loss`'s ratios that were clipped in this process; (3,): below, above, all ratios."""
    if ratio.ndim == 2:
        advantages, ratio = advantages.unsqueeze(1).expand_as(ratio)[mask.bool()], ratio[mask.bool()]
    low = (ratio < clip[0]) & (advantages < 0)
    high = (ratio > clip[1]) & (advantages > 0)
    return torch.stack([low.sum(), high.sum(), torch.ones_like(low).sum()]).float()
