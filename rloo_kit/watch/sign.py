"""What a rule has seen, and what the rules have in common: :mod:`.rules`, :mod:`.lost` and :mod:`.standing`."""

from __future__ import annotations

from dataclasses import dataclass

from rloo_kit.watch import thresholds as at
from rloo_kit.watch.log import WINDOW, Change, Log


@dataclass(frozen=True)
class Sign:
    """What a rule has seen.

    Attributes:
        evidence: figures and the steps they are from.
        cause: the likely one.
        setting: what to change first: an argument of ``RLOOConfig`` or of the trainer.
        change: how to change it.
        window: the entries that it was seen in.
    """

    evidence: str
    cause: str
    setting: str
    change: str
    window: Log


def worsened(log: Log) -> Change | None:
    """How the reward has fallen since the start, where it is likely to have; the first entry is of the policy before
    any update."""
    windows = [(log.first(a), log.last(b)) for a in (1, at.FEW) for b in (WINDOW, 2 * WINDOW)]
    fall = min((log.change("reward", *both) for both in windows), key=lambda one: one.sigmas)
    return fall if fall.sigmas <= -2.0 else None


def lower(log: Log, factor: int) -> str:
    """What to do to the learning rate."""
    part = {3: "a third", 10: "a tenth"}[factor]
    return f"{part} of it" + ("" if log.rate is None else f" (now {log.rate:g})")
