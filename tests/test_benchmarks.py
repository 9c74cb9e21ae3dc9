"""The benchmarks' bookkeeping: tables are those of the stored runs, and a run that misses the target is not hidden."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import learned
import pytest
import runs
import settings
import step
import tables
import time_to_accuracy
from phases import PHASES, Spent
from phases import Step as Update
from runs import Evaluated, Result, Spec
from time_to_accuracy import by_setting

Accuracies = list[tuple[int, float]]  # (step, accuracy) of each evaluation


def run_of(name: str, accuracies: Accuracies, seed: int = 0, took: float = 1, tokens: int = 100) -> Result:
    """Return a run whose steps all take the same time."""
    n, empty = accuracies[-1][0], dict.fromkeys(PHASES, Spent())
    spec = Spec(name, setting=name, seed=seed, target=0.85, steps=n, evaluate_every=3, no_ties=True)
    steps = (Update({**empty, "generate": Spent(took, 2 * took)}, tokens),) * n
    found = tuple(Evaluated(i, i * tokens, Spent(i * took, 2 * i * took), score) for i, score in accuracies)
    machine = {"device": "CPU", "cpu": "one", "threads": "1", "versions": "torch 1"}
    bytes_held = {"start_bytes": 1, "peak_bytes": 2**30}
    return Result(spec, steps, found, (0.0,) * n, (0.5,) * n, **bytes_held, load=1.0, machine=machine)


REACHES = [(0, 0.5), (3, 0.84), (6, 0.85), (9, 0.8)]
NEVER = [(0, 0.5), (3, 0.6), (6, 0.7), (9, 0.8)]


REPORTS: dict[str, Callable[[Any, str], str]] = {
    "step_real": step.report,
    **dict.fromkeys(("settings_words", "settings_sums"), settings.report),
    **dict.fromkeys(
        ("time_to_accuracy", "time_to_accuracy_words", "time_to_accuracy_words_low_rate"), time_to_accuracy.report
    ),
}
"""Name of a stored result -> the function that makes its document from the stored runs and the command."""


class TestRuns:
    def test_the_reward_is_the_quickstarts_and_counts_groups_without_spread(self):
        reward = runs.CountedReward(learned.TASKS["arithmetic"].score(None), k=2)
        texts = ["</think>42", "42", "</think>43", "</think></think>42", "</think>42", "</think>42"]
        completions = [[{"role": "assistant", "content": text}] for text in texts]
        assert reward(completions=completions, answer=["42"] * 6) == [1.0, 0.0, 0.2, 0.0, 1.0, 1.0]
        assert (reward.dead, reward.means) == ([1 / 3], [0.5333])

    @pytest.mark.parametrize("name", REPORTS)
    def test_a_stored_table_is_what_the_stored_runs_give(self, name):
        file = runs.RESULTS / f"{name}.md"
        assert REPORTS[name](runs.stored(name), tables.command_of(file)) == file.read_text()


class TestTimeToAccuracy:
    def test_between_evaluations_the_accuracy_is_linear(self):
        run = run_of("kit", [(0, 0.5), (3, 0.8), (6, 0.9), (9, 0.7)], took=4)
        at = time_to_accuracy.reached(run, 0.85)
        assert at is not None
        assert dataclasses.astuple(at) == pytest.approx((450, 18))
        assert time_to_accuracy.reached(run, 0.5) == time_to_accuracy.Reached(0, 0)
        assert time_to_accuracy.reached(run, 0.91) is None

    @pytest.mark.parametrize(
        ("stock", "kit", "ratio", "why"),
        [
            (REACHES, REACHES, 0.25, "both reach it first at step 6, and the kit's step takes a quarter"),
            (NEVER, REACHES, 6 * 1 / (9 * 4), "stock counts with its 9 steps: the true ratio is smaller"),
            (REACHES, NEVER, math.inf, "nothing bounds what the kit would have needed"),
        ],
    )
    def test_a_run_that_misses_the_target_counts_against_the_kit(self, stock, kit, ratio, why):
        runs = by_setting([run_of("stock", stock, took=4), run_of("kit", kit)])
        assert time_to_accuracy.ratios(runs, "kit", 0.85, "cpu_seconds") == [pytest.approx(ratio)], why

    @pytest.mark.parametrize(
        ("ratios", "shown"),
        [
            # The logarithms to base 2 are -3, -2, -1 with deviation 1; t with 2 degrees of freedom is 4.303.
            # So the bounds are 0.25 / x and 0.25 * x, where x = 2 ** (4.303 / 3 ** 0.5).
            ([0.125, 0.25, 0.5], "0.25 [0.04, 1.40]"),
            ([0.25] * 5, "0.25 (no interval: no spread)"),
            # The smallest and the largest of six values bound the median with probability 1 - 2 / 2 ** 6.
            ([0.1, 0.2, 0.3, 0.4, 0.5, math.inf], "median 0.35 [0.10, inf]"),
            ([0.25, math.inf, 0.5], "median 0.50 [0.00, inf]"),
        ],
    )
    def test_ratios_are_shown_by_their_geometric_mean_or_where_one_is_infinite_by_their_median(self, ratios, shown):
        assert time_to_accuracy.spelled(ratios) == shown

    def test_seeds_are_compared_one_by_one_and_those_that_only_one_setting_has_are_left_out(self):
        # Seeds differ by a factor of 3, settings by a factor of 2 on each seed.
        fast, slow = [(0, 0.5), (3, 0.9)], [(0, 0.5), (9, 0.9)]
        found = [run_of("stock", both, seed, tokens=200) for seed, both in enumerate((fast, slow, slow))]
        own = [run_of("kit", fast, 0), run_of("kit", slow, 1)]
        runs = by_setting([*found, *own])
        assert time_to_accuracy.ratios(runs, "kit", 0.85, "tokens") == pytest.approx([0.5, 0.5])
        assert time_to_accuracy.step_ratios(runs, "kit") == pytest.approx([2, 2])
        elsewhere = by_setting([*found, own[0], dataclasses.replace(own[1], machine={"cpu": "another"})])
        assert time_to_accuracy.step_ratios(elsewhere, "kit") == pytest.approx([2]), "CPU time is compared on one CPU"
