"""plot: a run as a picture that is also readable in grey, and as lines of text."""

import io
import math
from pathlib import Path

import pytest

import rloo_kit
from benchmarks.health_runs import file_of, read
from rloo_kit.errors import ConfigError
from rloo_kit.watch import plots
from rloo_kit.watch.statistics import Log
from tests.watch.logs import LOG, step


@pytest.fixture(scope="module")
def picture():
    """A run with a long name, three reward terms and an evaluation, with its layout computed."""
    names = ["correct_after_thought", "a_reward_with_a_name_that_is_much_too_long_to_be_shown", "short"]
    history = [step(n, kl=0.01 * n, **{f"rewards/{name}/mean": 1.0 for name in names}) for n in range(1, 31)]
    figure = plots.plot([*history, {"step": 10, "eval_reward": 0.9}])
    figure.savefig(io.BytesIO(), dpi=100)
    return figure


def test_three_panels_have_title_unit_curves_and_points(picture):
    titles = [f"{panel}, 3-step mean" for panel in ("Reward", "0-variance, cut", "Policy")]
    assert [axis.get_title(loc="left") for axis in picture.axes] == titles
    assert [axis.get_ylabel() for axis in picture.axes] == ["reward", "%", "nats per token"]
    (points,) = [line for line in picture.axes[0].lines if line.get_label() == "held out"]
    assert (list(points.get_xdata()), list(points.get_ydata())) == ([10], [0.9])
    each, mean = picture.axes[2].lines[:2]  # a long run shows steps in light and their running mean in dark
    assert list(each.get_ydata()) == [1.0 / number for number in range(1, 31)]
    assert mean.get_ydata()[0] == pytest.approx((1 + 1 / 2) / 2)
    assert mean.get_label() == "entropy  0.75 → 0.03"


@pytest.mark.parametrize(("n_steps", "marker"), [(5, "."), (31, "")])
def test_a_curve_keeps_its_dash_and_a_short_one_also_has_a_point_at_each_step(n_steps, marker):
    figure = plots.draw([step(n, **{"rewards/right/mean": 0.1}) for n in range(1, n_steps + 1)])
    drawn = [line for axis in figure.axes for line in axis.lines if line.get_linewidth() > 1]
    dashes = {"mean reward": "-", "right": "--", "zero-variance groups": "-", "truncated completions": "--"}
    dashes |= {"closed": ":", "entropy": "-", "KL to the reference": "--"}
    assert {str(line.get_label()).split("  ")[0]: line.get_linestyle() for line in drawn} == dashes
    assert {line.get_marker() for line in drawn} == {marker}


@pytest.mark.parametrize(("name", "highest"), [("quickstart seed 0.healthy", 1.0), ("length hacking.ill", math.inf)])
def test_the_band_is_two_standard_errors_to_both_sides_within_what_the_reward_can_be(name, highest):
    log = read(file_of(name))
    (band,) = plots.draw(log.entries, log.known).axes[0].collections
    (curve,) = [curve for curve in plots.curves(log.entries) if curve.label == "mean reward"]
    error, heights = 2 * log.error("reward", log[-curve.window :]), band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(min(highest, max(curve.means) + error))
    assert heights.min() == pytest.approx(min(curve.means) - error), "a reward that goes below 0 has no known ends"


def test_the_band_of_a_reward_models_scores_is_cut_nowhere():
    log = Log([step(n, reward=0.2 * n, reward_std=0.5) for n in range(1, 9)])
    (band,) = plots.draw(log.entries, log.known).axes[0].collections
    error, heights = 2 * log.error("reward", log[-1:]), band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((0.2 - error, 1.6 + error))
    assert plots.draw([{"step": n, "reward": 2.0} for n in range(1, 9)]).axes, "also where no spread is logged"


def test_what_was_found_stands_above_and_its_steps_are_shaded(picture):
    assert picture.get_suptitle() == "No symptom found"
    sick = plots.plot(read(file_of("KL explosion.ill")).entries)
    assert sick.get_suptitle().startswith("Found, shaded: KL explosion (steps ")
    assert all(axis.patches for axis in sick.axes)


def test_a_notebook_shows_it_700_pixels_wide_and_as_text_that_never_changes(picture):
    from IPython.core.formatters import DisplayFormatter
    from PIL import Image

    shown, _ = DisplayFormatter().format(picture)
    assert Image.open(io.BytesIO(shown["image/png"])).width == 700
    assert shown["text/plain"] == "<picture of a run>"  # the same for every run, for nbval


def test_no_legend_runs_into_a_title_or_out_of_the_picture(picture):
    frame = picture.bbox.padded(1)
    for axis in picture.axes:
        legend, title = axis.get_legend().get_window_extent(), axis._left_title.get_window_extent()
        assert frame.x0 <= legend.x0 <= legend.x1 <= frame.x1
        assert legend.y0 >= axis.get_window_extent().y1, "above the curves"
        assert not legend.overlaps(title)


def test_the_picture_is_saved_with_the_run_or_where_it_is_asked_for(stopped_run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    picture = Path(stopped_run.trainer.args.output_dir) / plots.PICTURE
    picture.unlink(missing_ok=True)
    figure = rloo_kit.plot(stopped_run.trainer)
    assert figure.get_suptitle().startswith("Found, shaded: truncation")
    assert picture.read_bytes().startswith(b"\x89PNG")
    plots.plot([{"step": 1, "reward": 0.5}], "~/new/other.png")
    assert (tmp_path / "new" / "other.png").is_file()


@pytest.mark.parametrize(
    ("source", "message"),
    [([{"step": 1, "reward": math.nan}], "no training step with a finite figure"), (42, "this is no run")],
)
def test_what_holds_no_step_is_refused(source, message):
    with pytest.raises(ConfigError, match=message):
        plots.plot(source)


def test_as_text_every_curve_is_a_line_from_its_first_figure_to_its_last():
    rows = str(plots.plot(LOG)).splitlines()
    assert len(rows) == 8, "the terms are two"
    assert rows[0].split() == ["mean", "reward", "0.10", "→", "1.00", "reward"]
    assert rows[3].split() == ["zero-variance", "groups", "25", "→", "25", "%"]
    assert rows[-1].split() == ["length", "21", "→", "30", "tokens"]


def labels(history):
    return [curve.label for curve in plots.curves(history)]


def test_a_curve_without_figures_is_left_out_and_trls_count_of_zero_variance_groups_is_said_to_be_that():
    for metrics, label in (
        (["kl"], "KL to the reference"),  # beta 0
        (["zero_variance_groups", "frac_reward_zero_std"], "zero-variance groups"),
        (["rewards/right/mean"], "right"),
    ):
        without = [{key: value for key, value in entry.items() if key not in metrics} for entry in LOG]
        for history in (without, [{**entry, **dict.fromkeys(metrics, math.nan)} for entry in LOG]):
            assert labels(history) == [other for other in labels(LOG) if other != label]
    stock = [{name: value for name, value in entry.items() if name != "zero_variance_groups"} for entry in LOG]
    assert "zero-variance groups, by TRL's count" in labels(stock)


@pytest.mark.parametrize(("times", "shown"), [(1.0, []), (0.8, ["right"]), (300.0, ["right / 1000"])])
def test_a_single_reward_is_not_drawn_twice_and_one_of_another_size_is_divided(times, shown):
    means = {n: {"rewards/right/mean": times * n / 10, "rewards/closed/mean": None} for n in (1, 9)}
    assert labels([step(n, **mean) for n, mean in means.items()])[1:-4] == shown


@pytest.mark.parametrize(("n_logs", "window"), [(1, 1), (19, 1), (20, 3), (210, 21)])
def test_the_running_mean_is_that_of_the_neighbours_in_a_tenth_of_the_run(n_logs, window):
    values = [math.sin(i) for i in range(n_logs)]
    curve = plots.Curve("", "", "", "", "", plots.np.arange(n_logs), plots.np.array(values))
    assert curve.window == window
    near = [values[max(0, i - window // 2) : i + window // 2 + 1] for i in range(n_logs)]
    assert list(curve.means) == pytest.approx([sum(part) / len(part) for part in near])


def test_a_line_joins_the_entries_that_have_its_figure():
    """A step with only zero-variance groups has no entropy."""
    history = [step(n) | ({"entropy": None} if n == 4 else {}) for n in range(1, 7)]
    policy = plots.plot(history).axes[-1]
    (entropy,) = [line for line in policy.lines if str(line.get_label()).startswith("entropy")]
    assert list(entropy.get_xdata()) == [1, 2, 3, 5, 6]
