"""What is wrong with a run, read off its metrics: symptom, evidence, likely cause, the setting to change first.

For everybody who watches a run, or comes back to one.  ``HealthCallback`` speaks while it trains, one line per
episode and nothing while all is well; :func:`diagnose` gives the whole report afterwards, of the kit's runs and
of plain TRL's and unsloth's.

Each symptom is a function from the log so far to a :class:`Finding` or None, and :data:`SYMPTOMS` is the table
of them.  Windows of steps are compared, never two steps, and a difference counts against its standard error.
What is not here: the loss, which reads 0 in every on-policy run of RLOO, since advantages sum to 0; and any
change of a setting, which is for whoever reads the line.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import TrainerCallback

from rloo_kit import plots
from rloo_kit.errors import ConfigError
from rloo_kit.evaluation import wilson

# --- thresholds, each with its reason ---------------------------------------------------------------------

WINDOW = 5
"""Log entries that stand for "now": at 8 completions each, 40, which give a share to within +-0.15."""

SHORT = 2
"""Entries for what moves by orders of magnitude, where waiting for :data:`WINDOW` would waste steps."""

FEW = 3
"""The fewest entries that anything else is told from."""

LONG = 20
"""Entries from which a step-to-step noise is known to +-20 %: its variance has about 2/3 x 19 degrees of freedom
(von Neumann et al. 1941)."""

MEMORY = 100
"""Entries back that a symptom looks, apart from the run's first ones: its cost does not grow with the run."""

QUIET = 5
"""Entries without the symptom after which an episode is over and the next one is spoken of again."""

SURE = 3.0
"""Standard errors for a change to count.  One look in 700 errs by chance, and a run has about 100."""

COLLAPSE_SURE = 4.0
"""The same where the best window of many is compared with the last: the best one was lucky too."""

ALIKE = 0.3
"""Correlation of the rewards of one prompt's completions, since prompts differ in difficulty.  K of them then
weigh as K / (1 + (K - 1) x 0.3) independent ones (Kish 1965, design effect)."""

COMPLETIONS = 8
"""Completions per step where nobody says: the defaults of TRL (8), unsloth (4 x 2) and the kit (4 x 2) agree."""

DEAD = 0.5
"""Share of dead groups that is surely exceeded: more than half of what is sampled then teaches nothing."""

CUT = 0.2
"""Share of truncated completions that is surely exceeded: one in five cannot be right whatever it says.  The
healthy runs of tests/data/health stay below 0.13 in every step."""

COLLAPSE = 0.5
"""Share of its best level, and of a single completion's standard deviation, that the reward has lost: half."""

KL_PER_TOKEN = 1.0
"""Nats per token: the policy puts e times the reference's probability on every token it writes, so that a
completion of 20 tokens is e^20 times likelier than before.  Healthy runs of tests/data/health: at most 0.1."""

KL_NEGATIVE = -0.02
"""Nats per token.  KL is not negative; its estimate k1 = log policy - log reference can be by chance: with a true
KL of e, the mean over n tokens has a standard error of about sqrt(2e/n), so e - 4 x error is lowest at -8/n,
which is -0.02 for 400 tokens, what ten steps of 8 completions have at five tokens each."""

ENTROPY_LEFT = 0.1
"""Share of its first value that the entropy has fallen to.  Cui et al. 2025 (arXiv 2505.22617) fit reward to
-a exp(entropy) + b: what can be gained is paid for with entropy, and at a tenth of it little is left to pay."""

ENTROPY_GROWN = 5.0
"""Times its first value that the entropy has grown to, and above one nat: the policy dissolves into noise.  In
tests/data/health it went from 0.17 to 11.93, which is log(151936), the whole vocabulary alike."""

LONGER = 1.1
"""Growth of the mean length that counts, where it is beyond noise too: a tenth."""

DROWNED = 10.0
"""Ratio of two terms' weighted spreads.  The smaller one's share of the advantage's variance is 1 %, and it takes
100 times the completions to be seen."""

REACHED, MISSED = 0.8, 0.15
"""Shares of completions with the format, and surely at most with the right answer."""

EFFECTIVE = 1.6
"""Independent completions that a step is worth; leave-one-out needs two.  Measured over :data:`LONG` steps it is
good to +-40 %, so that it is averaged, as a logarithm, with what the batch leads to expect.  How often which batch
falls below: benchmarks/results/health_alarms.md."""

CLIPPED = 0.3
"""Share of completions whose ratio left the clip range.  They give no gradient (Schulman et al. 2017), so a
third of the sampling is lost, and PPO's usual share is 0.1 to 0.2."""

GRADIENT = 10.0
"""Growth of the gradient's median norm, while the reward does not rise.  Healthy runs of tests/data/health: up to
6, with the reward, as groups become rare in which completions differ."""

IN_PLAY = (0.1, 0.9)
"""Shares of completions that a reward function pays, between which it has something left to teach."""

PATIENCE = 100
"""Entries after which a rise should have been seen."""

WORTH = 0.25
"""A rise worth having, in standard deviations of single completions: about Cohen's (1988) small effect.  A log
that could not have shown it, for noise, is not judged."""

RATIO = "clip_ratio/region_mean"

FORMAT_NAMES = re.compile(r"format|think|closed|tag|xml|struct", re.IGNORECASE)
ANSWER_NAMES = re.compile(r"answer|correct|accura|right|solve|exact|math|gold", re.IGNORECASE)
"""How reward functions are called that pay for form, and for being right; the second wins where both match."""


# --- what flows -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One symptom over the steps at which it was seen.

    Attributes:
        symptom: its name.
        evidence: figures and the steps they are of.
        cause: the likely one.
        setting: what to change first: an argument of ``RLOOConfig`` or of the trainer.
        change: how to change it.
        first_step, last_step: of the episode.
    """

    symptom: str
    evidence: str
    cause: str
    setting: str
    change: str
    first_step: int
    last_step: int

    def __str__(self) -> str:
        return f"{self.symptom}: {self.evidence}. Likely: {self.cause}. Change first: {self.setting}, {self.change}."


@dataclass(frozen=True)
class Diagnosis:
    """What :func:`diagnose` found; prints as a report.

    Attributes:
        findings: one per episode, by first step.
        first_step, last_step: of the log.
        figures: per metric the mean over the first and over the last entries.
    """

    findings: tuple[Finding, ...]
    first_step: int
    last_step: int
    figures: dict[str, tuple[float, float]]

    @property
    def healthy(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        steps = f"steps {self.first_step} to {self.last_step}"
        found = len(self.findings)
        head = f"{found} finding{'s' if found > 1 else ''}" if found else "healthy: nothing found"
        lines = [f"{head}, {steps}"]
        for one in self.findings:
            lines += [
                f"  {one.symptom}, steps {one.first_step} to {one.last_step}",
                f"    evidence      {one.evidence}",
                f"    likely cause  {one.cause}",
                f"    change first  {one.setting}, {one.change}",
            ]
        lines.append(f"  {'':<28}{'first':>9}{'last':>9}  (means of up to {WINDOW} entries)")
        lines += [f"  {name:<28}{first:>9.3f}{last:>9.3f}" for name, (first, last) in self.figures.items()]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


@dataclass(frozen=True)
class Known:
    """What is known of a run beside its log.

    Attributes:
        completions: per step.
        groups: per step.
        weights: of the reward functions, in the log's order; None where nobody says.
        args: the run's config, or None.
    """

    completions: int = COMPLETIONS
    groups: int = 1
    weights: tuple[float, ...] | None = None
    args: Any = None

    @classmethod
    def of(cls, args: Any) -> Known:
        """From a config of TRL's; the defaults where it is None."""
        if args is None:
            return cls()
        step = args.per_device_train_batch_size * args.world_size * args.gradient_accumulation_steps
        completions = max(step, args.generation_batch_size or 0)
        weights = tuple(args.reward_weights) if args.reward_weights else None
        return cls(completions, max(1, completions // args.num_generations), weights, args)

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
    def completions(self) -> int:
        """How many completions these entries are of; an entry is the mean of all steps since the one before."""
        stride = self.entries[1]["step"] - self.entries[0]["step"] if len(self) > 1 else 1
        return self.known.completions * len(self) * max(1, stride)

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
        """Standard deviation of a reward's single completions: root of the mean of the steps' variances."""
        values = self.values(spread_name(name))
        return math.sqrt(sum(value**2 for value in values) / len(values)) if values else math.nan

    def noise(self, name: str) -> float:
        """Standard deviation of one entry about the metric's course, from the differences of neighbours, which a
        trend leaves alone; by their median, which a single jump leaves alone."""
        values = self.values(name)
        steps = [abs(b - a) for a, b in itertools.pairwise(values)]
        return 1.4826 * statistics.median(steps) / math.sqrt(2) if steps else 0.0

    def error(self, name: str, window: Log) -> float:
        """Standard error of a metric's mean over a window: by its completions where their spread is logged, and
        by the noise of this log, since completions of one prompt are alike; the larger one."""
        spread = window.spread(name)
        sampled = 0.0 if math.isnan(spread) else spread * math.sqrt(self.known.alike / window.completions)
        return max(sampled, self.last(LONG).noise(name) / math.sqrt(len(window)))

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

    def best(self, names: Iterable[str]) -> tuple[float, str] | None:
        """Of some reward functions the one that pays most completions, after its share."""
        shares = [(share_of_hits(self.mean(term(name)), self.spread(term(name))), name) for name in names]
        return max(shares, default=None)

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

    def height(self) -> float:
        """How good the policy now is: where its mean reward lies between the lowest, 0, and the highest, 1, that a
        completion can get, and at most the share of right answers, where a reward function is named so.

        Rewards are taken to run from 0 to 1 unless the log shows otherwise.  E[r^2] / E[r] never exceeds the
        largest value of a reward that is not negative, and equals it where the reward is all or nothing.
        """
        means = self.values("reward")
        low, high = min(0.0, *means), max(1.0, *means)
        if low == 0.0:
            both = [
                (e["reward"], e.get("reward_std") or 0.0) for e in self.entries if (e["reward"] or 0.0) > 0.0
            ]
            high = max([high, *(mean + spread**2 / mean for mean, spread in both if math.isfinite(spread))])
        now = self.last(WINDOW)
        right = now.best(self.answers)
        return min((now.mean("reward") - low) / (high - low), right[0] if right else 1.0)

    @property
    def rate(self) -> float | None:
        """The learning rate of the last entry."""
        return self.entries[-1].get("learning_rate")

    def lower(self, factor: int) -> str:
        """What to do to the learning rate."""
        part = {3: "a third", 10: "a tenth"}[factor]
        return f"{part} of it" + ("" if self.rate is None else f" (now {self.rate:g})")

    def found(
        self, symptom: str, evidence: str, cause: str, setting: str, change: str, window: Log
    ) -> Finding:
        """A finding over the steps of a window of this log."""
        first, last = window.entries[0]["step"], window.entries[-1]["step"]
        return Finding(symptom, evidence, cause, setting, change, first, last)


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


# --- symptoms ---------------------------------------------------------------------------------------------


def non_finite(log: Log) -> Finding | None:
    """A metric that is NaN or infinite.

    The gradient's norm counts only where it is so for :data:`FEW` entries in a row: in fp16 the loss scaler
    finds its scale by overflowing, and skips those steps.
    """
    entry, window = log.entries[-1], log.last(FEW)
    bad = [name for name in entry if name != "grad_norm" and is_bad(entry[name])]
    gradient = len(window) == FEW and all(is_bad(one.get("grad_norm")) for one in window.entries)
    if not bad and not gradient:
        return None
    if any(name.startswith("reward") for name in bad):
        cause, setting = "a reward function returned it", "reward_funcs"
        change = "bound it with rewards.clipped, and go back to the last good checkpoint"
    else:
        cause, setting = "weights or activations have overflowed", "learning_rate"
        change = f"{log.lower(10)}, from the last good checkpoint"
    window = window if gradient else log.last(1)
    evidence = f"{', '.join([*bad, *['grad_norm'] * gradient])} ({window.steps})"
    return log.found("non-finite figures", evidence, cause, setting, change, window)


def is_bad(value: Any) -> bool:
    """Whether a logged figure is NaN or infinite; TRL logs None where a metric does not apply."""
    return isinstance(value, float) and not math.isfinite(value)


def kl_explosion(log: Log) -> Finding | None:
    """The policy has left the reference altogether."""
    window = log.last(SHORT)
    if not window.mean("kl") >= KL_PER_TOKEN:
        return None
    return log.found(
        "KL explosion",
        f"kl {log.first(1).mean('kl'):.3f} -> {window.mean('kl'):.2f} nats per token ({window.steps}), "
        f"reward now {window.mean('reward'):.3f}",
        "the updates are too large, and the policy no longer writes what the reference could",
        "learning_rate",
        f"{log.lower(10)}; then beta, up{log.known.now('beta')}",
        window,
    )


def kl_negative(log: Log) -> Finding | None:
    """A KL that is negative beyond chance, which no divergence can be."""
    window = log.last(2 * WINDOW)
    error = log.error("kl", window)
    mean = window.mean("kl")
    if len(window) < 2 * WINDOW or not (mean <= KL_NEGATIVE and mean + SURE * error < 0):
        return None
    hot = bool(getattr(log.known.args, "generation_kwargs", None))
    return log.found(
        "KL negative",
        f"kl {mean:.3f} +-{error:.3f} nats per token ({window.steps}), and a divergence is never below 0",
        "completions are not drawn from the policy whose log-probabilities are taken",
        "generation_kwargs" if hot else "temperature",
        "remove it, and set temperature in the config"
        if hot
        else "the sampler's own, with top_p 1 and top_k 0",
        window,
    )


def entropy_explosion(log: Log) -> Finding | None:
    """The policy dissolves into noise."""
    start, window = log.first(1).mean("entropy"), log.last(SHORT)
    now = window.mean("entropy")
    if not (now >= ENTROPY_GROWN * start and now >= 1.0):
        return None
    return log.found(
        "entropy explosion",
        f"entropy {start:.3f} -> {now:.2f} nats per token ({window.steps}), reward now {window.mean('reward'):.3f}",
        "the updates are too large and have wiped out what the policy knew",
        "learning_rate",
        f"{log.lower(10)}",
        window,
    )


def clipped_ratios(log: Log) -> Finding | None:
    """Too many completions leave the clip range between two updates on one batch."""
    window = log.last(WINDOW)
    share = window.mean(RATIO)
    if len(window) < FEW or math.isnan(share) or not surely_above(share, window.completions, CLIPPED):
        return None
    return log.found(
        "learning rate too high",
        f"{share:.0%} of the ratios clipped ({window.steps})",
        "within one generation batch the policy moves out of the clip range, and what is clipped gives no gradient",
        "learning_rate",
        f"{log.lower(10)}; then num_iterations, to 1{log.known.now('num_iterations')}",
        window,
    )


def growing_gradient(log: Log) -> Finding | None:
    """The gradient's norm grows and the reward does not."""
    if len(log) < 2 * WINDOW:
        return None
    before, window = log.first(WINDOW), log.last(WINDOW)
    start, now = (median_norm(part) for part in (before, window))
    rise = log.change("reward", before, window)
    if not (now >= GRADIENT * start > 0.0) or rise.sigmas >= 1.0:
        return None
    return log.found(
        "learning rate too high",
        f"median grad_norm {start:.2g} -> {now:.2g}, reward {rise} ({window.steps})",
        "each update overshoots, and the next gradient corrects it",
        "learning_rate",
        f"{log.lower(3)}; then max_grad_norm, down{log.known.now('max_grad_norm')}",
        window,
    )


def median_norm(log: Log) -> float:
    """Of the gradients that are not 0: a step of dead groups has none."""
    norms = [value for value in log.values("grad_norm") if value]
    return statistics.median(norms) if norms else 0.0


def reward_collapse(log: Log) -> Finding | None:
    """The reward has fallen from its best, by more than noise and by more than a little."""
    recent = log.last(MEMORY)
    window = log.last(min(WINDOW, len(recent) // 2))
    if len(window) < FEW:
        return None
    best = recent.first(len(recent) - len(window)).highest("reward", WINDOW)
    fall = log.change("reward", best, window)
    lost = max(
        COLLAPSE * best.spread("reward"), COLLAPSE * (fall.before - min(0.0, *recent.values("reward")))
    )
    if -fall.sigmas < COLLAPSE_SURE or -fall.gain < lost:
        return None
    return log.found(
        "reward collapse",
        f"reward {fall}, {best.steps} against {window.steps}",
        "an update too large, or one too many in a direction that the reward did not mean",
        "learning_rate",
        f"{log.lower(10)}, from a checkpoint before the fall",
        window,
    )


def truncation(log: Log) -> Finding | None:
    """Too many completions are cut at the length limit."""
    window = log.last(WINDOW)
    share = window.mean("completions/clipped_ratio")
    if len(window) < FEW or math.isnan(share) or not surely_above(share, window.completions, CUT):
        return None
    limit = window.values("completions/max_length")
    return log.found(
        "truncation",
        f"{share:.0%} of the completions cut{f' at {max(limit):.0f} tokens' if limit else ''} ({window.steps})",
        "the limit is shorter than what the policy has to say, and what is cut cannot be right",
        "max_completion_length",
        "double it, or pay for ending with rewards.overlong_reward",
        window,
    )


def format_only(log: Log) -> Finding | None:
    """The format is there and the answers are not."""
    window = log.last(WINDOW)
    reached, right = window.best(window.formats), window.best(window.answers)
    if len(window) < WINDOW or reached is None or right is None or reached[0] < REACHED:
        return None
    if wilson(round(right[0] * window.completions), window.completions).high > MISSED:
        return None
    return log.found(
        "format without answers",
        f"{reached[1]} in {reached[0]:.0%} of the completions, {right[1]} in {right[0]:.0%} ({window.steps})",
        "the form is learned and pays no more, and the problems are too hard to be right by chance",
        "train_dataset",
        "easier problems; or check that the answer is read from the right column",
        window,
    )


def dead_groups(log: Log) -> Finding | None:
    """Too many groups whose K rewards are all equal, so that their advantages are 0."""
    name = "dead_groups" if "dead_groups" in log.entries[-1] else "frac_reward_zero_std"
    window = log.last(2 * WINDOW)
    share = window.mean(name)
    if len(window) < WINDOW or math.isnan(share) or not surely_above(share, window.groups, DEAD):
        return None
    if truncation(log) or format_only(log):  # either says why
        return None
    kind, cause, setting, change = dead_kind(log)
    return log.found(
        f"dead groups, {kind}",
        f"{share:.0%} of the groups without spread, reward {window.mean('reward'):.3f} ({window.steps})",
        cause,
        setting,
        change,
        window,
    )


def dead_kind(log: Log) -> tuple[str, str, str, str]:
    """Why groups are dead, by how high the reward is: in the upper third, in the lower one, or between."""
    height, known = log.height(), log.known
    if height >= 2 / 3:
        return (
            "too easy",
            "the policy solves nearly every prompt, or has learned to",
            "train_dataset",
            "harder problems; or stop here",
        )
    fall = log.change("reward", log.first(FEW), log.last(WINDOW))
    if fall.sigmas <= -2.0:
        return (
            "policy worsened",
            f"prompts that were solved at first no longer are: reward {fall}",
            "learning_rate",
            log.lower(10),
        )
    if height <= 1 / 3:
        return (
            "too hard",
            "the policy solves nearly no prompt, so there is nothing to tell apart",
            "train_dataset",
            "easier problems, or a reward with steps on the way",
        )
    return (
        "completions alike",
        "the completions of a prompt are all right or all wrong",
        "num_generations",
        f"double it{known.now('num_generations')}; then temperature, up{known.now('temperature')}",
    )


def entropy_collapse(log: Log) -> Finding | None:
    """The policy has become certain before it has become good."""
    if len(log) < 2 * WINDOW:
        return None
    window = log.last(WINDOW)
    start, now = log.first(FEW).mean("entropy"), window.mean("entropy")
    if not now <= ENTROPY_LEFT * start or log.height() >= 2 / 3:
        return None
    return log.found(
        "entropy collapse",
        f"entropy {start:.3f} -> {now:.3f} nats per token, reward {window.mean('reward'):.3f} ({window.steps})",
        "the policy writes one thing only, so there is nothing left to choose from",
        "learning_rate",
        f"{log.lower(3)}; then beta, up{log.known.now('beta')}",
        window,
    )


def length_hacking(log: Log) -> Finding | None:
    """The reward rises with the length, and the answers get no better."""
    answers = log.answers
    if len(log) < 2 * WINDOW or not answers:
        return None
    before, window = log.first(WINDOW), log.last(WINDOW)
    length = log.change("completions/mean_length", before, window)
    paid = log.change("reward", before, window)
    right = max((log.change(term(name), before, window) for name in answers), key=lambda one: one.sigmas)
    longer = length.after >= LONGER * length.before and length.sigmas >= SURE
    if not longer or paid.sigmas < 2.0 or right.sigmas >= 1.0:
        return None
    return log.found(
        "length hacking",
        f"length {length.before:.1f} -> {length.after:.1f}, reward {paid}, {answers[0]} {right} ({window.steps})",
        "length is paid for, and being right is not",
        "reward_weights",
        f"more on {answers[0]}, or pay for length only where the answer is right (rewards.gated)",
        window,
    )


def drowned_term(log: Log) -> Finding | None:
    """One reward function's spread hides another's."""
    window = log.last(WINDOW)
    spreads = {name: abs(w) * window.spread(term(name)) for name, w in log.terms().items() if w}
    spreads = {name: spread for name, spread in spreads.items() if spread > 0.0}
    low, high = IN_PLAY
    learning = {
        name: share_of_hits(abs(window.mean(term(name))), window.spread(term(name))) for name in spreads
    }
    quiet_ones = [name for name, share in learning.items() if low <= share <= high]
    if len(window) < FEW or not quiet_ones:
        return None
    loud, quiet = max(spreads, key=lambda n: spreads[n]), min(quiet_ones, key=lambda n: spreads[n])
    if spreads[loud] < DROWNED * spreads[quiet]:
        return None
    return log.found(
        "drowned reward",
        f"weighted spread {spreads[loud]:.3g} of {loud}, {spreads[quiet]:.3g} of {quiet} ({window.steps})",
        f"the advantage is {loud} alone, and {quiet} is not felt",
        "reward_weights",
        f"{loud} down by {spreads[loud] / spreads[quiet]:.0f} for equal parts",
        window,
    )


def high_variance(log: Log) -> Finding | None:
    """A step's mean reward moves by which prompts were drawn, more than by what is learned."""
    window = log.last(LONG)
    values, spread = window.values("reward"), window.spread("reward")
    if len(values) < LONG or not spread > 0.0:
        return None
    squares = [(b - a) ** 2 / 2 for a, b in itertools.pairwise(values)]
    noise = math.sqrt(sum(squares) / len(squares))
    expected = log.known.completions / log.known.alike
    if noise == 0.0 or (worth := spread / noise * math.sqrt(expected)) >= EFFECTIVE:
        return None
    return log.found(
        "high variance",
        f"reward {window.mean('reward'):.3f} moves by {noise:.3f} from step to step, completions spread by "
        f"{spread:.3f}: a step is worth about {worth:.1f} independent ones ({window.steps})",
        "too few completions per step for a gradient that is more than chance",
        "gradient_accumulation_steps",
        f"four times as much{log.known.now('gradient_accumulation_steps')}; "
        f"then num_generations, up{log.known.now('num_generations')}",
        window,
    )


def nothing_learned(log: Log) -> Finding | None:
    """No rise after many steps, in a log that would have shown one."""
    if len(log) < PATIENCE or log.height() >= 2 / 3:
        return None
    third = min(MEMORY, len(log) // 3)
    rise = log.change("reward", before := log.first(third), after := log.last(third))
    if rise.sigmas >= 2.0 or rise.gain + 2.0 * rise.error >= WORTH * before.spread("reward"):
        return None
    if any(other(log) for other in OTHERS if other != nothing_learned):
        return None
    return log.found(
        "nothing learned",
        f"reward {rise}, {before.steps} against {after.steps}",
        "the updates are too small to be seen",
        "learning_rate",
        f"three times as much{log.known.now('learning_rate', log.rate)}",
        log,
    )


def surely_above(share: float, count: float, threshold: float) -> bool:
    """Whether a share measured on so many exceeds a threshold, by its 95 % interval."""
    return wilson(round(share * count), round(count)).low > threshold


Symptom = Callable[[Log], Finding | None]

ROOTS: tuple[Symptom, ...] = (
    kl_explosion,
    entropy_explosion,
    clipped_ratios,
    growing_gradient,
    reward_collapse,
)
"""Symptoms that bring others along: a policy that has been wrecked is also cut off, wrong, and without spread."""

OTHERS: tuple[Symptom, ...] = (
    kl_negative,
    truncation,
    format_only,
    dead_groups,
    entropy_collapse,
    length_hacking,
    drowned_term,
    high_variance,
    nothing_learned,
)

SYMPTOMS: tuple[Symptom, ...] = (non_finite, *ROOTS, *OTHERS)


# --- episodes ---------------------------------------------------------------------------------------------


class Watch:
    """Follows a run entry by entry and tells the findings that are new."""

    def __init__(self) -> None:
        self.episodes: list[Finding] = []
        self._open: dict[str, tuple[int, int]] = {}  # symptom: place in episodes, entry at which last seen

    def look(self, log: Log) -> list[Finding]:
        """The findings of the last entry that open an episode."""
        self._close(len(log))
        new = [finding for finding in judged(log) if not self._goes_on(finding, len(log))]
        for finding in new:
            self._open[finding.symptom] = (len(self.episodes), len(log))
            self.episodes.append(finding)
        return new

    def _close(self, entry: int) -> None:
        self._open = {name: seen for name, seen in self._open.items() if entry - seen[1] <= QUIET}

    def _goes_on(self, finding: Finding, entry: int) -> bool:
        if finding.symptom not in self._open:
            return False
        place, _ = self._open[finding.symptom]
        self._open[finding.symptom] = (place, entry)
        self.episodes[place] = replace(self.episodes[place], last_step=finding.last_step)
        return True


def judged(log: Log) -> Iterator[Finding]:
    """The findings of a log's last entry: the roots, or else the others; nothing more can be told from NaN."""
    if broken := non_finite(log):
        yield broken
        return
    roots = [finding for symptom in ROOTS if (finding := symptom(log))]
    yield from roots or (finding for symptom in OTHERS if (finding := symptom(log)))


def watched(log: Log) -> Watch:
    """A watch that has seen the whole log."""
    watch = Watch()
    for end in range(1, len(log) + 1):
        watch.look(log.first(end))
    return watch


# --- the room's two doors ---------------------------------------------------------------------------------

FIGURES = (
    "reward",
    "reward_std",
    "dead_groups",
    "frac_reward_zero_std",
    "kl",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
    "grad_norm",
)
"""What a report shows of a run, with each reward function beside it."""


def read(source: Any) -> Log:
    """The log of a trainer, a log history, a ``trainer_state.json`` or a run's folder.

    Raises:
        ConfigError: there is no training step in it.
    """
    try:
        history, _ = plots.read_history(source)
    except ConfigError as error:
        raise ConfigError(
            error.what.replace("to draw", "to diagnose"),
            where=error.where.replace("plot", "diagnose"),
            todo=error.todo,
        ) from None
    return Log(rounds(history), Known.of(getattr(source, "args", None)))


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


def diagnose(trainer_or_log: Any) -> Diagnosis:
    """What was wrong with a run, or that nothing was, with figures.

    Args:
        trainer_or_log: a trainer of the kit's, TRL's or unsloth's; its log history; a ``trainer_state.json``;
            or the run's folder.  With a trainer the number of completions and the weights of its rewards are
            known, so more can be told, and earlier.

    Raises:
        ConfigError: there is no training step in it.
    """
    log = read(trainer_or_log)
    first, last = log.first(WINDOW), log.last(WINDOW)
    names = [*FIGURES, *map(term, log.names)]
    figures = {name: (first.mean(name), last.mean(name)) for name in names if last.values(name)}
    return Diagnosis(tuple(watched(log).episodes), log.entries[0]["step"], log.entries[-1]["step"], figures)


class HealthCallback(TrainerCallback):
    """Says in one line what is wrong, once per episode, and nothing while all is well.

    Works in any trainer that logs as TRL's ``RLOOTrainer`` does; in the kit's it is on by default.

    Args:
        on_unhealthy: "warn" prints; "stop" prints, saves a checkpoint and ends the training; a callable gets the
            :class:`Finding` in place of the print.  None takes the config's ``on_unhealthy``, or "warn".
        said: the symptoms that somebody else has spoken of, and more exactly, so that they are not printed.

    Raises:
        ConfigError: another value.
    """

    def __init__(
        self,
        on_unhealthy: str | Callable[[Finding], Any] | None = None,
        said: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.on_unhealthy, self.said = checked(on_unhealthy), said
        self._watch, self._seen = Watch(), 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look at what a resumed run has logged before, so that nothing is said twice."""
        entries = rounds(state.log_history)
        self._watch = watched(Log(entries, Known.of(args)))

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        """Look at the log so far, and speak where an episode begins."""
        log = Log(rounds(state.log_history), Known.of(args))
        if not logs or "grad_norm" not in logs or not log.entries:
            return
        wanted = self.on_unhealthy or checked(getattr(args, "on_unhealthy", None)) or "warn"
        for finding in self._watch.look(log):
            if callable(wanted):
                wanted(finding)
            elif state.is_world_process_zero and (wanted == "stop" or finding.symptom not in self.said()):
                print(f"unhealthy: {finding}", flush=True)
            if wanted == "stop":
                control.should_training_stop = True
                # A checkpoint of weights that are not finite would hide the last good one from a resume.
                control.should_save = control.should_save or not finding.symptom.startswith("non-finite")


def checked(on_unhealthy: Any) -> Any:
    """The same, if it is one of the choices.

    Raises:
        ConfigError: it is not.
    """
    if on_unhealthy is None or on_unhealthy in ("warn", "stop") or callable(on_unhealthy):
        return on_unhealthy
    raise ConfigError(
        "on_unhealthy is none of its choices",
        where=f"on_unhealthy={on_unhealthy!r}",
        todo='take "warn", "stop", or a function of the finding',
    )
