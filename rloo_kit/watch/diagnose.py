"""What was wrong with a run, read off its log afterwards: of the kit's runs, and of plain TRL's and unsloth's.

:mod:`.symptoms` says what counts as a symptom and what to change first.  Of every run, sick or not, a report has what
was sampled for nothing and how wide chance is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from rewards.trl_interface import Judges
from rloo_kit.errors import ConfigError
from rloo_kit.session.output import shortened
from rloo_kit.watch import power
from rloo_kit.watch.log import ALIKE, DEAD_SHARE, MEMORY, WINDOW, Log, term
from rloo_kit.watch.run_folder import Source, read_run
from rloo_kit.watch.symptoms import COLLAPSE_SURE, GOOD, Finding, episodes

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
class Diagnosis:
    """What :func:`diagnose` found; prints as a report.

    Attributes:
        findings: one per episode, by first step.
        first_step, last_step: of the log.
        figures: per metric the mean over the first and over the last entries.
        dead_share: of the groups, whose rewards were all equal and gave no gradient; NaN where the log has none.
        notes: lines on what was sampled for nothing, how wide chance is, and what was assumed.
    """

    findings: tuple[Finding, ...]
    first_step: int
    last_step: int
    figures: dict[str, tuple[float, float]]
    dead_share: float = math.nan
    notes: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing was found; in a run of few steps also where nothing was learned."""
        return not self.findings

    def __str__(self) -> str:
        found, head = len(self.findings), "healthy: nothing found"
        if found:
            head = f"{found} finding{'s' if found > 1 else ''}"
        elif self.dead_share == 1:  # a constant reward is known as one after more steps
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
        lines += [f"  {note}" for note in self.notes]
        rows = [("", "first", f"last  (means of up to {WINDOW} entries)")]
        rows += [(shortened(name, 48), f"{a:.3f}", f"{b:.3f}") for name, (a, b) in self.figures.items()]
        width = max(28, *(len(name) for name, _, _ in rows))
        lines += [f"  {name:<{width}}{first:>11}     {last}" for name, first, last in rows]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(str(self))


def diagnose(
    trainer_or_log: Source, judges: Mapping[str, Judges] | None = None, held_out: int | None = None
) -> Diagnosis:
    """What was wrong with a run, or that nothing was, with figures; where nothing was learned, how small a gain could
    have been seen.

    Args:
        trainer_or_log: a trainer of the kit's, TRL's or unsloth's; its log history; a ``trainer_state.json``;
            or the folder of a run or a checkpoint.  With a trainer, or beside a checkpoint of the kit's, the number of
            completions and the weights of its rewards are known, so more can be told, and earlier.
        judges: what reward functions judge, by their names in the log: ``{"correct": "answer", "format": "form"}``.
            A trainer's say it themselves, by their attribute ``judges``.  Without it, "format without answers" and
            "length hacking" are not looked for.
        held_out: on how many problems the policy is evaluated; by default those of the trainer's ``eval_dataset``.

    Raises:
        ConfigError: there is no training step in it, or ``judges`` names no reward function of the log.
    """
    run = read_run(trainer_or_log, "diagnose", judges)
    log = run.log
    for name, what in (judges or {}).items():
        if name not in log.names or what not in get_args(Judges):
            raise ConfigError(
                f"judges must give reward functions of the log as {', '.join(get_args(Judges))}",
                where=f"diagnose(judges={{{name!r}: {what!r}}})",
                todo=f"the log has {', '.join(log.names) or 'no reward function'}",
            )
    if held_out is None and isinstance(dataset := getattr(trainer_or_log, "eval_dataset", None), Sized):
        held_out = len(dataset)
    first, last = log.first(WINDOW), log.last(WINDOW)
    names = [*FIGURES, *map(term, log.names)]
    figures = {name: (first.mean(name), last.mean(name)) for name in names if last.values(name).size}
    steps, notes = (log.run[0]["step"], log.run[-1]["step"]), [*notes_on(log, held_out or 0), run.assumed]
    dead_share = log.mean(DEAD_SHARE)
    return Diagnosis(tuple(episodes(log).found), *steps, figures, dead_share, tuple(filter(None, notes)))


def notes_on(log: Log, held_out: int = 0) -> Iterator[str]:
    """What a report says of a run, sick or not: its dead groups, how wide chance is, and what it could have shown."""
    shares, seconds = log.column(DEAD_SHARE), log.column("step_time")
    if log.values(DEAD_SHARE).size:
        cost = f"{np.nanmean(shares):.0%} of the completions were in dead groups and gave no gradient of the reward"
        if log.values("step_time").size:
            updates = log.stride * log.known.updates
            lost, all_of_it = (updates * np.nansum(part) for part in (seconds * shares, seconds))
            cost += f"; about {clock(lost)} of {clock(all_of_it)}"
        yield cost
    count = min(WINDOW, max(1, len(log) // 2))
    window, recent = log.last(count), log.last(MEMORY)
    one, mean = (log.error("reward", part) for part in (log.last(1), window))
    if not (0.0 < one < math.inf and 0.0 < mean < math.inf):
        return
    yield f"chance alone moves a step's reward by +-{one:.3f}, the mean of {count} by +-{mean:.3f}"
    if earlier := recent.first(len(recent) - count):
        best = earlier.highest("reward", count)
        fall = log.change("reward", best, window)
        if fall.sigmas <= -1.0:
            fell = f"reward fell {fall.before:.3f} ({best.steps}) -> {fall.after:.3f} ({window.steps})"
            kind = "within chance" if -fall.sigmas < COLLAPSE_SURE else "more than chance"
            yield f"{fell}, {-fall.sigmas:.1f} standard errors: {kind}; a collapse is {COLLAPSE_SURE:.1f}"
    yield from _power(log, held_out)


def _power(log: Log, held_out: int) -> Iterator[str]:
    """Where the reward has not changed for sure: how small a gain the run, and its held-out problems, would show."""
    third = max(1, len(log) // 3)
    before, after = log.first(third), log.last(third)
    rise = log.change("reward", before, after)
    if len(log) < FEW_STEPS or abs(rise.sigmas) >= 2.0 or log.height(after) >= GOOD:
        return
    least, counted = power.smallest_change(rise.error), f"{before.completions:,} completions a third"
    yield f"no rise is seen: reward {rise}; with {counted} a change below {least:.3f} cannot be told from chance"
    right = after.best("answer", after)
    accuracy = min(0.9, max(0.1, right[0] if right else log.height(after)))
    gains = ((n, power.smallest_gain(n, accuracy, ALIKE)) for n in ([held_out] if held_out else (200, 1000)))
    said = ", and ".join(f"with {n:,} problems a gain below {gain:.2f}" for n, gain in gains)
    yield f"held out, {said} cannot be told from chance (80 % power, problems paired)"
