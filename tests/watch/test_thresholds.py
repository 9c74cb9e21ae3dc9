"""The figures that the thresholds' reasons quote from recorded runs."""

from benchmarks.health_runs import read
from rloo_kit.watch.log import WINDOW
from rloo_kit.watch.rules import median_norm
from tests.watch.logs import CALM


def test_thresholds_stand_as_far_from_healthy_runs_as_they_say() -> None:
    runs = [read(file) for file in CALM]
    cut = max(max(log.values("completions/clipped_ratio"), default=0.0) for log in runs)
    kl = max(max(log.values("kl"), default=0.0) for log in runs)
    assert (round(cut, 3), round(kl, 2)) == (0.125, 0.31)
    for log in runs:
        start = median_norm(log.first(WINDOW))
        for end in range(2 * WINDOW, len(log) + 1):
            now, so_far = log.first(end).last(WINDOW), log.first(end)
            assert not median_norm(now) > 5 * start
            kept = now.mean("entropy") / log.first(3).mean("entropy")
            assert not (kept < 0.5 and so_far.height() < 2 / 3)
