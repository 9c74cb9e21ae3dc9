"""Advantage estimators and KL estimators: tensors in, tensors out.

Rewards have shape (groups, K), a row holding the K completions of one prompt, NaN where no reward function applied:
such a completion gets advantage 0 and is left out of every baseline.  A group whose scored rewards are all equal, or
that has only one, gets exactly 0 from each of the three group estimators.

A custom estimator is a pure function of that tensor: a step may call it several times, for all groups and for one
micro-batch's, with and without the KL term.  Pass it to ``RLOOConfig(advantage_estimator=...)``, or :func:`register` it
under a name.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rloo_kit.errors import ArgumentError, ConfigError

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

    The mean contains R_i, which scales the expected gradient by (n - 1) / n: RLOO's, up to that factor.

    >>> dr_grpo(torch.tensor([[1.0, 0.0, 0.0]]))
    tensor([[ 0.6667, -0.3333, -0.3333]])
    """
    return _centered(rewards)[0]


def reinforce(rewards: torch.Tensor) -> torch.Tensor:
    """The control: A_i = R_i - mean over the whole generation batch (Williams 1992, with a constant baseline).

    It ignores how hard a prompt is: a right answer earns as much on an easy prompt as on a hard one, and a group whose
    rewards are all equal still has an advantage.

    >>> reinforce(torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    tensor([[ 0.5000,  0.5000],
            [-0.5000, -0.5000]])
    """
    return _centered(rewards.reshape(1, -1))[0].view_as(rewards)


def _centered(rewards: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Distances to each row's mean, 0 where unscored, and the row's count of scored rewards (rows, 1)."""
    scored = ~rewards.isnan()
    count = scored.sum(1, keepdim=True)
    # Subtracted first: equal rewards then give exactly 0, and a small spread on top of a large reward is not rounded.
    lowest = rewards.masked_fill(~scored, torch.inf).amin(1, keepdim=True)
    shifted = (rewards - lowest).masked_fill(~scored, 0.0)
    mean = shifted.sum(1, keepdim=True) / count.clamp(min=1)
    return (shifted - mean).masked_fill(~scored, 0.0), count


def normalized(advantages: torch.Tensor, scored: torch.Tensor) -> torch.Tensor:
    """Advantages with mean 0 and standard deviation 1 over the scored ones of a generation batch; 0 elsewhere.

    TRL's ``normalize_advantages``: (A - mean) / (std + 1e-4), std over n - 1.
    """
    values = advantages[scored]
    if values.numel() < 2:
        return torch.zeros_like(advantages)
    mean, std = values.mean(), values.std()
    if mean.abs() <= 1e-6 * std:  # advantages that sum to 0, up to rounding: those at 0 stay there
        mean = torch.zeros_like(mean)
    return ((advantages - mean) / (std + STD_FLOOR)).masked_fill(~scored, 0.0)


def total_rewards(scores: torch.Tensor, weights: torch.Tensor, clip: tuple[float, float] | None) -> torch.Tensor:
    """The reward of each completion, as TRL adds it up: (completions,), NaN where no reward applies; of ``scores``
    (completions, rewards), NaN where a reward does not apply, and ``weights`` (rewards,)."""
    total = (scores * weights).nansum(dim=1).masked_fill(scores.isnan().all(dim=1), torch.nan)
    return total if clip is None else total.clamp(*clip)


def zero_variance_groups(rewards: torch.Tensor) -> torch.Tensor:
    """Which groups of (groups, K) rewards carry no signal: scored ones are equal or fewer than two; (groups,) bool."""
    return (rloo(rewards) == 0).all(1)


@dataclass(frozen=True)
class Estimator:
    name: str
    function: Function
    groupwise: bool  # each group's advantages depend on that group alone

    def __call__(self, rewards: torch.Tensor) -> torch.Tensor:
        """The advantages, checked; NaN of an unscored completion becomes 0."""
        advantages, fault = self.function(rewards), ""
        shape = advantages.shape if isinstance(advantages, torch.Tensor) else None
        if shape != rewards.shape:
            returned = f"a {type(advantages).__name__}" if shape is None else f"shape {tuple(shape)}"
            fault = f"an advantage estimator returned {returned} for rewards of shape {tuple(rewards.shape)}"
        elif (advantages.isinf() | (advantages.isnan() & ~rewards.isnan())).any():
            fault = "an advantage of a scored completion is not finite, which would turn every weight into NaN"
        if fault:
            todo = "return (groups, K), without a division by a spread of 0; nanmean leaves NaN rewards out"
            raise ConfigError(fault, where=f"advantage_estimator={self.name!r}", todo=todo)
        return advantages.detach().to(rewards.dtype).nan_to_num(nan=0.0)


ESTIMATORS = {group.__name__: Estimator(group.__name__, group, True) for group in (rloo, grpo, dr_grpo)}
ESTIMATORS["reinforce"] = Estimator("reinforce", reinforce, groupwise=False)
"""name -> estimator; :func:`register` adds to it."""

BUILT_IN = tuple(ESTIMATORS)


def register(function: Function, name: str | None = None) -> str:
    """Make an estimator known under a name, the function's own by default, numbered where another has it, and return
    that name, for ``RLOOConfig(advantage_estimator=name)``.

    Raises:
        ConfigError: what it returns for a group with a spread and one without cannot be trained on.
    """
    base = name or str(getattr(function, "__name__", type(function).__name__))
    name, number = base, 1
    while name in ESTIMATORS and ESTIMATORS[name].function is not function:
        number += 1
        name = f"{base}_{number}"
    estimator = Estimator(name, function, groupwise=False)
    estimator(torch.tensor([[0.0, 1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0]]))
    ESTIMATORS.setdefault(name, estimator)
    return name


def find(name: str) -> Estimator:
    if name not in ESTIMATORS:
        what, where = f"there is no advantage estimator {name!r}", "RLOOConfig(advantage_estimator=...)"
        todo = f"one of {', '.join(ESTIMATORS)}, or a function of (groups, K) rewards"
        raise ArgumentError(what, where=where, todo=todo)
    return ESTIMATORS[name]


def k1(log_ratio: torch.Tensor) -> torch.Tensor:
    """log(policy / reference) of a sampled token: unbiased, may be negative (Schulman 2020, "Approximating KL").

    Subtracted from the reward it is RLOO's and TRL's term.  Inside a loss its expected gradient is 0 (Tang and Munos
    2025, arXiv 2506.09477)."""
    return log_ratio


def k2(log_ratio: torch.Tensor) -> torch.Tensor:
    """Half the squared log ratio: biased, low variance, never negative.  Inside a loss its gradient is that of each
    token's KL divergence given the tokens before it; unlike the term in the reward, it leaves out a token's effect on
    the divergence of later ones (sources: :func:`k1`)."""
    return 0.5 * log_ratio.square()


def k3(log_ratio: torch.Tensor) -> torch.Tensor:
    """exp(-x) - 1 + x of the log ratio x: unbiased and never negative; GRPO's term in the loss (Shao et al. 2024,
    equation 4).  There its gradient is that of each token's KL(reference || policy), given the tokens before it."""
    return torch.expm1(-log_ratio) + log_ratio


KL_ESTIMATORS: dict[str, Function] = {"k1": k1, "k2": k2, "k3": k3}
"""name -> per-token estimate of KL(policy || reference) from log policy - log reference, same shape."""
