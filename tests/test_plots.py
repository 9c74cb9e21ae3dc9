"""plot: a run as a picture and as text."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rloo_kit import plots
from rloo_kit.errors import ConfigError

LOG: list[dict[str, Any]] = [
    {
        "step": step,
        "reward": step / 10,
        "reward_std": 0.1,
        "completions/mean_length": 20.0 + step,
        "completions/clipped_ratio": 0.05,
    }
    for step in range(1, 11)
] + [{"step": 10, "train_runtime": 1.0}]


def test_a_figure_shows_reward_with_spread_and_length_with_truncation(tmp_path: Path) -> None:
    figure = plots.plot(LOG, tmp_path / "run.png")
    reward, length, share = figure.axes
    assert list(reward.lines[0].get_ydata()) == [step / 10 for step in range(1, 11)]
    assert list(length.lines[0].get_ydata())[-1] == 30.0
    assert set(share.lines[0].get_ydata()) == {5.0}
    assert all(axis.get_xlabel() == "step" for axis in (reward, length))
    assert (tmp_path / "run.png").stat().st_size > 5000


def test_a_notebook_shows_the_figure_without_pyplot() -> None:
    from IPython.core.formatters import DisplayFormatter

    figure = plots.plot(LOG)
    shown, _ = DisplayFormatter().format(figure)
    assert shown["image/png"].startswith(b"\x89PNG")


def test_a_trainer_a_state_file_and_a_folder_give_the_same_log(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": LOG}))
    trainer = SimpleNamespace(
        state=SimpleNamespace(log_history=LOG), args=SimpleNamespace(output_dir=tmp_path)
    )
    from_trainer = plots.read_log(trainer)
    assert from_trainer == plots.read_log(tmp_path) == plots.read_log(tmp_path / "trainer_state.json")
    assert len(from_trainer[0]) == 10
    plots.plot(trainer)
    assert (tmp_path / "training.png").is_file()


def test_a_run_without_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="no training step"):
        plots.plot([{"train_runtime": 1.0}])


def test_in_a_terminal_a_run_is_three_lines_of_bars() -> None:
    lines = plots.as_text(LOG).splitlines()
    assert [line.split()[0] for line in lines] == ["reward", "length", "cut"]
    assert "▁" in lines[0]
    assert "█" in lines[0]


@pytest.mark.parametrize(
    ("values", "bars"), [([1.0], "▁"), ([2.0, 2.0], "▁▁"), ([0.0, 1.0], "▁█"), (list(range(80)), None)]
)
def test_a_sparkline_never_passes_its_width(values: list[float], bars: str | None) -> None:
    line = plots.sparkline(values, width=40)
    assert len(line) <= 40
    assert bars is None or line == bars
