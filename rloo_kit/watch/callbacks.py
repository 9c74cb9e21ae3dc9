"""What is said and shown of a run while it trains: a line per step, a picture, symptoms, and completions cut off.

Each speaks on the main process, and changes no setting.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist, linear_regression
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from rloo_kit.errors import ConfigError
from rloo_kit.session import output, processes
from rloo_kit.watch import plots
from rloo_kit.watch.diagnose import clock
from rloo_kit.watch.log import Known, Log, rounds
from rloo_kit.watch.symptoms import SYMPTOMS, Episodes, Finding, episodes, surely_above

if TYPE_CHECKING:
    from rewards.trl_interface import Judges

# --- symptoms ------------------------------------------------------------------------------------------------

Logs = Mapping[str, float | None]
OnUnhealthy = str | Callable[[Finding], object]
""""warn", "stop" or a function."""


class HealthCallback(TrainerCallback):
    """Prints in one line what is wrong, once per episode, and nothing while all is well.

    Works in any trainer that logs as TRL's ``RLOOTrainer`` does; in the kit's it is on by default.

    Args:
        on_unhealthy: "warn" prints; "stop" prints, saves a checkpoint and ends the training; a callable gets the
            :class:`Finding` instead of the print, on the main process.  None takes the config's ``on_unhealthy``,
            or "warn".
        said: gives the symptoms that the trainer has already reported itself; they are not printed.
        judges: what reward functions judge, by metric name, as for :func:`rloo_kit.diagnose`; ``judged_by`` gives it.

    Raises:
        ConfigError: another value.
    """

    def __init__(
        self,
        on_unhealthy: OnUnhealthy | None = None,
        said: Callable[[], Iterable[str]] = tuple,
        judges: Mapping[str, Judges] | None = None,
    ) -> None:
        self.on_unhealthy = None if on_unhealthy is None else checked(on_unhealthy, "HealthCallback")
        self.said, self.judges = said, judges
        self._episodes = Episodes()

    def on_train_begin(self, args: Any, state: TrainerState, control: object, **kwargs: object) -> None:
        """Look at what a resumed run has logged before, so that nothing is said twice."""
        self._episodes = episodes(self._log(args, state))

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Logs | None = None,
        **kwargs: object,
    ) -> None:
        """Look at the log so far, and speak where an episode begins."""
        if not logs or "grad_norm" not in logs or not (log := self._log(args, state)).run:
            return
        wanted = self.on_unhealthy or checked(getattr(args, "on_unhealthy", "warn"), type(args).__name__)
        for finding in self._episodes.look(log):
            if callable(wanted) and state.is_world_process_zero:
                wanted(finding)
            elif state.is_world_process_zero and (wanted == "stop" or finding.symptom not in self.said()):
                processes.say(f"unhealthy: {finding}")
            if wanted == "stop":
                control.should_training_stop = True
                # A checkpoint of weights that are not finite would hide the last good one from a resume.
                control.should_save = control.should_save or not finding.symptom.startswith("non-finite")

    def _log(self, args: Any, state: TrainerState) -> Log:
        return Log(rounds(state.log_history), Known.of(args, self.judges))


def checked(on_unhealthy: object, where: str) -> OnUnhealthy:
    """The same, if it is "warn", "stop" or a callable.

    Raises:
        ConfigError: it is not; names the class ``where`` it was given.
    """
    if callable(on_unhealthy) or (isinstance(on_unhealthy, str) and on_unhealthy in ("warn", "stop")):
        return on_unhealthy
    raise ConfigError(
        'on_unhealthy must be "warn", "stop" or a function',
        where=f"{where}(on_unhealthy={on_unhealthy!r})",
        todo='leave it at "warn", or pass a function that takes the Finding',
    )


# --- a line per step -----------------------------------------------------------------------------------------

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
    texts = [format(value, spec) for spec in (style, *(style[:-2] + end for end in ("2f", "1f", "0f", "0e")))]
    return next((text for text in texts if len(text) < width), texts[-1])


def evaluation_line(step: int, logs: Logs) -> str:
    """An evaluation's figures; the name of its dataset where a run has several."""
    timed = next((key for key in logs if key.endswith("_runtime")), "eval_runtime")
    name = timed.removeprefix("eval_").removesuffix("runtime").strip("_")
    found = [(label, logs.get(metric), style) for label, metric, style in EVALUATION]
    figures = [label.format(format(value, style)) for label, value, style in found if value is not None]
    return f"held out{f' ({name})' if name else ''}, step {step}: {', '.join(figures)}"


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


# --- a picture -----------------------------------------------------------------------------------------------


class LivePlot(TrainerCallback):
    """Shows :func:`rloo_kit.plot`'s figure in a notebook while training, and saves it when training ends.

    Args:
        seconds: the least time between two drawings, which take about 0.2 s each.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        self.seconds, self._draws, self._next = seconds, False, 0.0

    def on_train_begin(self, args: object, state: TrainerState, control: object, **kwargs: object) -> None:
        """See whether this process shows pictures."""
        self._draws, self._next = state.is_world_process_zero and output.shows_pictures(), 0.0

    def on_log(
        self, args: object, state: TrainerState, control: object, logs: Logs | None = None, **kwargs: object
    ) -> None:
        """Redraw, unless the last drawing is too recent."""
        if logs and "reward" in logs and time.monotonic() >= self._next:
            self._draw(state)
            self._next = time.monotonic() + self.seconds

    def on_train_end(self, args: Any, state: TrainerState, control: object, **kwargs: object) -> None:
        """Draw the whole run, and save it beside its checkpoints."""
        self._draw(state, save_to=Path(args.output_dir) / plots.PICTURE)

    def _draw(self, state: TrainerState, save_to: Path | None = None) -> None:
        if not self._draws or all(entry.get("reward") is None for entry in state.log_history):
            return
        try:
            figure = plots.draw(state.log_history)
            output.show(figure._repr_png_())  # type: ignore[attr-defined]
            if save_to:
                plots.save(figure, save_to)
        except Exception as error:  # hours of training are worth more than their picture
            self._draws = False
            said = f"Live plot disabled: {type(error).__name__}: {error}. Training goes on"
            processes.warn(f"{said}; live_plot=False avoids this warning.")


# --- completions cut off -------------------------------------------------------------------------------------

BATCHES = 3  # generation batches that a warning is based on
WANTED = 0.9  # the share of completions that the recommended length should let end
KNOWN = 10  # completions that must have ended before a length is recommended; with fewer it is a guess
REACH = 8  # a recommendation of so many times the longest completion that ended is beyond the data
CUT = SYMPTOMS["truncation"].limit


def length_for(ended: Sequence[int], cut: int) -> int | None:
    """The length, a multiple of 64, at which :data:`WANTED` would have ended; None where too few did.

    A log-normal is fitted to the lengths known: a line through (normal quantile of the rank, log length), where the
    ``cut`` others rank above all that ended (regression on order statistics, Helsel and Cohn 1988).
    """
    lengths, total = sorted(max(1, length) for length in ended), len(ended) + cut
    if len(lengths) < KNOWN or lengths[0] == lengths[-1]:
        return None
    quantile = NormalDist().inv_cdf
    ranks = [quantile((i + 0.625) / (total + 0.25)) for i in range(len(lengths))]
    slope, intercept = linear_regression(ranks, [math.log(length) for length in lengths])
    wanted = intercept + slope * quantile(WANTED)
    return None if wanted > math.log(REACH * lengths[-1]) else math.ceil(math.exp(wanted) / 64) * 64


class TruncationWatch:
    """Warns once where too many completions of the last generation batches were cut at the ``limit``, with a longer one
    that their lengths suggest; the log has no lengths.  ``masked``: whether cut completions are masked."""

    def __init__(self, limit: int, masked: bool) -> None:
        self.limit, self.masked, self.has_spoken = limit, masked, False
        self._batches: deque[tuple[list[int], int]] = deque(maxlen=BATCHES)
        self._at_first = math.nan  # share of the first batch that was cut

    def see(self, lengths: Sequence[int], cut: Sequence[bool]) -> str | None:
        """Take in a generation batch, (completions,) tokens of each and whether it was cut; return the warning that it
        gives rise to, once."""
        self._batches.append(([n for n, was_cut in zip(lengths, cut, strict=True) if not was_cut], sum(cut)))
        if math.isnan(self._at_first):
            self._at_first = sum(cut) / len(cut)
        ended, n_cut = [n for lengths, _ in self._batches for n in lengths], sum(n for _, n in self._batches)
        count = len(ended) + n_cut
        many = len(self._batches) == BATCHES and surely_above(n_cut / count, count, CUT)
        nothing = self.masked and all(cut)
        if self.has_spoken or not (many or nothing):
            return None
        self.has_spoken = True
        said = f"{n_cut / count:.0%} of the completions of the last {len(self._batches)} batches were cut"
        if nothing:
            said = "this step changes nothing: every completion was cut and masked"
        return f"{said} at {self.limit} tokens{self._advice(ended, n_cut)}"

    def _advice(self, ended: Sequence[int], n_cut: int) -> str:
        if self._at_first <= CUT:
            return (
                f", and {self._at_first:.0%} of the first batch. The policy has come to write longer: read "
                "completions, and look at learning_rate and the reward before max_completion_length."
            )
        wanted = length_for(ended, n_cut)
        if wanted and wanted > self.limit:
            return f". max_completion_length={wanted} would let about {WANTED:.0%} end, by the {len(ended)} that did."
        return (
            f". Try max_completion_length={2 * self.limit} and look again: too few ended to suggest a length."
        )
