"""A run's log as figures that can be compared: means over windows of steps, spreads, and their standard errors.

For :mod:`rloo_kit.watch.symptoms`, which judges them.  A log is what a trainer of TRL's keeps in
``state.log_history``, the kit's and unsloth's alike; what a log does not say, of how many completions and
groups a step is, :class:`Known` holds.  Nothing is judged here, and nothing is read from a file.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

WINDOW = 5
"""Log entries that stand for "now": at 8 completions each, 40, which give a share to within +-0.15."""

LONG = 20
"""Entries from which a step-to-step noise is known to +-20 % by its mean square, which has about 2/3 x 19 degrees of
freedom (von Neumann et al. 1941), and to +-30 % by its median."""

STEADY = 1.2
"""Ratio of the largest to the smallest E[r^2] / E[r] of a log up to which a reward is taken to be 0 or one value c,
for which it is c in every batch."""

MEMORY = 100
"""Entries back that a symptom looks, apart from the run's first ones: its cost does not grow with the run."""

ALIKE = 0.3
"""Correlation of the rewards of one prompt's completions, since prompts differ in difficulty.  K of them then
weigh as K / (1 + (K - 1) x 0.3) independent ones (Kish 1965, design effect)."""

COMPLETIONS = 8
"""Completions per step where nobody says: the defaults of TRL (8), unsloth (4 x 2) and the kit (4 x 2) agree."""

MOST_GROUPS = 32
"""Groups per step that a log alone is believed to be of; the shares that it holds fit any large number."""

RATIO = "clip_ratio/region_mean"

FORMAT_NAMES = re.compile(r"format|think|closed|(?<![a-z])tags?(?![a-z])|xml|(?<![a-z])struct", re.IGNORECASE)
ANSWER_NAMES = re.compile(r"answer|correct|accura|right|solve|exact|math|gold", re.IGNORECASE)
"""How reward functions are called that pay for form, and for being right; the second wins where both match."""


@dataclass(frozen=True)
class Known:
    """What is known of a run beside its log.

    Attributes:
        completions: per update, or per generation batch where that is more.
        groups: likewise.
        weights: of the reward functions, in the log's order; None where nobody says.
        args: the run's config, or None.
        updates: optimizer steps per generation batch (``num_iterations``, ``steps_per_generation``).
        batches: generation batches per update, where it gathers several; a reward's logged spread is that within one.
    """

    completions: int = COMPLETIONS
    groups: int = 1
    weights: tuple[float, ...] | None = None
    args: Any = None
    updates: int = 1
    batches: int = 1

    @classmethod
    def of(cls, args: Any) -> Known:
        """From a config of TRL's; the defaults where it is None."""
        if args is None:
            return cls()
        step = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
        completions = max(step, args.generation_batch_size or 0)
        weights = tuple(args.reward_weights) if args.reward_weights else None
        updates = completions // step * getattr(args, "num_iterations", 1)
        groups = max(1, completions // args.num_generations)
        batches = max(1, completions // (args.generation_batch_size or completions))
        return cls(completions, groups, weights, args, updates, batches)

    @classmethod
    def guessed(cls, entries: Sequence[dict[str, Any]]) -> Known:
        """From a log alone: as many groups as all its shares of dead groups are whole numbers of, each of two
        completions or more.

        >>> Known.guessed([{"dead_groups": 0.25}, {"dead_groups": 0.5}]).groups
        4
        """
        shares = [e.get("dead_groups", e.get("frac_reward_zero_std")) or 0.0 for e in entries]
        counts = range(1, MOST_GROUPS + 1)
        fits = (n for n in counts if all(abs(n * share - round(n * share)) < 1e-3 * n for share in shares))
        stride = entries[1].get("step", 2) - entries[0].get("step", 1) if len(entries) > 1 else 1
        groups = max(
            1, next(fits, 1) // max(1, stride)
        )  # shares of several batches' mean fit several times as many
        return cls(max(COMPLETIONS, 2 * groups), groups)

    @property
    def alike(self) -> float:
        """How many completions of a prompt weigh as one independent one."""
        return 1 + (self.completions / self.groups - 1) * ALIKE

    def now(self, setting: str, value: float | None = None) -> str:
        """``(now 0.001)`` after a setting's name, where its value is known."""
        value = getattr(self.args, setting, value)
        return "" if value is None else f" (now {value:g})"


@dataclass(frozen=True)
class Change:
    """A metric's mean before and after, and the standard error of their difference."""

    before: float
    after: float
    error: float

    @property
    def gain(self) -> float:
        """After - before."""
        return self.after - self.before

    @property
    def sigmas(self) -> float:
        """The gain in standard errors; infinite where there is no noise at all, and 0 for what only rounding makes."""
        if math.isclose(self.before, self.after, abs_tol=1e-9):
            return 0.0
        return self.gain / self.error if self.error else math.copysign(math.inf, self.gain)

    def __str__(self) -> str:
        return f"{self.before:.3f} -> {self.after:.3f} (+-{self.error:.3f})"


@dataclass(frozen=True)
class Log:
    """Entries of training steps, oldest first, each as TRL logs it; a part of a run's log is a ``Log`` too."""

    entries: Sequence[dict[str, Any]]
    known: Known = Known()

    def __len__(self) -> int:
        return len(self.entries)

    def first(self, count: int) -> Log:
        """The first entries."""
        return replace(self, entries=self.entries[:count])

    def last(self, count: int) -> Log:
        """The last entries."""
        return replace(self, entries=self.entries[-count:])

    def highest(self, name: str, count: int) -> Log:
        """The entries in a row, so many or all there are, with the highest mean of a metric."""
        count = min(count, len(self))
        parts = [replace(self, entries=self.entries[i : i + count]) for i in range(len(self) - count + 1)]
        return max(parts, key=lambda part: part.mean(name))

    @property
    def steps(self) -> str:
        """For evidence: the steps of these entries."""
        first, last = self.entries[0]["step"], self.entries[-1]["step"]
        return f"step {last}" if first == last else f"steps {first}-{last}"

    @property
    def stride(self) -> int:
        """Generation batches per entry, which is the mean of all since the one before (``logging_steps``)."""
        steps = self.entries[1]["step"] - self.entries[0]["step"] if len(self) > 1 else 1
        return max(1, steps // self.known.updates)

    @property
    def completions(self) -> int:
        """How many completions these entries are of."""
        return self.known.completions * len(self) * self.stride

    @property
    def independent(self) -> float:
        """How many independent completions these entries' are worth; see :data:`ALIKE`."""
        return self.completions / self.known.alike

    @property
    def groups(self) -> int:
        """How many groups these entries are of."""
        return max(len(self), self.completions * self.known.groups // self.known.completions)

    def values(self, name: str) -> list[float]:
        """A metric's finite values."""
        found = [entry.get(name) for entry in self.entries]
        return [float(value) for value in found if value is not None and math.isfinite(value)]

    def mean(self, name: str) -> float:
        """A metric's mean; NaN where it was not logged, which is neither above nor below any threshold."""
        values = self.values(name)
        return sum(values) / len(values) if values else math.nan

    def spread(self, name: str) -> float:
        """Standard deviation of a reward's single completions within a generation batch, as the root of the mean
        square.  Where an entry is the mean of several batches (``logging_steps``), TRL has averaged the deviations
        themselves, so this is somewhat too low.
        """
        values = self.values(spread_name(name))
        return math.sqrt(sum(value**2 for value in values) / len(values)) if values else math.nan

    def noise(self, name: str) -> float:
        """Standard deviation of one entry about the metric's course, from the differences of neighbours, which a
        trend leaves alone; by their median, which a single jump leaves alone."""
        values = self.values(name)
        steps = [abs(b - a) for a, b in itertools.pairwise(values)]
        return 1.4826 * statistics.median(steps) / math.sqrt(2) if steps else 0.0

    def error(self, name: str, window: Log) -> float:
        """Standard error of a metric's mean over a window: by the spread of completions where it is logged, and
        by the noise from entry to entry; the larger one.

        The spread is this log's where the window's is smaller: a reward that is low by chance has a low spread too,
        and would look surer than it is.  It is that within a batch, which leaves out how the batch's prompts differ
        from others: of n completions that weigh as n / a independent ones, (n - a) / (n - 1) of the variance is left.
        """
        size = self.known.completions / self.known.batches
        whole = math.sqrt((size - 1) / (size - self.known.alike))
        spread = whole * max(window.spread(name), self.last(MEMORY).spread(name))
        noise = self.last(LONG).noise(name)
        sampled = 0.0 if math.isnan(spread) else spread / math.sqrt(window.independent)
        return max(sampled, noise / math.sqrt(len(window)))

    def change(self, name: str, before: Log, after: Log) -> Change:
        """A metric's mean in two windows of this log."""
        error = math.hypot(self.error(name, before), self.error(name, after))
        return Change(before.mean(name), after.mean(name), error)

    @property
    def names(self) -> list[str]:
        """The reward functions' names."""
        keys = [key for key in self.entries[-1] if key.startswith("rewards/") and key.endswith("/mean")]
        return [key.removeprefix("rewards/").removesuffix("/mean") for key in keys]

    @property
    def answers(self) -> list[str]:
        """The reward functions that, by their names, pay for being right."""
        return [name for name in self.names if ANSWER_NAMES.search(name)]

    @property
    def formats(self) -> list[str]:
        """The reward functions that, by their names, pay for form alone."""
        return [name for name in self.names if FORMAT_NAMES.search(name) and not ANSWER_NAMES.search(name)]

    def best(self, names: Iterable[str], window: Log) -> tuple[float, str] | None:
        """Of some reward functions the one that pays most completions of a window, after its share.

        Only those count that pay 0 or one value, by all of this log: of others, -1 and 1 for instance, the share
        cannot be told from mean and spread.
        """
        shares = [
            (share_of_hits(window.mean(term(name)), window.spread(term(name))), name)
            for name in names
            if self.is_all_or_nothing(term(name))
        ]
        return max(shares, default=None)

    def is_all_or_nothing(self, name: str) -> bool:
        """Whether a reward seems to be 0 or one value c: never negative on average, and E[r^2] / E[r] steady, as it
        is c then.  True where no spread is logged."""
        if min(self.values(name), default=0.0) < 0.0:
            return False
        largest = self.largest(name)
        return not largest or max(largest) <= STEADY * min(largest)

    def largest(self, name: str) -> list[float]:
        """E[r^2] / E[r] of each entry with a positive mean: never above the largest value of a reward that is not
        negative, and equal to it where the reward is all or nothing."""
        both = [(entry.get(name), entry.get(spread_name(name))) for entry in self.entries]
        # TRL's spread is the sample's, with n - 1.
        part = 1 - self.known.batches / self.known.completions
        known = [(mean, spread) for mean, spread in both if mean is not None and spread is not None]
        return [
            mean + part * spread**2 / mean for mean, spread in known if mean > 0.0 and math.isfinite(spread)
        ]

    def terms(self) -> dict[str, float]:
        """The reward functions' names with their weights; empty where the weights are not known.

        Where nobody gives them, they are taken for 1 if the terms then add up to the reward.
        """
        names = self.names
        weights = self.known.weights or tuple(1.0 for _ in names)
        if len(weights) != len(names):
            return {}
        entry = self.entries[-1]
        total = sum(w * (entry[term(name)] or 0.0) for name, w in zip(names, weights, strict=True))
        adds_up = entry["reward"] is not None and math.isclose(
            total, entry["reward"], rel_tol=1e-2, abs_tol=1e-3
        )
        return dict(zip(names, weights, strict=True)) if self.known.weights or adds_up else {}

    def height(self, now: Log | None = None) -> float:
        """How good the policy is in a window, the last one unless told: where its mean reward lies between the
        lowest, 0, and the highest, 1, that a completion can get, and at most the share of right answers, where a
        reward function is named so.

        Rewards are taken to run from 0 to 1 unless the log shows otherwise.
        """
        now = now or self.last(WINDOW)
        means = self.values("reward")
        low, high = min(0.0, *means), max(1.0, *means)
        if low == 0.0:
            high = max([high, *self.largest("reward")])
        right = self.best(self.answers, now)
        return min((now.mean("reward") - low) / (high - low), right[0] if right else 1.0)

    @property
    def rate(self) -> float | None:
        """The learning rate of the last entry."""
        return self.entries[-1].get("learning_rate")


def rounds(history: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per batch of scored completions.

    Further updates on the same batch (``num_iterations``) log no reward; their clip ratios, the only ones that
    are not 0, are taken into the batch's entry.
    """
    found: list[dict[str, Any]] = []
    for entry in history:
        if entry.get("reward") is not None:
            found.append(entry)
        elif found and RATIO in entry:
            found[-1] = {**found[-1], RATIO: max(found[-1].get(RATIO) or 0.0, entry[RATIO] or 0.0)}
    return found


def term(name: str) -> str:
    """The metric of a reward function's mean."""
    return f"rewards/{name}/mean"


def spread_name(name: str) -> str:
    """The metric with the standard deviation that goes with a mean."""
    return "reward_std" if name == "reward" else name.removesuffix("/mean") + "/std"


def share_of_hits(mean: float, spread: float) -> float:
    """Share p of completions that got a reward which is 0 or some c > 0: mean p c, variance p (1 - p) c^2.

    >>> share_of_hits(0.2 * 0.9, 0.2 * 0.3)
    0.9
    """
    return round(mean**2 / (mean**2 + spread**2), 6) if mean > 0 else 0.0
