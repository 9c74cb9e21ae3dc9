"""Diagnose a run from its log: a run of the kit, of plain TRL or of unsloth.

Every report, healthy or not, says what was sampled for nothing and how far chance alone moves the reward.
"""

import math
from collections.abc import Iterator, Mapping, Sized
from dataclasses import dataclass
from statistics import NormalDist
from typing import get_args

import numpy as np

from rewards.trl_interface import Judges
from rloo_kit import argument_types
from rloo_kit.argument_types import Count
from rloo_kit.errors import ConfigError
from rloo_kit.session.output import shortened
from rloo_kit.watch.read_run import Source, read_run
from rloo_kit.watch.statistics import ALIKE, MEMORY, WINDOW, ZERO_VARIANCE, Log, column, term
from rloo_kit.watch.symptoms import COLLAPSE_SURE, GOOD, SURE, Episodes, Finding

FEW_STEPS = 10  # entries below which a report without findings says so
FIGURES = (
    *("reward", "reward_std", "zero_variance_groups", "frac_reward_zero_std", "kl", "entropy"),
    *("completions/mean_length", "completions/clipped_ratio", "grad_norm"),
)
"""Metrics that a report shows, followed by the mean of each reward function."""


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """What :func:`diagnose` found; prints as a report."""

    findings: tuple[Finding, ...]  # one per episode, by first step
    first_step: int
    last_step: int
    figures: dict[str, tuple[float, float]]  # metric: its mean over the first and over the last entries
    zero_variance_share: float = math.nan  # share of groups, which gave no gradient; NaN if not logged
    notes: tuple[str, ...] = ()  # on what was sampled for nothing, the effect of chance, and what was assumed

    @property
    def healthy(self) -> bool:
        """Whether nothing was found; a short run is healthy even if nothing was learned."""
        return not self.findings

    def __str__(self) -> str:
        head = "healthy: nothing found"
        if self.findings:
            head = f"{len(self.findings)} finding{'s' if len(self.findings) > 1 else ''}"
        elif self.zero_variance_share == 1:  # a reward is called constant only after more steps
            head = "nothing learned, and too few steps to say why: every reward of a group was equal"
        elif self.last_step - self.first_step < FEW_STEPS - 1:
            head = f"nothing found, and fewer than {FEW_STEPS} steps show little"
        lines = [f"{head}, steps {self.first_step} to {self.last_step}"]
        for finding in self.findings:
            lines += [
                f"  {finding.symptom}, steps {finding.first_step} to {finding.last_step}",
                f"    evidence      {finding.evidence}",
                f"    likely cause  {finding.cause}",
                f"    change first  {finding.setting}, {finding.change}",
            ]
        lines += [f"  {note}" for note in self.notes]
        rows = [("", "first", f"last  (means of up to {WINDOW} entries)")]
        rows += [(shortened(name, 48), f"{a:.3f}", f"{b:.3f}") for name, (a, b) in self.figures.items()]
        width = max(28, *(len(name) for name, _, _ in rows))
        lines += [f"  {name:<{width}}{first:>11}     {last}" for name, first, last in rows]
        return "\n".join(lines)

    __repr__ = __str__


def diagnose(
    trainer_or_log: Source, judges: Mapping[str, Judges] | None = None, held_out: int | None = None
) -> Diagnosis:
    """Find the symptoms of a run, with figures; if nothing was learned, say how small a gain could
    have been seen.

    Args:
        trainer_or_log: a trainer (the kit's, TRL's or unsloth's), its log history, a ``trainer_state.json``, or the
            folder of a run or a checkpoint.  Any trainer, or a checkpoint of the kit, also gives the number of
            completions and the reward weights, so that more symptoms are found, and earlier.
        judges: what reward functions judge, by their names in the log: ``{"correct": "answer", "format": "form"}``.
            A trainer's functions say it in their attribute ``judges``.  Without it, "format without answers" and
            "length hacking" are not looked for.
        held_out: how many problems the policy is evaluated on; None means those of the trainer's ``eval_dataset``.

    Raises:
        ConfigError: the log has no training step, or ``judges`` does not fit its reward functions.
    """
    argument_types.check({"held_out": held_out}, {"held_out": Count | None}, "diagnose")
    run = read_run(trainer_or_log, "diagnose", judges)
    log = run.log
    for name, what in (judges or {}).items():
        if name not in log.names or what not in get_args(Judges):
            raise ConfigError(
                f"judges must give reward functions of the log as {', '.join(get_args(Judges))}",
                where=f"diagnose(judges={{{name!r}: {what!r}}})",
                todo=f"the log has {', '.join(log.names) or 'no reward function'}",
            )
    dataset = getattr(trainer_or_log, "eval_dataset", None)
    if held_out is None and isinstance(dataset, Sized) and not isinstance(dataset, Mapping):
        held_out = len(dataset)
    first, last = log[:WINDOW], log[-WINDOW:]
    metrics = [*FIGURES, *map(term, log.names)]
    notes = (*notes_on(log), *_power(log, held_out), run.assumed)
    return Diagnosis(
        findings=tuple(Episodes(log).findings),
        first_step=log.entries[0]["step"],
        last_step=log.entries[-1]["step"],
        figures={name: (first.mean(name), last.mean(name)) for name in metrics if last.values(name).size},
        zero_variance_share=log.mean(ZERO_VARIANCE),
        notes=tuple(filter(None, notes)),
    )


def notes_on(log: Log) -> Iterator[str]:
    """Say of every run, healthy or not, what its zero-variance groups cost and how far chance moves the reward."""
    if log.values(ZERO_VARIANCE).size:
        share, step_time = column(log.entries, ZERO_VARIANCE), column(log.entries, "step_time")
        seconds = step_time * log.stride * log.known.updates
        cost = f"{np.nanmean(share):.0%} of the completions were in zero-variance groups, which gave no gradient"
        times = f"; they took about {clock(np.nansum(seconds * share))} of {clock(np.nansum(seconds))}"
        yield cost + (times if log.values("step_time").size else "")
    for name in log.names:
        if not log.values(term(name)).size:
            yield f"{name} scored no completion: it returned None for all"
    third = max(1, min(MEMORY, len(log) // 3))
    changes = {name: log.change(name, log[:third], log[-third:]) for name in ("reward", *map(term, log.names))}
    for name in log.judging("answer") if changes["reward"].sigmas >= SURE else ():
        if changes[term(name)].sigmas <= -SURE:
            what = f"the reward rose, {changes['reward']}, and {name} fell, {changes[term(name)]}"
            yield f"{what}: something else is paid for"
    count = min(WINDOW, max(1, len(log) // 2))
    window, earlier = log[-count:], log[-MEMORY:-count]
    step, mean = (log.error("reward", part) for part in (log[-1:], window))
    if not (0.0 < step < math.inf and 0.0 < mean < math.inf):
        return
    one, several = ("a step", f"{count}") if log.stride == 1 else ("an entry", f"{count} entries, {window.steps},")
    yield f"chance alone moves {one}'s reward by +-{step:.3f} (a standard error), the mean of {several} by +-{mean:.3f}"
    best = earlier.highest("reward", count) if earlier else window
    fall = log.change("reward", best, window)
    if fall.sigmas <= -1.0:
        fell = f"reward fell {fall.before:.3f} ({best.steps}) -> {fall.after:.3f} ({window.steps})"
        yield f"{fell}, {-fall.sigmas:.1f} standard errors; a collapse is {COLLAPSE_SURE:.1f} or more"


# Standard errors for a two-sided test at 5 %, 1.96, and for a power of 80 %, 0.84: it finds four cases of five.
TWO_SIDED, POWER = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)


def _power(log: Log, held_out: int | None) -> Iterator[str]:
    """Say if the reward surely fell; if it did not surely change, how small a gain the run and its held-out problems
    would show."""
    third = max(1, len(log) // 3)
    before, after = log[:third], log[-third:]
    rise = log.change("reward", before, after)
    if len(log) < FEW_STEPS or not 0.0 < rise.error < math.inf:
        return
    if rise.sigmas <= -2.0:
        yield f"the reward fell: {rise}, first to last third"
    if abs(rise.sigmas) >= 2.0 or log.height(after) >= GOOD:
        return
    least, counted = (TWO_SIDED + POWER) * rise.error, f"{before.completions:,} completions a third"
    yield f"no sure rise: reward {rise}, first to last third; {counted} could detect a change of {least:.3f}"
    right = after.best("answer", after)
    accuracy = min(0.9, max(0.1, right[0] if right else log.height(after)))
    gains = [(n, smallest_gain(n, accuracy, ALIKE)) for n in ([held_out] if held_out else (200, 1000))]
    limits = ", ".join(f"{gain:.2f} with {n:,} held-out problems" for n, gain in gains)
    if gains[0][1] > 1 - accuracy:
        yield f"an evaluation with {gains[0][0]:,} held-out problems could detect no gain (80 % power, problems paired)"
    else:
        yield f"an evaluation could detect a gain of {limits} (80 % power, problems paired)"


def smallest_gain(problems: int, accuracy: float = 0.5, alike: float = 0.0) -> float:
    """Return the smallest accuracy gain that so many problems show, each answered once before and once after training;
    one above 1 - accuracy cannot be reached, so they show none.

    McNemar's test, if a share psi of the answers differs, needs n = ((1.96 sqrt(psi) + 0.84 sqrt(psi - gain^2)) /
    gain)^2 problems (Connor 1987, Biometrics 43, 207).  If answers to one problem correlate by ``alike``, psi is
    (p (1 - q) + q (1 - p)) (1 - alike), for accuracies p before and q after; 0 compares two sets of problems.

    >>> round(smallest_gain(200), 2), round(smallest_gain(200, alike=0.3), 2), round(smallest_gain(1319), 2)
    (0.14, 0.12, 0.05)
    """
    gain = 0.0
    for _ in range(20):  # a fixed point: the gain is on both sides
        after = min(1.0, accuracy + gain)
        psi = (accuracy * (1 - after) + after * (1 - accuracy)) * (1 - alike)
        needed = TWO_SIDED * math.sqrt(psi) + POWER * math.sqrt(max(0.0, psi - gain**2))
        gain = needed / math.sqrt(problems)
    return gain
