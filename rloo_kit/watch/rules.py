"""Rules that find what is wrong with a run in its log, with the likely cause and the setting to change first.

For :mod:`.symptoms`, which names them and puts them in order.  A rule is a function from the log so far to a
:class:`Sign` or None.  It compares windows of steps, never two steps, and a difference counts against its standard
error; the numbers are in :mod:`.thresholds`.  No rule reads the loss, which is about 0 in every on-policy run of RLOO,
since advantages sum to 0.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from rloo_kit.watch import thresholds as at
from rloo_kit.watch.chance import SURE, dead_by_chance, share_of_hits, surely_above
from rloo_kit.watch.log import LONG, MEMORY, RATIO, WINDOW, Change, Log, term
from rloo_kit.watch.truncation import ENOUGH

CUT_SHARE = "completions/clipped_ratio"


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


def non_finite(log: Log) -> Sign | None:
    """A metric that is NaN or infinite.

    The gradient's norm counts only where it is so for FEW entries in a row, in fp16 for OVERFLOWS: there the loss
    scaler finds its scale by overflowing, and skips those steps.
    """
    few = at.OVERFLOWS if getattr(log.known.args, "fp16", False) else at.FEW
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


def is_bad(value: float | None) -> bool:
    """Whether a logged figure is NaN or infinite; TRL logs None where a metric does not apply."""
    return isinstance(value, float) and not math.isfinite(value)


# --- updates that are too large ---------------------------------------------------------------------------


def kl_explosion(log: Log) -> Sign | None:
    """The policy has left the reference altogether."""
    window = log.last(at.SHORT)
    if not window.mean("kl") >= at.KL_PER_TOKEN:
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
    start, window = next(iter(log.values("entropy")), math.nan), log.last(at.SHORT)
    now = window.mean("entropy")
    if not (now >= at.ENTROPY_GROWN * start and now >= 1.0):
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
    if len(window) < at.FEW or not surely_above(share, window.completions, at.CLIPPED):
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
    if not now >= at.GRADIENT * start or rise.sigmas >= 1.0:
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
    norms = [value for value in log.values("grad_norm") if value]
    return statistics.median(norms) if len(norms) >= at.FEW else math.nan


def reward_collapse(log: Log) -> Sign | None:
    """The reward has fallen from its best, by more than noise and by more than a little."""
    recent = log.last(MEMORY)
    lowest = min(0.0, *recent.values("reward"))
    for before, window, sure in compared(log, recent):
        fall = log.change("reward", before, window)
        spread = before.spread("reward")
        lost = at.COLLAPSE * max(fall.before - lowest, 0.0 if math.isnan(spread) else spread)
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
    """Windows before and after a fall, and how sure it has to be: short ones for a quick answer, long ones for less
    noise.

    A learning rate that wrecks the policy at once leaves nothing before the fall but the first entry, which is of the
    policy before any update; it is taken until there are two windows to compare.
    """
    for size in (WINDOW, 2 * WINDOW):
        window = log.last(min(size, len(recent) // 2))
        earlier = recent.first(len(recent) - len(window))
        if len(window) >= at.FEW:
            yield earlier.highest("reward", size), window, at.COLLAPSE_SURE
        if len(window) >= at.FEW and len(earlier) <= WINDOW:
            yield log.first(1), window, SURE


# --- completions and rewards that teach little ------------------------------------------------------------


def kl_negative(log: Log) -> Sign | None:
    """A KL that is negative beyond chance, which no divergence can be."""
    window = log.last(2 * WINDOW)
    error, mean = log.error("kl", window), window.mean("kl")
    if len(window) < 2 * WINDOW or not (mean <= at.KL_NEGATIVE and mean + SURE * error < 0):
        return None
    return Sign(
        f"kl {mean:.3f} +-{error:.3f} nats per token ({window.steps}), and a divergence is never below 0",
        "completions are drawn from an older policy than the one whose log-probabilities are taken",
        "use_vllm",
        "off if it is on; and see that what generates gets the weights after every update",
        window,
    )


def truncation(log: Log, kind: str) -> Sign | None:
    """Too many completions are cut at the length limit: it is too short, or the policy has got worse."""
    window = log.last(2 * WINDOW)
    share = window.mean(CUT_SHARE)
    if len(window) < at.FEW or not surely_above(share, window.independent, at.CUT):
        return None
    fall = worsened(log) if log.first(1).mean(CUT_SHARE) <= ENOUGH else None
    if (kind == "policy worsened") != bool(fall):
        return None
    limit = window.values("completions/max_length")
    evidence = f"{share:.0%} of the completions cut{f' at {max(limit):.0f} tokens' if limit else ''} ({window.steps})"
    if fall:
        cause = f"completions that ended at first no longer do: reward {fall}"
        return Sign(evidence, cause, "learning_rate", lower(log, 10), window)
    cause = "the limit is shorter than what the policy has to say, and what is cut cannot be right"
    change = "double it, or pay for ending with rewards.overlong_reward"
    return Sign(evidence, cause, "max_completion_length", change, window)


def worsened(log: Log) -> Change | None:
    """How the reward has fallen since the start, where it is likely to have; the first entry is of the policy before
    any update."""
    windows = [(log.first(a), log.last(b)) for a in (1, at.FEW) for b in (WINDOW, 2 * WINDOW)]
    fall = min((log.change("reward", *both) for both in windows), key=lambda one: one.sigmas)
    return fall if fall.sigmas <= -2.0 else None


def format_only(log: Log) -> Sign | None:
    """The format is there and the answers are not."""
    window = log.last(2 * WINDOW)
    reached = log.best(log.judging("form"), log.last(WINDOW))
    right = log.best(log.judging("answer"), window)
    if len(window) < WINDOW or reached is None or right is None or reached[0] < at.REACHED:
        return None
    if not surely_above(1 - right[0], window.independent, 1 - at.MISSED):
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
    are 0.  (In training the count includes groups that are cut and masked whole, which truncation reports.)"""
    name = "dead_groups" if "dead_groups" in log.entries[-1] else "frac_reward_zero_std"
    window, known = log.last(2 * WINDOW), log.known
    share = window.mean(name)
    if len(window) < WINDOW or not share > at.DEAD:
        return None
    by_chance = dead_by_chance(known.completions // known.groups, min(2 / 3, max(1 / 3, log.height())))
    if not surely_above(share, window.groups, max(at.DEAD, by_chance)):
        return None
    found, cause, setting, change = dead_kind(log)
    seen = f"{share:.0%} of the groups without spread, reward {window.mean('reward'):.3f} ({window.steps})"
    return Sign(seen, cause, setting, change, window) if found == kind else None


def dead_kind(log: Log) -> tuple[str, str, str, str]:
    """Why groups are dead, by how high the reward is (in the upper third, in the lower one, or between): the kind, then
    cause, setting and change as in :class:`Sign`."""
    height, known = log.height(), log.known
    if height >= 2 / 3:
        cause = "the policy solves nearly every prompt, or has learned to"
        return "too easy", cause, "train_dataset", "harder problems; or stop here"
    if fall := worsened(log):
        cause = f"prompts that were solved at first no longer are: reward {fall}"
        return "policy worsened", cause, "learning_rate", lower(log, 10)
    if height <= 1 / 3:
        cause = "the policy solves nearly no prompt, so the completions of a group do not differ in reward"
        return "too hard", cause, "train_dataset", "easier problems, or a reward with steps on the way"
    cause = "the completions of a prompt are all right or all wrong"
    if getattr(known.args, "temperature", 1.0) < 1.0:  # costs nothing; more completions cost time
        change = f"to 1{known.now('temperature')}; then num_generations, up"
        return "completions alike", cause, "temperature", change
    return "completions alike", cause, "num_generations", f"double it{known.now('num_generations')}"


def entropy_collapse(log: Log) -> Sign | None:
    """The policy has become certain before it has become good."""
    if len(log) < 2 * WINDOW:
        return None
    window = log.last(WINDOW)
    start, now = log.first(at.FEW).mean("entropy"), window.mean("entropy")
    if not now <= at.ENTROPY_LEFT * start or log.height() >= 2 / 3:
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
    answers = log.judging("answer")
    if len(log) < 2 * WINDOW or not answers:
        return None
    before, window = log.first(WINDOW), log.last(WINDOW)
    length = log.change("completions/mean_length", before, window)
    paid = log.change("reward", before, window)
    changes = {name: log.change(term(name), before, window) for name in answers}
    name = max(answers, key=lambda name: changes[name].sigmas)
    longer = length.after >= at.LONGER * length.before and length.sigmas >= SURE
    if not longer or paid.sigmas < 2.0 or changes[name].sigmas >= 1.0:
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
    learning = [name for name, share in paid.items() if at.IN_PLAY[0] <= share <= at.IN_PLAY[1]]
    if len(window) < at.FEW or not learning:
        return None
    large, small = max(spreads, key=spreads.__getitem__), min(learning, key=spreads.__getitem__)
    if spreads[large] < at.DROWNED * spreads[small]:
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
    if len(values) < LONG or not spread > 0.0 or recent.stride > 1:
        return None
    noise = math.sqrt(statistics.fmean((b - a) ** 2 / 2 for a, b in itertools.pairwise(values)))
    within = (1 - known.batches / known.completions) * spread**2
    at_most = math.exp(at.LIKELY * math.sqrt(3 / len(values)))
    if noise == 0.0 or known.batches + at_most * within / noise**2 >= at.EFFECTIVE:
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
    if len(log) < at.PATIENCE:
        return None
    third = min(MEMORY, len(log) // 3)
    rise = log.change("reward", before := log.first(third), after := log.last(third))
    if rise.sigmas >= 2.0 or rise.gain + 2.0 * rise.error >= at.WORTH * before.spread("reward"):
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


def lower(log: Log, factor: int) -> str:
    """What to do to the learning rate."""
    part = {3: "a third", 10: "a tenth"}[factor]
    return f"{part} of it" + ("" if log.rate is None else f" (now {log.rate:g})")
