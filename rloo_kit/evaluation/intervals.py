"""95 % intervals for means and shares: Wilson's score interval and the percentile bootstrap.

Plain numbers in, an :class:`Interval` out.  Values that share a prompt are averaged first: :func:`means_by_prompt`.
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Interval:
    """A mean or a share with its 95 % interval, whose ends are NaN if there is none: one value, or no spread.

    >>> print(Interval(0.5, 0.4, 0.6), f"{Interval(0.5, 0.4, 0.6):+.1f}", Interval(1.0, math.nan, math.nan))
    0.500 [0.400, 0.600] +0.5 [+0.4, +0.6] 1.000 (no interval: no spread)
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return format(self)

    def __format__(self, spec: str) -> str:
        value, low, high = (format(x, spec or ".3f") for x in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]" if self.is_bounded else f"{value} (no interval: no spread)"

    @property
    def is_bounded(self) -> bool:
        return not math.isnan(self.low)


def wilson(successes: int, trials: int) -> Interval:
    """Return Wilson's score interval for a share (Wilson 1927), which also holds near 0 and 1."""
    share, z2 = successes / trials, Z_95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def bootstrap(values: Sequence[float], seed: int | None = 0, resamples: int = 2000) -> Interval | None:
    """Return the percentile bootstrap of the mean (Efron 1979): None without values, no bounds if all are equal.

    The values must be independent.  Where several completions share a prompt, pass the prompts' means: the cluster
    bootstrap (Davison & Hinkley 1997, section 3.8; Field & Welsh 2007).  With few values, such as a run's seeds, it
    covers less than 95 %.
    """
    if not values:
        return None
    mean = statistics.fmean(values)
    if has_no_spread(values):
        return Interval(mean, math.nan, math.nan)
    rng = random.Random(seed)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(resamples))
    return Interval(mean, means[int(0.025 * resamples)], means[int(0.975 * resamples) - 1])


def means_by_prompt(values: Sequence[float | None], samples: int) -> list[float]:
    """Return the mean of each run of ``samples`` values, one run per prompt; prompts without a value are left out."""
    groups = (values[start : start + samples] for start in range(0, len(values), samples))
    present = ([value for value in group if value is not None] for group in groups)
    return [statistics.fmean(group) for group in present if group]


def has_no_spread(values: Sequence[float]) -> bool:
    return math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-12)
