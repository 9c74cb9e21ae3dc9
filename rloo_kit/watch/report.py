"""What a report says of every run, sick or not: what was sampled for nothing, and how wide chance is.

For :func:`rloo_kit.diagnose`.  Nothing is judged here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rloo_kit.watch import thresholds as at
from rloo_kit.watch.log import DEAD_SHARE, MEMORY, WINDOW, Change, Log
from rloo_kit.watch.progress import clock


@dataclass(frozen=True)
class Cost:
    """Completions that were sampled and gave no gradient, since all of their group were rewarded alike.

    Attributes:
        share: of the completions of the run.
        seconds, total_seconds: what they took of its steps, in proportion, and all of them; None where steps were not
            timed.
    """

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
    """The reward at the end, the best before it, and what chance alone does.

    Attributes:
        one: standard error of one entry.
        last: entries that stand for the end, their steps, and the standard error of their mean.
        fall: from the best as many entries before them, where it is one.
        best: the steps of those.
    """

    one: float
    last: tuple[int, str, float]
    fall: Change | None = None
    best: str = ""

    def __str__(self) -> str:
        count, steps, error = self.last
        text = f"chance alone moves a step's reward by +-{self.one:.3f}, the mean of {count} by +-{error:.3f}"
        if self.fall is None:
            return text
        sigmas = -self.fall.sigmas
        kind = "within chance" if sigmas < at.COLLAPSE_SURE else "more than chance"
        fell = f"{self.fall.before:.3f} ({self.best}) -> {self.fall.after:.3f} ({steps})"
        return f"{text}\nreward fell {fell}, {sigmas:.1f} standard errors: {kind}; a collapse is {at.COLLAPSE_SURE:.1f}"


def cost_of(log: Log) -> Cost | None:
    """Of a whole log; None where it has no dead groups to count."""
    shares = log.values(DEAD_SHARE)
    if not shares:
        return None
    share = sum(shares) / len(shares)
    seconds = [(e.get("step_time"), e.get("dead_groups", e.get("frac_reward_zero_std"))) for e in log.entries]
    timed = [(a, b or 0.0) for a, b in seconds if a is not None and math.isfinite(a)]
    if not timed:
        return Cost(share)
    steps = log.stride * log.known.updates
    return Cost(share, steps * sum(a * b for a, b in timed), steps * sum(a for a, _ in timed))


def course_of(log: Log) -> Course | None:
    """Of a whole log; None where the reward's noise is not known."""
    count = min(WINDOW, max(1, len(log) // 2))
    window, recent = log.last(count), log.last(MEMORY)
    errors = [log.error("reward", part) for part in (log.last(1), window)]
    if not all(math.isfinite(error) and error > 0.0 for error in errors):
        return None
    last = (count, window.steps, errors[1])
    earlier = recent.first(len(recent) - count)
    if not len(earlier):
        return Course(errors[0], last)
    best = earlier.highest("reward", count)
    fall = log.change("reward", best, window)
    return Course(errors[0], last, fall, best.steps) if fall.sigmas <= -1.0 else Course(errors[0], last)
