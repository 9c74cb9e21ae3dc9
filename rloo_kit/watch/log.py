"""A run's log as figures that can be compared: means over windows of steps, spreads, and their standard errors.

For :mod:`rloo_kit.watch.rules`, which judge them.  A log is ``state.log_history`` of a TRL trainer (the kit's and
unsloth's included).  What a log does not say, such as how many completions a step has and what each reward judges, is
in :class:`Known`.  Nothing is judged here, and no file is read.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rloo_kit.watch.chance import share_of_hits
from rloo_kit.watch.known import Known
from rloo_kit.watch.published import PUBLISHED
from rloo_kit.watch.table import RATIO, Entry, Figure, Rows, Table, rounds, spread_name, term, term_names

if TYPE_CHECKING:
    from rewards.signature import Judges

__all__ = [
    "DEAD_SHARE",
    "LONG",
    "MEMORY",
    "RATIO",
    "WINDOW",
    "Change",
    "Entry",
    "Known",
    "Log",
    "Rows",
    "Table",
    "rounds",
    "term",
]
__all__ += ["term_names"]

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


EMPTY: Mapping[str, Judges] = {}

DEAD_SHARE = "share of dead groups"


def dead_share(entry: Entry) -> float | None:
    """Groups of an entry whose rewards are all equal: the kit's count, TRL's, or all where no reward differs.

    TRL counts after the KL term, which differs within a group: with beta above 0 it finds none.
    """
    share: float | None = entry.get("dead_groups", entry.get("frac_reward_zero_std"))
    return 1.0 if entry.get("reward_std") == 0.0 else share


@functools.lru_cache(maxsize=256)
def _figure(name: str) -> Figure:
    """What reads a metric off an entry; the share of dead groups is read off several."""
    return dead_share if name == DEAD_SHARE else operator.methodcaller("get", name)


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


@dataclass(frozen=True, eq=False)
class Log:
    """Entries of training steps, oldest first, each as TRL logs it; a part of a run's log is a ``Log`` too."""

    entries: Sequence[Entry]
    known: Known = field(default_factory=Known)
    rows: Rows = field(init=False, repr=False)
    """The entries as rows of a table, whose columns the parts of a log share."""
    _parts: dict[tuple[int, int], Log] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        rows = self.entries if isinstance(self.entries, Rows) else Rows.of(self.entries)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "entries", rows)

    def __len__(self) -> int:
        return self.rows.size

    def first(self, count: int) -> Log:
        """The first entries."""
        return self._part(0, min(count, self.rows.size))

    def last(self, count: int) -> Log:
        """The last entries."""
        size = self.rows.size
        return self._part(size - count if size > count else 0, size)

    def _part(self, start: int, stop: int) -> Log:
        """Made once: the rules ask for the same few windows."""
        if (part := self._parts.get((start, stop))) is None:
            part = self._parts[start, stop] = Log(self.rows.part(start, stop), self.known)
        return part

    def highest(self, name: str, count: int) -> Log:
        """The ``count`` consecutive entries (all if there are fewer) with the highest mean of a metric."""
        count, values = min(count, len(self)), self.values(name)
        if len(values) == len(self):
            sums = [sum(values[i : i + count]) for i in range(len(self) - count + 1)]
            best = max(range(len(sums)), key=sums.__getitem__)
        else:
            means = [self.rows.part(i, i + count) for i in range(len(self) - count + 1)]
            best = max(range(len(means)), key=lambda i: Log(means[i], self.known).mean(name))
        return Log(self.rows.part(best, best + count), self.known)

    @property
    def remembered(self) -> Log:
        """The first and the last entries, which figures of the whole run are taken from; see :data:`MEMORY`."""
        middle = max(WINDOW, len(self) - MEMORY)
        if len(self.rows.spans) != 1:
            return Log([*self.entries[:WINDOW], *self.entries[middle:]], self.known)
        start, stop = self.rows.spans[0]
        spans = (start, min(stop, start + WINDOW)), (min(stop, start + middle), stop)
        return Log(Rows(self.rows.table, *spans), self.known)

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
        return self.rows.values(name, _figure(name))

    def earliest(self, name: str) -> float:
        """A metric's first finite value in the run so far, NaN where there is none."""
        figures = self.rows.table.column(name, _figure(name)).figures
        return figures[0] if figures else math.nan

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
        return math.hypot(*values) / math.sqrt(len(values)) if values else math.nan

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
        recent, noise = _recent(self, name)
        spread = whole * max(window.spread(name), recent)
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

    def judging(self, what: Judges, also: Mapping[str, Judges] = EMPTY) -> list[str]:
        """The reward functions that are known to judge this, by what is said of them or else by ``also``."""
        judges = {**also, **self.known.judges}
        return [name for name in self.names if judges.get(name) == what]

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
        # TRL's spread is the sample's, with n - 1.
        part = 1 - self.known.batches / self.known.completions

        def figure(entry: Entry) -> float | None:
            mean, spread = entry.get(name) or 0.0, entry.get(spread_of)
            return None if spread is None or not mean > 0.0 else mean + part * spread * (spread / mean)

        return self.rows.values(("largest", name, part), figure)

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
        right = self.best(self.judging("answer", PUBLISHED), now)
        return min((now.mean("reward") - low) / (high - low), right[0] if right else 1.0)

    @property
    def rate(self) -> float | None:
        """The learning rate of the last entry."""
        return self.entries[-1].get("learning_rate")


@functools.lru_cache(
    maxsize=16
)  # the windows of a change have them in common, and rules ask for the same metrics
def _recent(log: Log, name: str) -> tuple[float, float]:
    """A metric's spread in the last entries, and its noise from entry to entry."""
    return log.last(MEMORY).spread(name), log.last(LONG).noise(name)
