"""A run's log as figures that can be compared: means over windows of steps, spreads, and their standard errors.

For :mod:`rloo_kit.watch.rules`, which judge them.  A log is ``state.log_history`` of a TRL trainer (the kit's and
unsloth's included).  What a log does not say, such as how many completions a step has and what each reward judges, is
in :class:`Known`, by its config or by what the log alone gives away.  Nothing is judged here, and no file is read.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rloo_kit.watch.chance import ALIKE, Change, share_of_hits

if TYPE_CHECKING:
    import trl

    from rewards.signature import Judges

Entry = dict[str, Any]
"""One entry of ``log_history``: "step" and the metrics, each a float, or None where it does not apply."""

Figure = Callable[[Entry], float | None]
RATIO = "clip_ratio/region_mean"
CUT_SHARE = "completions/clipped_ratio"
DEAD_SHARE = "share of dead groups"

WINDOW = 5
"""Log entries that stand for "now": at 8 completions each, 40, which give a share to within +-0.15."""

LONG = 20
"""Entries from which a step-to-step noise is known to +-20 % by its mean square, which has about 2/3 x 19 degrees of
freedom (von Neumann et al. 1941), and to +-30 % by its median."""

STEADY = 1.2
"""Ratio of the largest to the smallest E[r^2] / E[r] of a log up to which a reward is taken to be 0 or one value c,
for which it is c in every batch."""

MEMORY = 100
"""Entries that a rule looks back, besides the run's first :data:`WINDOW`, so that a look's cost does not grow."""

PUBLISHED: dict[str, Judges] = {
    # trl.rewards
    "accuracy_reward": "answer",
    "reasoning_accuracy_reward": "answer",
    "think_format_reward": "form",
    "soft_overlong_punishment_reward": "length",
    # open-r1
    "format_reward": "form",
    "tag_count_reward": "form",
    "len_reward": "length",
    # unsloth's notebooks
    "correctness_reward_func": "answer",
    "strict_format_reward_func": "form",
    "soft_format_reward_func": "form",
    "xmlcount_reward_func": "form",
    "match_format_exactly": "form",
    "match_format_approximately": "form",
    "check_answer": "answer",
    "check_numbers": "answer",
}
"""What published reward functions judge, by the name under which TRL logs them, for logs whose functions do not say it.
Nothing is concluded from a name that only sounds alike."""


def is_step(entry: Entry) -> bool:
    """Whether an entry is of a batch of completions: it has a reward, or says that none of them got one."""
    none = "reward" in entry and entry.get("dead_groups", entry.get("frac_reward_zero_std")) is not None
    return none or entry.get("reward") is not None


class Table:
    """A run's entries, one per batch of completions, and a column for each metric that was asked for: what a look costs
    does not grow with the run.

    A column has a figure for each entry, NaN where it is missing or not finite.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)
        self._columns: dict[Hashable, list[float]] = {}

    def add(self, entry: Entry) -> None:
        """Take in an entry of a log.

        Further updates on the same batch (``num_iterations``) log no reward; their clip ratios, the only ones that are
        not 0, are taken into the batch's entry.  Batches in which no completion got a score count where the run has no
        others.
        """
        if is_step(entry):
            unscored = not self.entries or self.entries[-1]["reward"] is None
            if unscored and entry["reward"] is not None:
                self.entries, self._columns = [], {}
            if unscored or entry["reward"] is not None:
                self.entries.append(entry)
        elif self.entries and RATIO in entry:
            last = self.entries[-1]
            self.entries[-1] = {**last, RATIO: max(last.get(RATIO) or 0.0, entry[RATIO] or 0.0)}
            for column in self._columns.values():
                del column[len(self.entries) - 1 :]

    def column(self, key: Hashable, figure: Figure) -> list[float]:
        """The column of this key, whose figures ``figure`` reads off an entry, each once."""
        column = self._columns.setdefault(key, [])
        for entry in self.entries[len(column) :]:
            value = figure(entry)
            column.append(math.nan if value is None or not math.isfinite(value) else value)
        return column


def rounds(history: Iterable[Entry]) -> list[Entry]:
    """One entry per batch of completions; see :meth:`Table.add`."""
    table = Table()
    for entry in history:
        table.add(entry)
    return table.entries


def term_names(entry: Entry) -> list[str]:
    """The reward functions in an entry."""
    means = (key for key in entry if key.startswith("rewards/") and key.endswith("/mean"))
    return [key.removeprefix("rewards/").removesuffix("/mean") for key in means]


def term(name: str) -> str:
    """The metric of a reward function's mean."""
    return f"rewards/{name}/mean"


def spread_name(name: str) -> str:
    """The metric with the standard deviation that goes with a mean."""
    return "reward_std" if name == "reward" else name.removesuffix("/mean") + "/std"


COMPLETIONS = (
    8  # per step where the config is not known: the default of TRL (8), unsloth (4 x 2) and the kit (4 x 2)
)
# Groups and completions per step that a log alone is believed to have; the shares in it fit any large number.
MOST_GROUPS, MOST_COMPLETIONS = 32, 512


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


def dead_share(entry: Entry) -> float | None:
    """Groups of an entry whose rewards are all equal: the kit's count, TRL's, or all where no reward differs.

    TRL counts after the KL term, which differs within a group: with beta above 0 it finds none.
    """
    share: float | None = entry.get("dead_groups", entry.get("frac_reward_zero_std"))
    return 1.0 if entry.get("reward_std") == 0.0 else share


@dataclass(frozen=True, eq=False)
class Log:
    """Entries of training steps, oldest first, each as TRL logs it; a part of a run's log is a ``Log`` too."""

    rows: Table | Sequence[Entry]
    known: Known = field(default_factory=Known)
    spans: tuple[tuple[int, int], ...] = ()
    """Which of the rows, from each first place up to the last; all of them if empty."""
    table: Table = field(init=False, repr=False)

    def __post_init__(self) -> None:
        table = self.rows if isinstance(self.rows, Table) else Table(self.rows)
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "spans", self.spans or ((0, len(table.entries)),))

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.spans)

    @property
    def entries(self) -> list[Entry]:
        """As TRL logs them."""
        return [entry for start, stop in self.spans for entry in self.table.entries[start:stop]]

    def _part(self, start: int, stop: int) -> Log:
        if len(self.spans) > 1:
            return Log(Table(self.entries[start:stop]), self.known)
        first = self.spans[0][0]
        return Log(self.table, self.known, ((first + start, first + stop),))

    def first(self, count: int) -> Log:
        """The first entries."""
        return self._part(0, min(count, len(self)))

    def last(self, count: int) -> Log:
        """The last entries."""
        return self._part(max(0, len(self) - count), len(self))

    def highest(self, name: str, count: int) -> Log:
        """The ``count`` consecutive entries (all if there are fewer) with the highest mean of a metric."""
        count = min(count, len(self))
        parts = [self._part(i, i + count) for i in range(len(self) - count + 1)]
        return max(parts, key=lambda part: part.mean(name))

    @property
    def remembered(self) -> Log:
        """The first and the last entries, which figures of the whole run are taken from; see :data:`MEMORY`."""
        if len(self) <= WINDOW + MEMORY or len(self.spans) > 1:
            return self
        start, stop = self.spans[0]
        return Log(self.table, self.known, ((start, start + WINDOW), (stop - MEMORY, stop)))

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
        return self._finite(name, dead_share if name == DEAD_SHARE else operator.methodcaller("get", name))

    def _finite(self, key: Hashable, figure: Figure) -> list[float]:
        column = self.table.column(key, figure)
        return [v for start, stop in self.spans for v in column[start:stop] if not math.isnan(v)]

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

    def judging(self, what: Judges, published: bool = False) -> list[str]:
        """The reward functions that are known to judge this, by what is said of them or else by :data:`PUBLISHED`."""
        judges = {**(PUBLISHED if published else {}), **self.known.judges}
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

        return self._finite(("largest", name, part), figure)

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
        right = self.best(self.judging("answer", published=True), now)
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
