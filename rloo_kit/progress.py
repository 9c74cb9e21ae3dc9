"""One line of text per logged step, the same in a notebook, a terminal and a log file.

For the trainer, which puts it in place of transformers' progress bar and HTML table: those redraw, which a
stored notebook cannot show, and unsloth's table leaves out the dead groups.
"""

from __future__ import annotations

import time
from typing import Any

from transformers import TrainerCallback

COLUMNS = (
    # label, metric, width, format
    ("reward", "reward", 8, "{:+.3f}"),
    ("spread", "reward_std", 7, "{:.3f}"),
    ("dead", "dead_groups", 5, "{:.0%}"),
    ("kl", "kl", 8, "{:.4f}"),
    ("length", "completions/mean_length", 7, "{:.0f}"),
    ("cut", "completions/clipped_ratio", 5, "{:.0%}"),
    ("s/step", "step_time", 7, "{:.1f}"),
)
"""What a line shows.  dead: share of groups whose K rewards are all equal, which carry no signal; cut: share
of completions that reached max_completion_length; kl: mean of log policy - log reference per token."""


def header() -> str:
    """The line of column names."""
    return f"{'step':>9}" + "".join(f"{label:>{width}}" for label, _, width, _ in COLUMNS) + f"{'left':>8}"


def line(step: int, max_steps: int, logs: dict[str, Any], seconds_left: float | None) -> str:
    """One step's figures, as wide as :func:`header`; a dash where there is no figure."""
    cells = [f"{f'{step}/{max_steps}':>9}"]
    for _, metric, width, style in COLUMNS:
        value = logs.get(metric)
        cells.append(f"{'-' if value is None else style.format(value):>{width}}")
    cells.append(f"{'-' if seconds_left is None else clock(seconds_left):>8}")
    return "".join(cells)


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressCallback(TrainerCallback):
    """Prints :func:`header` once and a :func:`line` per training log, on the main process."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        self._started, self._first_step = time.monotonic(), state.global_step
        if state.is_world_process_zero:
            print(header(), flush=True)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Print a line for a log that has a reward: the last log of a run has none."""
        if not state.is_world_process_zero or not logs or "reward" not in logs:
            return
        done = state.global_step - self._first_step
        left = None
        if done:
            left = (time.monotonic() - self._started) / done * max(0, state.max_steps - state.global_step)
        print(line(state.global_step, state.max_steps, logs, left), flush=True)
