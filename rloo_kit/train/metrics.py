"""What a training step logs: figures from tensors, under TRL's names.  The trainer gathers them first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from trl.trainer.utils import nanstd

from rloo_kit.advantages import total_rewards


def reward_metrics(
    names: Sequence[str], scores: torch.Tensor, weights: torch.Tensor, totals: torch.Tensor
) -> dict[str, float]:
    """Mean and standard deviation of each reward function and of their sum.

    Args:
        names, weights: (rewards,) of the reward functions.
        scores: (completions, rewards) of all processes, NaN where a reward does not apply.
        totals: (groups, K), the clipped sums; only for ``frac_reward_zero_std``, TRL's count of groups without spread.
    """
    found = {}
    for name, column in zip(names, scores.T, strict=True):
        found[f"rewards/{name}/mean"] = column.nanmean().item()
        found[f"rewards/{name}/std"] = nanstd(column).item()
    unclipped = total_rewards(scores, weights, clip=None)
    found["reward"], found["reward_std"] = unclipped.nanmean().item(), nanstd(unclipped).item()
    spread = nanstd(totals, dim=1)
    found["frac_reward_zero_std"] = spread.isclose(torch.zeros_like(spread)).float().mean().item()
    return found


def clip_counts(
    ratio: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, clip: tuple[float, float]
) -> torch.Tensor:
    """How many of :func:`.losses.policy_loss`'s ratios were clipped in this process; (5,): below, above, of all, and
    the extremes that :func:`clip_metrics` takes."""
    if ratio.ndim == 2:
        advantages, ratio = advantages.unsqueeze(1).expand_as(ratio)[mask.bool()], ratio[mask.bool()]
    low = ((ratio < clip[0]) & (advantages < 0)).float()
    high = ((ratio > clip[1]) & (advantages > 0)).float()
    none = low.new_tensor(torch.inf)
    extremes = (low.min(), -high.max()) if len(low) else (none, none)
    return torch.stack([low.sum(), high.sum(), low.new_tensor(len(low)), *extremes])


def clip_metrics(counts: torch.Tensor) -> dict[str, float]:
    """TRL's ``clip_ratio/*`` from the :func:`clip_counts` (processes, 5) of all processes; empty without any ratio."""
    low, high, total = counts[:, :3].sum(0).tolist()
    if not total:
        return {}
    least, most = counts[:, 3:].amin(0).tolist()
    return {
        "clip_ratio/low_mean": low / total,
        "clip_ratio/low_min": least,
        "clip_ratio/high_mean": high / total,
        "clip_ratio/high_max": -most,
        "clip_ratio/region_mean": (low + high) / total,
    }
