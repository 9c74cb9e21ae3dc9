"""Each rule on invented logs: what it finds, what it ignores, and what chance alone triggers."""

import math

import pytest

import rloo_kit
from rloo_kit.watch.statistics import WINDOW, Known, Log, rounds
from rloo_kit.watch.symptoms import Episodes
from tests.watch import logs
from tests.watch.logs import KNOWN, chance_rewards, from_step, history, level, rising, symptoms, terms

ALL_EQUAL = {"reward_std": 0.0, "zero_variance_groups": 1.0}
CERTAIN = {"entropy": lambda step: 0.3 * 0.7**step}
LONGER = {"completions__mean_length": rising(15, 1)}
FALL = {"reward": from_step(15, 0.9, 0.0), "reward_std": None}
WORSE = {"reward": from_step(6, 0.7, 0.45), "completions__clipped_ratio": 0.6}
TRL_DEAD = {"reward": 0.05, **terms(correct=(0.05, 0.2)), "zero_variance_groups": None, "frac_reward_zero_std": 0.9}
TRL_EQUAL = {"reward": 0.0, "reward_std": 0.0, "zero_variance_groups": None, "frac_reward_zero_std": 0.0}
ALL_CUT = {"completions__clipped_ratio": 1.0}
FORM_ALONE = {"reward": 0.95, "zero_variance_groups": 1.0, **terms(format=(0.95, 0.2), answer=(0.0, 0.0))}
LATE_START = {"entropy": lambda step: None if step == 1 else 0.2 if step < 8 else 3.0}

GRADED = {"reward": rising(0.98, 0.001), **terms(shape=(rising(0.98, 0.001), 0.1), mine=(0.02, 0.1))}
ALIKE = ("zero-variance groups, completions alike", "train_dataset")

# What the log shows, the symptom, the setting to change; test_symptoms.py has recorded runs with plain cases.
FOUND = {
    "as plain TRL counts them": (TRL_DEAD, "zero-variance groups, too hard", "train_dataset"),
    "of a reward whose highest is not known": ({**GRADED, "zero_variance_groups": 0.9}, *ALIKE),
    "all is right, from the start": ({"reward": 1.0, **ALL_EQUAL}, "constant reward", "reward_funcs"),
    "the same in plain TRL under a KL term": (TRL_EQUAL, "constant reward", "reward_funcs"),
    "with all cut": ({"reward": 0.0, **ALL_EQUAL, **ALL_CUT}, "truncation", "max_completion_length"),
    "no spread logged": (FALL, "reward collapse", "learning_rate"),
    "a first step without a live group has no entropy": (LATE_START, "entropy explosion", "learning_rate"),
    "cut from the start, and worse since": (WORSE, "truncation", "max_completion_length"),
    "with all groups dead": (FORM_ALONE, "format without answers", "train_dataset"),
    "a reward": ({"reward": from_step(8, 0.4, math.inf)}, "non-finite rewards", "reward_funcs"),
    "an entropy": ({"entropy": from_step(8, 0.3, math.nan)}, "non-finite figures", "learning_rate"),
    "a gradient": ({"grad_norm": from_step(8, 1.5, math.inf)}, "non-finite figures", "learning_rate"),
}


@pytest.mark.parametrize(("columns", "symptom", "setting"), FOUND.values(), ids=FOUND)
def test_a_symptom_is_found_alone_with_its_setting(columns, symptom, setting):
    (finding,) = Episodes(Log(rounds(history(30, **columns)), KNOWN)).findings
    assert (finding.symptom, finding.setting) == (symptom, setting)


WELL = {
    "one bad step": {"reward": lambda step: 0.0 if step == 12 else 0.5 + 0.01 * step},
    "a lucky first step": {"reward": from_step(2, 0.8, 0.27)},
    "a little below zero, by chance": {"kl": -0.005},
    "below zero, but no surer than noise": {"kl": lambda step: -0.03 + 0.2 * (-1) ** step},
    "certain because it is right": {"reward": 0.95, **CERTAIN},
    "longer and better": {**LONGER, **terms(correct=(rising(0.3, 0.02), 0.45))},
    "a bonus beside the reward for answers": {
        "reward": rising(0.3, 0.015),
        **terms(accuracy_reward=(rising(0.28, 0.015), 0.45), bonus=(0.02, 0.01)),
    },
    "a fall that is over, and answers that were better": {"reward": from_step(6, 0.6, 0.4)},
    "longer, and no reward says that it judges the answer": {**LONGER, **terms(right=(0.3, 0.45))},
    "a measurement of weight 0 beside the reward": level(tokens=(300.0, 80.0), correct=(0.5, 0.5)),
    "a smaller reward that is learned already": {
        "reward": rising(1.3, 0.02),
        **terms(format=(1.0, 0.01), correct=(rising(0.3, 0.02), 0.45)),
    },
    "format and some answers": level(format=(0.95, 0.2), answer=(0.3, 0.45)),
    "form alone, not said to be judged": level(think_format=(0.95, 0.2), accuracy=(0.0, 0.0)),
    "an overflow of the loss scaler": {"grad_norm": lambda step: math.inf if step < 3 else 1.5},
    "a reward that applied to no sample": level(judge=(None, None), correct=(0.5, 0.5)),
    "rewards from -1 to 1": {"reward": rising(-0.5, 0.04), "reward_std": 0.8},
    "right or wrong as 1 or -1": level(format=(0.95, 0.2), correct=(rising(0.05, 0.01), 1.0)),
    "a reward of up to 5": {"reward": rising(2.0, 0.1), "reward_std": 2.4, "zero_variance_groups": 0.4},
}


@pytest.mark.parametrize("columns", WELL.values(), ids=WELL)
def test_nothing_is_said_where_nothing_is_wrong(columns):
    entries = history(30, **columns)
    assert symptoms(entries) == []
    assert symptoms(entries, Known()) == [], "nor where the settings are not known"


def test_a_run_whose_reward_surely_falls_is_not_told_to_raise_the_learning_rate():
    entries = history(150, reward=lambda step: 0.6 - 0.0015 * step)
    assert symptoms(entries) == []
    assert any(note.startswith("the reward fell: 0.5") for note in rloo_kit.diagnose(entries).notes)


def test_a_run_without_a_single_reward_is_read_and_one_with_some_is_read_by_those():
    none = {"reward": None, "reward_std": None, "rewards/judge/mean": None}
    entries = [{**entry, **none} for entry in history(12)[:-1]]
    (finding,) = rloo_kit.diagnose(entries).findings
    assert (finding.symptom, finding.first_step) == ("unscored completions", 1)
    assert finding.cause.startswith("judge returned None for every one")
    assert "reward" not in rloo_kit.diagnose(entries).figures
    assert symptoms(entries[:2]) == [], "too early to tell"
    later = [{**entry, "step": 12 + entry["step"]} for entry in history(12)[:-1]]
    assert rounds([*entries, *later]) == later == rounds([*later, *entries])


def test_a_reward_is_constant_where_that_is_so_since_the_start_and_of_forty_completions():
    late = {"reward": from_step(10, 0.5, 0.0), "reward_std": from_step(10, 0.45, 0.0)}
    assert "constant reward" not in symptoms(history(40, **late, zero_variance_groups=from_step(10, 0.1, 1.0)))
    never = history(20, reward=0.0, **ALL_EQUAL)
    assert symptoms(never[:4]) == []
    assert symptoms(never[:19], Known(2, 1)) == []
    assert symptoms(never[:20], Known(2, 1)) == ["constant reward"]
    assert symptoms(history(20, reward=lambda step: step % 2, **ALL_EQUAL)) != ["constant reward"]


def test_a_long_run_that_is_level_because_it_is_good_has_not_failed_to_learn():
    assert symptoms(history(130, reward=from_step(2 * WINDOW + 1, 0.3, 0.75))) == [], "learned early"
    assert symptoms(history(130, reward=from_step(2 * WINDOW + 1, 0.3, 0.5))) == [], "half of it"
    assert symptoms(history(130, reward=from_step(126, 0.85, 0.6))) == [], "a little less good of late"


@pytest.mark.parametrize(("fp16", "overflows"), [(False, 3), (True, 17)])
def test_an_fp16_run_may_look_for_its_loss_scale(fp16, overflows):
    known = Known(completions=32, groups=4, args=logs.trl_config(fp16=fp16))
    assert "non-finite figures" not in symptoms(history(overflows - 1, grad_norm=math.nan), known)
    assert "non-finite figures" in symptoms(history(overflows, grad_norm=math.nan), known)


def test_clip_ratios_of_a_second_pass_over_a_batch_are_read_though_it_logs_no_reward():
    again = {"clip_ratio/region_mean": 0.6, "grad_norm": 1.0}
    scored = [{**entry, "step": 2 * entry["step"]} for entry in history(10)[:-1]]
    both = [part for entry in scored for part in (entry, {**again, "step": entry["step"] + 1})]
    assert symptoms(both) == ["learning rate too high, ratios clipped"]
    assert symptoms(scored) == []


def test_a_collapse_at_the_first_update_is_seen_against_the_only_entry_before_it():
    assert "reward collapse" in symptoms(history(8, reward=from_step(2, 0.7, 0.05), reward_std=0.4))


@pytest.mark.parametrize(("prompts", "k"), [(4, 2), (2, 4), (1, 8), (4, 8)])
def test_chance_alone_is_called_a_collapse_or_zero_variance_groups_in_one_run_of_100(prompts, k):
    known = Known(prompts * k, prompts)
    runs = [symptoms(chance_rewards(seed, prompts, k), known) for seed in range(20)]
    false = [names for names in runs if set(names) - {"nothing learned"}]
    # A rule that errs in one run of 100 errs in two or more of 20 runs with probability 1.7 %.
    assert len(false) <= 1, false


def test_what_a_step_is_worth_counts_the_generation_batches_that_it_gathers():
    """TRL logs the spread within each batch, without the difference between batches: here nearly all of it."""
    one = chance_rewards(0, 1, 2, steps=120, ends=0.05)
    gathered = [{**entry, "step": step} for step, entry in enumerate(logs.averaged(one, 4), 1)]
    of_two = dict.fromkeys(("per_device_train_batch_size", "generation_batch_size", "num_generations"), 2)
    known = Known.of(logs.trl_config(**of_two, gradient_accumulation_steps=4))
    assert known.batches == 4
    assert "high variance" not in symptoms(gathered, known)
    assert "high variance" in symptoms(one, Known(2, 1))


@pytest.mark.parametrize(
    ("k", "share", "right", "cause"),
    [
        (2, 0.65, 0.5, None),  # with two completions so many are alike by chance
        (8, 0.75, 0.5, "completions alike"),
        (2, 0.9, 0.5, "completions alike"),
        (2, 0.7, 0.7, None),  # also by chance, since most are right
        (2, 1.0, 0.95, "too easy"),
    ],
)
def test_zero_variance_groups_count_against_chance(k, share, right, cause):
    entries = history(40, reward=right, reward_std=0.45, zero_variance_groups=share)
    assert symptoms(entries, Known(8 * k, 8)) == ([f"zero-variance groups, {cause}"] if cause else [])
