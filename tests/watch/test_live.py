"""LivePlot: one figure in the cell that trains, redrawn in place, which costs little and never ends a run."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import rloo_kit
from rloo_kit.watch import callbacks, plots
from rloo_kit.watch.statistics import Entry
from tests.watch.logs import step, trl_config


@pytest.fixture(autouse=True)
def cheap_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is tested in test_plots.py, and with a real run below."""
    monkeypatch.setattr(plots, "draw", lambda history, known: Drawn(history))
    monkeypatch.setattr(plots, "save", lambda figure, path: path.write_text(str(len(figure))))


class Drawn(list[Entry]):
    """The log in place of its picture."""

    def _repr_png_(self) -> Drawn:
        return self


class Run:
    """A trainer's calls to its callback, without a trainer."""

    def __init__(self, callback: callbacks.LivePlot, folder: Path, main: bool = True) -> None:
        state = SimpleNamespace(log_history=[], is_world_process_zero=main)
        self.callback, self.given = callback, (trl_config(output_dir=str(folder)), state, None)
        self.callback.on_train_begin(*self.given)

    def log(self, entry: Entry) -> None:
        self.given[1].log_history.append(entry)
        self.callback.on_log(*self.given, logs=entry)


def test_one_figure_is_shown_then_updated_every_five_seconds_and_saved(notebook, tmp_path):
    callback = callbacks.LivePlot(seconds=5)
    run = Run(callback, tmp_path)
    for number in range(1, 21):
        run.log(step(number))
        notebook.now += 1
    run.log({"train_runtime": 1.0})  # the log of a run's end has no reward
    callback.on_train_end(*run.given)
    assert [len(figure) for figure in notebook.pictures] == [1, 6, 11, 16, 21]
    assert (tmp_path / "training.png").read_text() == "21"
    Run(callback, tmp_path).log(step(1))
    assert len(notebook.pictures[-1]) == 1, "another run is drawn at once"


def test_only_the_main_process_of_a_notebook_draws(notebook, tmp_path, monkeypatch):
    for shown, main in ((True, False), (False, True)):
        monkeypatch.setattr(callbacks.output, "shows_pictures", lambda shown=shown: shown)
        run = Run(callbacks.LivePlot(), tmp_path, main)
        run.log(step(1))
        run.callback.on_train_end(*run.given)
        assert (notebook.pictures, list(tmp_path.iterdir())) == ([], []), (shown, main)


def test_a_plot_that_fails_is_disabled(notebook, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "draw", lambda history, known: 1 / 0)
    run = Run(callbacks.LivePlot(seconds=0), tmp_path)
    with warnings.catch_warnings(record=True) as warned:
        run.log(step(1))
        run.log(step(2))
    (warning,) = warned
    assert "Live plot disabled: ZeroDivisionError: division by zero" in str(warning.message)


def test_a_real_run_is_drawn_and_still_reports_where_it_was_asked_to(stopped_run):
    args = stopped_run.trainer.args
    assert (args.report_to, args.run_name) == (["elsewhere"], "a name")
    assert {"reward", "dead_groups", "rewards/right_after_thought/mean"} <= stopped_run.logs[0].keys()
    assert "train_runtime" in stopped_run.logs[-1]
    assert len(stopped_run.pictures) >= 2
    assert all(picture.startswith(b"\x89PNG") for picture in stopped_run.pictures)
    assert rloo_kit.RLOOConfig().report_to in ("none", []), "and nowhere unless asked"
