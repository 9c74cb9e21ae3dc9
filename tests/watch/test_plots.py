"""plot: a run as a picture that reads in grey too, and as lines of text."""

import io
import math
from pathlib import Path
from typing import Any

import pytest

from rloo_kit.errors import ConfigError
from rloo_kit.watch import plots
from tests.watch.logs import LOG, step

TITLES = ["Reward", "Lost samples", "Policy"]


@pytest.fixture(scope="module")
def picture() -> Any:
    """A run with a long name, three terms and an evaluation, its layout settled."""
    names = ["correct_after_thought", "a_reward_with_a_name_that_is_much_too_long_to_be_shown", "short"]
    history = [step(n, **{f"rewards/{name}/mean": 1.0 for name in names}) for n in range(1, 31)]
    figure = plots.plot([*history, {"step": 10, "eval_reward": 0.9}])
    figure.savefig(io.BytesIO(), dpi=100)
    return figure


def test_three_panels_have_title_unit_curves_and_points(picture: Any) -> None:
    assert [axis.get_title(loc="left") for axis in picture.axes] == TITLES
    assert [axis.get_ylabel() for axis in picture.axes] == ["reward", "%", "nats per token"]
    assert picture.axes[-1].get_xlabel() == "step"
    assert len(picture.axes[0].collections) == 1, "the spread, in grey"
    (points,) = [line for line in picture.axes[0].lines if line.get_label() == "held out"]
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([10], [0.9])
    each, mean = picture.axes[2].lines[:2]  # a long run has its steps light and their running mean dark
    assert list(each.get_ydata()) == [1.0 / number for number in range(1, 31)]
    assert mean.get_ydata()[0] == pytest.approx((1 + 1 / 2) / 2)
    picture.axes[0].set_xlim(5, 6)
    assert picture.axes[-1].get_xlim() == (5, 6), "they share their steps"
    picture.axes[0].set_xlim(1, 30)


def test_the_band_is_one_deviation_to_both_sides() -> None:
    (band,) = plots.draw(LOG).axes[0].collections
    heights = band.get_paths()[0].vertices
    assert (heights[:, 1].min(), heights[:, 1].max()) == pytest.approx((0.0, 1.1))


def test_a_reward_has_one_colour_and_dash_in_every_figure() -> None:
    def looks(*names: str) -> dict[str, Any]:
        figure = plots.draw([step(n, **{f"rewards/{name}/mean": n / 9 for name in names}) for n in (1, 2)])
        lines = {line.get_label(): line for line in figure.axes[0].lines}
        return {name: (lines[name].get_color(), lines[name].get_linestyle()) for name in names}

    first, again = looks("brief", "polite", "exact"), looks("exact", "sound", "brief")
    assert (again["exact"], again["brief"]) == (first["exact"], first["brief"])
    assert again["sound"] not in first.values()
    assert len(set(first.values())) == 3


def test_a_notebook_shows_it_700_pixels_wide_and_as_text_that_never_changes(picture: Any) -> None:
    from IPython.core.formatters import DisplayFormatter
    from PIL import Image

    shown, _ = DisplayFormatter().format(picture)
    assert Image.open(io.BytesIO(shown["image/png"])).width == 700
    assert shown["text/plain"] == "<picture of a run>"  # as any other run's, for nbval


def test_no_legend_runs_into_a_title_or_out_of_the_picture(picture: Any) -> None:
    frame = picture.bbox.padded(1)
    for axis in picture.axes:
        legend, title = axis.get_legend().get_window_extent(), axis._left_title.get_window_extent()
        assert frame.x0 <= legend.x0 <= legend.x1 <= frame.x1
        assert legend.y0 >= axis.get_window_extent().y1, "above the curves"
        assert not legend.overlaps(title)


def test_the_picture_is_saved_with_the_run_or_where_it_is_asked_for(stopped_run: Any, tmp_path: Path) -> None:
    folder = Path(stopped_run.trainer.args.output_dir)
    (folder / plots.PICTURE).unlink(missing_ok=True)
    figure = plots.plot(folder)
    assert {axis.get_title(loc="left") for axis in figure.axes} <= {*TITLES}
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
    assert len(rows) == 8, "the terms are two"
    assert rows[0].split() == ["mean", "reward", "0.100", "->", "1.000", "reward"]
    assert rows[-1].split() == ["length", "21", "->", "30", "tokens"]
    assert str(plots.plot(LOG)).splitlines() == rows


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        (["kl"], "KL to the reference"),  # beta 0
        (["dead_groups", "frac_reward_zero_std"], "dead groups: all K rewards equal"),
        (["rewards/right/mean"], "right"),
    ],
)
def test_a_curve_whose_metric_is_missing_or_never_finite_is_left_out(missing: list[str], gone: str) -> None:
    everything = labels(LOG)
    without = [{key: value for key, value in entry.items() if key not in missing} for entry in LOG]
    for history in (without, [{**entry, **dict.fromkeys(missing, math.nan)} for entry in LOG]):
        assert labels(history) == [label for label in everything if label != gone]
    assert labels([step(1, dead_groups=None)]) == labels([step(1)][:1])[:3] + labels([step(1)])[4:]


def labels(history: list[dict[str, Any]]) -> list[str]:
    return [curve.label for panel in plots.panels(history) for curve in panel.curves]


@pytest.mark.parametrize(("weighted", "drawn"), [(1.0, False), (0.8, True)])
def test_a_single_reward_that_is_the_reward_itself_is_not_drawn_twice(weighted: float, drawn: bool) -> None:
    history = [
        step(n, **{"rewards/right/mean": n / 10 / weighted, "rewards/closed/mean": None}) for n in (1, 2)
    ]
    assert ("right" in labels(history)) == drawn


def test_a_term_of_another_size_is_divided_so_that_all_can_be_read() -> None:
    tokens = plots.panels([step(1, **{"rewards/tokens/mean": 300.0})])[0].curves[-1]
    assert (tokens.label, [*tokens.values]) == ("tokens / 1000", [0.3])


def test_the_running_mean_is_that_of_a_loop_over_finite_neighbours_in_a_tenth_of_the_run() -> None:
    for n_logs, window in ((1, 1), (19, 1), (20, 3), (100, 11), (1000, 101)):
        assert plots.window_of(n_logs) == window, n_logs
    values = [math.nan if i % 7 == 3 else math.sin(i) for i in range(200)]
    for index, mean in enumerate(plots.running_mean(plots.np.array(values), 21)):
        near = [v for v in values[max(0, index - 10) : index + 11] if not math.isnan(v)]
        assert math.isnan(mean) if math.isnan(values[index]) else mean == pytest.approx(sum(near) / len(near))
