"""What is wrong with a run, read off its metrics: said while it trains, and reported afterwards.

For everybody who watches a run, or comes back to one.  :class:`HealthCallback` speaks while it trains, one line per
episode and nothing while all is well; :func:`diagnose` gives the whole report afterwards, of the kit's runs and
of plain TRL's and unsloth's.  What counts as a symptom, and what to change first, :mod:`rloo_kit.watch.symptoms` says.
No setting is changed here; that is for whoever reads the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from transformers import TrainerCallback

from rloo_kit.errors import ConfigError
from rloo_kit.watch.log import WINDOW, Known, Log, rounds, term
from rloo_kit.watch.run_folder import read_history
from rloo_kit.watch.symptoms import Finding, judged

__all__ = ["Diagnosis", "Finding", "HealthCallback", "diagnose"]

QUIET = 5
"""Entries without the symptom after which an episode is over and the next one is spoken of again."""


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found; prints as a report.

    Attributes:
        findings: one per episode, by first step.
        first_step, last_step: of the log.
        figures: per metric the mean over the first and over the last entries.
    """

    findings: tuple[Finding, ...]
    first_step: int
    last_step: int
    figures: dict[str, tuple[float, float]]

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        steps = f"steps {self.first_step} to {self.last_step}"
        found = len(self.findings)
        head = f"{found} finding{'s' if found > 1 else ''}" if found else "healthy: nothing found"
        lines = [f"{head}, {steps}"]
        for one in self.findings:
            lines += [
                f"  {one.symptom}, steps {one.first_step} to {one.last_step}",
                f"    evidence      {one.evidence}",
                f"    likely cause  {one.cause}",
                f"    change first  {one.setting}, {one.change}",
            ]
        lines.append(f"  {'':<28}{'first':>9}{'last':>9}  (means of up to {WINDOW} entries)")
        lines += [f"  {name:<28}{first:>9.3f}{last:>9.3f}" for name, (first, last) in self.figures.items()]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


# --- episodes ---------------------------------------------------------------------------------------------


class Watch:
    """Follows a run entry by entry and tells the findings that are new."""

    def __init__(self) -> None:
        self.episodes: list[Finding] = []
        self._open: dict[str, tuple[int, int]] = {}  # symptom: place in episodes, entry at which last seen

    def look(self, log: Log) -> list[Finding]:
        """The findings of the last entry that open an episode."""
        self._close(len(log))
        new = [finding for finding in judged(log) if not self._goes_on(finding, len(log))]
        for finding in new:
            self._open[finding.symptom] = (len(self.episodes), len(log))
            self.episodes.append(finding)
        return new

    def _close(self, entry: int) -> None:
        self._open = {name: seen for name, seen in self._open.items() if entry - seen[1] <= QUIET}

    def _goes_on(self, finding: Finding, entry: int) -> bool:
        if finding.symptom not in self._open:
            return False
        place, _ = self._open[finding.symptom]
        self._open[finding.symptom] = (place, entry)
        self.episodes[place] = replace(self.episodes[place], last_step=finding.last_step)
        return True


def watched(log: Log) -> Watch:
    """A watch that has seen the whole log."""
    watch = Watch()
    for end in range(1, len(log) + 1):
        watch.look(log.first(end))
    return watch


# --- the two doors ----------------------------------------------------------------------------------------

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
"""What a report shows of a run, with each reward function beside it."""


def read(source: Any) -> Log:
    """The log of a trainer, a log history, a ``trainer_state.json`` or a run's folder.

    Raises:
        ConfigError: there is no training step in it.
    """
    history, _ = read_history(source, "diagnose")
    entries, args = rounds(history), getattr(source, "args", None)
    return Log(entries, Known.of(args) if args else Known.guessed(entries))


def diagnose(trainer_or_log: Any) -> Diagnosis:
    """What was wrong with a run, or that nothing was, with figures.

    Args:
        trainer_or_log: a trainer of the kit's, TRL's or unsloth's; its log history; a ``trainer_state.json``;
            or the run's folder.  With a trainer the number of completions and the weights of its rewards are
            known, so more can be told, and earlier.

    Raises:
        ConfigError: there is no training step in it.
    """
    log = read(trainer_or_log)
    first, last = log.first(WINDOW), log.last(WINDOW)
    names = [*FIGURES, *map(term, log.names)]
    figures = {name: (first.mean(name), last.mean(name)) for name in names if last.values(name)}
    return Diagnosis(tuple(watched(log).episodes), log.entries[0]["step"], log.entries[-1]["step"], figures)


class HealthCallback(TrainerCallback):
    """Says in one line what is wrong, once per episode, and nothing while all is well.

    Works in any trainer that logs as TRL's ``RLOOTrainer`` does; in the kit's it is on by default.

    Args:
        on_unhealthy: "warn" prints; "stop" prints, saves a checkpoint and ends the training; a callable gets the
            :class:`Finding` in place of the print, on the main process.  None takes the config's ``on_unhealthy``,
            or "warn".
        said: the symptoms that somebody else has spoken of, and more exactly, so that they are not printed.

    Raises:
        ConfigError: another value.
    """

    def __init__(
        self,
        on_unhealthy: str | Callable[[Finding], Any] | None = None,
        said: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.on_unhealthy, self.said = checked(on_unhealthy), said
        self._watch = Watch()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at what a resumed run has logged before, so that nothing is said twice."""
        entries = rounds(state.log_history)
        self._watch = watched(Log(entries, Known.of(args)))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Look at the log so far, and speak where an episode begins."""
        log = Log(rounds(state.log_history), Known.of(args))
        if not logs or "grad_norm" not in logs or not log.entries:
            return
        wanted = self.on_unhealthy or checked(getattr(args, "on_unhealthy", None)) or "warn"
        for finding in self._watch.look(log):
            if state.is_world_process_zero:
                self._tell(finding, wanted)
            if wanted == "stop":
                control.should_training_stop = True
                # A checkpoint of weights that are not finite would hide the last good one from a resume.
                control.should_save = control.should_save or not finding.symptom.startswith("non-finite")

    def _tell(self, finding: Finding, wanted: Any) -> None:
        if callable(wanted):
            wanted(finding)
        elif wanted == "stop" or finding.symptom not in self.said():
            print(f"unhealthy: {finding}", flush=True)


def checked(on_unhealthy: Any) -> Any:
    """The same, if it is one of the choices.

    Raises:
        ConfigError: it is not.
    """
    if on_unhealthy is None or on_unhealthy in ("warn", "stop") or callable(on_unhealthy):
        return on_unhealthy
    raise ConfigError(
        "on_unhealthy is none of its choices",
        where=f"on_unhealthy={on_unhealthy!r}",
        todo='take "warn", "stop", or a function of the finding',
    )
