"""A run's log as figures that can be compared: means over windows of steps, spreads, and their standard errors.

For :mod:`rloo_kit.watch.rules`, which judge them.  A log is ``state.log_history`` of a TRL trainer (the kit's and
unsloth's included).  What a log does not say, such as how many completions a step has and what each reward judges, is
in :class:`Known`.  Nothing is judged here, and no file is read.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rloo_kit.watch.chance import ALIKE, share_of_hits

if TYPE_CHECKING:
    import trl

    from rewards.compose import Judges

Entry = dict[str, Any]
"""One entry of ``log_history``: "step" and the metrics, each a float, or None where it does not apply."""

WINDOW = 5
"""Log entries that stand for "now": at 8 completions each, 40, which give a share to within +-0.15."""

LONG = 20
"""Entries from which a step-to-step noise is known to +-20 % by its mean square, which has about 2/3 x 19 degrees of
freedom (von Neumann et al. 1941), and to +-30 % by its median."""

STEADY = 1.2
"""Ratio of the largest to the smallest E[r^2] / E[r] of a log up to which a reward is taken to be 0 or one value c,
for which it is c in every batch."""

MEMORY = 100
"""Entries that a rule looks back, besides the run's first :data:`WINDOW`: the cost of a look does not grow with the
run."""

COMPLETIONS = 8
"""Completions per step where the config is not known: the default of TRL (8), unsloth (4 x 2) and the kit (4 x 2)."""

MOST_GROUPS = 32
"""Groups per step that a log alone is believed to have; the shares in it fit any large number."""

RATIO = "clip_ratio/region_mean"


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
        """From a log alone: as many groups as make each share of dead groups a whole number of them, with two
        completions or more in each."""
        shares = [e.get("dead_groups", e.get("frac_reward_zero_std")) or 0.0 for e in entries]
        counts = range(1, MOST_GROUPS + 1)
        fits = (n for n in counts if all(abs(n * share - round(n * share)) < 1e-3 * n for share in shares))
        stride = entries[1].get("step", 2) - entries[0].get("step", 1) if len(entries) > 1 else 1
        # A mean over several batches has shares that fit several times as many groups.
        groups = max(1, next(fits, 1) // max(1, stride))
        return cls(max(COMPLETIONS, 2 * groups), groups, judges=judges or {})

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
        """The gain in standard errors: infinite without any noise, and 0 where the gain is a rounding error."""
        if math.isclose(self.before, self.after, abs_tol=1e-9):
            return 0.0
        return self.gain / self.error if self.error else math.copysign(math.inf, self.gain)

    def __str__(self) -> str:
        return f"{self.before:.3f} -> {self.after:.3f} (+-{self.error:.3f})"


@dataclass(frozen=True)
class Log:
    """Entries of training steps, oldest first, each as TRL logs it; a part of a run's log is a ``Log`` too."""

    entries: Sequence[Entry]
    known: Known = field(default_factory=Known)

    def __len__(self) -> int:
        return len(self.entries)

    def first(self, count: int) -> Log:
        """The first entries."""
        return Log(self.entries[:count], self.known)

    def last(self, count: int) -> Log:
        """The last entries."""
        return Log(self.entries[-count:], self.known)

    def highest(self, name: str, count: int) -> Log:
        """The ``count`` consecutive entries (all if there are fewer) with the highest mean of a metric."""
        count = min(count, len(self))
        values = [entry.get(name) for entry in self.entries]
        means = [_mean(_finite(values[i : i + count])) for i in range(len(self) - count + 1)]
        best = max(range(len(means)), key=means.__getitem__)
        return Log(self.entries[best : best + count], self.known)

    @property
    def remembered(self) -> Log:
        """The first and the last entries, which figures of the whole run are taken from; see :data:`MEMORY`."""
        middle = max(WINDOW, len(self) - MEMORY)
        return Log([*self.entries[:WINDOW], *self.entries[middle:]], self.known)

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
        """How many completions these entries describe."""
        return self.known.completions * len(self) * self.stride

    @property
    def independent(self) -> float:
        """How many independent completions these entries' are worth; see :data:`.chance.ALIKE`."""
        return self.completions / self.known.alike

    @property
    def groups(self) -> int:
        """How many groups these entries describe."""
        return max(len(self), self.completions * self.known.groups // self.known.completions)

    def values(self, name: str) -> list[float]:
        """A metric's finite values."""
        return _finite([entry.get(name) for entry in self.entries])

    def mean(self, name: str) -> float:
        """A metric's mean; NaN where it was not logged, which is neither above nor below any threshold."""
        return _mean(self.values(name))

    def spread(self, name: str) -> float:
        """Standard deviation of a reward's single completions within a generation batch, as the root of the mean
        square.  Where an entry is the mean of several batches (``logging_steps``), TRL has averaged the deviations
        themselves, so this is somewhat too low.
        """
        return math.sqrt(_mean([value**2 for value in self.values(spread_name(name))]))

    def noise(self, name: str) -> float:
        """Standard deviation of one entry about the metric's course.  Taken from the differences of neighbours, which
        a trend does not change, and from their median, which a single jump does not change."""
        steps = [abs(b - a) for a, b in itertools.pairwise(self.values(name))]
        return 1.4826 * statistics.median(steps) / math.sqrt(2) if steps else 0.0

    def error(self, name: str, window: Log) -> float:
        """Standard error of a metric's mean over a window: the larger one of that by the spread of completions, where
        it is logged, and that by the noise from entry to entry.

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
        return term_names(self.entries[-1])

    def judging(self, what: Judges) -> list[str]:
        """The reward functions that are known to judge this."""
        return [name for name in self.names if self.known.judges.get(name) == what]

    def best(self, names: Iterable[str], window: Log) -> tuple[float, str] | None:
        """Of these reward functions the one that pays most completions of a window, after its share.

        Only those count that pay 0 or one value, by all of this log: of others, -1 and 1 for instance, mean and
        spread do not tell the share.
        """
        terms = [(term(name), name) for name in names if self.is_all_or_nothing(term(name))]
        shares = [(share_of_hits(window.mean(metric), window.spread(metric)), name) for metric, name in terms]
        return max(shares, default=None)

    def is_all_or_nothing(self, name: str) -> bool:
        """Whether a reward seems to be 0 or one value c: never negative on average, and E[r^2] / E[r] steady, as it
        is c then.  True where no spread is logged."""
        run = self.remembered
        largest = run.largest(name) or [0.0]
        return min(run.values(name), default=0.0) >= 0.0 and max(largest) <= STEADY * min(largest)

    def largest(self, name: str) -> list[float]:
        """E[r^2] / E[r] of each entry with a positive mean: never above the largest value of a reward that is not
        negative, and equal to it where the reward is all or nothing."""
        spread_of = spread_name(name)
        both = [(entry.get(name) or 0.0, entry.get(spread_of)) for entry in self.entries]
        # TRL's spread is the sample's, with n - 1.
        part = 1 - self.known.batches / self.known.completions
        return [m + part * s**2 / m for m, s in both if m > 0.0 and s is not None and math.isfinite(s)]

    def terms(self) -> dict[str, float]:
        """The reward functions' names with their weights; empty where the weights are not known.

        Without a config they are taken for 1 if the terms then add up to the reward.
        """
        names = self.names
        weights = self.known.weights or tuple(1.0 for _ in names)
        if len(weights) != len(names):
            return {}
        found = dict(zip(names, weights, strict=True))
        entry = self.entries[-1]
        total = sum(weight * (entry[term(name)] or 0.0) for name, weight in found.items())
        adds_up = math.isclose(total, entry["reward"], rel_tol=1e-2, abs_tol=1e-3)
        return found if self.known.weights or adds_up else {}

    def height(self, now: Log | None = None) -> float:
        """How good the policy is in a window, the last one by default: where its mean reward lies between the
        lowest, 0, and the highest, 1, that a completion can get; at most the share of right answers, where a
        reward function judges the answer.

        Rewards are taken to run from 0 to 1 unless the log shows otherwise.
        """
        now, run = now or self.last(WINDOW), self.remembered
        means = run.values("reward")
        low, high = min(0.0, *means), max(1.0, *means)
        if low == 0.0:
            high = max([high, *run.largest("reward")])
        right = self.best(self.judging("answer"), now)
        return min((now.mean("reward") - low) / (high - low), right[0] if right else 1.0)

    @property
    def rate(self) -> float | None:
        """The learning rate of the last entry."""
        return self.entries[-1].get("learning_rate")


def _finite(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def rounds(history: Iterable[Entry]) -> list[Entry]:
    """One entry per batch of scored completions.  Further updates on the same batch (``num_iterations``) log no reward;
    their clip ratios, the only ones that are not 0, are taken into the batch's entry."""
    found: list[Entry] = []
    for entry in history:
        if entry.get("reward") is not None:
            found.append(entry)
        elif found and RATIO in entry:
            found[-1] = {**found[-1], RATIO: max(found[-1].get(RATIO) or 0.0, entry[RATIO] or 0.0)}
    return found


def term_names(entry: Entry) -> list[str]:
    """The reward functions in an entry."""
    keys = [key for key in entry if key.startswith("rewards/") and key.endswith("/mean")]
    return [key.removeprefix("rewards/").removesuffix("/mean") for key in keys]


def term(name: str) -> str:
    """The metric of a reward function's mean."""
    return f"rewards/{name}/mean"


def spread_name(name: str) -> str:
    """The metric with the standard deviation that goes with a mean."""
    return "reward_std" if name == "reward" else name.removesuffix("/mean") + "/std"
