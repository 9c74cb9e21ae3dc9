"""A mean over a handful of seeds, with Student's 95 % interval.

For benchmarks that repeat a run on a few seeds.  The percentile bootstrap, which ``rloo_kit.evaluate`` takes over
prompts, covers 89 % where it has 8 values; Student's interval covers 95 % of normal ones at any number from two.
It does not check whether the values are near enough to normal: pass ratios as logarithms.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rloo_kit.evaluation.evaluate import Interval, has_no_spread


def student(values: Sequence[float]) -> Interval:
    """Mean with its two-sided 95 % interval (Student 1908).

    No bounds where all values are equal, nor for one value.  An infinite value leaves the mean unbounded.

    Raises:
        statistics.StatisticsError: no values.
    """
    mean = statistics.fmean(values)
    if math.isinf(mean):
        return Interval(mean, -math.inf, math.inf)
    if has_no_spread(values):
        return Interval(mean, math.nan, math.nan)
    half = t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def t_975(freedom: int) -> float:
    """The 0.975 quantile of Student's t, by bisection.

    >>> round(t_975(7), 3)
    2.365
    """
    low, high = 0.0, 13.0  # 12.706 at one degree of freedom, and less at more
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < 0.95 else (low, middle)
    return high


def within(t: float, freedom: int) -> float:
    """P(-t < T < t) in closed form (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4)."""
    angle, odd = math.atan(t / math.sqrt(freedom)), freedom % 2
    term = total = 0.0 if freedom == 1 else math.cos(angle) if odd else 1.0
    for index in range(2 + odd, freedom - 1, 2):
        term *= (index - 1) / index * math.cos(angle) ** 2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
