"""pass@k: the share of prompts that k completions would solve, against enumeration."""

import itertools
import statistics

import pytest

from rloo_kit.errors import ConfigError
from rloo_kit.evaluation.evaluate import Evaluation


def found(samples: int, correct: tuple[bool | None, ...]) -> Evaluation:
    return Evaluation(None, None, {}, 1.0, 0.0, (), (), samples=samples, correct=correct)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_it_is_the_share_of_all_draws_of_k_that_hold_a_right_one(k: int) -> None:
    prompts = ((True, False, False, False), (False,) * 4, (True, True, False, True))
    drawn = [statistics.fmean(any(some) for some in itertools.combinations(one, k)) for one in prompts]
    assert found(4, sum(prompts, ())).pass_at(k).value == pytest.approx(statistics.fmean(drawn))


def test_its_interval_is_over_prompts() -> None:
    interval = found(2, (True, False, False, False, True, True) * 20).pass_at(2)
    assert interval.low < 2 / 3 < interval.high
    assert interval.high - interval.low == pytest.approx(4 * (2 / 9 / 60) ** 0.5, rel=0.15)


@pytest.mark.parametrize(
    ("samples", "correct", "k"), [(4, (True,) * 4, 5), (4, (True,) * 4, 0), (2, (True, None), 1)]
)
def test_more_completions_than_there_are_or_ungraded_ones_are_refused(
    samples: int, correct: tuple[bool | None, ...], k: int
) -> None:
    with pytest.raises(ConfigError, match="pass@k needs k graded completions"):
        found(samples, correct).pass_at(k)
