"""The exact binomial tail behind "surely"; dead groups and shares by chance have doctests."""

import math

import pytest

from rloo_kit.watch.rules import surely_above


@pytest.mark.parametrize(("hits", "trials"), [(10, 10), (9, 10), (31, 40), (30, 40), (0, 5)])
def test_surely_above_is_the_exact_binomial_tail(hits: int, trials: int) -> None:
    tail = sum(math.comb(trials, n) for n in range(hits, trials + 1)) / 2**trials
    assert surely_above(hits / trials, trials, 0.5) == (tail < 0.00135)
