"""The intervals, against published values and against the normal interval."""

import math
import random
import statistics

import pytest

from rloo_kit.evaluation.intervals import bootstrap, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3 (score, without continuity correction).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_the_published_one(successes, trials, low, high):
    interval = wilson(successes, trials)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_the_bootstrap_interval_of_normal_values_is_as_wide_as_the_normal_interval():
    rng = random.Random(0)
    values = [rng.gauss(1.0, 2.0) for _ in range(50)]
    interval = bootstrap(values)
    assert interval is not None
    half = 1.96 * statistics.stdev(values) / math.sqrt(50)  # times 1.31 for 99 %, times 0.84 for 90 %
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.08)
    assert (interval.high + interval.low) / 2 == pytest.approx(statistics.fmean(values), abs=0.08 * half)


@pytest.mark.parametrize("values", [[1.0] * 32, [0.0] * 2, [0.7], [1.0 - 0.2, 0.9 - 0.1]])
def test_values_without_spread_get_no_bootstrap_interval(values):
    interval = bootstrap(values)
    assert interval is not None
    assert not interval.is_bounded
    assert str(interval) == f"{values[0]:.3f} (no interval: no spread)"
