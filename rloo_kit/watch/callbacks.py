"""Output while a run trains: a line per batch, a picture, and symptoms.

Each callback writes on the main process only, and changes no setting.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from rewards.trl_interface import Judges
from rloo_kit.errors import ConfigError
from rloo_kit.session import output
from rloo_kit.watch import plots
from rloo_kit.watch.diagnose import clock
from rloo_kit.watch.statistics import Known, Log, rounds, term_names
from rloo_kit.watch.symptoms import Episodes, Finding

Logs = Mapping[str, float | None]
OnUnhealthy = str | Callable[[Finding], object]


class HealthCallback(TrainerCallback):
    """Prints a line for each symptom, once per episode, and nothing while all is well.

    Works in any trainer that logs as TRL's ``RLOOTrainer`` does; in the kit's it is on by default.

    Args:
        on_unhealthy: "warn" prints; "stop" prints, saves a checkpoint and ends the training; a callable gets the
            :class:`Finding` instead of the print, on the main process.  None means the config's ``on_unhealthy``,
            or "warn".
        judges: what reward functions judge, by metric name, as for :func:`rloo_kit.diagnose`; see ``judged_by``.
        rewards: the trainer's ``reward_func_names``, to which ``reward_weights`` belong; without them, the names of the
            first entry that is logged.

    Raises:
        ConfigError: ``on_unhealthy`` is anything else.
    """

    def __init__(
        self,
        on_unhealthy: OnUnhealthy | None = None,
        judges: Mapping[str, Judges] | None = None,
        rewards: Sequence[str] = (),
    ) -> None:
        if not (callable(on_unhealthy) or on_unhealthy in (None, "warn", "stop")):
            raise ConfigError(
                'on_unhealthy must be "warn", "stop" or a function',
                where=f"HealthCallback(on_unhealthy={on_unhealthy!r})",
                todo='leave it at "warn", or pass a function that takes the Finding',
            )
        self.on_unhealthy, self.judges, self.rewards = on_unhealthy, judges, rewards
        self._episodes = Episodes()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Read what a resumed run has already logged, so that no symptom is reported twice."""
        self._episodes = Episodes(self._log(args, state))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Look at the log so far, and report each episode that begins."""
        if not logs or "grad_norm" not in logs:
            return
        self.rewards = self.rewards or term_names(logs)
        if not (log := self._log(args, state)):
            return
        handler = self.on_unhealthy or getattr(args, "on_unhealthy", "warn")
        for finding in self._episodes.look(log):
            if callable(handler) and state.is_world_process_zero:
                handler(finding)
            elif state.is_world_process_zero:
                output.say(f"unhealthy: {finding}")
            if handler == "stop":
                control.should_training_stop = True
                # A checkpoint of weights that are not finite would hide the last good one from a resume.
                control.should_save = control.should_save or not finding.symptom.startswith("non-finite")

    def _log(self, args: Any, state: Any) -> Log:
        return Log(rounds(state.log_history), Known.of(args, self.judges, self.rewards))


# label, metric, width, format
COLUMNS = (
    ("reward", "reward", 8, "+.3f"),
    ("spread", "reward_std", 7, ".3f"),
    ("0-var", "zero_variance_groups", 6, ".0%"),
    ("kl", "kl", 8, ".4f"),
    ("length", "completions/mean_length", 7, ".0f"),
    ("cut", "completions/clipped_ratio", 5, ".0%"),
    ("s/step", "step_time", 7, ".1f"),
)
"""The columns of a line; docs/reading-a-run.md explains them."""

EVALUATION = {
    "eval_reward": "reward {:+.3f}",
    "eval_reward_std": "spread {:.3f}",
    "eval_completions/mean_length": "length {:.0f}",
    "eval_completions/clipped_ratio": "{:.0%} cut",
}


def header(max_steps: int = 0) -> str:
    labels = "".join(f"{label:>{width}}" for label, _, width, _ in COLUMNS)
    return f"{'step':>{_step_width(max_steps)}}{labels}{'left':>8}"


def line(step: int, max_steps: int, logs: Logs, seconds_left: float | None) -> str:
    """Format one step's figures, as wide as :func:`header`, with a dash for a missing figure."""
    cells = [f"{_figure(logs.get(metric), width, style):>{width}}" for _, metric, width, style in COLUMNS]
    left = "-" if seconds_left is None else clock(seconds_left)
    return f"{f'{step}/{max_steps}':>{_step_width(max_steps)}}{''.join(cells)}{left:>8}"


def _step_width(max_steps: int) -> int:
    return max(9, 2 * len(str(max_steps)) + 1)


def _figure(value: float | None, width: int, style: str) -> str:
    """Format a figure with room for a blank before it; a large figure loses decimals."""
    if value is None:
        return "-"
    texts = [format(value, spec) for spec in (style, *(style[:-2] + end for end in ("2f", "0f", "0e")))]
    return next((text for text in texts if len(text) < width), texts[-1])


def evaluation_line(step: int, logs: Logs) -> str:
    """Format an evaluation's figures, with the name of its dataset if the run has several."""
    timed = next((key for key in logs if key.endswith("_runtime")), "eval_runtime")
    name = timed.removeprefix("eval_").removesuffix("runtime").strip("_")
    figures = [text.format(logs[metric]) for metric, text in EVALUATION.items() if logs.get(metric) is not None]
    return f"held out{f' ({name})' if name else ''}, step {step}: {', '.join(figures)}"


class ProgressCallback(TrainerCallback):
    """Prints :func:`header` once, a :func:`line` per generation batch and one per evaluation, on the main process."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._started, self._first_step, self._pace = time.monotonic(), state.global_step, None
        if state.is_world_process_zero:
            output.say(header(state.max_steps))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print a line for a step that sampled or for an evaluation, but none at the end of training."""
        if not state.is_world_process_zero or not logs:
            return
        if "eval_reward" in logs:
            output.say(evaluation_line(state.global_step, logs))
        if "reward" in logs or "loss" in logs:
            done, to_do = state.global_step - self._first_step, max(0, state.max_steps - state.global_step)
            pace = (time.monotonic() - self._started) / done if done else None
            if "reward" not in logs:
                self._pace = pace  # over whole batches: a batch's further updates are the cheap part
                return
            pace = self._pace or pace
            output.say(line(state.global_step, state.max_steps, logs, pace and pace * to_do))


class LivePlot(TrainerCallback):
    """Shows :func:`rloo_kit.plot`'s figure in a notebook while training, and saves it when training ends.

    Args:
        seconds: the least time between two drawings, which take about 0.2 s each.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds, self._draws, self._next = seconds, False, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._draws, self._next = state.is_world_process_zero and output.in_notebook(), 0.0
        if self._draws:
            with self._never_ending_the_run():
                from IPython.display import display

                self._handle = display({"text/plain": ""}, raw=True, display_id=True)  # above the lines

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "reward" in logs and time.monotonic() >= self._next:
            self._draw(args, state)
            self._next = time.monotonic() + self.seconds

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Draw the whole run, and save it beside its checkpoints."""
        self._draw(args, state, save_to=Path(args.output_dir) / plots.PICTURE)

    def _draw(self, args: Any, state: Any, save_to: Path | None = None) -> None:
        if not self._draws or all(entry.get("reward") is None for entry in state.log_history):
            return
        with self._never_ending_the_run():
            figure = plots.draw(state.log_history, Known.of(args))
            shown = {"image/png": figure._repr_png_(), "text/plain": plots.CAPTION}  # type: ignore[attr-defined]
            self._handle.update(shown, raw=True)
            if save_to:
                plots.save(figure, save_to)

    @contextmanager
    def _never_ending_the_run(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # hours of training are worth more than their picture
            self._draws = False
            reason = f"{type(error).__name__}: {error}"
            output.warn(f"Live plot disabled: {reason}. Training goes on; live_plot=False avoids this warning.")
