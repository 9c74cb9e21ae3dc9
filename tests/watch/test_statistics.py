"""A log's weight: the completions, groups and batches that it describes, and its standard errors."""

import math
from dataclasses import replace

import pytest

from rloo_kit.watch.statistics import Known, Log
from rloo_kit.watch.symptoms import surely_above
from tests.watch.logs import chance_rewards, trl_config


def steady(known, **entry):
    return Log([{"step": step, **entry} for step in range(1, 11)], known)


def test_a_means_error_counts_how_a_batchs_prompts_differ_from_others():
    """Four completions of one prompt weigh as 4 / 1.9; the spread among them is (4 - 1.9) / 3 of the variance."""
    log = steady(Known(4, 1), reward=0.5, reward_std=0.3)
    assert log.error("reward", log) == pytest.approx(0.3 * math.sqrt(3 / 2.1) / math.sqrt(40 / 1.9))


def test_how_good_a_policy_is_depends_on_what_its_reward_can_pay_and_on_its_right_answers():
    # Four of ten completions get 5, the others 0: mean 2; TRL logs the sample's deviation.
    log = steady(Known(10, 1), reward=2.0, reward_std=5 * math.sqrt(0.4 * 0.6 * 10 / 9))
    assert log.height() == pytest.approx(0.4)
    terms = {"rewards/form/mean": 1.0, "rewards/right/mean": 0.2, "rewards/right/std": 0.41}
    log = steady(Known(32, 4), reward=0.9, **terms)
    assert log.height() == pytest.approx(0.9)
    known = replace(log.known, judges={"right": "answer", "form": "form"})
    assert replace(log, known=known).height() == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1, 1), (-1, 0), (0, 0.5)])
def test_how_good_a_policy_is_does_not_depend_on_the_two_values_of_its_reward(low, high):
    known, shares = Known(32, 4), (0.5, 0.75, 0.875)
    spread = [(high - low) * math.sqrt(share * (1 - share) * 32 / 31) for share in shares]
    entries = [
        {"step": 1, "reward": low + (high - low) * p, "reward_std": s} for p, s in zip(shares, spread, strict=True)
    ]
    assert Log(entries, known).height() == pytest.approx(17 / 24)


@pytest.mark.parametrize(
    ("entries", "groups"),
    [
        ([{"zero_variance_groups": share} for share in (0.0, 0.25, 0.5, 1.0)], 4),
        ([{"frac_reward_zero_std": 0.0417}, {"reward": 0.3}], 24),  # as rounded in files
        ([{"zero_variance_groups": 0.123456}, {"zero_variance_groups": 0.98765}], 1),  # no number fits
        ([{"step": 5 * i, "zero_variance_groups": i / 5} for i in (1, 2, 3)], 1),  # five batches per entry
    ],
)
def test_a_log_alone_tells_how_many_groups_a_step_has_at_least(entries, groups):
    known = Known.guessed([{"step": step, **entry} for step, entry in enumerate(entries)])
    assert (known.groups, known.completions) == (groups, max(8, 2 * groups))


def test_a_batch_that_several_updates_use_is_counted_once():
    config = trl_config(per_device_train_batch_size=2, gradient_accumulation_steps=4, num_generations=4)
    known = Known.of(config)
    assert (known.completions, known.groups, known.updates, known.batches) == (32, 8, 4, 1)
    assert Log([{"step": 4}, {"step": 8}], known).completions == 64
    entries = [{**entry, "step": 2 * entry["step"]} for entry in chance_rewards(0, 1, 8)]
    twice = trl_config(per_device_train_batch_size=8, generation_batch_size=8, num_iterations=2)
    log = Log(entries, Known.of(twice))
    assert (log.stride, log.completions) == (1, 800)
    assert replace(log, known=Known(8, 1)).completions == 1600


@pytest.mark.parametrize(("hits", "trials"), [(10, 10), (9, 10), (31, 40), (30, 40)])
def test_surely_above_is_the_exact_binomial_tail(hits, trials):
    tail = sum(math.comb(trials, n) for n in range(hits, trials + 1)) / 2**trials
    assert surely_above(hits / trials, trials, 0.5) == (tail < 0.00135)
