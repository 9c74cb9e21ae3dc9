"""What was wrong with a run, read off its log afterwards: of the kit's runs, and of plain TRL's and unsloth's.

:mod:`.symptoms` says what counts as a symptom and what to change first.  Of every run, sick or not, a report has what
was sampled for nothing and how wide chance is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from rewards.trl_interface import Judges, judges_of, reward_name
from rloo_kit.errors import ConfigError
from rloo_kit.session.output import shortened
from rloo_kit.watch.log import DEAD_SHARE, MEMORY, WINDOW, Change, Known, Log, rounds, term
from rloo_kit.watch.run_folder import Source, read_history, settings_of
from rloo_kit.watch.symptoms import COLLAPSE_SURE, Finding, episodes

if TYPE_CHECKING:
    from IPython.lib.pretty import RepresentationPrinter

FEW_STEPS = 10  # most rules compare windows of entries, and have not spoken before
FIGURES = (
    *("reward", "reward_std", "dead_groups", "frac_reward_zero_std", "kl", "entropy"),
    *("completions/mean_length", "completions/clipped_ratio", "grad_norm"),
)
"""What a report shows of a run, followed by the mean of each reward function."""


def clock(seconds: float) -> str:
    """Minutes and seconds, with hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass(frozen=True)
class Cost:
    """The share of completions that gave no gradient, since all of their group were rewarded alike, and the seconds
    that these and all took; None where steps were not timed."""

    share: float
    seconds: float | None = None
    total_seconds: float | None = None

    def __str__(self) -> str:
        text = f"{self.share:.0%} of the completions were in dead groups and gave no gradient of the reward"
        if self.seconds is None or self.total_seconds is None:
            return text
        return f"{text}; about {clock(self.seconds)} of {clock(self.total_seconds)}"


@dataclass(frozen=True)
class Course:
    """Standard errors of one entry's reward and of the mean of the last ``count``, and the fall to these from the best
    as many before, where it is one, with the steps of both."""

    one: float
    count: int
    mean: float
    fall: Change | None = None
    steps: tuple[str, str] = ("", "")

    def __str__(self) -> str:
        text = f"chance alone moves a step's reward by +-{self.one:.3f}, the mean of {self.count} by +-{self.mean:.3f}"
        if self.fall is None:
            return text
        fall, (best, last) = self.fall, self.steps
        kind = "within chance" if -fall.sigmas < COLLAPSE_SURE else "more than chance"
        fell = f"reward fell {fall.before:.3f} ({best}) -> {fall.after:.3f} ({last})"
        return (
            f"{text}\n{fell}, {-fall.sigmas:.1f} standard errors: {kind}; a collapse is {COLLAPSE_SURE:.1f}"
        )


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found; prints as a report.

    Attributes:
        findings: one per episode, by first step.
        first_step, last_step: of the log.
        figures: per metric the mean over the first and over the last entries.
        cost: what was sampled for nothing; None where the log does not say.
        course: where the reward stands, and how much of that chance alone explains; None where it cannot be said.
        assumed: what the log does not say and the report rests on; empty where the settings are known.
    """

    findings: tuple[Finding, ...]
    first_step: int
    last_step: int
    figures: dict[str, tuple[float, float]]
    cost: Cost | None = None
    course: Course | None = None
    assumed: str = ""

    @property
    def healthy(self) -> bool:
        """Whether nothing was found; in a run of few steps also where nothing was learned."""
        return not self.findings

    def __str__(self) -> str:
        found, head = len(self.findings), "healthy: nothing found"
        if found:
            head = f"{found} finding{'s' if found > 1 else ''}"
        elif self.cost and self.cost.share == 1:  # a constant reward is known as one after more steps
            head = "nothing learned, and too few steps to say why: every reward of a group was equal"
        elif self.last_step - self.first_step < FEW_STEPS - 1:
            head = f"nothing found, and fewer than {FEW_STEPS} steps show little"
        lines = [f"{head}, steps {self.first_step} to {self.last_step}"]
        for one in self.findings:
            lines += [
                f"  {one.symptom}, steps {one.first_step} to {one.last_step}",
                f"    evidence      {one.evidence}",
                f"    likely cause  {one.cause}",
                f"    change first  {one.setting}, {one.change}",
            ]
        notes = (self.cost, self.course, self.assumed)
        lines += [f"  {line}" for part in notes if part for line in str(part).splitlines()]
        rows = [("", "first", "last")]
        rows += [
            (shortened(name, 48), f"{ends[0]:.3f}", f"{ends[1]:.3f}") for name, ends in self.figures.items()
        ]
        name, first, last = (max(map(len, column)) for column in zip(*rows, strict=True))
        name, first, last = max(28, name), max(9, 2 + first), max(9, 2 + last)
        lines += [f"  {a:<{name}}{b:>{first}}{c:>{last}}" for a, b, c in rows]
        lines[-len(self.figures) - 1] += f"  (means of up to {WINDOW} entries)"
        return "\n".join(lines)

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(str(self))


def diagnose(trainer_or_log: Source, judges: Mapping[str, Judges] | None = None) -> Diagnosis:
    """What was wrong with a run, or that nothing was, with figures.

    Args:
        trainer_or_log: a trainer of the kit's, TRL's or unsloth's; its log history; a ``trainer_state.json``;
            or the folder of a run or a checkpoint.  With a trainer, or beside a checkpoint of the kit's, the number of
            completions and the weights of its rewards are known, so more can be told, and earlier.
        judges: what reward functions judge, by their names in the log: ``{"correct": "answer", "format": "form"}``.
            A trainer's say it themselves, by their attribute ``judges``.  Without it, "format without answers" and
            "length hacking" are not looked for.

    Raises:
        ConfigError: there is no training step in it, or ``judges`` names no reward function of the log.
    """
    history, _ = read_history(trainer_or_log, "diagnose")
    entries, judges, assumed = rounds(history), judges or {}, ""
    _check(judges, Log(entries).names)
    if (settings := settings_of(trainer_or_log)) is None:
        known = Known.guessed(entries, judges)
        assumed = f"assumed, by the log alone: {known.completions} completions a step, {known.groups} groups or more"
    else:
        funcs = getattr(trainer_or_log, "reward_funcs", ())
        said = judged_by(funcs, getattr(trainer_or_log, "reward_func_names", None))
        known = Known.of(settings, {**said, **judges})
    log = Log(entries, known)
    first, last = log.first(WINDOW), log.last(WINDOW)
    names = [*FIGURES, *map(term, log.names)]
    figures = {name: (first.mean(name), last.mean(name)) for name in names if last.values(name).size}
    steps = log.run[0]["step"], log.run[-1]["step"]
    return Diagnosis(tuple(episodes(log).found), *steps, figures, cost_of(log), course_of(log), assumed)


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


def _check(judges: Mapping[str, Judges], names: Sequence[str]) -> None:
    for name, what in judges.items():
        if name not in names or what not in get_args(Judges):
            raise ConfigError(
                f"judges must give reward functions of the log as {', '.join(get_args(Judges))}",
                where=f"diagnose(judges={{{name!r}: {what!r}}})",
                todo=f"the log has {', '.join(names) or 'no reward function'}",
            )


def cost_of(log: Log) -> Cost | None:
    """Of a whole log; None where it has no dead groups to count."""
    shares, seconds = log.column(DEAD_SHARE), log.column("step_time")
    if np.isnan(shares).all():
        return None
    share, steps = float(np.nanmean(shares)), log.stride * log.known.updates
    if np.isnan(seconds).all():
        return Cost(share)
    lost = float(np.nansum(seconds * np.nan_to_num(shares)))
    return Cost(share, steps * lost, steps * float(np.nansum(seconds)))


def course_of(log: Log) -> Course | None:
    """Of a whole log; None where the reward's noise is not known."""
    count = min(WINDOW, max(1, len(log) // 2))
    window, recent = log.last(count), log.last(MEMORY)
    one, mean = (log.error("reward", part) for part in (log.last(1), window))
    if not (0.0 < one < math.inf and 0.0 < mean < math.inf):
        return None
    if earlier := recent.first(len(recent) - count):
        best = earlier.highest("reward", count)
        fall = log.change("reward", best, window)
        if fall.sigmas <= -1.0:
            return Course(one, count, mean, fall, (best.steps, window.steps))
    return Course(one, count, mean)
