"""What chance alone does to completions that are right or wrong: changes, tails, dead groups, shares.

For :mod:`.log` and :mod:`.rules`.  Numbers in, numbers out; nothing here knows a log.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

ALIKE = 0.3
"""Correlation of the rewards of one prompt's completions, since prompts differ in difficulty.  K of them then
weigh as K / (1 + (K - 1) x 0.3) independent ones (Kish 1965, design effect)."""

SURE = 3.0
"""Standard errors for a change to count.  One look in 700 errs by chance, and a run has about 100."""


@dataclass(frozen=True)
class Change:
    """A metric's mean before and after, and the standard error of their difference."""

    before: float
    after: float
    error: float

    @property
    def gain(self) -> float:
        """After - before."""
        return self.after - self.before

    @property
    def sigmas(self) -> float:
        """The gain in standard errors: infinite without any noise, and 0 where the gain is a rounding error."""
        if math.isclose(self.before, self.after, abs_tol=1e-9):
            return 0.0
        return self.gain / self.error if self.error else math.copysign(math.inf, self.gain)

    def __str__(self) -> str:
        return f"{self.before:.3f} -> {self.after:.3f} (+-{self.error:.3f})"


def surely_above(share: float, count: float, threshold: float) -> bool:
    """Whether so high a share of so many is rarer than :data:`SURE` standard errors where the true one is the
    threshold.

    The exact binomial tail: rewards of 0 and 1 in small batches are far from normal.
    """
    if not share > threshold:  # NaN is not
        return False
    trials = round(count)
    return _tail(round(share * trials), trials, threshold) < NormalDist().cdf(-SURE)


@functools.lru_cache(maxsize=4096)  # a symptom that goes on asks for the same few, and a tail has many terms
def _tail(hits: int, trials: int, threshold: float) -> float:
    """Chance of so many hits or more."""
    logs = math.log(threshold), math.log1p(-threshold)
    total = 0.0
    for n in range(hits, trials + 1):
        way = math.lgamma(trials + 1) - math.lgamma(n + 1) - math.lgamma(trials - n + 1)
        part = math.exp(way + n * logs[0] + (trials - n) * logs[1])
        total += part
        if part < 1e-9 * total:  # above the mean each term is smaller than the one before
            break
    return total


def surely_above_of(shares: Sequence[float], threshold: float) -> bool:
    """The same by how much the shares of many entries vary, where how many completions each has is not known.

    Student's t, by its expansion about the normal quantile (Abramowitz and Stegun 1972, 26.7.5).
    """
    free = len(shares) - 1
    quantile = SURE + (SURE**3 + SURE) / (4 * free) + (5 * SURE**5 + 16 * SURE**3 + 3 * SURE) / (96 * free**2)
    mean = statistics.fmean(shares)
    error = math.sqrt(sum((share - mean) ** 2 for share in shares) / free / len(shares))
    return mean - quantile * error > threshold


def dead_by_chance(k: int, right: float) -> float:
    """Share of groups of K completions that are all right or all wrong where nothing is wrong.

    Each prompt has a chance of its own to be solved, from a beta distribution with mean ``right`` that makes
    completions of a prompt correlate by :data:`ALIKE` (beta-binomial; Skellam 1948).

    >>> round(dead_by_chance(2, 0.5), 2), round(dead_by_chance(8, 0.5), 2)
    (0.65, 0.19)
    """
    size = (1 - ALIKE) / ALIKE
    return sum(math.prod((chance * size + i) / (size + i) for i in range(k)) for chance in (right, 1 - right))


def share_of_hits(mean: float, spread: float) -> float:
    """Share p of completions that got a reward which is 0 or some c > 0: mean p c, variance p (1 - p) c^2.

    >>> share_of_hits(0.2 * 0.9, 0.2 * 0.3)
    0.9
    """
    return round(mean**2 / (mean**2 + spread**2), 6) if mean > 0 else 0.0
