"""plot and LivePlot: a run as a picture and as text, afterwards and while it trains."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.watch import live, plots
from rloo_kit.watch.run_folder import read_history
from tests.conftest import CLEAN_ENVIRONMENT


def step(number: int, **more: Any) -> dict[str, Any]:
    """A step as the kit's trainer logs it with a KL term and two rewards."""
    return {
        "step": number,
        "reward": number / 10,
        "reward_std": 0.1,
        "rewards/right/mean": number / 20,
        "rewards/closed/mean": 0.5,
        "dead_groups": 0.25,
        "frac_reward_zero_std": 0.0,
        "kl": -0.001 * number,
        "entropy": 1.0 / number,
        "completions/mean_length": 20.0 + number,
        "completions/min_length": 3.0,
        "completions/max_length": 32.0,
        "completions/clipped_ratio": 0.05,
        **more,
    }


LOG = [step(number) for number in range(1, 11)] + [{"step": 10, "train_runtime": 1.0}]
TITLES = [
    "Reward",
    "Reward terms",
    "Dead groups: all K rewards equal",
    "KL to the reference",
    "Entropy of the policy",
    "Length, grey: shortest to longest",
    "Cut at the length limit",
]


def without(*metrics: str) -> list[dict[str, Any]]:
    return [{key: value for key, value in entry.items() if key not in metrics} for entry in LOG]


def titles(history: Any) -> list[str]:
    return [axis.get_title(loc="left") for axis in plots.plot(history).axes]


# --- which panels -----------------------------------------------------------------------------------------


def test_a_run_is_one_figure_of_seven_panels() -> None:
    assert titles(LOG) == TITLES


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        (["kl"], "KL to the reference"),  # beta 0
        (["entropy"], "Entropy of the policy"),
        (["completions/clipped_ratio"], "Cut at the length limit"),
        (["completions/mean_length"], "Length, grey: shortest to longest"),
        (["dead_groups", "frac_reward_zero_std"], "Dead groups: all K rewards equal"),
        (["rewards/right/mean", "rewards/closed/mean"], "Reward terms"),
    ],
)
def test_a_panel_whose_metric_is_missing_is_left_out_not_drawn_empty(missing: list[str], gone: str) -> None:
    assert titles(without(*missing)) == [title for title in TITLES if title != gone]


def test_a_metric_that_is_never_finite_counts_as_missing() -> None:
    history = [{**entry, "kl": math.nan, "entropy": None} for entry in LOG]
    assert titles(history) == [title for title in TITLES if not title.startswith(("KL", "Entropy"))]


def test_a_log_of_plain_trl_shows_the_groups_that_trl_counts_and_says_so() -> None:
    assert titles(without("dead_groups"))[2] == "Dead groups, as TRL counts them"


@pytest.mark.parametrize(("weighted", "drawn"), [(1.0, False), (0.8, True)])
def test_a_single_reward_that_is_the_reward_itself_is_not_drawn_twice(weighted: float, drawn: bool) -> None:
    history = [
        {**entry, "rewards/right/mean": entry["reward"] / weighted} if "reward" in entry else entry
        for entry in without("rewards/closed/mean")
    ]
    assert ("Reward terms" in titles(history)) == drawn


def test_a_term_of_another_size_has_a_panel_of_its_own() -> None:
    sizes = {"right": 0.5, "never": 0.0, "closed": 1.0, "tokens": 300.0, "characters": 900.0}
    terms = {f"rewards/{name}/mean": size for name, size in sizes.items()}
    found = plots.panels([step(number, **terms) for number in range(1, 4)])
    groups = {
        p.title: [curve.label for curve in p.curves] for p in found if p.title.startswith("Reward terms")
    }
    assert groups == {
        "Reward terms": ["never", "right", "closed"],
        "Reward terms, larger ones": ["tokens", "characters"],
    }


def test_a_log_of_rewards_alone_is_drawn() -> None:
    assert titles([{"step": 1, "reward": 0.5}]) == ["Reward"]


# --- what they show ---------------------------------------------------------------------------------------


def test_the_reward_has_its_spread_around_it() -> None:
    axis = plots.plot(LOG).axes[0]
    assert list(axis.lines[0].get_ydata()) == pytest.approx([number / 10 for number in range(1, 11)])
    heights = {round(float(y), 6) for _, y in axis.collections[0].get_paths()[0].vertices}
    assert {0.0, 0.2, 1.1} <= heights  # 0.1 ± 0.1, 1.0 + 0.1


def test_held_out_rewards_of_a_run_that_evaluates_are_marked() -> None:
    axis = plots.plot([*LOG, {"step": 5, "eval_reward": 0.7}, {"step": 10, "eval_reward": 0.9}]).axes[0]
    points = next(line for line in axis.lines if line.get_label() == "held out")
    assert list(zip(points.get_xdata(), points.get_ydata(), strict=True)) == [(5, 0.7), (10, 0.9)]


def test_shares_are_per_cent_and_every_axis_has_its_unit() -> None:
    figure = plots.plot(LOG)
    units = [axis.get_ylabel() for axis in figure.axes]
    assert units == [
        "reward",
        "mean, unweighted",
        "% of groups",
        "nats per token",
        "nats per token",
        "tokens",
        "% of completions",
    ]
    assert all(axis.get_xlabel() == "step" for axis in figure.axes)
    assert set(figure.axes[2].lines[0].get_ydata()) == {25.0}
    assert set(figure.axes[6].lines[0].get_ydata()) == {5.0}


def test_a_long_run_has_its_steps_light_and_their_running_mean_dark() -> None:
    history = [step(number, entropy=float(number % 2)) for number in range(1, 101)]
    for axis in plots.plot(history).axes:
        if axis.get_title(loc="left") == "Entropy of the policy":
            each, mean = axis.lines
    assert (each.get_color(), mean.get_color()) == ("0.62", "black")
    assert set(each.get_ydata()) == {0.0, 1.0}
    assert all(0.4 < value < 0.6 for value in mean.get_ydata()[5:-5])


def test_the_running_mean_of_a_long_log_is_that_of_a_loop() -> None:
    values = [math.nan if i % 7 == 3 else math.sin(i) for i in range(200)]
    for index, mean in enumerate(plots.running_mean(values, 21)):
        near = [v for v in values[max(0, index - 10) : index + 11] if not math.isnan(v)]
        assert math.isnan(mean) if math.isnan(values[index]) else mean == pytest.approx(sum(near) / len(near))


@pytest.mark.parametrize(("n_logs", "window"), [(1, 1), (19, 1), (20, 3), (100, 11), (1000, 101)])
def test_the_running_mean_spans_a_tenth_of_a_run_and_nothing_of_a_short_one(n_logs: int, window: int) -> None:
    assert plots.window_of(n_logs) == window


def test_a_step_without_a_finite_figure_leaves_a_gap_and_spoils_no_neighbour() -> None:
    history = [step(1), step(2, entropy=math.inf), step(3, entropy=None), step(4, entropy=1.0)]
    curve = next(p for p in plots.panels(history) if p.title == "Entropy of the policy").curves[0]
    assert [math.isnan(value) for value in curve.values] == [False, True, True, False]
    assert plots.running_mean(curve.values, 3)[0] == curve.values[0]
    plots.draw(history)


def test_the_first_step_alone_stands_at_a_whole_number() -> None:
    for axis in plots.plot(LOG[:1]).axes:
        assert all(tick == int(tick) for tick in axis.get_xticks())


# --- how they look ----------------------------------------------------------------------------------------


def test_lines_of_one_panel_differ_without_colour() -> None:
    history = [step(n, **{f"rewards/term {i}/mean": float(i) for i in range(6)}) for n in range(1, 31)]
    lines = plots.plot(history).axes[1].lines
    assert len(lines) == 8
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 8


def test_nothing_in_the_picture_has_a_colour() -> None:
    from PIL import Image

    figure = plots.plot([*LOG, {"step": 10, "eval_reward": 0.9}])
    red, green, blue = Image.open(io.BytesIO(figure._repr_png_())).convert("RGB").split()
    assert red.tobytes() == green.tobytes() == blue.tobytes()


def test_no_text_of_a_panel_runs_into_another_or_out_of_the_picture() -> None:
    names = ["correct_after_thought", "a_reward_with_a_name_that_is_much_too_long_to_be_shown", "short"]
    history = [step(n, **{f"rewards/{name}/mean": 1.0 for name in names}) for n in range(1, 31)]
    figure = plots.plot(history)
    figure.savefig(io.BytesIO(), dpi=100)  # settles the layout
    texts = [text for axis in figure.axes for text in _texts(axis)]
    frame = figure.bbox.padded(1)
    assert "a_reward_wit…g_to_be_shown" in [text.get_text() for text in texts]
    for text in texts:
        box = text.get_window_extent()
        assert frame.x0 <= box.x0, text
        assert box.x1 <= frame.x1, text
        for other in texts:
            assert other is text or not box.overlaps(other.get_window_extent()), (text, other)


def _texts(axis: Any) -> list[Any]:
    legend = axis.get_legend()
    ticks = [*axis.get_xticklabels(), *axis.get_yticklabels()]
    found = [axis.xaxis.label, axis.yaxis.label, axis._left_title, *ticks]
    low, high = sorted(axis.get_ylim())
    left, right = sorted(axis.get_xlim())
    inside = [
        text
        for text in found
        if text not in ticks
        or (text in axis.get_xticklabels() and left <= text.get_position()[0] <= right)
        or (text in axis.get_yticklabels() and low <= text.get_position()[1] <= high)
    ]
    return [text for text in [*inside, *(legend.get_texts() if legend else [])] if text.get_text()]


def test_legends_stand_above_the_curves() -> None:
    figure = plots.plot(LOG)
    figure.savefig(io.BytesIO(), dpi=100)
    legends = [(axis, axis.get_legend()) for axis in figure.axes if axis.get_legend()]
    assert len(legends) == 2
    for axis, legend in legends:
        assert legend.get_window_extent().y0 >= axis.get_window_extent().y1


def test_a_notebook_shows_the_figure_700_pixels_wide_without_pyplot() -> None:
    from IPython.core.formatters import DisplayFormatter
    from PIL import Image

    shown, _ = DisplayFormatter().format(plots.plot(LOG))
    assert Image.open(io.BytesIO(shown["image/png"])).width == 700
    assert shown["text/plain"] == "<picture of a run>"  # as any other run's, for nbval


# --- where the log comes from -----------------------------------------------------------------------------


def test_a_trainer_a_state_file_and_a_folder_give_the_same_log(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": LOG}))
    trainer = SimpleNamespace(
        state=SimpleNamespace(log_history=LOG), args=SimpleNamespace(output_dir=tmp_path)
    )
    for source in (trainer, tmp_path, tmp_path / "trainer_state.json"):
        assert read_history(source, "plot") == (LOG, tmp_path)


def test_the_picture_is_saved_with_the_run(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": LOG}))
    plots.plot(tmp_path)
    assert (tmp_path / "training.png").read_bytes().startswith(b"\x89PNG")
    plots.plot(tmp_path, tmp_path / "new" / "other.png")
    assert (tmp_path / "new" / "other.png").is_file()


def test_of_a_stock_run_the_newest_checkpoint_is_read(tmp_path: Path) -> None:
    for number in (5, 10):  # "10" sorts before "5" as text
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        state = {"global_step": number, "log_history": LOG[:number]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    assert read_history(str(tmp_path), "plot") == (LOG[:10], tmp_path)
    assert read_history(tmp_path / "checkpoint-5", "plot") == (LOG[:5], tmp_path / "checkpoint-5")
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text('{"global_step": 10, "log_his')  # cut off
    assert read_history(tmp_path, "plot") == (LOG[:5], tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no log of a run"),
        ("not json", "no log of a run"),
        ("[]", "no log of a run"),
        ('{"log_history": [{"step": 1, "loss": 0.1}]}', "no training step"),  # another trainer's
    ],
)
def test_a_folder_without_a_run_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content:
        (tmp_path / "trainer_state.json").write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        plots.plot(tmp_path)
    assert tmp_path.name in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([{"train_runtime": 1.0}], "no training step"),
        ([{"step": 1, "reward": math.nan}], "no training step with a finite figure"),
        ([], "no training step"),
        (42, "this is no run"),
    ],
)
def test_what_holds_no_step_is_refused(source: Any, message: str) -> None:
    for look in (plots.plot, plots.as_text):
        with pytest.raises(ConfigError, match=message):
            look(source)


# --- text -------------------------------------------------------------------------------------------------


def test_in_a_terminal_every_curve_is_a_line_of_bars_between_its_ends() -> None:
    text = plots.as_text(LOG, width=100)
    rows = [line.split("  ")[0].strip() for line in text.splitlines()]
    assert rows[0] == "mean reward"
    assert len(rows) == 9  # the terms are two, and the reward has its spread
    assert "0.100 ▁▂▃▃▄▅▆▆▇█ 1.000" in text.splitlines()[0]
    assert text.splitlines()[-1].split() == ["cut", "5", "▁" * 10, "5", "%", "of", "completions"]
    assert all(len(line) <= 100 for line in text.splitlines())
    assert str(plots.plot(LOG)).splitlines()[0].split() == text.splitlines()[0].split()


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([1.0], "▁"),
        ([2.0, 2.0], "▁▁"),
        ([0.0, 1.0], "▁█"),
        ([0.0, math.nan, 1.0], "▁ █"),
        ([math.nan], " "),
        (list(range(80)), None),
    ],
)
def test_a_sparkline_never_passes_its_width(values: list[float], bars: str | None) -> None:
    line = plots.sparkline(values, width=40)
    assert len(line) <= 40
    assert bars is None or line == bars


# --- live -------------------------------------------------------------------------------------------------


class Notebook:
    """A notebook that counts what is shown, and a clock that stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.draw_seconds = 1000.0, 0.0
        self.shown: list[Any] = []
        self.updates: list[Any] = []
        monkeypatch.setattr(live, "in_notebook", lambda: True)
        monkeypatch.setattr("IPython.display.display", self.display)
        monkeypatch.setattr(live.time, "monotonic", lambda: self.now)

    def display(self, thing: Any, display_id: bool) -> Any:
        assert display_id is True
        self.shown.append(thing)
        return SimpleNamespace(update=self.update)

    def update(self, figure: Any) -> None:
        self.updates.append(figure)
        self.now += self.draw_seconds


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


class Run:
    """A trainer's calls to its callback, without a trainer."""

    def __init__(self, callback: live.LivePlot, folder: Path, main: bool = True) -> None:
        self.callback, self.args = callback, SimpleNamespace(output_dir=str(folder))
        self.state = SimpleNamespace(log_history=[], is_world_process_zero=main)
        self.callback.on_train_begin(self.args, self.state, None)

    def log(self, entry: dict[str, Any]) -> None:
        self.state.log_history.append(entry)
        self.callback.on_log(self.args, self.state, None, logs=entry)

    def end(self) -> None:
        self.callback.on_train_end(self.args, self.state, None)


def test_live_one_figure_is_shown_and_then_updated_in_place(notebook: Notebook, tmp_path: Path) -> None:
    run = Run(live.LivePlot(seconds=5), tmp_path)
    for number in range(1, 5):
        run.log(step(number))
        notebook.now += 6
    run.log({"train_runtime": 1.0})  # the log of a run's end has no reward
    assert len(notebook.shown) == 1
    assert len(notebook.updates) == 4
    run.end()
    assert len(notebook.updates) == 5
    assert [axis.get_title(loc="left") for axis in notebook.updates[-1].axes] == TITLES
    assert (tmp_path / "training.png").is_file()


def test_live_the_place_held_and_the_figure_are_the_same_text(notebook: Notebook, tmp_path: Path) -> None:
    run = Run(live.LivePlot(), tmp_path)
    run.log(step(1))
    assert repr(notebook.shown[0]) == repr(notebook.updates[0]) == plots.CAPTION


def test_live_it_redraws_at_most_every_few_seconds(notebook: Notebook, tmp_path: Path) -> None:
    run = Run(live.LivePlot(seconds=5), tmp_path)
    for number in range(1, 21):
        run.log(step(number))
        notebook.now += 1
    assert len(notebook.updates) == 4  # seconds 0, 5, 10, 15


def test_live_a_slow_machine_draws_less_often(notebook: Notebook, tmp_path: Path) -> None:
    notebook.draw_seconds = 3.0
    run = Run(live.LivePlot(seconds=5, share=0.03), tmp_path)
    started = notebook.now
    for number in range(1, 401):
        run.log(step(number))
        notebook.now += 1
    spent = 3.0 * len(notebook.updates)
    assert 3 <= len(notebook.updates) <= 5
    assert spent / (notebook.now - started) < 0.04


def test_live_each_run_has_a_figure_of_its_own(notebook: Notebook, tmp_path: Path) -> None:
    callback = live.LivePlot()
    for _ in range(2):
        Run(callback, tmp_path).log(step(1))
    assert len(notebook.shown) == len(notebook.updates) == 2


def test_live_outside_a_notebook_nothing_happens(tmp_path: Path) -> None:
    assert not live.in_notebook()
    run = Run(live.LivePlot(seconds=0), tmp_path)
    run.log(step(1))
    run.end()
    assert list(tmp_path.iterdir()) == []


def test_live_only_the_main_process_draws(notebook: Notebook, tmp_path: Path) -> None:
    run = Run(live.LivePlot(), tmp_path, main=False)
    run.log(step(1))
    run.end()
    assert (notebook.shown, notebook.updates, list(tmp_path.iterdir())) == ([], [], [])


def test_live_a_run_stopped_before_its_first_step_has_no_picture(notebook: Notebook, tmp_path: Path) -> None:
    Run(live.LivePlot(), tmp_path).end()
    assert notebook.updates == []


def test_live_a_picture_that_fails_is_given_up_and_training_goes_on(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(history: Any) -> Any:
        raise RuntimeError("no fonts")

    monkeypatch.setattr(plots, "draw", broken)
    run = Run(live.LivePlot(seconds=0), tmp_path)
    with pytest.warns(UserWarning, match="given up: RuntimeError: no fonts"):
        run.log(step(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.log(step(2))
        run.end()


LIVE_CELL = """
import sys
from types import SimpleNamespace

import rloo_kit

sys.modules["transformers"] = SimpleNamespace(TrainerCallback=object)  # its import takes 10 s
from rloo_kit.watch.live import LivePlot

state = SimpleNamespace(log_history=[], is_world_process_zero=True)
args, callback = SimpleNamespace(output_dir="out"), LivePlot(seconds=0, share=1.0)
callback.on_train_begin(args, state, None)
print("header")
for step in range(1, 4):
    state.log_history.append({"step": step, "reward": step / 10, "reward_std": 0.1})
    callback.on_log(args, state, None, logs=state.log_history[-1])
    print("step", step)
callback.on_train_end(args, state, None)
"""


def test_live_a_stored_notebook_keeps_the_last_picture_and_passes_strict_nbval(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    cell = nbformat.v4.new_code_cell(LIVE_CELL.strip())
    book = nbformat.v4.new_notebook(cells=[cell])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = cell.outputs
    assert [o.output_type for o in outputs] == ["display_data"] + ["stream"] * (len(outputs) - 1)
    assert "".join(output.text for output in outputs[1:]) == "header\nstep 1\nstep 2\nstep 3\n"
    assert outputs[0].data["text/plain"] == plots.CAPTION
    assert len(outputs[0].data["image/png"]) > 5000
    nbformat.write(book, tmp_path / "live.ipynb")
    options = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=120", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "live.ipynb"],
        cwd=tmp_path,
        env={**CLEAN_ENVIRONMENT, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "1 passed" in done.stdout


# --- beside other reporters -------------------------------------------------------------------------------


def test_report_to_goes_through_to_the_trainer_untouched(
    make_trainer: Callable[..., Any], notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import TrainerCallback
    from transformers.integrations import integration_utils

    seen: list[dict[str, Any]] = []

    class Trackio(TrainerCallback):
        """Stands for the package, which the kit does not install."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            seen.append(dict(logs))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "trackio", Trackio)
    trainer = make_trainer(report_to="trackio", run_name="a name", callbacks=[live.LivePlot()])
    assert (trainer.args.report_to, trainer.args.run_name) == (["trackio"], "a name")
    trainer.train()
    assert {"reward", "dead_groups", "rewards/right_after_thought/mean"} <= seen[0].keys()
    assert "train_runtime" in seen[-1]
    # The same real run, drawn: by the callback, and afterwards from the folder.
    assert len(notebook.updates) >= 2
    assert titles(trainer.args.output_dir)[0] == "Reward"
    assert "KL to the reference" not in titles(trainer)  # beta is 0


def test_the_kit_reports_nowhere_unless_asked() -> None:
    assert rloo_kit.RLOOConfig().report_to in ("none", [])
