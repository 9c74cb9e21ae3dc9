"""LivePlot: one figure in the cell that trains, redrawn in place; it costs little and never ends a run."""

import warnings

import pytest

import rloo_kit
from rloo_kit.watch import callbacks, plots
from rloo_kit.watch.statistics import Entry
from tests.watch.logs import play, step


@pytest.fixture(autouse=True)
def cheap_figure(monkeypatch):
    """Replace drawing, which is tested in test_plots.py and with a real run below."""
    monkeypatch.setattr(plots, "draw", lambda history, known: Drawn(history))
    monkeypatch.setattr(plots, "save", lambda figure, path: path.write_text(str(len(figure))))


class Drawn(list[Entry]):
    """The log in place of its picture."""

    def _repr_png_(self):
        return self


def test_one_figure_is_shown_then_updated_every_five_seconds_and_saved(notebook, tmp_path):
    callback, log = callbacks.LivePlot(seconds=5), [step(number) for number in range(1, 21)]
    for run in ("first", "second"):
        notebook.pictures.clear()
        play(callback, [*log, {"step": 20}], after=notebook.second, output_dir=str(tmp_path))
        drawn = [len(figure) for figure in notebook.pictures]
        assert drawn == [1, 6, 11, 16, 21], f"the {run} run is drawn at once"
    assert (tmp_path / "training.png").read_text() == "21"


def test_only_the_main_process_of_a_notebook_draws(notebook, tmp_path, monkeypatch):
    for shown, main in ((True, False), (False, True)):
        monkeypatch.setattr(callbacks.output, "in_notebook", lambda shown=shown: shown)
        play(callbacks.LivePlot(), [step(1)], main, output_dir=str(tmp_path))
        assert (notebook.pictures, list(tmp_path.iterdir())) == ([], []), (shown, main)


@pytest.mark.parametrize("place", ["rloo_kit.watch.plots.draw", "IPython.display.display"])
def test_a_plot_that_fails_is_disabled(notebook, tmp_path, monkeypatch, place):
    monkeypatch.setattr(place, lambda *_, **__: 1 / 0)
    with warnings.catch_warnings(record=True) as warned:
        play(callbacks.LivePlot(seconds=0), [step(1), step(2)], output_dir=str(tmp_path))
    (warning,) = warned
    assert "Live plot disabled: ZeroDivisionError: division by zero" in str(warning.message)


def test_a_real_run_is_drawn_above_its_lines(stopped_run):
    kinds = [type(callback) for callback in stopped_run.trainer.callback_handler.callbacks]
    assert kinds.index(callbacks.LivePlot) < kinds.index(callbacks.ProgressCallback), "the picture is above the lines"
    assert stopped_run.displayed == [{"raw": True, "display_id": True}]
    assert len(stopped_run.pictures) >= 2
    assert all(picture.startswith(b"\x89PNG") for picture in stopped_run.pictures)
    assert rloo_kit.RLOOConfig().report_to in ("none", []), "and nowhere unless asked"
