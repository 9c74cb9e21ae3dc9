"""health: each symptom on made-up logs and on real runs, each mend, and silence on healthy runs."""

from __future__ import annotations

import json
import math
import random
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trl

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.watch import health
from rloo_kit.watch.log import ALIKE, WINDOW, Known, Log, rounds
from rloo_kit.watch.symptoms import SYMPTOMS, median_norm, surely_above
from tests.conftest import ROOT

RECORDED = ROOT / "tests" / "data" / "health"
TIMED = ROOT / "benchmarks" / "results" / "time_to_accuracy.json"
HEALTHY: dict[str, Any] = {
    "reward": lambda step: min(0.9, 0.3 + 0.02 * step),
    "reward_std": 0.45,
    "dead_groups": 0.1,
    "frac_reward_zero_std": 0.1,
    "kl": lambda step: 0.002 * step,
    "entropy": lambda step: max(0.1, 0.3 - 0.005 * step),
    "grad_norm": 1.5,
    "learning_rate": 1e-3,
    "completions/mean_length": lambda step: 15.0 + min(5.0, 0.3 * step),
    "completions/max_length": 32.0,
    "completions/clipped_ratio": 0.03,
    "clip_ratio/region_mean": 0.0,
}


def history(steps: int = 30, **columns: Any) -> list[dict[str, Any]]:
    """A healthy run's log with some metrics replaced: by a number or by a function of the step.

    ``x__y`` stands for ``x/y``; a little noise is laid over the reward, the same one each time.
    """
    columns = {**HEALTHY, **{name.replace("__", "/"): value for name, value in columns.items()}}
    noise = random.Random(0)
    entries = []
    for step in range(1, steps + 1):
        entry = {name: value(step) if callable(value) else value for name, value in columns.items()}
        if entry["reward"] is not None and entry["reward_std"]:
            entry["reward"] += noise.gauss(0, 0.05)
        entries.append({"step": step, **{name: value for name, value in entry.items() if value is not None}})
    return [*entries, {"step": steps, "train_runtime": 1.0}]


def terms(**functions: tuple[Any, Any]) -> dict[str, Any]:
    """Columns of reward functions: ``terms(right=(mean, spread))``."""
    pairs = [(f"rewards__{name}", *both) for name, both in functions.items()]
    return {f"{name}__mean": mean for name, mean, _ in pairs} | {
        f"{name}__std": std for name, _, std in pairs
    }


def symptoms(entries: list[dict[str, Any]], known: Known | None = None) -> list[str]:
    log = Log(rounds(entries), known or Known(completions=32, groups=4))
    return [finding.symptom for finding in health.watched(log).episodes]


def trl_config(**changed: Any) -> SimpleNamespace:
    """What a log is read with, of a config: 32 completions of 4 prompts in one pass, unless changed."""
    values = {
        "per_device_train_batch_size": 32,
        "world_size": 1,
        "gradient_accumulation_steps": 1,
        "generation_batch_size": 32,
        "num_generations": 8,
        "reward_weights": None,
    }
    return SimpleNamespace(**{**values, **changed})


@pytest.mark.parametrize(
    ("fp16", "overflows", "ill"),
    [(False, 2, False), (False, 3, True), (True, 16, False), (True, 17, True)],
)
def test_an_fp16_run_may_look_for_its_loss_scale(fp16: bool, overflows: int, ill: bool) -> None:
    entries = history(overflows, grad_norm=math.nan)
    known = Known(completions=32, groups=4, args=trl_config(fp16=fp16))
    assert ("non-finite figures" in symptoms(entries, known)) is ill


def from_step(first: int, before: float, after: float) -> Any:
    return lambda step: before if step < first else after


SICK: dict[str, tuple[dict[str, Any], str, str]] = {
    # name: what the log shows, the symptom, the setting to change first
    "all wrong": (
        {"reward": 0.0, "reward_std": 0.0, "dead_groups": 1.0},
        "dead groups, too hard",
        "train_dataset",
    ),
    "all right": (
        {"reward": 1.0, "reward_std": 0.0, "dead_groups": 1.0},
        "dead groups, too easy",
        "train_dataset",
    ),
    "paid for form alone, in one reward": (
        {"reward": 0.2, "reward_std": 0.0, "dead_groups": 1.0},
        "dead groups, too hard",
        "train_dataset",
    ),
    "right or wrong together": (
        {"reward": 0.5, "reward_std": 0.5, "dead_groups": 0.9},
        "dead groups, completions alike",
        "num_generations",
    ),
    "plain TRL counts dead groups under its own name": (
        {"reward": 0.0, "reward_std": 0.0, "dead_groups": None, "frac_reward_zero_std": 1.0},
        "dead groups, too hard",
        "train_dataset",
    ),
    "the reward falls for good": (
        {"reward": from_step(15, 0.7, 0.1)},
        "reward collapse",
        "learning_rate",
    ),
    "the mean of a step moves more than its completions": (
        {"reward": lambda step: 0.5 + 0.4 * (-1) ** step, "reward_std": 0.2},
        "high variance",
        "gradient_accumulation_steps",
    ),
    "the policy leaves the reference": (
        {"kl": from_step(10, 0.05, 3.0)},
        "KL explosion",
        "learning_rate",
    ),
    "k1 below zero": (
        {"kl": -0.1},
        "KL negative",
        "use_vllm",
    ),
    "certain before it is good": (
        {"reward": 0.3, "entropy": lambda step: 0.3 * 0.7**step},
        "entropy collapse",
        "learning_rate",
    ),
    "every token alike": (
        {"entropy": from_step(5, 0.2, 11.9)},
        "entropy explosion",
        "learning_rate",
    ),
    "longer, better paid, not better": (
        {"completions__mean_length": lambda step: 15 + step, **terms(correct=(0.3, 0.45))},
        "length hacking",
        "reward_weights",
    ),
    "characters beside a yes or no": (
        {"reward": 20.5, "reward_std": 9.0, **terms(characters=(20.0, 9.0), correct=(0.5, 0.5))},
        "drowned reward",
        "reward_weights",
    ),
    "cut": (
        {"completions__clipped_ratio": 0.5},
        "truncation",
        "max_completion_length",
    ),
    "cut since the policy got worse": (
        {"reward": from_step(6, 0.7, 0.45), "completions__clipped_ratio": from_step(6, 0.0, 0.6)},
        "truncation, policy worsened",
        "learning_rate",
    ),
    "cut from the start, and worse since": (
        {"reward": from_step(6, 0.7, 0.45), "completions__clipped_ratio": 0.6},
        "truncation",
        "max_completion_length",
    ),
    "form without content": (
        {"reward": 0.95, "reward_std": 0.2, **terms(format=(0.95, 0.2), answer=(0.0, 0.0))},
        "format without answers",
        "train_dataset",
    ),
    "half of the ratios clipped": (
        {"clip_ratio__region_mean": 0.5},
        "learning rate too high, ratios clipped",
        "learning_rate",
    ),
    "the gradient grows and the reward does not": (
        {"reward": 0.4, "grad_norm": lambda step: 1.5 * 1.2**step},
        "learning rate too high, gradient grows",
        "learning_rate",
    ),
    "flat for long": (
        {"reward": 0.4},
        "nothing learned",
        "learning_rate",
    ),
    "an infinite reward": (
        {"reward": from_step(8, 0.4, math.inf)},
        "non-finite figures",
        "reward_funcs",
    ),
    "an entropy that is no number": (
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


@pytest.mark.parametrize("name", SICK)
def test_a_symptom_is_found_with_its_figures_and_the_setting_to_change_first(name: str) -> None:
    columns, symptom, setting = SICK[name]
    entries = history(130 if symptom == "nothing learned" else 30, **columns)
    log = Log(rounds(entries), Known(completions=32, groups=4))
    found = health.watched(log).episodes
    assert [(one.symptom, one.setting) for one in found] == [(symptom, setting)]
    assert any(digit in found[0].evidence for digit in "0123456789")
    assert (
        f"step {found[0].first_step}" in found[0].evidence or f"s {found[0].first_step}-" in found[0].evidence
    )
    assert "\n" not in str(found[0])


WELL: dict[str, dict[str, Any]] = {
    "a healthy run": {},
    "one dead step": {"dead_groups": lambda step: 1.0 if step == 12 else 0.1},
    "a quarter dead": {"dead_groups": 0.25},
    "one bad step": {"reward": lambda step: 0.0 if step == 12 else 0.5 + 0.01 * step},
    "a low reward that rises": {"reward": lambda step: 0.02 * step},
    "kl at a tenth of a nat": {"kl": 0.1},
    "a little below zero, by chance": {"kl": -0.005},
    "certain because it is right": {"reward": 0.95, "entropy": lambda step: 0.3 * 0.7**step},
    "longer and better": {
        "completions__mean_length": lambda step: 15 + step,
        **terms(correct=(lambda step: 0.3 + 0.02 * step, 0.45)),
    },
    "longer, and nothing says which reward is for being right": {
        "completions__mean_length": lambda step: 15 + step,
        **terms(style=(0.3, 0.45)),
    },
    "a measurement of weight 0 beside the reward": {
        "completions__mean_length": 16.0,
        **terms(tokens=(300.0, 80.0), correct=(0.5, 0.5)),
    },
    "a smaller reward that is learned already": {
        "reward": lambda step: 1.0 + 0.3 + 0.02 * step,
        **terms(format=(1.0, 0.01), correct=(lambda step: 0.3 + 0.02 * step, 0.45)),
    },
    "one completion in ten cut": {"completions__clipped_ratio": 0.1},
    "format and some answers": {
        "completions__mean_length": 16.0,
        **terms(format=(0.95, 0.2), answer=(0.3, 0.45)),
    },
    "an overflow of the loss scaler": {"grad_norm": lambda step: math.inf if step < 3 else 1.5},
    "a reward that applied to no sample": {
        "completions__mean_length": 16.0,
        **terms(judge=(None, None), correct=(0.5, 0.5)),
    },
    "a fifth of the ratios clipped": {"clip_ratio__region_mean": 0.2},
    "a gradient that grows with the reward": {"grad_norm": lambda step: 1.5 * 1.2**step},
    "rewards from -1 to 1": {"reward": lambda step: -0.5 + 0.04 * step, "reward_std": 0.8},
    "right or wrong as 1 or -1, beside a format": {
        "completions__mean_length": 16.0,
        **terms(format=(0.95, 0.2), correct=(lambda step: -0.1 + 0.01 * step, 1.0)),
    },
    "the same, a little more right than wrong": {
        "completions__mean_length": 16.0,
        **terms(format=(0.95, 0.2), correct=(lambda step: 0.05 + 0.01 * step, 1.0)),
    },
    "below zero, but no surer than noise": {"kl": lambda step: -0.03 + 0.2 * (-1) ** step},
    "a reward of up to 5": {
        "reward": lambda step: 2.0 + 0.1 * step,
        "reward_std": 2.4,
        "dead_groups": 0.7,
    },
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


def test_a_long_run_that_stays_where_it_was_has_learned_nothing() -> None:
    assert symptoms(history(130, reward=0.3)) == ["nothing learned"]


def test_entropy_is_watched_where_the_first_step_has_none() -> None:
    """All its groups were dead, and without a KL term nothing was then run through the policy."""
    entropy = {"entropy": lambda step: None if step == 1 else 0.2 if step < 8 else 3.0}
    assert "entropy explosion" in symptoms(history(12, **entropy))


def test_a_collapse_is_seen_where_no_spread_is_logged() -> None:
    fallen = {"reward": from_step(15, 0.9, 0.0), "reward_std": None}
    assert "reward collapse" in symptoms(history(30, **fallen))


def test_a_means_error_counts_how_a_batchs_prompts_differ_from_others() -> None:
    """Four completions of one prompt weigh as 4 / 1.9; the spread among them is (4 - 1.9) / 3 of the variance."""
    log = Log([{"step": step, "reward": 0.5, "reward_std": 0.3} for step in range(1, 11)], Known(4, 1))
    assert log.error("reward", log) == pytest.approx(0.3 * math.sqrt(3 / 2.1) / math.sqrt(40 / 1.9))


def test_how_good_a_policy_is_is_told_by_the_most_that_its_reward_pays() -> None:
    """0 or 5 to 4 of 10: mean 2; TRL's deviation is the sample's."""
    spread = 5 * math.sqrt(0.4 * 0.6 * 10 / 9)
    log = Log([{"step": step, "reward": 2.0, "reward_std": spread} for step in range(1, 11)], Known(10, 1))
    assert log.height() == pytest.approx(0.4)


def test_a_log_of_means_over_several_steps_has_no_more_groups_than_its_batches() -> None:
    shares = [0.2, 0.4, 0.6]
    one = [{"step": step, "dead_groups": share} for step, share in enumerate(shares, 1)]
    of_five = [{"step": 5 * step, "dead_groups": share} for step, share in enumerate(shares, 1)]
    assert (Known.guessed(one).groups, Known.guessed(of_five).groups) == (5, 1)


def test_a_loss_of_zero_means_nothing() -> None:
    assert symptoms(history(30, loss=0.0)) == []


def test_what_a_wrecked_policy_brings_along_is_not_named_beside_its_cause() -> None:
    entries = history(
        12,
        reward=from_step(4, 0.6, 0.0),
        reward_std=from_step(4, 0.45, 0.0),
        kl=from_step(4, 0.01, 8.0),
        dead_groups=from_step(4, 0.0, 1.0),
        completions__clipped_ratio=from_step(4, 0.0, 1.0),
    )
    found = symptoms(entries)
    assert found[0] == "KL explosion"
    assert not {"truncation", "dead groups, too hard"} & set(found)


def test_clip_ratios_of_a_second_pass_over_a_batch_are_read_though_it_logs_no_reward() -> None:
    scored = history(10)[:-1]
    both = []
    for entry in scored:
        again = {"step": 2 * entry["step"], "clip_ratio/region_mean": 0.6, "grad_norm": 1.0}
        both += [{**entry, "step": 2 * entry["step"] - 1}, again]
    assert symptoms(both) == ["learning rate too high, ratios clipped"]
    assert symptoms(scored) == []


# --- what chance alone does -------------------------------------------------------------------------------


def chance_rewards(
    seed: int, prompts: int, k: int, steps: int = 100, ends: float = 1.0
) -> list[dict[str, Any]]:
    """The log of a policy that learns nothing: each prompt has a chance of its own, 0.35 on average, to be solved,
    nearer to 0 or 1 the smaller ``ends``."""
    rng = random.Random(seed)
    size = ends * (1 / ALIKE - 1)
    entries = []
    for step in range(1, steps + 1):
        chances = [rng.betavariate(0.35 * size, 0.65 * size) for _ in range(prompts)]
        groups = [[float(rng.random() < chance) for _ in range(k)] for chance in chances]
        scores = [score for group in groups for score in group]
        dead = sum(len(set(group)) == 1 for group in groups) / prompts
        figures = {
            "reward": statistics.mean(scores),
            "reward_std": statistics.stdev(scores),
            "dead_groups": dead,
        }
        entries.append({"step": step, **figures})
    return entries


@pytest.mark.parametrize(("prompts", "k"), [(4, 2), (2, 4), (1, 8), (4, 8)])
def test_chance_alone_is_called_a_collapse_or_dead_groups_in_no_more_than_one_run_of_100(
    prompts: int, k: int
) -> None:
    known = Known(prompts * k, prompts, (1.0,))
    found = [symptoms(chance_rewards(seed, prompts, k), known) for seed in range(20)]
    false = [names for names in found if set(names) - {"nothing learned"}]
    # A rule that errs in one run of 100 does so twice or more in 20 runs with a chance of 1.7 %.
    assert len(false) <= 1, false


def test_two_of_a_step_are_too_few_and_eight_are_enough() -> None:
    few, enough = (symptoms(chance_rewards(0, 1, k), Known(k, 1)) for k in (2, 8))
    assert "high variance" in few
    assert "high variance" not in enough


def test_what_a_step_is_worth_counts_the_generation_batches_that_it_gathers() -> None:
    """TRL logs the spread within each of them, which leaves out how they differ: here nearly all of it."""
    one = chance_rewards(0, 1, 2, steps=400, ends=0.05)
    gathered = [
        {
            "step": step,
            "reward": statistics.mean(entry["reward"] for entry in four),
            "reward_std": statistics.mean(entry["reward_std"] for entry in four),
        }
        for step, four in enumerate(zip(*[iter(one)] * 4, strict=True), 1)
    ]
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
    steps = chance_rewards(1, 1, 2, steps=400)
    logged = [
        {
            "step": b["step"],
            **{name: (a[name] + b[name]) / 2 for name in ("reward", "reward_std", "dead_groups")},
        }
        for a, b in zip(steps[::2], steps[1::2], strict=True)
    ]
    assert "high variance" in symptoms(steps, Known(2, 1))
    assert "high variance" not in symptoms(logged, Known(2, 1))


def test_a_batch_that_several_updates_use_is_counted_once() -> None:
    config = trl_config(per_device_train_batch_size=2, gradient_accumulation_steps=4, num_generations=4)
    known = Known.of(config)
    assert (known.completions, known.groups, known.updates, known.batches) == (32, 8, 4, 1)
    assert Log([{"step": 4}, {"step": 8}], known).completions == 64


def test_a_second_pass_over_a_batch_is_no_further_batch() -> None:
    entries = [{**entry, "step": 2 * entry["step"]} for entry in chance_rewards(0, 1, 8)]
    twice = trl_config(per_device_train_batch_size=8, generation_batch_size=8, num_iterations=2)
    log = Log(entries, Known.of(twice))
    assert (log.stride, log.completions) == (1, 800)
    assert replace(log, known=Known(8, 1)).completions == 1600


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


def test_a_low_temperature_is_changed_before_more_completions_are_paid_for() -> None:
    entries = history(30, reward=0.5, reward_std=0.5, dead_groups=0.9)
    for temperature, setting in ((0.2, "temperature"), (1.0, "num_generations")):
        known = Known(32, 4, args=SimpleNamespace(temperature=temperature, num_generations=8))
        (found,) = health.watched(Log(rounds(entries), known)).episodes
        assert found.setting == setting


def test_a_collapse_at_the_first_update_is_seen_against_the_only_entry_before_it() -> None:
    assert "reward collapse" in symptoms(history(8, reward=from_step(2, 0.7, 0.05), reward_std=0.4))


def test_a_log_alone_tells_how_many_groups_a_step_has_at_least() -> None:
    shares = [{"dead_groups": share} for share in (0.0, 0.25, 0.5, 1.0)]
    assert (Known.guessed(shares).groups, Known.guessed(shares).completions) == (4, 8)
    assert Known.guessed([{"frac_reward_zero_std": 0.0417}, {"reward": 0.3}]).groups == 24, (
        "as rounded in a file"
    )
    assert Known.guessed([{"reward": 0.3}]) == Known()
    assert Known.guessed([{"dead_groups": 0.123456}, {"dead_groups": 0.98765}]) == Known(), "no number fits"


@pytest.mark.parametrize(("hits", "trials"), [(10, 10), (9, 10), (31, 40), (30, 40), (0, 5)])
def test_surely_above_is_the_exact_binomial_tail(hits: int, trials: int) -> None:
    tail = sum(math.comb(trials, n) for n in range(hits, trials + 1)) / 2**trials
    assert surely_above(hits / trials, trials, 0.5) == (tail < 0.00135)


# --- episodes ---------------------------------------------------------------------------------------------


def test_an_episode_lasts_while_the_symptom_does_and_a_new_one_begins_after_a_pause() -> None:
    cut = [*[0.0] * 5, *[0.6] * 10, *[0.0] * 20, *[0.6] * 10]
    entries = history(len(cut), completions__clipped_ratio=lambda step: cut[step - 1])
    log = Log(rounds(entries), Known(completions=32, groups=4))
    first, second = health.watched(log).episodes
    assert first.symptom == second.symptom == "truncation"
    assert 6 <= first.last_step < second.first_step + WINDOW
    assert first.last_step >= 15
    assert second.last_step == len(cut)


def test_a_symptom_that_flickers_is_one_episode() -> None:
    entries = history(40, completions__clipped_ratio=lambda step: 0.0 if step % 10 == 0 else 0.5)
    assert symptoms(entries) == ["truncation"]


# --- the callback -----------------------------------------------------------------------------------------


def play(entries: list[dict[str, Any]], callback: Any, main: bool = True) -> Any:
    """Give a log to a callback as a Trainer does, entry by entry, until it stops the run."""
    args = trl_config()
    state = SimpleNamespace(log_history=[], is_world_process_zero=main)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_train_begin(args, state, control)
    for entry in entries:
        state.log_history.append(entry)
        callback.on_log(args, state, control, logs=entry)
        if control.should_training_stop:
            break
    return SimpleNamespace(state=state, control=control)


def test_it_speaks_once_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    play(history(20, completions__clipped_ratio=0.6), health.HealthCallback())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(
        "unhealthy: truncation: 60% of the completions cut at 32 tokens (steps 1-3). Likely: "
    )
    assert "Change first: max_completion_length" in lines[0]


def test_it_says_nothing_about_a_healthy_run(capfd: pytest.CaptureFixture[str]) -> None:
    play(history(30), health.HealthCallback())
    assert capfd.readouterr() == ("", "")


def test_only_the_main_process_prints_and_every_process_stops(capsys: pytest.CaptureFixture[str]) -> None:
    ran = play(history(20, completions__clipped_ratio=0.6), health.HealthCallback("stop"), main=False)
    assert capsys.readouterr().out == ""
    assert ran.control.should_training_stop


def test_stop_ends_the_run_at_the_step_and_saves_it() -> None:
    ran = play(history(20, completions__clipped_ratio=0.6), health.HealthCallback("stop"))
    assert ran.control.should_save
    assert ran.state.log_history[-1]["step"] == 3


def test_stop_saves_no_weights_that_are_not_finite() -> None:
    ran = play(history(20, entropy=from_step(8, 0.3, math.nan)), health.HealthCallback("stop"))
    assert ran.control.should_training_stop
    assert not ran.control.should_save


def test_a_callable_gets_the_finding_in_place_of_the_print(capsys: pytest.CaptureFixture[str]) -> None:
    found: list[health.Finding] = []
    play(history(20, completions__clipped_ratio=0.6), health.HealthCallback(found.append))
    assert [one.setting for one in found] == ["max_completion_length"]
    assert capsys.readouterr().out == ""


def test_a_resumed_run_does_not_say_again_what_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    entries = history(20, completions__clipped_ratio=0.6)
    args = trl_config()
    state = SimpleNamespace(log_history=entries[:10], is_world_process_zero=True)
    callback = health.HealthCallback()
    callback.on_train_begin(args, state, None)
    state.log_history = entries[:11]
    callback.on_log(args, state, None, logs=entries[10])
    assert capsys.readouterr().out == ""


def test_another_value_of_on_unhealthy_is_refused() -> None:
    with pytest.raises(ConfigError, match="on_unhealthy"):
        health.HealthCallback("shout")


# --- diagnose ---------------------------------------------------------------------------------------------


def test_a_healthy_report_says_so_with_figures() -> None:
    report = rloo_kit.diagnose(history(30))
    assert report.healthy
    assert str(report).startswith("healthy: nothing found, steps 1 to 30")
    assert "reward " in str(report)
    assert report.figures["completions/clipped_ratio"] == (0.03, 0.03)


def test_a_report_has_each_episode_with_cause_and_setting() -> None:
    text = str(rloo_kit.diagnose(history(30, completions__clipped_ratio=0.6)))
    assert text.startswith("1 finding, steps 1 to 30\n  truncation, steps 1 to 30")
    for label in ("evidence", "likely cause", "change first"):
        assert label in text


def test_a_notebook_shows_the_report_as_text() -> None:
    from IPython.core.formatters import DisplayFormatter

    shown, _ = DisplayFormatter().format(rloo_kit.diagnose(history(10)))
    assert shown["text/plain"].startswith("healthy")


def test_a_trainer_a_folder_and_a_state_file_give_the_same_findings(tmp_path: Path) -> None:
    entries = history(20, completions__clipped_ratio=0.6)
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": entries}))
    reports = [rloo_kit.diagnose(source) for source in (entries, tmp_path, tmp_path / "trainer_state.json")]
    assert len(set(map(str, reports))) == 1


def test_a_log_without_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="no training step to diagnose"):
        rloo_kit.diagnose([{"train_runtime": 1.0}])


def test_what_is_seen_live_is_what_is_reported_afterwards() -> None:
    seen: list[health.Finding] = []
    entries = history(40, completions__clipped_ratio=from_step(20, 0.0, 0.7), kl=from_step(30, 0.0, 4.0))
    play(entries, health.HealthCallback(seen.append))
    log = Log(rounds(entries), Known(32, 4))
    assert [one.symptom for one in seen] == [one.symptom for one in health.watched(log).episodes]


# --- real runs, recorded by benchmarks/health_runs.py -----------------------------------------------------

WORDS = {"level": "train_dataset", "operands": "train_dataset", "stale_sampler": "use_vllm"}
"""What the recorded runs call a setting that stands under another name in the trainer."""


def file_of(symptom: str, kind: str) -> Path:
    return RECORDED / f"{symptom.replace(', ', ' ').replace(' ', '_')}.{kind}.json"


PAIRS = [name for name in SYMPTOMS if file_of(name, "ill").exists()]
CALM = sorted([*RECORDED.glob("*.mended.json"), *RECORDED.glob("*.healthy.json")])


def recorded(file: Path) -> Log:
    """A recorded run's log, with what a trainer would know of it."""
    run = json.loads(file.read_text())
    config = SimpleNamespace(
        **{"world_size": 1, "generation_batch_size": None, "reward_weights": None, **run["config"]}
    )
    return Log(rounds(run["log_history"]), Known.of(config))


@pytest.mark.parametrize("symptom", PAIRS)
def test_a_run_that_has_a_symptom_is_diagnosed_with_it_and_its_mend_is_clear(symptom: str) -> None:
    ill, mended = file_of(symptom, "ill"), file_of(symptom, "mended")
    found = {finding.symptom: finding for finding in health.watched(recorded(ill)).episodes}
    assert symptom in found
    assert [str(finding) for finding in health.watched(recorded(mended)).episodes] == []
    assert changed(ill, mended) == {found[symptom].setting}, "the mend is what was named first, and no more"


@pytest.mark.parametrize(
    ("symptom", "said", "factor"),
    [
        ("nothing learned", "ten times as much", 10),
        ("reward collapse", "a tenth of it", 1 / 10),
        ("learning rate too high, ratios clipped", "a tenth of it", 1 / 10),
        ("learning rate too high, gradient grows", "a tenth of it", 1 / 10),
        ("entropy collapse", "a third of it", 1 / 3),
    ],
)
def test_what_is_said_of_the_learning_rate_is_what_mended_the_run(
    symptom: str, said: str, factor: float
) -> None:
    files = file_of(symptom, "ill"), file_of(symptom, "mended")
    ill, mended = (json.loads(file.read_text())["config"]["learning_rate"] for file in files)
    found = {finding.symptom: finding for finding in health.watched(recorded(files[0])).episodes}
    assert found[symptom].change.startswith(said)
    assert mended == pytest.approx(factor * ill, rel=0.11)


def changed(ill: Path, mended: Path) -> set[str]:
    """The settings in which two runs differ."""
    one, other = (json.loads(file.read_text())["config"] for file in (ill, mended))
    return {WORDS.get(name, name) for name in {*one, *other} if one.get(name) != other.get(name)}


def timed_runs() -> list[Log]:
    """Runs of benchmarks/time_to_accuracy.py, stock TRL's and the kit's: what was kept of them is reward and dead
    groups."""
    logs = []
    for run in json.loads(TIMED.read_text()):
        columns = zip(run["rewards"], run["dead"], strict=True)
        entries = [{"step": i, "reward": r, "dead_groups": dead} for i, (r, dead) in enumerate(columns, 1)]
        logs.append(Log(entries, Known(completions=32, groups=4)))
    return logs


def test_thresholds_stand_as_far_from_healthy_runs_as_they_say() -> None:
    runs = [recorded(file) for file in CALM]
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


def test_healthy_and_mended_runs_give_no_false_alarm() -> None:
    """Whether their settings are known, or their log alone."""
    logs = [*map(recorded, CALM), *timed_runs()]
    alarms = [
        str(finding)
        for log in logs
        for either in (log, replace(log, known=Known.guessed(log.entries)))
        for finding in health.watched(either).episodes
    ]
    assert len(logs) >= 10
    assert alarms == [], f"{len(alarms)} false alarms in {len(logs)} runs"


def test_a_recorded_run_says_what_made_it() -> None:
    for file in RECORDED.glob("*.json"):
        assert json.loads(file.read_text())["made_by"].startswith(("benchmarks/", "notebooks/")), file.name


# --- live runs --------------------------------------------------------------------------------------------


def right(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
    return [
        float(rloo_kit.tasks.answer_of(completion) == gold)
        for completion, gold in zip(completions, answer, strict=True)
    ]


def test_a_run_whose_completions_are_cut_stops_with_a_checkpoint_and_a_longer_limit_mends_it(
    make_trainer: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trainer = make_trainer(max_completion_length=4, max_steps=6, on_unhealthy="stop")
    trainer.train()
    stopped = trainer.state.global_step
    assert 3 <= stopped < 6
    assert (tmp_path / "run" / f"checkpoint-{stopped}" / "adapter_model.safetensors").is_file()
    assert "unhealthy: truncation" in capsys.readouterr().out
    assert [one.symptom for one in rloo_kit.diagnose(trainer).findings] == ["truncation"]

    trainer = make_trainer(max_completion_length=32, max_steps=4, on_unhealthy="stop")
    trainer.train()
    assert trainer.state.global_step == 4
    assert rloo_kit.diagnose(trainer).healthy


def test_a_task_out_of_reach_has_dead_groups_and_an_easier_one_mends_it(
    fresh_policy: Any, make_trainer: Any
) -> None:
    settings = {
        "reward_funcs": right,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 24,
        "max_steps": 5,
    }
    found = []
    for level in (3, 1):
        task = rloo_kit.tasks.arithmetic(level, n_train=64, n_held_out=8)
        trainer = make_trainer(model=fresh_policy, train_dataset=task.train, **settings)
        trainer.train()
        found.append([one.symptom for one in rloo_kit.diagnose(trainer).findings])
    assert found == [["dead groups, too hard"], []]


def test_an_infinite_reward_in_plain_trl_is_found_and_a_bounded_one_is_not(
    fresh_policy: Any, task: Any, tmp_path: Path
) -> None:
    """The kit's own trainer refuses it before it reaches a weight."""

    def logarithm(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
        return [math.log(score) if score else -math.inf for score in right(completions, answer)]

    def bounded(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
        return [max(score, -10.0) for score in logarithm(completions, answer)]

    found = []
    for reward in (logarithm, bounded):
        seen: list[health.Finding] = []
        trainer = trl.RLOOTrainer(
            model=rloo_kit.load_policy("tiny", seed=0).model,
            processing_class=fresh_policy.tokenizer,
            reward_funcs=reward,
            args=trl.RLOOConfig(
                output_dir=str(tmp_path),
                num_generations=2,
                per_device_train_batch_size=4,
                max_completion_length=8,
                max_steps=1,
                logging_steps=1,
                save_strategy="no",
                bf16=False,
                disable_tqdm=True,
            ),
            train_dataset=task.train,
            callbacks=[health.HealthCallback(seen.append)],
        )
        trainer.train()
        found.append([one.symptom for one in seen])
    assert found == [["non-finite figures"], []]


LIVE = {
    "truncation": test_a_run_whose_completions_are_cut_stops_with_a_checkpoint_and_a_longer_limit_mends_it,
    "dead groups, too hard": test_a_task_out_of_reach_has_dead_groups_and_an_easier_one_mends_it,
    "non-finite figures": test_an_infinite_reward_in_plain_trl_is_found_and_a_bounded_one_is_not,
}
"""Symptoms that a test above provokes and mends."""


def test_every_symptom_has_a_run_that_shows_it_and_its_mend() -> None:
    assert set(SYMPTOMS) == {*PAIRS, *LIVE}
    assert not set(PAIRS) & set(LIVE)
