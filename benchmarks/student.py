"""A mean over a handful of seeds, with Student's 95 % interval.

For benchmarks that repeat a run on a few seeds.  The percentile bootstrap, which ``rloo_kit.evaluate`` takes over
prompts, covers 89 % where it has 8 values; Student's interval covers 95 % of normal ones at any number from two.
It does not check whether the values are near enough to normal: pass ratios as logarithms.
"""

import math
import statistics
from collections.abc import Sequence

from rloo_kit.evaluation.intervals import Interval, has_no_spread

T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 0.975 quantile of Student's t with 1, 2, ... degrees of freedom (Fisher & Yates 1963, table III)."""


def student(values: Sequence[float]) -> Interval:
    """Mean with its two-sided 95 % interval (Student 1908).

    No bounds where all values are equal, nor for one value.  An infinite value leaves the mean unbounded.

    Raises:
        statistics.StatisticsError: no values.
        IndexError: more than 31 values.
    """
    mean = statistics.fmean(values)
    if math.isinf(mean):
        return Interval(mean, -math.inf, math.inf)
    if has_no_spread(values):
        return Interval(mean, math.nan, math.nan)
    half = T_975[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)
