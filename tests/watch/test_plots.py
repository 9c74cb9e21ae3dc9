"""plot: a run as a picture that reads in grey too, and as lines of text."""

import io
import math
from pathlib import Path
from typing import Any

import pytest

from rloo_kit.errors import ConfigError
from rloo_kit.watch import plots
from rloo_kit.watch.log import Entry
from tests.watch.logs import LOG, TITLES, step


@pytest.fixture(scope="module")
def picture() -> Any:
    """A run with a long name, three terms and an evaluation, its layout settled."""
    names = ["correct_after_thought", "a_reward_with_a_name_that_is_much_too_long_to_be_shown", "short"]
    history = [step(n, **{f"rewards/{name}/mean": 1.0 for name in names}) for n in range(1, 31)]
    figure = plots.plot([*history, {"step": 10, "eval_reward": 0.9}])
    figure.savefig(io.BytesIO(), dpi=100)
    return figure


def test_each_panel_has_its_title_unit_curves_and_points(picture: Any) -> None:
    assert [axis.get_title(loc="left") for axis in picture.axes] == TITLES
    assert [axis.get_ylabel() for axis in picture.axes][-2:] == ["tokens", "% of completions"]
    assert all(axis.get_xlabel() == "step" for axis in picture.axes)
    reward = picture.axes[0]
    assert len(reward.collections) == 1, "the spread, in grey"
    (points,) = [line for line in reward.lines if line.get_label() == "held out"]
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([10], [0.9])
    # A long run has its steps light and their running mean dark.
    each, mean = picture.axes[TITLES.index("Entropy of the policy")].lines
    assert (each.get_color(), mean.get_color()) == ("0.62", "black")
    assert list(each.get_ydata()) == [1.0 / number for number in range(1, 31)]
    assert mean.get_ydata()[0] == pytest.approx((1 + 1 / 2) / 2)


def test_the_panels_of_a_run_share_their_steps_and_end_at_the_last_one(picture: Any) -> None:
    assert {axis.get_xlim() for axis in picture.axes} == {(1.0, 30.0)}
    resumed = [step(n) for n in (11, 12)] + [step(13, kl=None), {"step": 14, "eval_reward": 0.5}]
    assert {axis.get_xlim() for axis in plots.draw(resumed).axes} == {(11.0, 14.0)}
    picture.axes[0].set_xlim(5, 6)
    assert picture.axes[-1].get_xlim() == (5, 6), "also where one is zoomed"
    picture.axes[0].set_xlim(1, 30)


def test_a_figure_between_two_that_are_missing_is_seen() -> None:
    gone = {"entropy": None, "reward_std": None, "rewards/right/mean": None}
    figure = plots.draw([step(n, **(gone if n in (2, 4, 5) else {})) for n in range(1, 8)])
    titled = {axis.get_title(loc="left"): axis for axis in figure.axes}
    for title, place in (("Entropy of the policy", 0), ("Reward terms", 0)):
        line = titled[title].lines[place]
        assert line.get_marker() != "None"
        assert list(line.get_markevery()) == [0, 2], "the others have a line"
    assert titled["KL to the reference"].lines[0].get_marker() == "None"
    band = titled["Reward"].collections[1]
    assert [list(segment[:, 0]) for segment in band.get_segments()] == [[1, 1], [3, 3]]


def test_a_reward_has_one_colour_dash_and_mark_in_every_figure() -> None:
    def looks(*names: str) -> dict[str, Any]:
        figure = plots.draw([step(n, **{f"rewards/{name}/mean": n / 9 for name in names}) for n in (1, 2)])
        lines = {line.get_label(): line for line in figure.axes[1].lines}
        return {n: (lines[n].get_color(), lines[n].get_linestyle(), lines[n].get_marker()) for n in names}

    first = looks("brief", "polite", "exact")
    again = looks("exact", "sound", "brief")
    assert (again["exact"], again["brief"]) == (first["exact"], first["brief"])
    assert again["sound"] not in first.values()
    assert len(set(first.values())) == 3


def test_a_notebook_shows_it_700_pixels_wide_and_as_text_that_never_changes(picture: Any) -> None:
    from IPython.core.formatters import DisplayFormatter
    from PIL import Image

    shown, _ = DisplayFormatter().format(picture)
    assert Image.open(io.BytesIO(shown["image/png"])).width == 700
    assert shown["text/plain"] == "<picture of a run>"  # as any other run's, for nbval


def test_no_text_of_a_panel_runs_into_another_or_out_of_the_picture(picture: Any) -> None:
    texts = [text for axis in picture.axes for text in _texts(axis)]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    frame = picture.bbox.padded(1)
    assert "a_reward_wit…g_to_be_shown" in [name for name, _ in boxes]
    for index, (name, box) in enumerate(boxes):
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1, name
        assert [other for other, there in boxes[:index] if box.overlaps(there)] == [], name
    legends = [(axis, axis.get_legend()) for axis in picture.axes if axis.get_legend()]
    assert len(legends) == 2
    assert all(one.get_window_extent().y0 >= axis.get_window_extent().y1 for axis, one in legends), "above"


def _texts(axis: Any) -> list[Any]:
    """What is shown: labels, title, legend, and the ticks within the limits."""
    found = [axis.xaxis.label, axis.yaxis.label, axis._left_title]
    sides = ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim()))
    for place, (side, (least, most)) in enumerate(sides):
        found += [one for one in side.get_ticklabels() if least <= one.get_position()[place] <= most]
    legend = axis.get_legend()
    return [text for text in [*found, *(legend.get_texts() if legend else [])] if text.get_text()]


def test_the_picture_is_saved_with_the_run_or_where_it_is_asked_for(stopped_run: Any, tmp_path: Path) -> None:
    folder = Path(stopped_run.trainer.args.output_dir)
    (folder / plots.PICTURE).unlink(missing_ok=True)
    figure = plots.plot(folder)
    assert "KL to the reference" not in [axis.get_title(loc="left") for axis in figure.axes], "beta is 0"
    assert (folder / plots.PICTURE).read_bytes().startswith(b"\x89PNG")
    plots.plot([{"step": 1, "reward": 0.5}], tmp_path / "new" / "other.png")
    assert (tmp_path / "new" / "other.png").is_file()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([{"train_runtime": 1.0}], "no training step"),
        ([{"step": 1, "reward": math.nan}], "no training step with a finite figure"),
        (42, "this is no run"),
    ],
)
def test_what_holds_no_step_is_refused(source: Any, message: str) -> None:
    for look in (plots.plot, plots.as_text):
        with pytest.raises(ConfigError, match=message):
            look(source)


def test_as_text_every_curve_is_a_line_from_its_first_figure_to_its_last() -> None:
    rows = plots.as_text(LOG).splitlines()
    assert len(rows) == 9, "the terms are two, and the reward has its spread"
    assert rows[0].split() == ["mean", "reward", "0.100", "->", "1.000", "reward"]
    assert rows[-1].split() == ["cut", "5", "->", "5", "%", "of", "completions"]
    assert str(plots.plot(LOG)).splitlines() == rows


# --- what is shown --------------------------------------------------------------------------------


def without(*metrics: str) -> list[Entry]:
    return [{key: value for key, value in entry.items() if key not in metrics} for entry in LOG]


def titles(history: list[Entry]) -> list[str]:
    return [panel.title for panel in plots.panels(history)]


def panel_of(history: list[Entry], title: str) -> plots.Panel:
    return next(panel for panel in plots.panels(history) if panel.title.startswith(title))


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


@pytest.mark.parametrize(("weighted", "drawn"), [(1.0, False), (0.8, True)])
def test_a_single_reward_that_is_the_reward_itself_is_not_drawn_twice(weighted: float, drawn: bool) -> None:
    log = without("rewards/closed/mean")[:-1]
    history = [{**entry, "rewards/right/mean": entry["reward"] / weighted} for entry in log]
    assert ("Reward terms" in titles(history)) == drawn


def test_a_term_of_another_size_has_a_panel_of_its_own() -> None:
    sizes = {"right": 0.5, "never": 0.0, "closed": 1.0, "tokens": 300.0, "characters": 900.0}
    terms = {f"rewards/{name}/mean": size for name, size in sizes.items()}
    found = [panel for panel in plots.panels([step(1, **terms)]) if panel.title.startswith("Reward terms")]
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
    assert (panel.points.steps, [*panel.points.values]) == ([5, 10], [0.7, 0.9])


def test_a_step_without_a_finite_figure_leaves_a_gap() -> None:
    history = [step(1), step(2, entropy=math.inf), step(3, entropy=None), step(4, entropy=1.0)]
    curve = panel_of(history, "Entropy").curves[0]
    assert [math.isnan(value) for value in curve.values] == [False, True, True, False]


def test_the_running_mean_is_that_of_a_loop_over_finite_neighbours_in_a_tenth_of_the_run() -> None:
    for n_logs, window in ((1, 1), (19, 1), (20, 3), (100, 11), (1000, 101)):
        assert plots.window_of(n_logs) == window, n_logs
    values = [math.nan if i % 7 == 3 else math.sin(i) for i in range(200)]
    for index, mean in enumerate(plots.running_mean(values, 21)):
        near = [v for v in values[max(0, index - 10) : index + 11] if not math.isnan(v)]
        assert math.isnan(mean) if math.isnan(values[index]) else mean == pytest.approx(sum(near) / len(near))


def test_no_two_of_the_first_styles_are_alike_in_grey(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "_given", {})
    given = [plots.style_of(f"reward {n}") for n in range(len(plots.DASHES) * len(plots.MARKS))]
    assert len({(one.dash, one.mark, one.marked) for one in given[:8]}) == 8
    assert plots.style_of("reward 2") is given[2]
