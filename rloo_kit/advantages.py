"""Advantage estimators and KL estimators: tensors in, tensors out.

Rewards have shape (groups, K): a row holds the K completions of one prompt, with NaN where no reward function applied.
Such a completion gets advantage 0 and is left out of every baseline.  A group whose scored rewards are all equal, or
which has only one, gets exactly 0 from each of the three group estimators.

A custom estimator must be a pure function of that tensor: a step calls it with and without the KL term.  Pass it to
``RLOOConfig(advantage_estimator=...)``, or :func:`register` it under a name.
"""

from collections.abc import Callable

import torch

from rloo_kit.errors import ConfigError

Function = Callable[[torch.Tensor], torch.Tensor]
STD_FLOOR = 1e-4  # added to a standard deviation before dividing by it, as in TRL's trainers


def rloo(rewards: torch.Tensor) -> torch.Tensor:
    """REINFORCE leave-one-out: a reward minus the mean of the other scored rewards of its group.

    A_i = R_i - sum_{j != i} R_j / (n - 1), with n scored rewards (Kool et al. 2019, "Buy 4 REINFORCE samples, get a
    baseline for free!"; Ahmadian et al. 2024, arXiv 2402.14740).  The baseline does not depend on R_i, so the policy
    gradient is unbiased if completions are sampled from the whole policy, without top_p, top_k or min_p.

    >>> rloo(torch.tensor([[1.0, 0.0, 0.0], [0.5, torch.nan, 1.5]]))
    tensor([[ 1.0000, -0.5000, -0.5000],
            [-1.0000,  0.0000,  1.0000]])
    """
    centered, count = _centered(rewards)
    return centered * count / (count - 1).clamp(min=1)


def grpo(rewards: torch.Tensor) -> torch.Tensor:
    """Group-relative: the distance to the group's mean in standard deviations.

    A_i = (R_i - mean) / (std + 1e-4), std over n - 1 (Shao et al. 2024, arXiv 2402.03300, section 4.1; the
    floor is TRL's).  The division weighs prompts by their difficulty and amplifies noise in groups that nearly agree.

    >>> grpo(torch.tensor([[1.0, 0.0, 0.0]]))
    tensor([[ 1.1545, -0.5773, -0.5773]])
    """
    centered, count = _centered(rewards)
    std = (centered.square().sum(1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    return centered / (std + STD_FLOOR)


def dr_grpo(rewards: torch.Tensor) -> torch.Tensor:
    """GRPO without the division: A_i = R_i - mean (Liu et al. 2025, arXiv 2503.20783, section 3.2).

    The mean includes R_i, so the expected gradient is RLOO's times (n - 1) / n.

    >>> dr_grpo(torch.tensor([[1.0, 0.0, 0.0]]))
    tensor([[ 0.6667, -0.3333, -0.3333]])
    """
    return _centered(rewards)[0]


def reinforce(rewards: torch.Tensor) -> torch.Tensor:
    """The control: A_i = R_i - mean over the whole generation batch (Williams 1992, with a constant baseline).

    It ignores how hard a prompt is: a right answer earns as much on an easy prompt as on a hard one, and a group whose
    rewards are all equal still gets advantages other than 0.

    >>> reinforce(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    tensor([[ 0.5000,  0.5000],
            [-0.5000, -0.5000]])
    """
    return _centered(rewards.reshape(1, -1))[0].view_as(rewards)


def _centered(rewards: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each reward's distance to its row's mean, 0 where unscored, and each row's count of scored rewards."""
    scored = ~rewards.isnan()
    count = scored.sum(1, keepdim=True)
    # The lowest is subtracted first: equal rewards give exactly 0, and a small spread on a large reward is not rounded.
    lowest = rewards.masked_fill(~scored, torch.inf).amin(1, keepdim=True)
    shifted = (rewards - lowest).masked_fill(~scored, 0.0)
    mean = shifted.sum(1, keepdim=True) / count.clamp(min=1)
    return (shifted - mean).masked_fill(~scored, 0.0), count


def normalized(advantages: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
    """Normalise advantages to mean 0 and standard deviation 1 over a batch's scored completions; others get 0.

    Over a generation batch, as TRL's ``normalize_advantages``: (A - mean) / (std + 1e-4), std over n - 1.  TRL leaves
    out a group's only scored completion, whose advantage is 0 here.
    """
    values = advantages[scored]
    if values.numel() < 2:
        return torch.zeros_like(advantages)
    mean, std = values.mean(), values.std()
    if mean.abs() <= 1e-6 * std:  # the sum is 0 up to rounding, so advantages of 0 stay 0
        mean = torch.zeros_like(mean)
    return ((advantages - mean) / (std + STD_FLOOR)).masked_fill(~scored, 0.0)


def total_rewards(scores: torch.Tensor, weights: torch.Tensor, clip: tuple[float, float] | None) -> torch.Tensor:
    """Add up each completion's weighted scores, as TRL does: (completions,) rewards, NaN where no reward applies.
    ``scores`` is (completions, rewards), NaN where a reward does not apply; ``weights`` is (rewards,)."""
    total = (scores * weights).nansum(dim=1).masked_fill(scores.isnan().all(dim=1), torch.nan)
    return total if clip is None else total.clamp(*clip)


def zero_variance_groups(rewards: torch.Tensor) -> torch.Tensor:
    """Mark groups without a signal, whose scored rewards are equal or fewer than two: (groups, K) to (groups,) bool."""
    return (rloo(rewards) == 0).all(1)


def estimated(rewards: torch.Tensor, name: str, function: Function | None = None) -> torch.Tensor:
    """Compute and check the advantages of the estimator of this name; the NaN of an unscored completion becomes 0."""
    advantages, fault = (function or ESTIMATORS[name])(rewards), ""
    shape = advantages.shape if isinstance(advantages, torch.Tensor) else None
    if shape != rewards.shape:
        returned = f"a {type(advantages).__name__}" if shape is None else f"shape {tuple(shape)}"
        fault = f"an advantage estimator returned {returned} for rewards of shape {tuple(rewards.shape)}"
    elif (advantages.isinf() | (advantages.isnan() & ~rewards.isnan())).any():
        fault = "an advantage of a scored completion is not finite, which would turn every weight into NaN"
    if fault:
        todo = "return (groups, K), without a division by a spread of 0; nanmean leaves NaN rewards out"
        raise ConfigError(fault, where=f"advantage_estimator={name!r}", todo=todo)
    return advantages.detach().to(rewards.dtype).nan_to_num(nan=0.0)


ESTIMATORS: dict[str, Function] = {own.__name__: own for own in (rloo, grpo, dr_grpo, reinforce)}
"""name -> estimator; :func:`register` adds to it."""

BUILT_IN = tuple(ESTIMATORS)


def register(function: Function, name: str | None = None) -> str:
    """Register an estimator and return its name, for ``RLOOConfig(advantage_estimator=name)``: by default the
    function's own name, with a number if another estimator has it.

    Raises:
        ConfigError: for two groups, one of them of equal rewards, it returns a wrong shape or a value not finite.
    """
    base = name or str(getattr(function, "__name__", type(function).__name__))
    name, number = base, 1
    while ESTIMATORS.get(name, function) is not function:
        number += 1
        name = f"{base}_{number}"
    estimated(torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0]]), name, function)
    ESTIMATORS[name] = function
    return name


def k1(log_ratio: torch.Tensor) -> torch.Tensor:
    """log(policy / reference) of a sampled token: unbiased, may be negative (Schulman 2020, "Approximating KL").

    Subtracted from the reward, it is the KL term of RLOO and TRL.  Inside a loss its expected gradient is 0 (Tang and
    Munos 2025, arXiv 2506.09477)."""
    return log_ratio


def k2(log_ratio: torch.Tensor) -> torch.Tensor:
    """Half the squared log ratio: biased, low variance, never negative.  Inside a loss its gradient is that of each
    token's KL divergence given the tokens before it; unlike the term in the reward, it leaves out a token's effect on
    the divergence of later tokens (sources: :func:`k1`)."""
    return 0.5 * log_ratio.square()


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp(-x) - 1 + x of the log ratio x: unbiased and never negative; GRPO's KL term (Shao et al. 2024, equation 4).
    Inside a loss its gradient is that of each token's KL(reference || policy), given the tokens before it."""
    return torch.expm1(-log_ratio) + log_ratio


KL_ESTIMATORS: dict[str, Function] = {"k1": k1, "k2": k2, "k3": k3}
"""name -> per-token estimate of KL(policy || reference) from log policy - log reference, same shape."""
