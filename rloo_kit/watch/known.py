"""What is known of a run besides its log: by its config, or by what the log alone gives away.

For :mod:`.log` and the rules.  No file is read here; :mod:`.run_folder` finds a config.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rloo_kit.watch.chance import ALIKE
from rloo_kit.watch.table import Entry, spread_name, term, term_names

if TYPE_CHECKING:
    import trl

    from rewards.signature import Judges

COMPLETIONS = 8
"""Completions per step where the config is not known: the default of TRL (8), unsloth (4 x 2) and the kit (4 x 2)."""

MOST_GROUPS = 32
"""Groups per step that a log alone is believed to have; the shares in it fit any large number."""

MOST_COMPLETIONS = 512
"""Completions per step, likewise."""


@dataclass(frozen=True)
class Known:
    """What is known of a run besides its log.

    Attributes:
        completions: per update, or per generation batch where that is more.
        groups: likewise.
        weights: of the reward functions, in the log's order; None where unknown.
        args: the run's config, or None.
        updates: optimizer steps per generation batch (``num_iterations``, ``steps_per_generation``).
        batches: generation batches per update, where it gathers several; a reward's logged spread is that within one.
        judges: metric name of a reward function -> "answer", "form" or "length"; the rules that need it are silent
            about reward functions that are not in it.
    """

    completions: int = COMPLETIONS
    groups: int = 1
    weights: tuple[float, ...] | None = None
    args: trl.RLOOConfig | None = None
    updates: int = 1
    batches: int = 1
    judges: Mapping[str, Judges] = field(default_factory=dict)

    @classmethod
    def of(cls, args: trl.RLOOConfig, judges: Mapping[str, Judges] | None = None) -> Known:
        """From the config of a TRL trainer."""
        step = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
        completions = max(step, args.generation_batch_size or 0)
        return cls(
            completions=completions,
            groups=max(1, completions // args.num_generations),
            weights=tuple(args.reward_weights) if args.reward_weights else None,
            args=args,
            updates=completions // step * args.num_iterations,
            batches=max(1, completions // (args.generation_batch_size or completions)),
            judges=judges or {},
        )

    @classmethod
    def guessed(cls, entries: Sequence[Entry], judges: Mapping[str, Judges] | None = None) -> Known:
        """From a log alone: as many groups as make each share of dead groups a whole number of them, and as many
        completions as the spread of a reward of 0 or one value tells, with two or more in each group.

        Of a step's completions, 8 are assumed where the log does not tell.
        """
        shares = [e.get("dead_groups", e.get("frac_reward_zero_std")) or 0.0 for e in entries]
        counts = range(1, MOST_GROUPS + 1)
        fits = (n for n in counts if all(abs(n * share - round(n * share)) < 1e-3 * n for share in shares))
        stride = entries[1].get("step", 2) - entries[0].get("step", 1) if len(entries) > 1 else 1
        # A mean over several batches has shares that fit several times as many groups.
        groups = max(1, next(fits, 1) // max(1, stride))
        told = told_completions(entries) if stride <= 1 else None
        if told and told % groups:
            groups = 1
        return cls(told or max(COMPLETIONS, 2 * groups), groups, judges=judges or {})

    @property
    def alike(self) -> float:
        """How many completions of a prompt weigh as one independent one."""
        return 1 + (self.completions / self.groups - 1) * ALIKE

    def now(self, setting: str, value: float | None = None) -> str:
        """``(now 0.001)`` after a setting's name, where its value is known."""
        value = getattr(self.args, setting, value)
        return "" if value is None else f" (now {value:g})"


def told_completions(entries: Sequence[Entry]) -> int | None:
    """Completions per entry, by a reward of 0 or one value c; None where no reward is of that kind.

    Of n completions a share p has the mean m = p c and the sample variance s^2 = n / (n - 1) p (1 - p) c^2, so that
    s^2 / m = n / (n - 1) (c - m): a straight line over the entries, whose slope gives n, and on which a reward of other
    values does not lie.
    """
    for name in ("reward", *(term(one) for one in (term_names(entries[-1]) if entries else ()))):
        pairs = [(entry.get(name), entry.get(spread_name(name))) for entry in entries]
        known = [(m, s**2 / m) for m, s in pairs if m and s and m > 0.0 and abs(s) < 1e6 and math.isfinite(m)]
        if len({round(m, 9) for m, _ in known}) < 3:
            continue
        slope, intercept = statistics.linear_regression(*zip(*known, strict=True))
        off = max(abs(y - intercept - slope * m) for m, y in known)
        count = round(slope / (slope + 1)) if slope < -1.0 else 0
        if off <= 1e-3 * abs(intercept) / max(1, count) and 2 <= count <= MOST_COMPLETIONS:
            return count
    return None
