"""Statistics of a run's log: means over windows of steps, spreads, and their standard errors.

A log is the ``state.log_history`` of a TRL trainer, including the kit's and unsloth's; :class:`Known` has what the log
does not say.  Nothing is judged here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rewards.trl_interface import Judges

if TYPE_CHECKING:
    import trl

Entry = dict[str, Any]
"""An entry of ``log_history``: "step" and the metrics, each a float, or None if it does not apply."""

Figures = npt.NDArray[np.float64]
RATIO = "clip_ratio/region_mean"
CUT_SHARE = "completions/clipped_ratio"
ZERO_VARIANCE = "share of zero-variance groups"

WINDOW = 5  # log entries that stand for "now": 40 completions at 8 each, which give a share to within +-0.15
MEMORY = 100  # entries that a rule looks back
LONG = 20  # entries from which on step-to-step noise is known to +-20 % (von Neumann et al. 1941)
STEADY = 1.2  # largest over smallest E[r^2] / E[r] up to which a reward is taken to be 0 or one value
COMPLETIONS = 8  # per step, if unknown: the default of TRL (8), unsloth (4 x 2) and the kit (4 x 2)

ALIKE = 0.3
"""Correlation of the rewards of one prompt's completions, since prompts differ in difficulty.  K completions then
count as K / (1 + (K - 1) x 0.3) independent ones (Kish 1965, design effect)."""

ANSWERS = (
    *("accuracy_reward", "reasoning_accuracy_reward"),  # trl.rewards and open-r1
    *("correctness_reward_func", "check_answer", "check_numbers"),  # unsloth's notebooks
)
"""Published reward functions that judge the answer, for logs whose functions do not say it."""


def rounds(history: Iterable[Entry]) -> list[Entry]:
    """Return one entry per batch of completions; unscored batches count only if the run has no others.

    Further updates on a batch (``num_iterations``) log no reward.  Only their clip ratios are not 0; the batch's entry
    takes the highest of them, and the mean step time.
    """
    batches: list[list[Entry]] = []
    for entry in history:
        if "reward" in entry and (entry["reward"] is not None or _zero_variance(entry) is not None):
            batches.append([entry])
        elif batches and RATIO in entry:
            batches[-1].append(entry)
    entries = [_of_batch(*updates) for updates in batches]
    return [entry for entry in entries if entry["reward"] is not None] or entries


def _of_batch(first: Entry, *further: Entry) -> Entry:
    if not further:
        return first
    ratio = max(entry.get(RATIO) or 0.0 for entry in (first, *further))
    times = [entry["step_time"] for entry in (first, *further) if "step_time" in entry]
    return {**first, RATIO: ratio} | ({"step_time": sum(times) / len(times)} if times else {})


def term(name: str) -> str:
    return f"rewards/{name}/mean"


def term_names(entry: Entry) -> list[str]:
    return [match[1] for key in entry if (match := re.fullmatch(r"rewards/(.+)/mean", key))]


def _spread_name(reward: str) -> str:
    return "reward_std" if reward == "reward" else reward.removesuffix("/mean") + "/std"


def _zero_variance(entry: Entry) -> float | None:
    return entry.get("zero_variance_groups", entry.get("frac_reward_zero_std"))


def column(entries: Sequence[Entry], metric: str) -> Figures:
    """Return a metric, (entries,), NaN where missing or not finite; ZERO_VARIANCE is the kit's count, else TRL's."""
    values: list[float | None] = [entry.get(metric) for entry in entries]
    if metric == ZERO_VARIANCE:  # TRL counts after the KL term, which makes rewards differ
        values = [1.0 if entry.get("reward_std") == 0.0 else _zero_variance(entry) for entry in entries]
    figures = np.array(values, dtype=np.float64)
    figures[np.isinf(figures)] = math.nan
    return figures


@dataclass(frozen=True)
class Known:
    """What is known of a run besides its log."""

    completions: int = COMPLETIONS  # per update, or per generation batch if that is more
    groups: int = 1  # likewise
    weights: Mapping[str, float] = field(default_factory=dict)  # of the reward functions, by metric name
    args: trl.RLOOConfig | None = None
    updates: int = 1  # per generation batch: num_iterations, steps_per_generation
    batches: int = 1  # generation batches per update; a reward's logged spread is the spread within one
    judges: Mapping[str, Judges] = field(default_factory=dict)  # by metric name

    @classmethod
    def of(cls, args: trl.RLOOConfig, judges: Mapping[str, Judges] | None = None, rewards: Sequence[str] = ()) -> Known:
        """Take what is known from the config of a TRL trainer.  ``rewards`` are its ``reward_func_names``: the config
        has weights without names, and transformers sorts the names of a state on disk."""
        step = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
        completions = max(step, args.generation_batch_size or 0)
        return cls(
            completions=completions,
            groups=max(1, completions // args.num_generations),
            weights=dict(zip(rewards, args.reward_weights or (), strict=False)),
            args=args,
            updates=completions // step * args.num_iterations,
            batches=max(1, completions // (args.generation_batch_size or completions)),
            judges=judges or {},
        )

    @classmethod
    def guessed(cls, entries: Sequence[Entry], judges: Mapping[str, Judges] | None = None) -> Known:
        """Guess from a log alone: the fewest groups, up to 32, for which every zero-variance share is a whole number of
        groups, and completions from the spread of a reward of 0 or one value, else 8 or, if more, two per group."""
        shares = np.array([_zero_variance(entry) or 0.0 for entry in entries])
        fits = (n for n in range(1, 33) if np.all(abs(n * shares - np.round(n * shares)) < 1e-3 * n))
        # A mean over several batches has shares that fit several times as many groups.
        stride = Log(entries).stride
        groups = max(1, next(fits, 1) // stride)
        completions = _completions_of(entries) if stride == 1 else None
        if completions and completions % groups:
            groups = 1
        return cls(completions or max(COMPLETIONS, 2 * groups), groups, judges=judges or {})

    @property
    def design_effect(self) -> float:
        """How many completions count as one independent completion; see :data:`ALIKE`."""
        return 1 + (self.completions / self.groups - 1) * ALIKE


def _completions_of(entries: Sequence[Entry]) -> int | None:
    """Infer completions per entry from a reward of 0 or one value c; None if no reward is of that kind.

    If a share p of n completions is paid, the mean is m = p c and the sample variance s^2 = n / (n - 1) p (1 - p) c^2,
    so that s^2 / m = n / (n - 1) (c - m): a straight line over the entries, whose slope gives n.
    """
    for reward in ("reward", *map(term, term_names(entries[-1]))):
        mean, spread = column(entries, reward), column(entries, _spread_name(reward))
        paid = (mean > 0.0) & (spread > 0.0)
        mean, ratio = mean[paid], spread[paid] ** 2 / mean[paid]
        slope, _ = _exact_line(mean, ratio) or (0.0, 0.0)
        if slope < -1.0 and (count := round(slope / (slope + 1))) > 1:
            return count
    return None


def _exact_line(x: Figures, y: Figures) -> tuple[float, float] | None:
    """Return slope and start of the line that goes through all points, or None."""
    if np.unique(x.round(9)).size < 3:
        return None
    slope, start = np.polyfit(x, y, 1)
    return (slope, start) if np.allclose(y, start + slope * x, rtol=0.0, atol=1e-4 * abs(y).max()) else None


class Change(NamedTuple):
    """A metric's mean before and after, and the standard error of their difference."""

    before: float
    after: float
    error: float

    @property
    def sigmas(self) -> float:
        """After minus before in standard errors: infinite without noise, and 0 if the change is a rounding error."""
        if math.isclose(self.before, self.after, abs_tol=1e-9):
            return 0.0
        gain = self.after - self.before
        return gain / self.error if self.error else math.copysign(math.inf, gain)

    def __str__(self) -> str:
        return f"{self.before:.3f} -> {self.after:.3f} (+-{self.error:.3f})"


@dataclass(frozen=True, eq=False)
class Log:
    """Entries of training steps from :func:`rounds`, oldest first; a slice of a log is a window, also a ``Log``."""

    entries: Sequence[Entry]
    known: Known = field(default_factory=Known)

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, window: slice) -> Log:
        return Log(self.entries[window], self.known)

    @property
    def steps(self) -> str:
        first, last = self.entries[0]["step"], self.entries[-1]["step"]
        return f"step {last}" if first == last else f"steps {first}-{last}"

    @property
    def stride(self) -> int:
        """Generation batches per entry; an entry is the mean of all since the previous entry (``logging_steps``)."""
        steps = self.entries[1]["step"] - self.entries[0]["step"] if len(self) > 1 else 1
        return max(1, steps // self.known.updates)

    @property
    def completions(self) -> int:
        return self.known.completions * len(self) * self.stride

    @property
    def independent(self) -> float:
        """How many independent completions the completions of these entries are worth."""
        return self.completions / self.known.design_effect

    @property
    def groups(self) -> int:
        return max(len(self), self.completions * self.known.groups // self.known.completions)

    def values(self, metric: str) -> Figures:
        figures = column(self.entries, metric)
        return figures[~np.isnan(figures)]

    def mean(self, metric: str) -> float:
        """A metric's mean; NaN if it was not logged, which is neither above nor below any threshold."""
        values = self.values(metric)
        return float(values.mean()) if values.size else math.nan

    def spread(self, reward: str) -> float:
        """Standard deviation of a reward over the completions of a generation batch; NaN if none is logged."""
        values = self.values(_spread_name(reward))
        return math.sqrt(values.dot(values) / values.size) if values.size else math.nan

    def highest(self, metric: str, count: int) -> Log:
        """The ``count`` consecutive entries (all if there are fewer) with the highest mean of a metric."""
        count = min(count, len(self))
        figures = np.nan_to_num(column(self.entries, metric), nan=-math.inf)
        best = int(np.lib.stride_tricks.sliding_window_view(figures, count).mean(axis=1).argmax())
        return self[best : best + count]

    def error(self, metric: str, window: Log) -> float:
        """Standard error of a metric's mean over a window, from the spread of completions or, if larger, from the
        median difference of neighbouring entries, which a trend or a single jump does not change.

        A reward that is low by chance has a low spread too, so the spread of the last MEMORY entries counts if larger.
        If n completions count as n / a independent ones, (n - a) / (n - 1) of the variance is within their batch.
        """
        size = self.known.completions / self.known.batches
        whole = math.sqrt((size - 1) / (size - self.known.design_effect))
        spread = whole * np.nan_to_num(max(window.spread(metric), self[-MEMORY:].spread(metric)))
        jumps = np.abs(np.diff(self[-LONG:].values(metric)))
        noise = 1.4826 * float(np.median(jumps)) / math.sqrt(2) if jumps.size else 0.0
        return max(float(spread) / math.sqrt(window.independent), noise / math.sqrt(len(window)))

    def change(self, metric: str, before: Log, after: Log) -> Change:
        """Compare a metric's mean in two windows of this log."""
        error = math.hypot(self.error(metric, before), self.error(metric, after))
        return Change(before.mean(metric), after.mean(metric), error)

    def now(self, setting: str) -> str:
        """``(now 0.001)``, to follow a setting's name; empty if its value is not known."""
        rate = self.entries[-1].get("learning_rate") if setting == "learning_rate" else None
        value = rate if rate is not None else getattr(self.known.args, setting, None)
        return "" if value is None else f" (now {value:g})"

    @property
    def names(self) -> list[str]:
        return term_names(self.entries[-1])

    def weights(self) -> dict[str, float]:
        """Weights of the reward functions, by name.  If none are known, each is 1 if the functions' means add up to the
        reward; else the result is empty."""
        if self.known.weights:
            return dict(self.known.weights)
        names, entry = self.names, self.entries[-1]
        total = sum(entry[term(name)] or 0.0 for name in names)
        adds_up = math.isclose(total, entry["reward"] or 0.0, rel_tol=1e-2, abs_tol=1e-3)
        return dict.fromkeys(names, 1.0) if adds_up else {}

    def judging(self, what: Judges) -> list[str]:
        """The reward functions known to judge ``what``, from the given judges or from :data:`ANSWERS`."""
        judges = {**dict.fromkeys(ANSWERS, "answer"), **self.known.judges}
        return [name for name in self.names if judges.get(name) == what]

    def best(self, what: Judges, window: Log) -> tuple[float, str] | None:
        """The reward function judging ``what`` that pays most completions of a window, as (share paid, name).

        Only functions that pay 0 or one value in all of this log count: mean and spread do not give others' share.
        """
        shares = []
        for name in self.judging(what):
            if self.is_steady(term(name)) and np.all(self.values(term(name)) >= 0.0):
                shares.append((window.share_paid(term(name)), name))
        return max(shares, default=None)

    def moments(self, reward: str) -> tuple[Figures, Figures]:
        """E[r] and E[r^2] of each entry that has both."""
        mean, spread = (column(self.entries, metric) for metric in (reward, _spread_name(reward)))
        part = 1 - self.known.batches / self.known.completions  # TRL's spread is the sample's, with n - 1
        square = mean**2 + part * spread**2
        return mean[~np.isnan(square)], square[~np.isnan(square)]

    def share_paid(self, reward: str) -> float:
        """Share p of completions that are paid by a reward of 0 or some c, whose E[r] is p c, and E[r^2] p c^2."""
        mean, square = self.moments(reward)
        if not square.any():
            return 0.0 if square.size else math.nan
        return round(mean.mean() ** 2 / square.mean(), 6)

    def largest(self, reward: str) -> Figures:
        """E[r^2] / E[r] of each entry with a positive mean: for a reward that is not negative, never above its largest
        value, and equal to it if the reward is all or nothing."""
        mean, square = self.moments(reward)
        return square[mean > 0.0] / mean[mean > 0.0]

    def is_steady(self, reward: str) -> bool:
        """Whether a reward is taken to be 0 or one value; true also if it never paid."""
        largest = self.largest(reward)
        return not largest.size or bool(largest.max() <= STEADY * largest.min())

    def two_values(self) -> tuple[float, float] | None:
        """The two values of a reward that has no others; None if it has, or if the log is too short to tell.

        Such a reward has E[r^2] = (low + high) E[r] - low high: a line over the entries.
        """
        line = _exact_line(*self.moments("reward"))
        middle, width = (line[0] / 2, math.sqrt(max(0.0, line[0] ** 2 / 4 + line[1]))) if line else (0.0, 0.0)
        return (middle - width, middle + width) if width > 0.0 else None

    def is_range_known(self) -> bool:
        """Whether :meth:`height` is more than a guess: a reward judges the answer, or the only one has two values."""
        return bool(self.judging("answer")) or (
            len(self.names) < 2 and bool(self.two_values() or self.is_steady("reward"))
        )

    def range(self) -> tuple[float, float]:
        """The lowest and the highest reward that a completion can get: 0 and 1 unless the log shows otherwise."""
        if values := self.two_values():
            return values
        means = self.values("reward")
        low, high = means.min(initial=0.0), means.max(initial=1.0)
        return float(low), float(self.largest("reward").max(initial=high) if low == 0.0 else high)

    def height(self, window: Log | None = None) -> float:
        """How good the policy is in a window (None means now), from 0 to 1: where its mean reward lies in
        :meth:`range`, and at most the share of right answers if a reward judges them."""
        now, (low, high) = window or self[-WINDOW:], self.range()
        right = self.best("answer", now)
        return min((now.mean("reward") - low) / (high - low), right[0] if right else 1.0)
