"""What is looked for in a run: a rule for each symptom of symptoms.toml, which has thresholds, causes and advice.

A rule is a function from the log so far, and a threshold, to what it saw or None.  It compares windows of steps, never
two steps, and a difference counts against its standard error.  No rule reads the loss, which is about 0 in every
on-policy run of RLOO, since advantages sum to 0.  Nothing here changes a setting; the user decides.

How often chance alone passes the thresholds together: benchmarks/results/health_alarms.md.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from rloo_kit.watch.log import ALIKE, CUT_SHARE, DEAD_SHARE, LONG, MEMORY, RATIO, WINDOW, Change, Log, term

SURE = 3.0  # standard errors for a change to count: one look in 700 errs by chance, and a run has about 100

COLLAPSE_SURE = NormalDist().inv_cdf(1 - 0.01 / (2 * MEMORY**2 / 2))
"""Standard errors, 4.8, where the best window of many is compared with the last, which errs in one run of 100 for all
pairs of windows, of two sizes, in MEMORY entries (Bonferroni)."""

SHORT = 2  # entries for what moves by orders of magnitude, where waiting for WINDOW would waste steps
FEW = 3  # the fewest entries that anything else is told from
QUIET = 5  # entries without the symptom after which an episode is over, and the next one is reported again
GOOD = 2 / 3  # how high a reward is, of what it can pay, from where on nothing has to be better

ALL_CUT = 0.9  # share that explains by itself why none is right
LEAST = 40  # completions of a constant reward: of a policy right once in ten none is right with a chance of 1 in 70
DEAD_MARGIN = 0.15  # share by which dead groups must pass what chance does, since ALIKE is an assumption
LIKELY = 1.5  # standard errors for high variance: fewer than SURE, since more completions do no harm
FORMED = 0.8  # share of completions that have the form
IN_PLAY = (0.1, 0.9)  # shares of completions that a reward pays, between which it has something left to teach
LENGTH = "completions/mean_length"
PATIENCE = 100  # entries after which a rise from the first third to the last should have been seen
OVERFLOWS = 17  # as often as fp16's loss scaler halves torch's first scale, 65536, until it is below 1


class Seen(NamedTuple):
    """What a rule has seen: in which entries, the figures, and words for the placeholders of its row."""

    window: Log
    evidence: str
    words: Mapping[str, str] = {}


@dataclass(frozen=True)
class Finding:
    """One symptom over the steps at which it was seen.

    Attributes:
        symptom: its name in :data:`SYMPTOMS`.
        evidence: figures and the steps they are from, when it was first seen.
        cause: the likely one.
        setting, change: what to change first, an argument of ``RLOOConfig`` or of the trainer, and how.
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
class Symptom:
    """A row of symptoms.toml, which says what its fields are."""

    name: str
    tier: int
    rule: Callable[[Log, float], Seen | None]
    limit: float
    cause: str
    setting: str
    change: str
    unless: Sequence[str] = ()

    def __call__(self, log: Log) -> Finding | None:
        """The finding at a log's last entry, or None."""
        if (seen := self.rule(log, self.limit)) is None:
            return None

        def filled(text: str) -> str:
            return re.sub(r"\{(\w+)\}", lambda word: seen.words.get(word[1]) or log.now(word[1]), text)

        cause, setting, change = map(filled, (self.cause, self.setting, self.change))
        first, last = (seen.window.entries[place]["step"] for place in (0, -1))
        return Finding(self.name, seen.evidence, cause, setting, change, first, last)


def surely_above(share: float, count: float, threshold: float) -> bool:
    """Whether so high a share of so many is rarer than :data:`SURE` standard errors where the threshold is the true
    one, by the exact binomial tail."""
    if not share > threshold:  # NaN is not
        return False
    trials = round(count)
    whole, yes, no = math.lgamma(trials + 1), math.log(threshold), math.log1p(-threshold)
    tail = sum(
        math.exp(whole - math.lgamma(n + 1) - math.lgamma(trials - n + 1) + n * yes + (trials - n) * no)
        for n in range(round(share * trials), trials + 1)
    )
    return tail < NormalDist().cdf(-SURE)


def dead_by_chance(k: int, right: float) -> float:
    """Share of groups of K completions that are all right or all wrong where nothing is wrong.

    Each prompt has a chance of its own to be solved, from a beta distribution with mean ``right`` that makes
    completions of a prompt correlate by :data:`.log.ALIKE` (beta-binomial; Skellam 1948).

    >>> round(dead_by_chance(2, 0.5), 2), round(dead_by_chance(8, 0.5), 2)
    (0.65, 0.19)
    """
    size = (1 - ALIKE) / ALIKE
    return sum(math.prod((chance * size + i) / (size + i) for i in range(k)) for chance in (right, 1 - right))


def worsened(log: Log) -> Change | None:
    """How the reward has fallen since the start, where it is likely to have."""
    windows = [(log.first(a), log.last(b)) for a in (1, FEW) for b in (WINDOW, 2 * WINDOW)]
    fall = min((log.change("reward", *both) for both in windows), key=lambda one: one.sigmas)
    return fall if fall.sigmas <= -2.0 else None


# --- updates that are too large ---------------------------------------------------------------------------


def non_finite(log: Log, limit: float) -> Seen | None:
    """A metric that is NaN or infinite; the gradient's norm for ``limit`` entries in a row, since in fp16 the loss
    scaler finds its scale by overflowing, and skips those steps."""
    few = OVERFLOWS if getattr(log.known.args, "fp16", False) else int(limit)
    is_bad = lambda value: isinstance(value, float) and not math.isfinite(value)  # noqa: E731
    bad = [name for name, value in log.entries[-1].items() if name != "grad_norm" and is_bad(value)]
    window = log.last(few)
    if gradient := len(window) == few and all(is_bad(one.get("grad_norm")) for one in window.entries):
        bad.append("grad_norm")
    if not bad:
        return None
    window = window if gradient else log.last(1)
    cause, setting = "weights or activations have overflowed", "learning_rate"
    change = f"a tenth of it{log.now('learning_rate')}, from the last good checkpoint"
    if any(name.startswith("reward") for name in bad):
        cause, setting = "a reward function returned it", "reward_funcs"
        change = "bound it with rewards.clipped, and go back to the last good checkpoint"
    words = {"cause": cause, "setting": setting, "change": change}
    return Seen(window, f"{', '.join(bad)} ({window.steps})", words)


def explosion(log: Log, limit: float, kind: str) -> Seen | None:
    """A KL, or an entropy beside its first value, that no policy has which still writes text."""
    start, window = next(iter(log.first(MEMORY).values(kind)), math.nan), log.last(SHORT)
    now = window.mean(kind)
    if not now >= (limit if kind == "kl" else max(1.0, limit * start)):
        return None
    evidence = f"{kind} {start:.3f} -> {now:.2f} nats per token ({window.steps})"
    return Seen(window, f"{evidence}, reward now {window.mean('reward'):.3f}")


def clipped_ratios(log: Log, limit: float) -> Seen | None:
    """Too many completions leave the clip range between two updates on one batch."""
    window = log.last(WINDOW)
    share = window.mean(RATIO)
    if len(window) < FEW or not surely_above(share, window.completions, limit):
        return None
    return Seen(window, f"{share:.0%} of the ratios clipped ({window.steps})")


def reward_collapse(log: Log, limit: float) -> Seen | None:
    """The reward has fallen from its best by more than noise, and by ``limit`` of that and of its spread.

    Where a learning rate wrecks the policy at once, only the first entry is from before the fall.
    """
    recent = log.last(MEMORY)
    lowest = float(recent.values("reward").min(initial=0.0))
    for size in (WINDOW, 2 * WINDOW):
        window = log.last(min(size, len(recent) // 2))
        if len(window) < FEW:
            continue
        earlier = recent.first(len(recent) - len(window))
        pairs = [(earlier.highest("reward", size), COLLAPSE_SURE)]
        pairs += [(log.first(1), SURE)] if len(earlier) <= WINDOW else []
        for before, sure in pairs:
            fall = log.change("reward", before, window)
            lost = limit * max(fall.before - lowest, float(np.nan_to_num(before.spread("reward"))))
            if -fall.sigmas >= sure and fall.before - fall.after >= lost:
                return Seen(window, f"reward {fall}, {before.steps} against {window.steps}")
    return None


# --- sampled for nothing ----------------------------------------------------------------------------------


def unscored(log: Log, limit: float) -> Seen | None:
    """No completion has got a reward since the start: each function returned None for all."""
    if len(log) < limit or log.last(MEMORY).values("reward").size:
        return None
    words = {"functions": " and ".join(log.names) or "the reward"}
    return Seen(log, f"no completion has a reward, of {log.completions} ({log.steps})", words)


def constant_reward(log: Log, limit: float) -> Seen | None:
    """Every reward has been equal since the start, whatever was written; and not because nearly all was cut."""
    values = log.values("reward")
    if len(log) < WINDOW or log.completions < LEAST or not values.size or np.ptp(values) > limit:
        return None
    differ = log.values("reward_std").any() or (log.values(DEAD_SHARE) < 1.0).any()
    if differ or log.mean(CUT_SHARE) >= ALL_CUT:
        return None
    evidence = f"every reward is {values[0]:.3f}, of {log.completions} completions ({log.steps})"
    return Seen(log, evidence, {"height": "easy" if log.height() >= GOOD else "hard"})


def kl_negative(log: Log, limit: float) -> Seen | None:
    """A KL that is negative beyond chance, which no divergence can be."""
    window = log.last(2 * WINDOW)
    mean = window.mean("kl")
    if len(window) < 2 * WINDOW or not mean <= limit or not mean + SURE * log.error("kl", window) < 0:
        return None
    kl = f"kl {mean:.3f} +-{log.error('kl', window):.3f} nats per token"
    return Seen(window, f"{kl} ({window.steps}), and a divergence is never below 0")


def truncation(log: Log, limit: float, kind: str) -> Seen | None:
    """Too many completions are cut at the length limit: it is too short, or the policy has got worse."""
    window = _surely(log, CUT_SHARE, limit, limit, lambda part: part.independent)
    if window is None or len(log) < FEW:
        return None
    fall = worsened(log) if log.first(1).mean(CUT_SHARE) <= limit else None
    if (kind == "policy worsened") != bool(fall):
        return None
    longest = window.values("completions/max_length")
    at = f" at {longest.max():.0f} tokens" if longest.size else ""
    ended = window.values("completions/max_terminated_length").max(initial=0.0)
    at += f", the longest other ended after {ended:.0f}" if ended else ""
    evidence = f"{window.mean(CUT_SHARE):.0%} of the completions cut{at} ({window.steps})"
    return Seen(window, evidence, {"fall": str(fall)})


def dead_groups(log: Log, limit: float, kind: str) -> Seen | None:
    """Too many groups whose K rewards are all equal, more than ``limit`` or than chance does to K completions, for
    this one cause: by how high the reward is, in the upper third, the lower one, or between."""
    height, k = log.height(), log.known.completions // log.known.groups
    many = max(limit, dead_by_chance(k, min(0.8, max(0.2, height))) + DEAD_MARGIN)
    few = limit if dead_by_chance(k, min(2 / 3, max(1 / 3, height))) <= limit else many
    window = _surely(log, DEAD_SHARE, few, many, lambda part: part.groups)
    if window is None or len(log) < WINDOW:
        return None
    fall = worsened(log)
    level = "too easy" if height >= GOOD else "too hard" if height <= 1 / 3 else "completions alike"
    if kind != ("policy worsened" if fall and level != "too easy" else level):
        return None
    setting, change = "num_generations", f"double it{log.now('num_generations')}"
    if getattr(log.known.args, "temperature", 1.0) < 1.0:  # costs nothing; more completions cost time
        setting, change = "temperature", f"to 1{log.now('temperature')}; then num_generations, up"
    words = {"fall": str(fall), "setting": setting, "change": change}
    share, reward = window.mean(DEAD_SHARE), window.mean("reward")
    evidence = f"{share:.0%} of the groups without spread, reward {reward:.3f} ({window.steps})"
    return Seen(window, evidence, words)


def _surely(log: Log, metric: str, few: float, many: float, count: Callable[[Log], float]) -> Log | None:
    """The entries in which a share is surely above a limit: the last ones, or more of them where it stays there."""
    for window, limit in ((log.last(2 * WINDOW), few), (log.last(MEMORY), many)):
        if surely_above(window.mean(metric), count(window), limit):
            return window
    return None


# --- completions and rewards that teach little ------------------------------------------------------------


def format_only(log: Log, limit: float) -> Seen | None:
    """The format is there and the answers are not."""
    window = log.last(2 * WINDOW)
    formed, right = log.best("form", log.last(WINDOW)), log.best("answer", window)
    if len(window) < WINDOW or formed is None or right is None or formed[0] < FORMED:
        return None
    if not surely_above(1 - right[0], window.independent, 1 - limit):
        return None
    shares = f"{formed[1]} in {formed[0]:.0%} of the completions, {right[1]} in {right[0]:.0%}"
    return Seen(window, f"{shares} ({window.steps})")


def entropy_collapse(log: Log, limit: float) -> Seen | None:
    """The policy has become certain before it has become good."""
    window = log.last(WINDOW)
    start, now = log.first(FEW).mean("entropy"), window.mean("entropy")
    if len(log) < 2 * WINDOW or not now <= limit * start or log.height() >= GOOD:
        return None
    entropy = f"entropy {start:.3f} -> {now:.3f} nats per token"
    return Seen(window, f"{entropy}, reward {window.mean('reward'):.3f} ({window.steps})")


def length_hacking(log: Log, limit: float) -> Seen | None:
    """The reward rises with the length, and the answers get no better."""
    answers, before, window = log.judging("answer"), log.first(WINDOW), log.last(WINDOW)
    if len(log) < 2 * WINDOW or not answers or not window.mean(LENGTH) >= limit * before.mean(LENGTH):
        return None
    length, paid = log.change(LENGTH, before, window), log.change("reward", before, window)
    changes = {name: log.change(term(name), before, window) for name in answers}
    name = max(answers, key=lambda name: changes[name].sigmas)
    if length.sigmas < SURE or paid.sigmas < 2.0 or changes[name].sigmas >= 1.0:
        return None
    evidence = f"length {length.before:.1f} -> {length.after:.1f}, reward {paid}, {name} {changes[name]}"
    return Seen(window, f"{evidence} ({window.steps})", {"answer": name})


def drowned_term(log: Log, limit: float) -> Seen | None:
    """One reward function's spread hides another's."""
    window = log.last(WINDOW)
    weighted = {name: abs(w) * window.spread(term(name)) for name, w in log.terms().items() if w}
    spreads = {name: spread for name, spread in weighted.items() if spread > 0.0}
    learning = [name for name in spreads if IN_PLAY[0] <= window.share_paid(term(name)) <= IN_PLAY[1]]
    if len(window) < FEW or not learning:
        return None
    large, small = max(spreads, key=spreads.__getitem__), min(learning, key=spreads.__getitem__)
    if spreads[large] < limit * spreads[small]:
        return None
    both = f"{spreads[large]:.3g} of {large}, {spreads[small]:.3g} of {small}"
    words = {"large": large, "small": small, "times": f"{spreads[large] / spreads[small]:.0f}"}
    return Seen(window, f"weighted spread {both} ({window.steps})", words)


def high_variance(log: Log, limit: float) -> Seen | None:
    """A step's mean reward moves by which prompts were drawn, more than by what is learned.

    The mean of n independent completions of variance v has the variance v / n, here that between neighbouring steps,
    known to a share of sqrt(3 / n) (von Neumann et al. 1941); v is the variance within generation batches and of their
    means.
    """
    recent, known = log.last(MEMORY), log.known
    values, spread = recent.values("reward"), recent.spread("reward")
    # Where an entry is the mean of several batches, their spread cannot be had from it.
    if values.size < LONG or not spread > 0.0 or recent.stride > 1:
        return None
    noise = math.sqrt(np.mean(np.diff(values) ** 2) / 2)
    within = (1 - known.batches / known.completions) * spread**2
    at_most = math.exp(LIKELY * math.sqrt(3 / values.size))
    if noise == 0.0 or known.batches + at_most * within / noise**2 >= limit:
        return None
    mean, worth = recent.mean("reward"), known.batches + within / noise**2
    moves = f"reward {mean:.3f} moves by {noise:.3f} from step to step, completions spread by {spread:.3f}"
    return Seen(recent, f"{moves}: a step is worth about {worth:.1f} independent ones ({recent.steps})")


def nothing_learned(log: Log, limit: float) -> Seen | None:
    """No rise after many steps, in a log that would have shown one worth having."""
    third = min(MEMORY, len(log) // 3)
    before, after = log.first(third), log.last(third)
    if len(log) < PATIENCE or log.height(after) >= GOOD:
        return None
    rise = log.change("reward", before, after)
    if rise.sigmas >= 2.0 or rise.after - rise.before + 2.0 * rise.error >= limit * before.spread("reward"):
        return None
    if log.change("reward", log.first(WINDOW), after).sigmas >= 2.0:  # most is learned early
        return None
    return Seen(log, f"reward {rise}, {before.steps} against {after.steps}")


# --- the table --------------------------------------------------------------------------------------------


def _symptom(name: str, row: dict[str, Any]) -> Symptom:
    rule, kind = globals()[row.pop("rule")], row.pop("kind", None)
    return Symptom(name=name, rule=partial(rule, kind=kind) if kind else rule, **row)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SYMPTOMS: dict[str, Symptom] = {name: _symptom(name, row) for name, row in _TABLE.items()}
"""Name -> symptom, in the table's order."""


# --- one run ----------------------------------------------------------------------------------------------


def judged(log: Log) -> list[Finding]:
    """The findings at a log's last entry, from the first tier that has any."""
    if log.entries[-1].get("reward") is None:  # so of the whole run: other rules compare rewards
        unscored = SYMPTOMS["unscored completions"](log)
        return [unscored] if unscored else []
    for tier in range(4):
        found = {one.name: seen for one in SYMPTOMS.values() if one.tier == tier and (seen := one(log))}
        if found:
            return [seen for name, seen in found.items() if not found.keys() & {*SYMPTOMS[name].unless}]
    return []


class Episodes:
    """Follows a run entry by entry: a symptom that goes on is one episode, also where it flickers."""

    def __init__(self) -> None:
        self.found: list[Finding] = []
        self._open: dict[str, tuple[int, int]] = {}  # symptom: place in found, entry at which last seen

    def look(self, log: Log) -> list[Finding]:
        """The findings at the last entry that open an episode."""
        now, new = len(log), []
        self._open = {name: seen for name, seen in self._open.items() if now - seen[1] <= QUIET}
        for finding in judged(log):
            place = self._open.get(finding.symptom, (len(self.found), now))[0]
            self._open[finding.symptom] = (place, now)
            if place == len(self.found):
                self.found.append(finding)
                new.append(finding)
            else:
                self.found[place] = replace(self.found[place], last_step=finding.last_step)
        return new


def episodes(log: Log) -> Episodes:
    """The episodes of a whole log."""
    followed = Episodes()
    for end in range(1, len(log) + 1):
        followed.look(log.first(end))
    return followed
