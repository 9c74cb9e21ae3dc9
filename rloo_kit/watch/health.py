"""What is wrong with a run, read off its metrics while it trains and reported afterwards.

For users watching a run, and for those who come back to one.  :class:`HealthCallback` prints one line per episode of a
symptom and nothing while all is well; :func:`diagnose` gives the whole report, of the kit's runs and of plain TRL's and
unsloth's.  :mod:`rloo_kit.watch.symptoms` says what counts as a symptom and what to change first.  No setting is
changed here; the user decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rewards.signature import Judges, judges_of, reward_name
from rloo_kit.errors import ConfigError
from rloo_kit.session import processes
from rloo_kit.session.show import shortened
from rloo_kit.watch.log import WINDOW, Entry, Known, Log, Rows, Table, rounds, term
from rloo_kit.watch.report import Cost, Course, cost_of, course_of
from rloo_kit.watch.run_folder import Source, read_history, settings_of
from rloo_kit.watch.symptoms import Finding, judged

if TYPE_CHECKING:
    from IPython.lib.pretty import RepresentationPrinter

__all__ = ["Diagnosis", "Finding", "HealthCallback", "checked", "diagnose", "judged_by"]

OnUnhealthy = str | Callable[[Finding], object]
""""warn", "stop" or a function."""

QUIET = 5
"""Entries without the symptom after which an episode is over, so that the next one is reported again."""


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found; prints as a report.

    Attributes:
        findings: one per episode, by first step.
        first_step, last_step: of the log.
        figures: per metric the mean over the first and over the last entries.
        cost: what was sampled for nothing; None where the log does not say.
        course: where the reward stands, and how much of that chance alone explains; None where it cannot be said.
    """

    findings: tuple[Finding, ...]
    first_step: int
    last_step: int
    figures: dict[str, tuple[float, float]]
    cost: Cost | None = None
    course: Course | None = None

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        found = len(self.findings)
        head = f"{found} finding{'s' if found > 1 else ''}" if found else "healthy: nothing found"
        lines = [f"{head}, steps {self.first_step} to {self.last_step}"]
        for one in self.findings:
            lines += [
                f"  {one.symptom}, steps {one.first_step} to {one.last_step}",
                f"    evidence      {one.evidence}",
                f"    likely cause  {one.cause}",
                f"    change first  {one.setting}, {one.change}",
            ]
        lines += [f"  {line}" for part in (self.cost, self.course) if part for line in str(part).splitlines()]
        return "\n".join([*lines, *self._table()])

    def _table(self) -> list[str]:
        rows = [(shortened(name, 48), *(f"{v:.3f}" for v in both)) for name, both in self.figures.items()]
        name, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
        name, first, last = max(28, name), *(max(9, 2 + width) for width in widths)
        head = f"  {'':<{name}}{'first':>{first}}{'last':>{last}}  (means of up to {WINDOW} entries)"
        return [head, *(f"  {a:<{name}}{b:>{first}}{c:>{last}}" for a, b, c in rows)]

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(str(self))


class Episodes:
    """Follows a run entry by entry: a symptom that goes on is one episode, also where it flickers."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self._open: dict[str, tuple[int, int]] = {}  # symptom: place in found, entry at which last seen

    def look(self, log: Log) -> list[Finding]:
        """The findings at the last entry that open an episode."""
        now, new = len(log), []
        self._open = {name: seen for name, seen in self._open.items() if now - seen[1] <= QUIET}
        for finding in judged(log):
            place = self._open.get(finding.symptom, (len(self.found), now))[0]
            self._open[finding.symptom] = (place, now)
            if place == len(self.found):
                self.found.append(finding)
                new.append(finding)
            else:
                self.found[place] = replace(self.found[place], last_step=finding.last_step)
        return new


def episodes(log: Log) -> Episodes:
    """The episodes of a whole log."""
    found = Episodes()
    for end in range(1, len(log) + 1):
        found.look(log.first(end))
    return found


FIGURES = (
    "reward",
    "reward_std",
    "dead_groups",
    "frac_reward_zero_std",
    "kl",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
    "grad_norm",
)
"""What a report shows of a run, followed by the mean of each reward function."""


def judged_by(reward_funcs: Sequence[object], names: Sequence[str] | None = None) -> dict[str, Judges]:
    """What each reward function says that it judges, by its attribute ``judges``: metric name -> "answer", "form" or
    "length", of those that say so.

    Args:
        reward_funcs: a trainer's.
        names: their names as metrics, a trainer's ``reward_func_names``; by default the functions' own.
    """
    named = names or [reward_name(function) for function in reward_funcs]  # type: ignore[arg-type]
    said = zip(named, map(judges_of, reward_funcs), strict=True)
    return {name: what for name, what in said if what}


def diagnose(trainer_or_log: Source, judges: Mapping[str, Judges] | None = None) -> Diagnosis:
    """What was wrong with a run, or that nothing was, with figures.

    Args:
        trainer_or_log: a trainer of the kit's, TRL's or unsloth's; its log history; a ``trainer_state.json``;
            or the folder of a run or a checkpoint.  With a trainer, or a ``training_args.bin`` beside the log, the
            number of completions and the weights of its rewards are known, so more can be told, and earlier.
        judges: what reward functions judge, by their names in the log: ``{"correct": "answer", "format": "form"}``.
            A trainer's say it themselves, by their attribute ``judges``.  Without it, "format without answers" and
            "length hacking" are not looked for.

    Raises:
        ConfigError: there is no training step in it, an entry cannot be read, or ``judges`` names no reward function of
            the log.
    """
    history, _ = read_history(trainer_or_log, "diagnose")
    log = _log_of(trainer_or_log, rounds(history), judges or {})
    first, last = log.first(WINDOW), log.last(WINDOW)
    names = [*FIGURES, *map(term, log.names)]
    figures = {name: (first.mean(name), last.mean(name)) for name in names if last.values(name)}
    found = tuple(episodes(log).found)
    steps = log.entries[0]["step"], log.entries[-1]["step"]
    return Diagnosis(found, *steps, figures, cost_of(log), course_of(log))


def _log_of(source: Source, entries: list[Entry], judges: Mapping[str, Judges]) -> Log:
    for name, what in judges.items():
        if name not in Log(entries).names or what not in get_args(Judges):
            raise ConfigError(
                f"judges must give reward functions of the log as {', '.join(get_args(Judges))}",
                where=f"diagnose(judges={{{name!r}: {what!r}}})",
                todo=f"the log has {', '.join(Log(entries).names) or 'no reward function'}",
            )
    if (settings := settings_of(source)) is None:
        return Log(entries, Known.guessed(entries, judges))
    said = judged_by(getattr(source, "reward_funcs", ()), getattr(source, "reward_func_names", None))
    return Log(entries, Known.of(settings, {**said, **judges}))


class Follower:
    """A run's log that grows: each of its entries is read once, however often it is looked at."""

    def __init__(self) -> None:
        self._table, self._read = Table(), 0

    def follow(self, history: Sequence[Entry], known: Known) -> Log:
        """The log so far; a history shorter than what was read is another run's."""
        if len(history) < self._read:
            self._table, self._read = Table(), 0
        for entry in history[self._read :]:
            self._table.add(entry)
        self._read = len(history)
        return Log(Rows(self._table, (0, len(self._table.entries))), known)


class HealthCallback(TrainerCallback):
    """Prints in one line what is wrong, once per episode, and nothing while all is well.

    Works in any trainer that logs as TRL's ``RLOOTrainer`` does; in the kit's it is on by default.

    Args:
        on_unhealthy: "warn" prints; "stop" prints, saves a checkpoint and ends the training; a callable gets the
            :class:`Finding` instead of the print, on the main process.  None takes the config's ``on_unhealthy``,
            or "warn".
        said: gives the symptoms that the trainer has already reported itself; they are not printed.
        judges: what reward functions judge, by metric name, as for :func:`diagnose`; see :func:`judged_by`.

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
        self._episodes, self._follower = Episodes(), Follower()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: object, **kwargs: object
    ) -> None:
        """Look at what a resumed run has logged before, so that nothing is said twice."""
        self._follower = Follower()
        self._episodes = episodes(self._log(args, state))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        """Look at the log so far, and speak where an episode begins."""
        log = self._log(args, state)
        if not logs or "grad_norm" not in logs or not log.entries:
            return
        wanted = self.on_unhealthy or checked(getattr(args, "on_unhealthy", "warn"), type(args).__name__)
        for finding in self._episodes.look(log):
            if state.is_world_process_zero:
                self._tell(finding, wanted)
            if wanted == "stop":
                control.should_training_stop = True
                # A checkpoint of weights that are not finite would hide the last good one from a resume.
                control.should_save = control.should_save or not finding.symptom.startswith("non-finite")

    def _log(self, args: TrainingArguments, state: TrainerState) -> Log:
        return self._follower.follow(state.log_history, Known.of(args, self.judges))

    def _tell(self, finding: Finding, wanted: OnUnhealthy) -> None:
        if callable(wanted):
            wanted(finding)
        elif wanted == "stop" or finding.symptom not in self.said():
            processes.say(f"unhealthy: {finding}")


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
