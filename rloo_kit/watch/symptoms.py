"""The rules that find the symptoms of symptoms.toml, which has their thresholds, causes and advice.

A rule compares windows of steps, never two steps, and measures a difference in its standard errors; false alarms are
counted in benchmarks/results/health_alarms.md.  No rule reads the loss, which is about 0 in any on-policy RLOO run.
"""

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from rloo_kit.watch.statistics import ALIKE, CUT_SHARE, LONG, MEMORY, WINDOW, ZERO_VARIANCE, Change, Log, term

SYMPTOMS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""Name -> its row, in the table's order."""

SURE = 3.0  # standard errors for a change to count: one false alarm in 700 looks, of which a run has about 100

COLLAPSE_SURE = NormalDist().inv_cdf(1 - 0.01 / (2 * MEMORY**2 / 2))
"""Standard errors, 4.8, that the last window must lie below the best of many: one false alarm in 100 runs over all
pairs of windows, of two sizes, in MEMORY entries (Bonferroni)."""

SHORT = 2  # entries for metrics that move by orders of magnitude, where waiting for WINDOW would waste steps
FEW = 3  # the fewest entries for any other symptom
QUIET = 5  # entries without the symptom after which an episode is over, and the next one is reported again
GOOD = 2 / 3  # height of a reward in its range, from which on nothing needs to improve
ALL_CUT = 0.9  # truncated share that alone explains why no completion is right
LEAST = 40  # completions of a constant reward: a policy right once in ten gets all 40 wrong with a chance of 1 in 70
WRECKED = 0.9  # of the first entry's reward that is lost, where that entry is the only one before the fall
MARGIN = 0.15  # how far the share of zero-variance groups must exceed chance, since ALIKE is an assumption
LIKELY = 1.5  # standard errors for high variance: fewer than SURE, since more completions do no harm
FORMED = 0.8  # share of completions that have the form
IN_PLAY = (0.1, 0.9)  # a reward that pays a share of completions between these has something left to teach
FALLEN = 2.5  # standard errors for a fall since the start, the largest of four comparisons at every entry
MOVED = 0.1  # nats per token of KL: the updates can be seen, so larger ones are no advice
PATIENCE = 100  # entries after which a rise from the first third to the last should have been seen
OVERFLOWS = 17  # times that fp16's loss scaler halves torch's first scale, 65536, until it is below 1
LENGTH = "completions/mean_length"

Count = Callable[[Log], float]


class Sign(NamedTuple):
    """What a rule sees: the entries, the figures, and words for the placeholders of its row."""

    window: Log
    evidence: str
    words: Mapping[str, str] = {}


@dataclass(frozen=True)
class Finding:
    """One symptom over the steps at which it was seen."""

    symptom: str  # its name in SYMPTOMS
    evidence: str  # figures and the steps they are from, when it was first seen
    cause: str  # the likely one
    setting: str  # what to change first, an argument of RLOOConfig or of the trainer
    change: str  # and how
    first_step: int
    last_step: int

    def __str__(self) -> str:
        return f"{self.symptom}: {self.evidence}. Likely: {self.cause}. Change first: {self.setting}, {self.change}."


def surely_above(share: float, count: float, threshold: float) -> bool:
    """Whether a share of ``count`` is surely above a threshold: if the threshold were the true share, so high a share
    would be rarer than :data:`SURE` standard errors, by the exact binomial tail."""
    if not share > threshold:  # also if it is NaN
        return False
    trials, yes, no = round(count), math.log(threshold), math.log1p(-threshold)
    ways = lambda n: math.lgamma(trials + 1) - math.lgamma(n + 1) - math.lgamma(trials - n + 1)  # noqa: E731
    counts = range(round(share * trials), trials + 1)
    return sum(math.exp(ways(n) + n * yes + (trials - n) * no) for n in counts) < NormalDist().cdf(-SURE)


def _surely_above(log: Log, metric: str, few: float, many: float, count: Count) -> Log | None:
    """Entries in which a share is surely above a limit: 2 WINDOW entries above ``few``, else MEMORY above ``many``."""
    for window, limit in ((log[-2 * WINDOW :], few), (log[-MEMORY:], many)):
        if surely_above(window.mean(metric), count(window), limit):
            return window
    return None


def tied_by_chance(k: int, right: float) -> float:
    """Return the share of groups of K completions that are all right or all wrong by chance alone.

    Each prompt has its own chance of being solved, from a beta distribution with mean ``right`` that makes
    completions of a prompt correlate by :data:`.statistics.ALIKE` (beta-binomial; Skellam 1948).

    >>> round(tied_by_chance(2, 0.5), 2), round(tied_by_chance(8, 0.5), 2)
    (0.65, 0.19)
    """
    size = (1 - ALIKE) / ALIKE
    return sum(math.prod((chance * size + i) / (size + i) for i in range(k)) for chance in (right, 1 - right))


def worsened(log: Log) -> Change | None:
    """Return the reward's fall since the start, or None if it is not likely to have fallen."""
    pairs = [(log[:first], log[-last:]) for first in (FEW, WINDOW) for last in (WINDOW, 2 * WINDOW)]
    fall = min((log.change("reward", *pair) for pair in pairs), key=lambda change: change.sigmas)
    return fall if fall.sigmas <= -FALLEN else None


# --- updates that are too large ---------------------------------------------------------------------------


def non_finite(log: Log, limit: float, kind: str) -> Sign | None:
    """A metric is NaN or infinite; the gradient's norm counts only after ``limit`` entries in a row, in fp16 after
    OVERFLOWS, since the loss scaler finds its scale by overflowing, and skips those steps."""
    few = OVERFLOWS if getattr(log.known.args, "fp16", False) else int(limit)
    is_bad = lambda value: isinstance(value, float) and not math.isfinite(value)  # noqa: E731
    bad = [[name for name, value in entry.items() if is_bad(value)] for entry in log.entries[-few:]]
    lasting = len(bad) == few and all("grad_norm" in names for names in bad)
    metrics = [name for name in bad[-1] if name.startswith("reward") == (kind == "rewards")]
    metrics = [name for name in metrics if name != "grad_norm" or lasting]
    window = log[-few:] if "grad_norm" in metrics else log[-1:]
    return Sign(window, f"{', '.join(metrics)} ({window.steps})") if metrics else None


def explosion(log: Log, limit: float, kind: str) -> Sign | None:
    """A KL, or an entropy relative to its first value, is higher than in any policy that still writes text."""
    start, window = next(iter(log[:MEMORY].values(kind)), math.nan), log[-SHORT:]
    now = window.mean(kind)
    if not now >= (limit if kind == "kl" else max(1.0, limit * start)):
        return None
    evidence = f"{kind} {start:.3f} -> {now:.2f} nats per token (mean of {window.steps})"
    return Sign(window, f"{evidence}, reward {window.mean('reward'):.3f}")


def clipped_ratios(log: Log, limit: float) -> Sign | None:
    """Too many completions leave the clip range between two updates on one batch."""
    window = log[-WINDOW:]
    share = window.mean("clip_ratio/region_mean")
    if len(window) < FEW or not surely_above(share, window.completions, limit):
        return None
    return Sign(window, f"{share:.0%} of the ratios clipped ({window.steps})")


def reward_collapse(log: Log, limit: float) -> Sign | None:
    """The reward has fallen from its best by more than noise, and by ``limit`` of its best height and of its spread.

    If a learning rate wrecks the policy at once, only the first entry is from before the fall.
    """
    recent = log[-MEMORY:]
    lowest = float(recent.values("reward").min(initial=0.0))
    for size in (WINDOW, 2 * WINDOW):
        window = log[-min(size, len(recent) // 2) :]
        if len(window) < FEW:
            continue
        earlier = recent[: -len(window)]
        pairs = [(earlier.highest("reward", size), COLLAPSE_SURE, limit)]
        pairs += [(log[:1], SURE, WRECKED)] if len(earlier) <= WINDOW else []
        for before, sure, part in pairs:
            fall = log.change("reward", before, window)
            lost = part * max(fall.before - lowest, float(np.nan_to_num(before.spread("reward"))))
            if -fall.sigmas >= sure and fall.before - fall.after >= lost:
                return Sign(window, f"reward {fall}, {before.steps} against {window.steps}")
    return None


# --- sampled for nothing ----------------------------------------------------------------------------------


def unscored(log: Log, limit: float) -> Sign | None:
    """No completion has got a reward since the start: each function returned None for all."""
    if len(log) < limit or log[-MEMORY:].values("reward").size:
        return None
    words = {"functions": " and ".join(log.names) or "the reward"}
    return Sign(log, f"no completion has a reward, of {log.completions} ({log.steps})", words)


def constant_reward(log: Log, limit: float) -> Sign | None:
    """Every reward has been equal since the start, whatever was written, and not because nearly all was truncated."""
    values = log.values("reward")
    if len(log) < WINDOW or log.completions < LEAST or not values.size or np.ptp(values) > limit:
        return None
    differ = log.values("reward_std").any() or (log.values(ZERO_VARIANCE) < 1.0).any()
    if differ or log.mean(CUT_SHARE) >= ALL_CUT:
        return None
    evidence = f"every reward is {values[0]:.3f}, of {log.completions} completions ({log.steps})"
    return Sign(log, evidence, {"height": "easy" if log.height() >= GOOD else "hard"})


def kl_negative(log: Log, limit: float) -> Sign | None:
    """The KL is negative beyond chance, which no divergence can be."""
    window = log[-2 * WINDOW :]
    mean = window.mean("kl")
    if len(window) < 2 * WINDOW or not mean <= limit or not mean + SURE * log.error("kl", window) < 0:
        return None
    kl = f"kl {mean:.3f} +-{log.error('kl', window):.3f} nats per token"
    return Sign(window, f"{kl} ({window.steps}), and a divergence is never below 0")


def truncation(log: Log, limit: float, kind: str) -> Sign | None:
    """Too many completions are cut at the length limit: it is too short, or the policy has got worse."""
    window = _surely_above(log, CUT_SHARE, limit, limit, lambda window: window.independent)
    if window is None or len(log) < FEW:
        return None
    fall = worsened(log) if log[:1].mean(CUT_SHARE) <= limit else None
    if (kind == "policy worsened") != bool(fall):
        return None
    longest = window.values("completions/max_length").max(initial=0.0)
    at = f" at {longest:.0f} tokens" if longest else ""
    evidence = f"{window.mean(CUT_SHARE):.0%} of the completions cut{at} ({window.steps})"
    return Sign(window, evidence, {"fall": str(fall)})


def zero_variance_groups(log: Log, limit: float, kind: str) -> Sign | None:
    """Too many groups have K equal rewards: more than ``limit`` and than chance makes equal, for the cause ``kind``:
    the policy has worsened, or the reward's height is in the upper third, the lower third, between or not known."""
    height, k = log.height(), log.known.completions // log.known.groups
    # Near 0 and 1 chance ties nearly all groups, which would excuse any run, so the height is clamped here.
    many = max(limit, tied_by_chance(k, min(0.8, max(0.2, height))) + MARGIN)
    few = limit if tied_by_chance(k, min(2 / 3, max(1 / 3, height))) <= limit else many
    window = _surely_above(log, ZERO_VARIANCE, few, many, lambda window: window.groups)
    if window is None or len(log) < WINDOW:
        return None
    fall = worsened(log)
    level = "too easy" if height >= GOOD else "too hard" if height <= 1 / 3 else "completions alike"
    if not (known := log.is_range_known()):
        level = "completions alike"
    if kind != ("policy worsened" if fall and level != "too easy" else level):
        return None
    setting, change, more = "num_generations", f"double it{log.now('num_generations')}", ""
    if not known:
        more = "; whether high or low ones, this log does not show"
        setting, change = "train_dataset", "those that it solves sometimes, task.within_reach(policy)"
        change += "; set judges = 'answer' on the reward for right answers, and this says more"
    elif getattr(log.known.args, "temperature", 1.0) < 1.0:  # costs nothing; more completions cost time
        setting, change = "temperature", f"to 1{log.now('temperature')}; then num_generations, up"
    words = {"fall": str(fall), "more": more, "setting": setting, "change": change}
    share, reward = window.mean(ZERO_VARIANCE), window.mean("reward")
    evidence = f"{share:.0%} of the groups without spread, reward {reward:.3f} ({window.steps})"
    return Sign(window, evidence, words)


# --- completions and rewards that teach little ------------------------------------------------------------


def format_only(log: Log, limit: float) -> Sign | None:
    """The format is there and the answers are not."""
    window = log[-2 * WINDOW :]
    formed, right = log.best("form", log[-WINDOW:]), log.best("answer", window)
    if len(window) < WINDOW or formed is None or right is None or formed[0] < FORMED:
        return None
    fell = log.change(term(right[1]), log[: 2 * WINDOW], window).sigmas <= -SURE  # so the problems can be solved
    if fell or not surely_above(1 - right[0], window.independent, 1 - limit):
        return None
    shares = f"{formed[1]} in {formed[0]:.0%} of the completions, {right[1]} in {right[0]:.0%}"
    return Sign(window, f"{shares} ({window.steps})")


def entropy_collapse(log: Log, limit: float) -> Sign | None:
    """The policy has become certain before it has become good."""
    window = log[-WINDOW:]
    start, now = log[:FEW].mean("entropy"), window.mean("entropy")
    if len(log) < 2 * WINDOW or not now <= limit * start or log.height() >= GOOD:
        return None
    entropy = f"entropy {start:.3f} -> {now:.3f} nats per token"
    return Sign(window, f"{entropy}, reward {window.mean('reward'):.3f} ({window.steps})")


def length_hacking(log: Log, limit: float) -> Sign | None:
    """The reward rises with the length, and the answers get no better."""
    answers, before, window = log.judging("answer"), log[:WINDOW], log[-WINDOW:]
    if len(log) < 2 * WINDOW or not answers or not window.mean(LENGTH) >= limit * before.mean(LENGTH):
        return None
    length, paid = log.change(LENGTH, before, window), log.change("reward", before, window)
    changes = {name: log.change(term(name), before, window) for name in answers}
    name = max(answers, key=lambda name: changes[name].sigmas)
    if length.sigmas < SURE or paid.sigmas < 2.0 or changes[name].sigmas >= 1.0:
        return None
    evidence = f"length {length.before:.1f} -> {length.after:.1f}, reward {paid}, {name} {changes[name]}"
    return Sign(window, f"{evidence} ({window.steps})", {"answer": name})


def drowned_term(log: Log, limit: float) -> Sign | None:
    """One reward function's spread hides another's."""
    window = log[-WINDOW:]
    spreads = {name: abs(weight) * window.spread(term(name)) for name, weight in log.weights().items()}
    spreads = {name: spread for name, spread in spreads.items() if spread > 0.0}
    learning = [name for name in spreads if IN_PLAY[0] <= window.share_paid(term(name)) <= IN_PLAY[1]]
    if len(window) < FEW or not learning:
        return None
    large, small = max(spreads, key=spreads.__getitem__), min(learning, key=spreads.__getitem__)
    if spreads[large] < limit * spreads[small]:
        return None
    if large in log.judging("answer"):  # what remains is a bonus, as it should be
        return None
    both = f"{spreads[large]:.3g} of {large}, {spreads[small]:.3g} of {small}"
    words = {"large": large, "small": small, "times": f"{spreads[large] / spreads[small]:.0f}"}
    return Sign(window, f"weighted spread {both} ({window.steps})", words)


def high_variance(log: Log, limit: float) -> Sign | None:
    """A step's mean reward moves more with the prompts that were drawn than with what is learned.

    The mean of n independent completions of variance v has the variance v / n.  It is measured between neighbouring
    steps, with a relative error of sqrt(3 / number of steps) (von Neumann et al. 1941); v is the variance within
    generation batches and of their means.
    """
    recent, known = log[-MEMORY:], log.known
    values, spread = recent.values("reward"), recent.spread("reward")
    # An entry that is the mean of several batches does not show the spread between them.
    if values.size < LONG or not spread > 0.0 or recent.stride > 1:
        return None
    noise = math.sqrt(np.mean(np.diff(values) ** 2) / 2)
    within = (1 - known.batches / known.completions) * spread**2
    at_most = math.exp(LIKELY * math.sqrt(3 / values.size))
    if noise == 0.0 or known.batches + at_most * within / noise**2 >= limit:
        return None
    mean, worth = recent.mean("reward"), known.batches + within / noise**2
    moves = f"reward {mean:.3f} moves by {noise:.3f} from step to step, completions spread by {spread:.3f}"
    return Sign(recent, f"{moves}: a step is worth about {worth:.1f} independent ones ({recent.steps})")


def nothing_learned(log: Log, limit: float) -> Sign | None:
    """No rise after many steps, in a log that would have shown one worth having."""
    third = min(MEMORY, len(log) // 3)
    before, after = log[:third], log[-third:]
    if len(log) < PATIENCE or log.height(after) >= GOOD:
        return None
    rise = log.change("reward", before, after)
    if abs(rise.sigmas) >= 2.0 or rise.after - rise.before + 2.0 * rise.error >= limit * before.spread("reward"):
        return None
    if abs(log.change("reward", log[:WINDOW], after).sigmas) >= 2.0:  # most is learned, or lost, early
        return None
    first, last = log[:WINDOW].mean("entropy"), after.mean("entropy")  # NaN where it is not logged
    if after.mean("kl") >= MOVED or last > 1.5 * first or last < 0.5 * first:
        return None
    unless = "" if log.is_range_known() else ", unless the reward is near its highest already"
    return Sign(log, f"reward {rise}, {before.steps} against {after.steps}", {"unless": unless})


def look_for(symptom: str, log: Log) -> Finding | None:
    """Return what a symptom's rule sees at a log's last entry, in the words of its row."""
    row = SYMPTOMS[symptom]
    rule, kind = globals()[row["rule"]], [row["kind"]] if "kind" in row else []
    if (sign := rule(log, row["limit"], *kind)) is None:
        return None
    fill = partial(re.sub, r"\{(\w+)\}", lambda word: sign.words.get(word[1]) or log.now(word[1]))
    cause, setting, change = (fill(row[part]) for part in ("cause", "setting", "change"))
    first, last = (sign.window.entries[place]["step"] for place in (0, -1))
    return Finding(symptom, sign.evidence, cause, setting, change, first, last)


def findings_at_end(log: Log) -> list[Finding]:
    """The findings at a log's last entry, from the first tier that has any."""
    for tier in range(4):
        looked = [look_for(name, log) for name, row in SYMPTOMS.items() if row["tier"] == tier]
        findings = {finding.symptom: finding for finding in looked if finding}
        if findings:
            explained = {name for name in findings if findings.keys() & {*SYMPTOMS[name].get("unless", ())}}
            return [finding for name, finding in findings.items() if name not in explained]
    return []


class Episodes:
    """Follows a run entry by entry: a symptom that goes on is one episode, even if it flickers."""

    def __init__(self, log: Log | None = None) -> None:
        self.findings: list[Finding] = []
        self._open: dict[str, tuple[int, float]] = {}  # symptom: place in findings, entry at which last seen
        if log:
            for end in range(1, len(log) + 1):
                self.look(log[:end])

    def look(self, log: Log) -> list[Finding]:
        """Return the findings at the last entry that open a new episode."""
        now, new = len(log), []
        for finding in findings_at_end(log):
            place, last_seen = self._open.get(finding.symptom, (0, -math.inf))
            if now - last_seen > QUIET:
                place = len(self.findings)
                self.findings.append(finding)
                new.append(finding)
            self.findings[place] = replace(self.findings[place], last_step=finding.last_step)
            self._open[finding.symptom] = (place, now)
        return new
