"""Symptoms of a run that goes wrong: the rules that find them in its log, with the cause and the setting to change.

For :mod:`.health`, which applies them while a run trains and afterwards.  A rule is a function from the log
so far to a :class:`Sign` or None, and :data:`SYMPTOMS` is the table of them by name.  Windows of steps are
compared, never two steps, and a difference counts against its standard error.  What is not here: the loss, which
reads 0 in every on-policy run of RLOO, since advantages sum to 0; and any change of a setting, which is for
whoever reads the line.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

from rloo_kit.watch.log import ALIKE, LONG, MEMORY, RATIO, WINDOW, Change, Log, share_of_hits, term
from rloo_kit.watch.truncation import ENOUGH

# --- thresholds, each with its reason ---------------------------------------------------------------------

SHORT = 2
"""Entries for what moves by orders of magnitude, where waiting for :data:`WINDOW` would waste steps."""

FEW = 3
"""The fewest entries that anything else is told from."""

OVERFLOWS = 17
"""As often as fp16's loss scaler halves torch's first scale, 65536, until it is below 1: to overflow less often is its
search for a scale.  (The kit's own runs begin lower, and end there: :mod:`rloo_kit.train.gradients`.)"""

SURE = 3.0
"""Standard errors for a change to count.  One look in 700 errs by chance, and a run has about 100."""

COLLAPSE_SURE = NormalDist().inv_cdf(1 - 0.01 / (2 * MEMORY**2 / 2))
"""The same, 4.8, where the best window of many is compared with the last: the best one was lucky too, and it is
compared again at every entry.  All pairs of windows, of two sizes, in :data:`MEMORY` entries together err in at most
one run of 100 (Bonferroni), as far as their means are near normal; those of two completions a step are not."""

DEAD = 0.5
"""Share of dead groups that is surely exceeded: more than half of what is sampled then teaches nothing.  With few
completions per prompt chance alone leads there, and :func:`dead_by_chance` stands in its place."""

CUT = 0.2
"""Share of truncated completions that is surely exceeded: one in five cannot be right whatever it says.  The
healthy runs of tests/data/health stay below 0.13 in every step."""

COLLAPSE = 0.5
"""Share of its best level, and of a single completion's standard deviation, that the reward has lost: half."""

KL_PER_TOKEN = 1.0
"""Nats per token: the policy puts e times the reference's probability on every token it writes, so that a
completion of 20 tokens is e^20 times likelier than before.  Healthy runs of tests/data/health: at most 0.31."""

KL_NEGATIVE = -0.02
"""Nats per token.  KL is not negative; its estimate k1 = log policy - log reference can be by chance: with a true
KL of e, the mean over n tokens has a standard error of about sqrt(2e/n), so e - 4 x error is lowest at -8/n,
which is -0.02 for 400 tokens, what ten steps of 8 completions have at five tokens each."""

ENTROPY_LEFT = 0.2
"""Share of its first value that the entropy has fallen to.  Cui et al. 2025 (arXiv 2505.22617) fit reward to
-a exp(entropy) + b: what can be gained is paid for with entropy, and at a fifth of it four fifths are spent.  Healthy
runs of tests/data/health keep half of it until they are good."""

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

EFFECTIVE = 2.0
"""Independent completions that a step is worth, below which there are too few: leave-one-out needs two.  How often
which batch falls below: benchmarks/results/health_alarms.md."""

LIKELY = 1.5
"""Standard errors by which it has to be below: fewer than :data:`SURE`, since the mend does no harm."""

CLIPPED = 0.3
"""Share of completions whose ratio left the clip range.  They give no gradient (Schulman et al. 2017), so a
third of the sampling is lost, and PPO's usual share is 0.1 to 0.2."""

GRADIENT = 10.0
"""Growth of the gradient's median norm, while the reward does not rise.  Healthy runs of tests/data/health: up to
5, with the reward, as groups become rare in which completions differ."""

IN_PLAY = (0.1, 0.9)
"""Shares of completions that a reward function pays, between which it has something left to teach."""

PATIENCE = 100
"""Entries after which a rise should have been seen.  It is :data:`WORTH` from the first third to the last, so that
fewer entries would ask for a faster rise; 100 ask for one more right answer in 100 every five steps."""

WORTH = 0.25
"""A rise worth having, in standard deviations of single completions: about Cohen's (1988) small effect.  A log
that could not have shown it, for noise, is not judged."""

CUT_SHARE = "completions/clipped_ratio"

# --- what flows -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sign:
    """What a rule has seen.

    Attributes:
        evidence, cause, setting, change: as a :class:`Finding` has them.
        window: the entries that it was seen in.
    """

    evidence: str
    cause: str
    setting: str
    change: str
    window: Log


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


# --- symptoms ---------------------------------------------------------------------------------------------


def non_finite(log: Log) -> Sign | None:
    """A metric that is NaN or infinite.

    The gradient's norm counts only where it is so for :data:`FEW` entries in a row, in fp16 for :data:`OVERFLOWS`:
    there the loss scaler finds its scale by overflowing, and skips those steps.
    """
    few = OVERFLOWS if getattr(log.known.args, "fp16", False) else FEW
    entry, window = log.entries[-1], log.last(few)
    bad = [name for name in entry if name != "grad_norm" and is_bad(entry[name])]
    gradient = len(window) == few and all(is_bad(one.get("grad_norm")) for one in window.entries)
    if not bad and not gradient:
        return None
    if any(name.startswith("reward") for name in bad):
        cause, setting = "a reward function returned it", "reward_funcs"
        change = "bound it with rewards.clipped, and go back to the last good checkpoint"
    else:
        cause, setting = "weights or activations have overflowed", "learning_rate"
        change = f"{lower(log, 10)}, from the last good checkpoint"
    window = window if gradient else log.last(1)
    evidence = f"{', '.join([*bad, *['grad_norm'] * gradient])} ({window.steps})"
    return Sign(evidence, cause, setting, change, window)


def is_bad(value: Any) -> bool:
    """Whether a logged figure is NaN or infinite; TRL logs None where a metric does not apply."""
    return isinstance(value, float) and not math.isfinite(value)


def kl_explosion(log: Log) -> Sign | None:
    """The policy has left the reference altogether."""
    window = log.last(SHORT)
    if not window.mean("kl") >= KL_PER_TOKEN:
        return None
    return Sign(
        f"kl {log.first(1).mean('kl'):.3f} -> {window.mean('kl'):.2f} nats per token ({window.steps}), "
        f"reward now {window.mean('reward'):.3f}",
        "the updates are too large, and the policy no longer writes what the reference could",
        "learning_rate",
        f"{lower(log, 10)}; then beta, up{log.known.now('beta')}",
        window,
    )


def kl_negative(log: Log) -> Sign | None:
    """A KL that is negative beyond chance, which no divergence can be."""
    window = log.last(2 * WINDOW)
    error = log.error("kl", window)
    mean = window.mean("kl")
    if len(window) < 2 * WINDOW or not (mean <= KL_NEGATIVE and mean + SURE * error < 0):
        return None
    return Sign(
        f"kl {mean:.3f} +-{error:.3f} nats per token ({window.steps}), and a divergence is never below 0",
        "completions are drawn from an older policy than the one whose log-probabilities are taken",
        "use_vllm",
        "off if it is on; and see that what generates gets the weights after every update",
        window,
    )


def entropy_explosion(log: Log) -> Sign | None:
    """The policy dissolves into noise."""
    # The first that there is: a step without a live group has none.
    start, window = next(iter(log.values("entropy")), math.nan), log.last(SHORT)
    now = window.mean("entropy")
    if not (now >= ENTROPY_GROWN * start and now >= 1.0):
        return None
    return Sign(
        f"entropy {start:.3f} -> {now:.2f} nats per token ({window.steps}), reward now {window.mean('reward'):.3f}",
        "the updates are too large and have wiped out what the policy knew",
        "learning_rate",
        lower(log, 10),
        window,
    )


def clipped_ratios(log: Log) -> Sign | None:
    """Too many completions leave the clip range between two updates on one batch."""
    window = log.last(WINDOW)
    share = window.mean(RATIO)
    if len(window) < FEW or not surely_above(share, window.completions, CLIPPED):
        return None
    return Sign(
        f"{share:.0%} of the ratios clipped ({window.steps})",
        "within one generation batch the policy moves out of the clip range, and what is clipped gives no gradient",
        "learning_rate",
        f"{lower(log, 10)}; then num_iterations, to 1{log.known.now('num_iterations')}",
        window,
    )


def growing_gradient(log: Log) -> Sign | None:
    """The gradient's norm grows and the reward does not."""
    if len(log) < 2 * WINDOW:
        return None
    before, window = log.first(WINDOW), log.last(WINDOW)
    start, now = (median_norm(part) for part in (before, window))
    rise = log.change("reward", before, window)
    if not now >= GRADIENT * start or rise.sigmas >= 1.0:
        return None
    return Sign(
        f"median grad_norm {start:.2g} -> {now:.2g}, reward {rise} ({window.steps})",
        "each update overshoots, and the next gradient corrects it",
        "learning_rate",
        f"{lower(log, 10)}; then max_grad_norm, down{log.known.now('max_grad_norm')}",
        window,
    )


def median_norm(log: Log) -> float:
    """Of the gradients that are not 0, as a step of dead groups has none; NaN for fewer than :data:`FEW`."""
    norms = [value for value in log.values("grad_norm") if value]
    return statistics.median(norms) if len(norms) >= FEW else math.nan


def reward_collapse(log: Log) -> Sign | None:
    """The reward has fallen from its best, by more than noise and by more than a little.

    A learning rate that wrecks the policy at once leaves nothing before the fall but the first entry, which is of the
    policy before any update; as long as there are no two windows to compare, it is taken.
    """
    recent = log.last(MEMORY)
    lowest = min(0.0, *recent.values("reward"))
    for before, window, sure in compared(log, recent):
        fall = log.change("reward", before, window)
        spread = before.spread("reward")
        lost = COLLAPSE * max(fall.before - lowest, 0.0 if math.isnan(spread) else spread)
        if -fall.sigmas >= sure and -fall.gain >= lost:
            return Sign(
                f"reward {fall}, {before.steps} against {window.steps}",
                "an update too large, or one too many in a direction that the reward did not mean",
                "learning_rate",
                f"{lower(log, 10)}, from a checkpoint before the fall",
                window,
            )
    return None


def compared(log: Log, recent: Log) -> Iterator[tuple[Log, Log, float]]:
    """Windows before and after a fall, and how sure it has to be: short ones soon, long ones where those are few."""
    for size in (WINDOW, 2 * WINDOW):
        window = log.last(min(size, len(recent) // 2))
        earlier = recent.first(len(recent) - len(window))
        if len(window) >= FEW:
            yield earlier.highest("reward", size), window, COLLAPSE_SURE
        if len(window) >= FEW and len(earlier) <= WINDOW:
            yield log.first(1), window, SURE


def truncation(log: Log, kind: str) -> Sign | None:
    """Too many completions are cut at the length limit: it is too short, or the policy has got worse."""
    window = log.last(2 * WINDOW)
    share = window.mean(CUT_SHARE)
    if len(window) < FEW or not surely_above(share, window.independent, CUT):
        return None
    fall = worsened(log) if log.first(1).mean(CUT_SHARE) <= ENOUGH else None
    if (kind == "policy worsened") != bool(fall):
        return None
    limit = window.values("completions/max_length")
    evidence = f"{share:.0%} of the completions cut{f' at {max(limit):.0f} tokens' if limit else ''} ({window.steps})"
    if fall:
        cause = f"completions that ended at first no longer do: reward {fall}"
        return Sign(evidence, cause, "learning_rate", lower(log, 10), window)
    return Sign(
        evidence,
        "the limit is shorter than what the policy has to say, and what is cut cannot be right",
        "max_completion_length",
        "double it, or pay for ending with rewards.overlong_reward",
        window,
    )


def worsened(log: Log) -> Change | None:
    """How the reward has fallen since the start, where it is likely to have; the first entry is of the policy before
    any update."""
    windows = [(log.first(before), log.last(after)) for before in (1, FEW) for after in (WINDOW, 2 * WINDOW)]
    fall = min((log.change("reward", *both) for both in windows), key=lambda one: one.sigmas)
    return fall if fall.sigmas <= -2.0 else None


def format_only(log: Log) -> Sign | None:
    """The format is there and the answers are not."""
    window = log.last(2 * WINDOW)
    reached, right = log.best(log.formats, log.last(WINDOW)), log.best(log.answers, window)
    if len(window) < WINDOW or reached is None or right is None or reached[0] < REACHED:
        return None
    if not surely_above(1 - right[0], window.independent, 1 - MISSED):
        return None
    return Sign(
        f"{reached[1]} in {reached[0]:.0%} of the completions, {right[1]} in {right[0]:.0%} ({window.steps})",
        "the form is learned and pays no more, and the problems are too hard to be right by chance",
        "train_dataset",
        "easier problems; or check that the answer is read from the right column",
        window,
    )


def dead_groups(log: Log, kind: str) -> Sign | None:
    """Too many groups that teach nothing, for this kind of reason: their K rewards are all equal, so that advantages
    are 0.  (In training the count has those too that are cut and masked whole, of which truncation speaks.)"""
    name = "dead_groups" if "dead_groups" in log.entries[-1] else "frac_reward_zero_std"
    window = log.last(2 * WINDOW)
    share, known = window.mean(name), log.known
    if len(window) < WINDOW or not share > DEAD:
        return None
    by_chance = dead_by_chance(known.completions // known.groups, min(2 / 3, max(1 / 3, log.height())))
    if not surely_above(share, window.groups, max(DEAD, by_chance)):
        return None
    found, cause, setting, change = dead_kind(log)
    if found != kind or any(SYMPTOMS[other](log) for other in WHY_DEAD):
        return None
    return Sign(
        f"{share:.0%} of the groups without spread, reward {window.mean('reward'):.3f} ({window.steps})",
        cause,
        setting,
        change,
        window,
    )


def dead_by_chance(k: int, right: float) -> float:
    """Share of groups of K completions that are all right or all wrong where nothing is wrong.

    Each prompt has a chance of its own to be solved, from a beta distribution with mean ``right`` that makes
    completions of a prompt correlate by :data:`ALIKE` (beta-binomial; Skellam 1948).

    >>> round(dead_by_chance(2, 0.5), 2), round(dead_by_chance(8, 0.5), 2)
    (0.65, 0.19)
    """
    size = (1 - ALIKE) / ALIKE
    return sum(math.prod((chance * size + i) / (size + i) for i in range(k)) for chance in (right, 1 - right))


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
    if fall := worsened(log):
        return (
            "policy worsened",
            f"prompts that were solved at first no longer are: reward {fall}",
            "learning_rate",
            lower(log, 10),
        )
    if height <= 1 / 3:
        return (
            "too hard",
            "the policy solves nearly no prompt, so there is nothing to tell apart",
            "train_dataset",
            "easier problems, or a reward with steps on the way",
        )
    cause = "the completions of a prompt are all right or all wrong"
    if getattr(known.args, "temperature", 1.0) < 1.0:  # costs nothing; more completions cost time
        return (
            "completions alike",
            cause,
            "temperature",
            f"to 1{known.now('temperature')}; then num_generations, up",
        )
    return "completions alike", cause, "num_generations", f"double it{known.now('num_generations')}"


def entropy_collapse(log: Log) -> Sign | None:
    """The policy has become certain before it has become good."""
    if len(log) < 2 * WINDOW:
        return None
    window = log.last(WINDOW)
    start, now = log.first(FEW).mean("entropy"), window.mean("entropy")
    if not now <= ENTROPY_LEFT * start or log.height() >= 2 / 3:
        return None
    return Sign(
        f"entropy {start:.3f} -> {now:.3f} nats per token, reward {window.mean('reward'):.3f} ({window.steps})",
        "the policy writes one thing only, so there is nothing left to choose from",
        "learning_rate",
        f"{lower(log, 3)}; then beta, up{log.known.now('beta')}",
        window,
    )


def length_hacking(log: Log) -> Sign | None:
    """The reward rises with the length, and the answers get no better."""
    answers = log.answers
    if len(log) < 2 * WINDOW or not answers:
        return None
    before, window = log.first(WINDOW), log.last(WINDOW)
    length = log.change("completions/mean_length", before, window)
    paid = log.change("reward", before, window)
    changes = {name: log.change(term(name), before, window) for name in answers}
    name = max(answers, key=lambda name: changes[name].sigmas)
    right = changes[name]
    longer = length.after >= LONGER * length.before and length.sigmas >= SURE
    if not longer or paid.sigmas < 2.0 or right.sigmas >= 1.0:
        return None
    return Sign(
        f"length {length.before:.1f} -> {length.after:.1f}, reward {paid}, {name} {right} ({window.steps})",
        "length is paid for, and being right is not",
        "reward_weights",
        f"more on {name}, or pay for length only where the answer is right (rewards.gated)",
        window,
    )


def drowned_term(log: Log) -> Sign | None:
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
    return Sign(
        f"weighted spread {spreads[loud]:.3g} of {loud}, {spreads[quiet]:.3g} of {quiet} ({window.steps})",
        f"the advantage is {loud} alone, and {quiet} is not felt",
        "reward_weights",
        f"{loud} down by {spreads[loud] / spreads[quiet]:.0f} for equal parts",
        window,
    )


def high_variance(log: Log) -> Sign | None:
    """A step's mean reward moves by which prompts were drawn, more than by what is learned.

    If a step were n independent completions of variance v, its mean would have the variance v / n.  That of the
    mean is taken from neighbouring steps, which learning leaves alike, and v = (variance within a generation batch)
    + (variance of its mean, which is that of a step's mean times the batches of a step).  By von Neumann et al. 1941
    the mean square of n successive differences is known to a share of sqrt(3 / n).
    """
    recent, known = log.last(MEMORY), log.known
    values, spread = recent.values("reward"), recent.spread("reward")
    # Where an entry is the mean of several batches, their spread cannot be had from it.
    if len(values) < LONG or not spread > 0.0 or recent.stride > 1:
        return None
    noise = math.sqrt(statistics.fmean((b - a) ** 2 / 2 for a, b in itertools.pairwise(values)))
    within = (1 - known.batches / known.completions) * spread**2
    at_most = math.exp(LIKELY * math.sqrt(3 / len(values)))
    if noise == 0.0 or known.batches + at_most * within / noise**2 >= EFFECTIVE:
        return None
    worth = known.batches + within / noise**2
    return Sign(
        f"reward {recent.mean('reward'):.3f} moves by {noise:.3f} from step to step, completions spread by "
        f"{spread:.3f}: a step is worth about {worth:.1f} independent ones ({recent.steps})",
        "too few completions per step for a gradient that is more than chance",
        "gradient_accumulation_steps",
        f"four times as much{known.now('gradient_accumulation_steps')}, with steps_per_generation as it is"
        f"{known.now('steps_per_generation')}; then num_generations, up{known.now('num_generations')}",
        recent,
    )


def nothing_learned(log: Log) -> Sign | None:
    """No rise after many steps, in a log that would have shown one."""
    if len(log) < PATIENCE:
        return None
    third = min(MEMORY, len(log) // 3)
    rise = log.change("reward", before := log.first(third), after := log.last(third))
    if rise.sigmas >= 2.0 or rise.gain + 2.0 * rise.error >= WORTH * before.spread("reward"):
        return None
    if log.height(after) >= 2 / 3 or log.change("reward", log.first(WINDOW), after).sigmas >= 2.0:
        return None  # good, or better than at first: most is learned early
    return Sign(
        f"reward {rise}, {before.steps} against {after.steps}",
        "the updates are too small to be seen",
        "learning_rate",
        f"ten times as much{log.known.now('learning_rate', log.rate)}",
        log,
    )


# --- what is sure -----------------------------------------------------------------------------------------


def surely_above(share: float, count: float, threshold: float) -> bool:
    """Whether so high a share of so many is rarer than :data:`SURE` where the true one is the threshold.

    The exact binomial tail: rewards of 0 and 1 in small batches are far from normal.
    """
    if not share > threshold:  # NaN is not
        return False
    trials = round(count)
    hits = round(share * trials)
    logs = math.log(threshold), math.log1p(-threshold)
    ways = (
        math.lgamma(trials + 1) - math.lgamma(n + 1) - math.lgamma(trials - n + 1)
        for n in range(hits, trials + 1)
    )
    tail = sum(math.exp(way + n * logs[0] + (trials - n) * logs[1]) for n, way in enumerate(ways, hits))
    return tail < NormalDist().cdf(-SURE)


def lower(log: Log, factor: int) -> str:
    """What to do to the learning rate."""
    part = {3: "a third", 10: "a tenth"}[factor]
    return f"{part} of it" + ("" if log.rate is None else f" (now {log.rate:g})")


# --- the table --------------------------------------------------------------------------------------------

Rule = Callable[[Log], Sign | None]

TIERS: tuple[dict[str, Rule], ...] = (
    {"non-finite figures": non_finite},
    {
        "KL explosion": kl_explosion,
        "entropy explosion": entropy_explosion,
        "learning rate too high, ratios clipped": clipped_ratios,
        "learning rate too high, gradient grows": growing_gradient,
        "reward collapse": reward_collapse,
    },
    {
        "KL negative": kl_negative,
        "truncation": partial(truncation, kind="too short"),
        "truncation, policy worsened": partial(truncation, kind="policy worsened"),
        "format without answers": format_only,
        "dead groups, too easy": partial(dead_groups, kind="too easy"),
        "dead groups, too hard": partial(dead_groups, kind="too hard"),
        "dead groups, policy worsened": partial(dead_groups, kind="policy worsened"),
        "dead groups, completions alike": partial(dead_groups, kind="completions alike"),
        "entropy collapse": entropy_collapse,
        "length hacking": length_hacking,
        "drowned reward": drowned_term,
        "high variance": high_variance,
    },
    {"nothing learned": nothing_learned},
)
"""Name -> rule, causes before what they bring along: nothing can be told from NaN; a policy that has been wrecked is
also cut off, wrong, and without spread; and what is named above says why nothing was learned."""

WHY_DEAD = ("truncation", "truncation, policy worsened", "format without answers")
"""Symptoms that say why groups are dead, and better."""

SYMPTOMS: dict[str, Rule] = {name: rule for tier in TIERS for name, rule in tier.items()}


def judged(log: Log) -> list[Finding]:
    """The findings of a log's last entry, from the first tier that has any."""
    for tier in TIERS:
        if found := [finding(name, sign) for name, rule in tier.items() if (sign := rule(log))]:
            return found
    return []


def finding(name: str, sign: Sign) -> Finding:
    """A sign under its symptom's name, over the steps of its window."""
    first, last = sign.window.entries[0]["step"], sign.window.entries[-1]["step"]
    return Finding(name, sign.evidence, sign.cause, sign.setting, sign.change, first, last)
