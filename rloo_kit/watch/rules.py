"""Rules for updates that are too large, and for completions and rewards that teach little.

For :mod:`.symptoms`, which names them and puts them in order, and has those for what is sampled for nothing.  A rule is
a function from the log so far to a :class:`Sign` or None.  It compares windows of steps, never two steps, and a
difference counts against its standard error.  No rule reads the loss, which is about 0 in every on-policy run of RLOO,
since advantages sum to 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from rloo_kit.watch.log import LONG, MEMORY, RATIO, WINDOW, Change, Figures, Log, share_of_hits, term

# Thresholds, each with its reason: published results, standard errors, or the recorded runs of tests/data/health;
# tests/watch checks the figures that are quoted from those runs.  How often chance alone passes them together:
# benchmarks/results/health_alarms.md.

SURE = 3.0  # standard errors for a change to count: one look in 700 errs by chance, and a run has about 100

SHORT = 2  # entries for what moves by orders of magnitude, where waiting for WINDOW would waste steps

FEW = 3  # the fewest entries that anything else is told from

ENOUGH = 0.2  # share of cut completions in the first batch up to which the limit was long enough for the policy then

OVERFLOWS = 17
"""As often as fp16's loss scaler halves torch's first scale, 65536, until it is below 1: to overflow less often is its
search for a scale."""

COLLAPSE_SURE = NormalDist().inv_cdf(1 - 0.01 / (2 * MEMORY**2 / 2))
"""Standard errors, 4.8, where the best window of many is compared with the last: the best one was lucky too, and it is
compared again at every entry.  All pairs of windows, of two sizes, in MEMORY entries together err in at most one run of
100 (Bonferroni), as far as their means are near normal; those of two completions a step are not."""

LIKELY = 1.5  # standard errors for high variance: fewer than SURE, since the mend does no harm

COLLAPSE = (
    0.5  # share of its best level, and of a single completion's standard deviation, that the reward has lost
)

KL_PER_TOKEN = 1.0
"""Nats per token: the policy gives every token that it writes e times the reference's probability, so that a
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
tests/data/health it went from 0.17 to 11.93, which is log(151936), all tokens of the vocabulary equally likely."""

LONGER = 1.1  # growth of the mean length that counts, where it is beyond noise too

DROWNED = 10.0
"""Ratio of two terms' weighted spreads.  The smaller one's share of the advantage's variance is 1 %, and it takes
100 times the completions to be seen."""

IN_PLAY = (0.1, 0.9)  # shares of completions that a reward pays, between which it has something left to teach

REACHED, MISSED = 0.8, 0.15  # shares of completions with the format, and surely at most with the right answer

EFFECTIVE = 2.0  # independent completions that a step is worth, at least: leave-one-out needs two

CLIPPED = 0.3
"""Share of completions whose ratio left the clip range.  They give no gradient (Schulman et al. 2017), so a
third of the sampling is lost, and PPO's usual share is 0.1 to 0.2."""

GRADIENT = 10.0
"""Growth of the gradient's median norm, while the reward does not rise.  Healthy runs of tests/data/health: up to
5, with the reward, as groups become rare in which completions differ."""

SPIKE, SPIKE_OVER_HIGH = 20.0, 5.0
"""Times the median of the gradients before it, and times their ninth decile, that a gradient is a spike.  Norms of
healthy runs are log-normal with a deviation of about 0.6: e^(0.6 x 5) is 20, five deviations.  The second is for norms
that alternate, as where steps without a live group have the KL term's small gradient alone."""


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


def surely_above(share: float, count: float, threshold: float) -> bool:
    """Whether so high a share of so many is rarer than :data:`SURE` standard errors where the true one is the
    threshold, by the exact binomial tail: rewards of 0 and 1 in small batches are far from normal."""
    if not share > threshold:  # NaN is not
        return False
    trials, tail = round(count), 0.0
    for hits in range(round(share * trials), trials + 1):
        ways = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
        part = math.exp(ways + hits * math.log(threshold) + (trials - hits) * math.log1p(-threshold))
        tail += part
        if part < 1e-9 * tail:  # above the mean each term is smaller than the one before
            break
    return tail < NormalDist().cdf(-SURE)


def surely_above_by_entries(shares: Figures, threshold: float) -> bool:
    """The same by how much the shares of many entries vary, where how many completions each has is not known.

    Student's t, by its expansion about the normal quantile (Abramowitz and Stegun 1972, 26.7.5).
    """
    if shares.size < LONG:
        return False
    free = shares.size - 1
    quantile = SURE + (SURE**3 + SURE) / (4 * free) + (5 * SURE**5 + 16 * SURE**3 + 3 * SURE) / (96 * free**2)
    error = shares.std(ddof=1) / math.sqrt(shares.size)
    return bool(shares.mean() > threshold + quantile * error)


def worsened(log: Log) -> Change | None:
    """How the reward has fallen since the start, where it is likely to have; the first entry is of the policy before
    any update."""
    windows = [(log.first(a), log.last(b)) for a in (1, FEW) for b in (WINDOW, 2 * WINDOW)]
    fall = min((log.change("reward", *both) for both in windows), key=lambda one: one.sigmas)
    return fall if fall.sigmas <= -2.0 else None


def lower(log: Log, factor: int) -> str:
    """What to do to the learning rate."""
    part = {3: "a third", 10: "a tenth"}[factor]
    return f"{part} of it" + ("" if log.rate is None else f" (now {log.rate:g})")


def non_finite(log: Log) -> Sign | None:
    """A metric that is NaN or infinite.

    The gradient's norm counts only where it is so for FEW entries in a row, in fp16 for OVERFLOWS: there the loss
    scaler finds its scale by overflowing, and skips those steps.
    """
    few = OVERFLOWS if getattr(log.known.args, "fp16", False) else FEW
    entry, window = log.entries[-1], log.last(few)
    bad = [name for name in entry if name != "grad_norm" and _is_bad(entry[name])]
    gradient = len(window) == few and all(_is_bad(one.get("grad_norm")) for one in window.entries)
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


def _is_bad(value: float | None) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


# --- updates that are too large ---------------------------------------------------------------------------


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


def entropy_explosion(log: Log) -> Sign | None:
    """The policy dissolves into noise."""
    start, window = next(iter(log.first(MEMORY).values("entropy")), math.nan), log.last(SHORT)
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
    if not now >= GRADIENT * start or (rise := log.change("reward", before, window)).sigmas >= 1.0:
        return None
    return Sign(
        f"median grad_norm {start:.2g} -> {now:.2g}, reward {rise} ({window.steps})",
        "each update overshoots, and the next gradient corrects it",
        "learning_rate",
        f"{lower(log, 10)}; then max_grad_norm, down{log.known.now('max_grad_norm')}",
        window,
    )


def median_norm(log: Log) -> float:
    """Of the gradients that are not 0, which a step of dead groups has; NaN for fewer than FEW."""
    norms = log.values("grad_norm")
    norms = norms[norms != 0]
    return float(np.median(norms)) if norms.size >= FEW else math.nan


def gradient_spikes(log: Log) -> Sign | None:
    """One batch pulls many times as hard as the others."""
    norms = log.last(MEMORY).values("grad_norm")
    before = norms[norms != 0][:-1]
    last, window = log.entries[-1].get("grad_norm") or 0.0, log.last(1)
    if before.size < 2 * WINDOW or not math.isfinite(last):
        return None
    usual, high = float(np.median(before)), float(np.quantile(before, 0.9, method="weibull"))
    if last < SPIKE * usual or last < SPIKE_OVER_HIGH * high:
        return None
    return Sign(
        f"grad_norm {last:.3g} ({window.steps}), {last / usual:.0f} times the median of those before, {usual:.2g}",
        "a batch with an outlier: a reward out of scale, a very long completion, or a ratio that has run away",
        "max_grad_norm",
        f"to the usual norm, {usual:.1g}{log.known.now('max_grad_norm')}; and look at that step's rewards and lengths",
        window,
    )


def reward_collapse(log: Log) -> Sign | None:
    """The reward has fallen from its best, by more than noise and by more than a little."""
    recent = log.last(MEMORY)
    values, now = recent.values("reward"), log.last(FEW * WINDOW).values("reward")
    lowest, highest = float(values.min(initial=0.0)), float(values.max())
    # No window is better than its best entry, nor worse than its worst: most looks end here.
    if COLLAPSE * (highest - lowest) > highest - now.min():
        return None
    for before, window, sure in _compared(log, recent):
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


def _compared(log: Log, recent: Log) -> Iterator[tuple[Log, Log, float]]:
    """Windows before and after a fall, and how sure it has to be: short ones for a quick answer, long ones for less
    noise.

    A learning rate that wrecks the policy at once leaves nothing before the fall but the first entry, which is of the
    policy before any update; it is taken until there are two windows to compare.
    """
    for size in (WINDOW, 2 * WINDOW):
        window = log.last(min(size, len(recent) // 2))
        earlier = recent.first(len(recent) - len(window))
        if len(window) >= FEW:
            yield earlier.highest("reward", size), window, COLLAPSE_SURE
        if len(window) >= FEW and len(earlier) <= WINDOW:
            yield log.first(1), window, SURE


# --- completions and rewards that teach little ------------------------------------------------------------


def kl_negative(log: Log) -> Sign | None:
    """A KL that is negative beyond chance, which no divergence can be."""
    window = log.last(2 * WINDOW)
    mean = window.mean("kl")
    if len(window) < 2 * WINDOW or not mean <= KL_NEGATIVE:
        return None
    if not mean + SURE * (error := log.error("kl", window)) < 0:
        return None
    return Sign(
        f"kl {mean:.3f} +-{error:.3f} nats per token ({window.steps}), and a divergence is never below 0",
        "completions are drawn from an older policy than the one whose log-probabilities are taken",
        "use_vllm",
        "off if it is on; and see that what generates gets the weights after every update",
        window,
    )


def format_only(log: Log) -> Sign | None:
    """The format is there and the answers are not."""
    window = log.last(2 * WINDOW)
    reached = log.best(log.judging("form"), log.last(WINDOW))
    right = log.best(log.judging("answer"), window)
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
    answers = log.judging("answer", published=True)
    if len(log) < 2 * WINDOW or not answers:
        return None
    before, window = log.first(WINDOW), log.last(WINDOW)
    start, now = (part.mean("completions/mean_length") for part in (before, window))
    if not now >= LONGER * start:
        return None
    length = log.change("completions/mean_length", before, window)
    paid = log.change("reward", before, window)
    changes = {name: log.change(term(name), before, window) for name in answers}
    name = max(answers, key=lambda name: changes[name].sigmas)
    if length.sigmas < SURE or paid.sigmas < 2.0 or changes[name].sigmas >= 1.0:
        return None
    less = "".join(f" and less on {other}" for other in log.judging("length"))
    return Sign(
        f"length {length.before:.1f} -> {length.after:.1f}, reward {paid}, {name} {changes[name]} ({window.steps})",
        "length is paid for, and being right is not",
        "reward_weights",
        f"more on {name}{less}, or pay for length only where the answer is right (rewards.gated)",
        window,
    )


def drowned_term(log: Log) -> Sign | None:
    """One reward function's spread hides another's."""
    window = log.last(WINDOW)
    weighted = {name: abs(w) * window.spread(term(name)) for name, w in log.terms().items() if w}
    spreads = {name: spread for name, spread in weighted.items() if spread > 0.0}
    paid = {n: share_of_hits(abs(window.mean(term(n))), window.spread(term(n))) for n in spreads}
    learning = [name for name, share in paid.items() if IN_PLAY[0] <= share <= IN_PLAY[1]]
    if len(window) < FEW or not learning:
        return None
    large, small = max(spreads, key=spreads.__getitem__), min(learning, key=spreads.__getitem__)
    if spreads[large] < DROWNED * spreads[small]:
        return None
    return Sign(
        f"weighted spread {spreads[large]:.3g} of {large}, {spreads[small]:.3g} of {small} ({window.steps})",
        f"the advantage depends on {large} alone, and {small} has almost no effect",
        "reward_weights",
        f"{large} down by {spreads[large] / spreads[small]:.0f} for equal parts",
        window,
    )


def high_variance(log: Log) -> Sign | None:
    """A step's mean reward moves by which prompts were drawn, more than by what is learned.

    If a step were n independent completions of variance v, its mean would have the variance v / n.  That of the
    mean is taken from neighbouring steps, between which learning changes little, and v = (variance within a generation
    batch) + (variance of its mean, which is that of a step's mean times the batches of a step).  By von Neumann et al.
    1941 the mean square of n successive differences is known to a share of sqrt(3 / n).
    """
    recent, known = log.last(MEMORY), log.known
    values, spread = recent.values("reward"), recent.spread("reward")
    # Where an entry is the mean of several batches, their spread cannot be had from it.
    if values.size < LONG or not spread > 0.0 or recent.stride > 1:
        return None
    noise = math.sqrt(np.mean(np.diff(values) ** 2) / 2)
    within = (1 - known.batches / known.completions) * spread**2
    at_most = math.exp(LIKELY * math.sqrt(3 / values.size))
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
