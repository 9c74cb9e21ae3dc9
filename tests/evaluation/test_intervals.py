"""The intervals: against published values, the normal one, and by how often they cover."""

import math
import random
import statistics

import pytest

from rloo_kit.evaluation.intervals import bootstrap, means_by_prompt, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    # Newcombe 1998, Statistics in Medicine 17, table I, method 3 (score, without continuity correction).
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_the_published_one(successes: int, trials: int, low: float, high: float) -> None:
    interval = wilson(successes, trials)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_the_bootstrap_interval_of_normal_values_is_as_wide_as_the_normal_interval() -> None:
    rng = random.Random(0)
    values = [rng.gauss(1.0, 2.0) for _ in range(50)]
    interval = bootstrap(values)
    assert interval is not None
    half = 1.96 * statistics.stdev(values) / math.sqrt(50)  # a 99 % interval: 1.31 of it, 90 %: 0.84
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.08)
    assert (interval.high + interval.low) / 2 == pytest.approx(statistics.fmean(values), abs=0.08 * half)


@pytest.mark.parametrize("values", [[1.0] * 32, [0.0] * 2, [0.7], [1.0 - 0.2, 0.9 - 0.1]])
def test_values_without_spread_get_no_bootstrap_interval(values: list[float]) -> None:
    interval = bootstrap(values)
    assert interval is not None
    assert not interval.is_bounded
    assert str(interval) == f"{values[0]:.3f} (no interval: no spread)"


def test_the_interval_over_prompts_covers_about_95_times_in_100() -> None:
    # Prompts as a policy finds them: most nearly always right or nearly always wrong.  Taken for independent
    # completions, 64 prompts of 8 would cover 67 times in 100.
    rng, trials, covered = random.Random(0), 300, 0
    for trial in range(trials):
        chances = [rng.betavariate(0.5, 0.5) for _ in range(64)]
        right = [rng.random() < chance for chance in chances for _ in range(8)]
        interval = bootstrap(means_by_prompt(right, samples=8), seed=trial, resamples=400)
        assert interval is not None
        covered += interval.low <= 0.5 <= interval.high
    assert 0.91 <= covered / trials <= 0.985
