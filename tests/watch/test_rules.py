"""Each rule on made-up logs: what it finds, what it leaves alone, and what chance alone does."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rloo_kit.watch.health import episodes
from rloo_kit.watch.log import WINDOW, Known, Log, rounds
from tests.watch.logs import KNOWN, averaged, chance_rewards, from_step, history, symptoms, terms, trl_config

ALL_DEAD = {"reward_std": 0.0, "dead_groups": 1.0}
CERTAIN = {"entropy": lambda step: 0.3 * 0.7**step}
LONGER = {"completions__mean_length": lambda step: 15 + step}
STEADY = {"completions__mean_length": 16.0}
STEEPER = {"grad_norm": lambda step: 1.5 * 1.2**step}

FOUND: dict[str, tuple[dict[str, Any], str, str]] = {
    # what the log shows, the symptom, the setting to change; plain cases of each are recorded runs: test_symptoms.py
    "paid for form alone, in one reward": (
        {"reward": 0.2, **ALL_DEAD},
        "dead groups, too hard",
        "train_dataset",
    ),
    "plain TRL counts dead groups under its own name": (
        {"reward": 0.0, "reward_std": 0.0, "dead_groups": None, "frac_reward_zero_std": 1.0},
        "dead groups, too hard",
        "train_dataset",
    ),
    "a fall with no spread logged": (
        {"reward": from_step(15, 0.9, 0.0), "reward_std": None},
        "reward collapse",
        "learning_rate",
    ),
    "the first step has no live group, and so no entropy": (
        {"entropy": lambda step: None if step == 1 else 0.2 if step < 8 else 3.0},
        "entropy explosion",
        "learning_rate",
    ),
    "cut from the start, and worse since": (
        {"reward": from_step(6, 0.7, 0.45), "completions__clipped_ratio": 0.6},
        "truncation",
        "max_completion_length",
    ),
    "form without content, with all groups dead": (
        {"reward": 0.95, **ALL_DEAD, **terms(format=(0.95, 0.2), answer=(0.0, 0.0))},
        "format without answers",
        "train_dataset",
    ),
    "an infinite reward": ({"reward": from_step(8, 0.4, math.inf)}, "non-finite figures", "reward_funcs"),
    "an entropy that is NaN": (
        {"entropy": from_step(8, 0.3, math.nan)},
        "non-finite figures",
        "learning_rate",
    ),
    "a gradient that stays infinite": (
        {"grad_norm": from_step(8, 1.5, math.inf)},
        "non-finite figures",
        "learning_rate",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_symptom_is_found_alone_with_the_setting_to_change_first(name: str) -> None:
    columns, symptom, setting = FOUND[name]
    (found,) = episodes(Log(rounds(history(30, **columns)), KNOWN)).found
    assert (found.symptom, found.setting) == (symptom, setting)


WELL: dict[str, dict[str, Any]] = {
    "a healthy run": {"loss": 0.0},
    "one dead step": {"dead_groups": lambda step: 1.0 if step == 12 else 0.1},
    "a quarter dead": {"dead_groups": 0.25},
    "one bad step": {"reward": lambda step: 0.0 if step == 12 else 0.5 + 0.01 * step},
    "a low reward that rises": {"reward": lambda step: 0.02 * step},
    "kl at a tenth of a nat": {"kl": 0.1},
    "a little below zero, by chance": {"kl": -0.005},
    "below zero, but no surer than noise": {"kl": lambda step: -0.03 + 0.2 * (-1) ** step},
    "certain because it is right": {"reward": 0.95, **CERTAIN},
    "longer and better": {**LONGER, **terms(correct=(lambda step: 0.3 + 0.02 * step, 0.45))},
    "longer, and no reward says that it judges the answer": {**LONGER, **terms(right=(0.3, 0.45))},
    "a measurement of weight 0 beside the reward": {
        **STEADY,
        **terms(tokens=(300.0, 80.0), correct=(0.5, 0.5)),
    },
    "a smaller reward that is learned already": {
        "reward": lambda step: 1.0 + 0.3 + 0.02 * step,
        **terms(format=(1.0, 0.01), correct=(lambda step: 0.3 + 0.02 * step, 0.45)),
    },
    "one completion in ten cut": {"completions__clipped_ratio": 0.1},
    "format and some answers": {**STEADY, **terms(format=(0.95, 0.2), answer=(0.3, 0.45))},
    "form alone, and no reward says which it judges": {
        **STEADY,
        **terms(think_format=(0.95, 0.2), accuracy=(0.0, 0.0)),
    },
    "an overflow of the loss scaler": {"grad_norm": lambda step: math.inf if step < 3 else 1.5},
    "a reward that applied to no sample": {**STEADY, **terms(judge=(None, None), correct=(0.5, 0.5))},
    "a fifth of the ratios clipped": {"clip_ratio__region_mean": 0.2},
    "a gradient that grows with the reward": STEEPER,
    "rewards from -1 to 1": {"reward": lambda step: -0.5 + 0.04 * step, "reward_std": 0.8},
    "right or wrong as 1 or -1, beside a format": {
        **STEADY,
        **terms(format=(0.95, 0.2), correct=(lambda step: -0.1 + 0.01 * step, 1.0)),
    },
    "the same, a little more right than wrong": {
        **STEADY,
        **terms(format=(0.95, 0.2), correct=(lambda step: 0.05 + 0.01 * step, 1.0)),
    },
    "a reward of up to 5": {"reward": lambda step: 2.0 + 0.1 * step, "reward_std": 2.4, "dead_groups": 0.7},
}


@pytest.mark.parametrize("name", WELL)
def test_nothing_is_said_where_nothing_is_wrong(name: str) -> None:
    entries = history(30, **WELL[name])
    assert symptoms(entries) == []
    assert symptoms(entries, Known()) == [], "nor where the settings are not known"


@pytest.mark.parametrize(
    ("reward", "why"),
    [
        (lambda step: 0.3 if step <= WINDOW else 0.6, "learned early, and level since"),
        (lambda step: 0.85 if step <= 125 else 0.6, "good from the start, and a little less so of late"),
    ],
)
def test_a_long_run_that_is_level_because_it_is_good_has_not_failed_to_learn(reward: Any, why: str) -> None:
    assert symptoms(history(130, reward=reward)) == [], why


@pytest.mark.parametrize(
    ("fp16", "overflows", "ill"), [(False, 2, False), (False, 3, True), (True, 16, False), (True, 17, True)]
)
def test_an_fp16_run_may_look_for_its_loss_scale(fp16: bool, overflows: int, ill: bool) -> None:
    entries = history(overflows, grad_norm=math.nan)
    known = Known(completions=32, groups=4, args=trl_config(fp16=fp16))
    assert ("non-finite figures" in symptoms(entries, known)) is ill


def test_clip_ratios_of_a_second_pass_over_a_batch_are_read_though_it_logs_no_reward() -> None:
    scored = history(10)[:-1]
    both = []
    for entry in scored:
        again = {"step": 2 * entry["step"], "clip_ratio/region_mean": 0.6, "grad_norm": 1.0}
        both += [{**entry, "step": 2 * entry["step"] - 1}, again]
    assert symptoms(both) == ["learning rate too high, ratios clipped"]
    assert symptoms(scored) == []


def test_a_collapse_at_the_first_update_is_seen_against_the_only_entry_before_it() -> None:
    assert "reward collapse" in symptoms(history(8, reward=from_step(2, 0.7, 0.05), reward_std=0.4))


def test_less_is_advised_of_the_reward_that_judges_length() -> None:
    entries = history(30, **LONGER, **terms(correct=(0.3, 0.45), characters=(0.2, 0.2)))
    known = Known(32, 4, judges={"correct": "answer", "characters": "length"})
    (found,) = episodes(Log(rounds(entries), known)).found
    assert found.change.startswith("more on correct and less on characters, or")


@pytest.mark.parametrize(("prompts", "k"), [(4, 2), (2, 4), (1, 8), (4, 8)])
def test_chance_alone_is_called_a_collapse_or_dead_groups_in_no_more_than_one_run_of_100(
    prompts: int, k: int
) -> None:
    known = Known(prompts * k, prompts, (1.0,))
    found = [symptoms(chance_rewards(seed, prompts, k), known) for seed in range(20)]
    false = [names for names in found if set(names) - {"nothing learned"}]
    # A rule that errs in one run of 100 does so twice or more in 20 runs with a chance of 1.7 %.
    assert len(false) <= 1, false


def test_two_completions_a_step_are_too_few_and_eight_are_enough() -> None:
    few, enough = (symptoms(chance_rewards(0, 1, k), Known(k, 1)) for k in (2, 8))
    assert "high variance" in few
    assert "high variance" not in enough


def test_what_a_step_is_worth_counts_the_generation_batches_that_it_gathers() -> None:
    """TRL logs the spread within each of them, which leaves out how they differ: here nearly all of it."""
    one = chance_rewards(0, 1, 2, steps=120, ends=0.05)
    gathered = [{**entry, "step": step} for step, entry in enumerate(averaged(one, 4), 1)]
    config = trl_config(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        generation_batch_size=2,
        num_generations=2,
    )
    assert Known.of(config).batches == 4
    assert "high variance" not in symptoms(gathered, Known.of(config))
    assert "high variance" in symptoms(one, Known(2, 1))


def test_nothing_is_said_of_a_steps_worth_where_an_entry_is_the_mean_of_several() -> None:
    """transformers averages over ``logging_steps``, and the spread of single steps cannot be had from that."""
    steps = chance_rewards(1, 1, 2)
    assert "high variance" in symptoms(steps, Known(2, 1))
    assert "high variance" not in symptoms(averaged(steps, 2), Known(2, 1))


@pytest.mark.parametrize(
    ("k", "share", "right", "found"),
    [
        (2, 0.65, 0.5, []),  # of two completions so many are alike by chance
        (8, 0.75, 0.5, ["dead groups, completions alike"]),
        (2, 0.75, 0.5, []),
        (2, 0.9, 0.5, ["dead groups, completions alike"]),
        (2, 0.7, 0.7, []),
        (2, 1.0, 0.95, ["dead groups, too easy"]),
    ],
)
def test_dead_groups_count_against_what_so_many_completions_lead_to_expect(
    k: int, share: float, right: float, found: list[str]
) -> None:
    entries = history(40, reward=right, reward_std=0.45, dead_groups=share)
    assert symptoms(entries, Known(8 * k, 8)) == found


@pytest.mark.parametrize(("temperature", "setting"), [(0.2, "temperature"), (1.0, "num_generations")])
def test_a_low_temperature_is_raised_before_more_completions_are_paid_for(
    temperature: float, setting: str
) -> None:
    entries = history(30, reward=0.5, reward_std=0.5, dead_groups=0.9)
    known = Known(32, 4, args=trl_config(temperature=temperature))
    (found,) = episodes(Log(rounds(entries), known)).found
    assert found.setting == setting
