"""One line of text per logged step, the same in a notebook, a terminal and a log file.

For the trainer, which uses it instead of transformers' progress bar and HTML table: unsloth's leaves out the dead
groups.  An evaluation gets a line of its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from transformers import TrainerCallback, TrainerState

from rloo_kit.session import processes

Logs = Mapping[str, float | None]

COLUMNS = (
    # label, metric, width, format
    ("reward", "reward", 8, "+.3f"),
    ("spread", "reward_std", 7, ".3f"),
    ("dead", "dead_groups", 5, ".0%"),
    ("kl", "kl", 8, ".4f"),
    ("length", "completions/mean_length", 7, ".0f"),
    ("cut", "completions/clipped_ratio", 5, ".0%"),
    ("s/step", "step_time", 7, ".1f"),
)
"""What a line shows.  dead: share of groups whose K rewards are all equal, or which are masked whole: they carry no
signal; cut: share of completions that reached max_completion_length; kl: mean of log policy - log reference per
token."""

EVALUATION = (
    # label, metric, format
    ("reward {}", "eval_reward", "+.3f"),
    ("spread {}", "eval_reward_std", ".3f"),
    ("length {}", "eval_completions/mean_length", ".0f"),
    ("{} cut", "eval_completions/clipped_ratio", ".0%"),
)


def header(max_steps: int = 0) -> str:
    """The line of column names, for a run of that many steps."""
    labels = "".join(f"{label:>{width}}" for label, _, width, _ in COLUMNS)
    return f"{'step':>{_step_width(max_steps)}}{labels}{'left':>8}"


def line(step: int, max_steps: int, logs: Logs, seconds_left: float | None) -> str:
    """One step's figures, as wide as :func:`header`; a dash where there is no figure."""
    cells = [f"{_figure(logs.get(metric), width, style):>{width}}" for _, metric, width, style in COLUMNS]
    left = "-" if seconds_left is None else clock(seconds_left)
    return f"{f'{step}/{max_steps}':>{_step_width(max_steps)}}{''.join(cells)}{left:>8}"


def _step_width(max_steps: int) -> int:
    return max(9, 2 * len(str(max_steps)) + 1)


def _figure(value: float | None, width: int, style: str) -> str:
    """A figure with a blank before it, which costs decimals where the figure is large."""
    if value is None:
        return "-"
    shorter = (style[:-2] + ending for ending in ("2f", "1f", "0f", "0e"))
    texts = [format(value, spec) for spec in (style, *shorter)]
    return next((text for text in texts if len(text) < width), texts[-1])


def evaluation_line(step: int, logs: Logs) -> str:
    """An evaluation's figures; the name of its dataset where a run has several."""
    timed = next((key for key in logs if key.endswith("_runtime")), "eval_runtime")
    name = timed.removeprefix("eval_").removesuffix("runtime").strip("_")
    found = [(label, logs.get(metric), style) for label, metric, style in EVALUATION]
    figures = [label.format(format(value, style)) for label, value, style in found if value is not None]
    return f"held out{f' ({name})' if name else ''}, step {step}: {', '.join(figures)}"


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class ProgressCallback(TrainerCallback):
    """Prints :func:`header` once, a :func:`line` per training log and one per evaluation, on the main process."""

    def on_train_begin(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        """Start the clock."""
        self._started, self._first_step = time.monotonic(), state.global_step
        if state.is_world_process_zero:
            processes.say(header(state.max_steps))

    def on_log(
        self, args: object, state: TrainerState, control: object, logs: Logs | None = None, **kwargs: object
    ) -> None:
        """Print a line for a step, also for one that trains again on a batch and has no reward; none for the end."""
        if not state.is_world_process_zero or not logs:
            return
        if "eval_reward" in logs:
            processes.say(evaluation_line(state.global_step, logs))
        if "reward" in logs or "loss" in logs:
            done, to_do = state.global_step - self._first_step, max(0, state.max_steps - state.global_step)
            left = (time.monotonic() - self._started) / done * to_do if done else None
            processes.say(line(state.global_step, state.max_steps, logs, left))
