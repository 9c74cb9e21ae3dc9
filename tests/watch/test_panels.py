"""Which panels a log has, and what their curves are."""

import math

import pytest

from rloo_kit.watch.log import Entry
from rloo_kit.watch.panels import Panel, panels, running_mean, window_of
from tests.watch.logs import LOG, TITLES, step


def without(*metrics: str) -> list[Entry]:
    return [{key: value for key, value in entry.items() if key not in metrics} for entry in LOG]


def titles(history: list[Entry]) -> list[str]:
    return [panel.title for panel in panels(history)]


def panel_of(history: list[Entry], title: str) -> Panel:
    return next(panel for panel in panels(history) if panel.title.startswith(title))


def test_a_run_has_seven_panels_with_their_units_and_shares_in_per_cent() -> None:
    assert titles(LOG) == TITLES
    units = "reward/mean, unweighted/% of groups/nats per token/nats per token/tokens/% of completions"
    assert [panel.unit for panel in panels(LOG)] == units.split("/")
    assert set(panel_of(LOG, "Dead").curves[0].values) == {25.0}
    assert set(panel_of(LOG, "Cut").curves[0].values) == {5.0}


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        (["kl"], "KL to the reference"),  # beta 0
        (["completions/mean_length"], "Length, grey: shortest to longest"),
        (["dead_groups", "frac_reward_zero_std"], "Dead groups: all K rewards equal"),
        (["rewards/right/mean", "rewards/closed/mean"], "Reward terms"),
    ],
)
def test_a_panel_whose_metric_is_missing_or_never_finite_is_left_out(missing: list[str], gone: str) -> None:
    for history in (without(*missing), [{**entry, **dict.fromkeys(missing, math.nan)} for entry in LOG]):
        assert titles(history) == [title for title in TITLES if title != gone]


def test_a_log_of_plain_trl_shows_the_groups_that_trl_counts_and_one_of_rewards_has_their_panel() -> None:
    assert titles(without("dead_groups"))[2] == "Dead groups, as TRL counts them"
    assert titles([{"step": 1, "reward": 0.5}]) == ["Reward"]


@pytest.mark.parametrize(("weighted", "drawn"), [(1.0, False), (0.8, True)])
def test_a_single_reward_that_is_the_reward_itself_is_not_drawn_twice(weighted: float, drawn: bool) -> None:
    log = without("rewards/closed/mean")[:-1]
    history = [{**entry, "rewards/right/mean": entry["reward"] / weighted} for entry in log]
    assert ("Reward terms" in titles(history)) == drawn


def test_a_term_of_another_size_has_a_panel_of_its_own() -> None:
    sizes = {"right": 0.5, "never": 0.0, "closed": 1.0, "tokens": 300.0, "characters": 900.0}
    terms = {f"rewards/{name}/mean": size for name, size in sizes.items()}
    found = [panel for panel in panels([step(1, **terms)]) if panel.title.startswith("Reward terms")]
    small, large = ([curve.label for curve in panel.curves] for panel in found)
    assert (small, large) == (["never", "right", "closed"], ["tokens", "characters"])
    assert found[1].title == "Reward terms, larger ones"


def test_the_reward_has_its_spread_and_the_held_out_rewards_of_a_run_that_evaluates() -> None:
    history = [*LOG, {"step": 5, "eval_reward": 0.7}, {"step": 10, "eval_reward": 0.9}]
    panel = panel_of(history, "Reward")
    assert panel.curves[0].values == pytest.approx([number / 10 for number in range(1, 11)])
    assert panel.band is not None
    assert (panel.band[0].values[0], panel.band[1].values[-1]) == pytest.approx((0.0, 1.1))
    assert panel.points is not None
    assert (panel.points.steps, panel.points.values) == ((5, 10), (0.7, 0.9))


def test_a_step_without_a_finite_figure_leaves_a_gap() -> None:
    history = [step(1), step(2, entropy=math.inf), step(3, entropy=None), step(4, entropy=1.0)]
    curve = panel_of(history, "Entropy").curves[0]
    assert [math.isnan(value) for value in curve.values] == [False, True, True, False]


def test_the_running_mean_is_that_of_a_loop_over_finite_neighbours_in_a_tenth_of_the_run() -> None:
    for n_logs, window in ((1, 1), (19, 1), (20, 3), (100, 11), (1000, 101)):
        assert window_of(n_logs) == window, n_logs
    values = [math.nan if i % 7 == 3 else math.sin(i) for i in range(200)]
    for index, mean in enumerate(running_mean(values, 21)):
        near = [v for v in values[max(0, index - 10) : index + 11] if not math.isnan(v)]
        assert math.isnan(mean) if math.isnan(values[index]) else mean == pytest.approx(sum(near) / len(near))
