"""The table of symptoms, which one hides which, and how long one lasts; with the rules for lost sampling.

The other rules are in :mod:`.rules`.  Shares are judged twice: against what chance does to so many completions, and,
over many entries, against how much the share itself varies.  Standing still is told where a rise that is worth having
would have been seen, and not earlier.  Nothing here changes a setting; the user decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from rloo_kit.watch import rules
from rloo_kit.watch.log import ALIKE, CUT_SHARE, DEAD_SHARE, LONG, MEMORY, WINDOW, Change, Log, term
from rloo_kit.watch.rules import ENOUGH, FEW, REACHED, SURE, Sign, lower, surely_above, worsened

Rule = Callable[[Log], Sign | None]
LENGTH = "completions/mean_length"

DEAD = 0.5
"""Share of dead groups: more than half of what is sampled then teaches nothing.  With few completions per prompt chance
alone leads there, and :func:`dead_by_chance` takes its place."""

DEAD_MARGIN = 0.15
"""Share by which what chance does must be passed: :data:`.log.ALIKE` is assumed, and many entries would find out that
it is not quite so."""

CUT = 0.2  # share of truncated completions; healthy runs of tests/data/health stay below 0.13 in every step

EQUAL = 1e-6  # difference of two means of one constant, as float32 sums it

LEAST = 40  # completions of a constant reward: of a policy right once in ten none is right with a chance of 1 in 70

ALL_CUT = 0.9  # share of truncated completions that explains by itself why none is right

PATIENCE = 100
"""Entries after which a rise, of :data:`WORTH` from the first third to the last, should have been seen: of one more
right answer in 100 every five steps."""

WORTH = 0.25  # a rise worth having, in standard deviations of single completions: Cohen's (1988) small effect

STILL, STILL_SURE = 60, 2.5
"""Entries in which what has risen no longer does, and the standard errors by which its gain must be below what is worth
having, now and LONG entries ago: for the reward :data:`WORTH` in MEMORY entries, and so much less in fewer."""

RATE_LEFT = (
    0.1  # share of its highest value below which the learning rate explains that nothing more is learned
)

LONGER_ALONE = (
    1.5  # growth of the mean length, without a better reward, that is more than drift: half the time again
)

LOWEST_RATE = (
    1e-9  # Adam moves a weight by about the rate, and float32 keeps of a weight of 0.01 steps of 6e-10
)


# --- sampled for nothing ----------------------------------------------------------------------------------


def unscored(log: Log) -> Sign | None:
    """No completion has got a reward since the start: each function returned None for all."""
    if len(log) < FEW or log.last(MEMORY).values("reward").size:
        return None
    return Sign(
        f"no completion has a reward, of {log.completions} ({log.steps})",
        f"{' and '.join(log.names) or 'the reward'} returned None for every one: a column that the dataset does not "
        "have, an answer that is never found, or a condition that is never met",
        "reward_funcs",
        "print what the reward reads, or try rewards.audit(reward, rows=dataset)",
        log,
    )


def constant_reward(log: Log) -> Sign | None:
    """Every reward has been equal since the start, whatever was written; and not because nearly all was cut."""
    values, shares = log.values("reward"), log.values(DEAD_SHARE)
    if len(log) < WINDOW or log.completions < LEAST or not values.size or values.max() - values.min() > EQUAL:
        return None
    if log.values("reward_std").any() or (shares < 1.0).any() or log.mean(CUT_SHARE) >= ALL_CUT:
        return None
    return Sign(
        f"every reward is {values[0]:.3f}, of {log.completions} completions ({log.steps})",
        "the reward pays the same whatever is written: a constant, a text compared with a list, the wrong column; or "
        f"all problems are too {'easy' if log.height() >= 2 / 3 else 'hard'}",
        "reward_funcs",
        "try rewards.audit(reward, rows=dataset); if it tells right from wrong, other problems",
        log,
    )


def truncation(log: Log, kind: str) -> Sign | None:
    """Too many completions are cut at the length limit: it is too short, or the policy has got worse."""
    window = _surely(log, CUT_SHARE, CUT, CUT, lambda part: part.independent) if len(log) >= FEW else None
    if window is None:
        return None
    fall = worsened(log) if log.first(1).mean(CUT_SHARE) <= ENOUGH else None
    if (kind == "policy worsened") != bool(fall):
        return None
    limit = window.values("completions/max_length")
    share, at = window.mean(CUT_SHARE), f" at {limit.max():.0f} tokens" if limit.size else ""
    evidence = f"{share:.0%} of the completions cut{at} ({window.steps})"
    if fall:
        cause = f"completions that ended at first no longer do: reward {fall}"
        return Sign(evidence, cause, "learning_rate", lower(log, 10), window)
    cause = "the limit is shorter than what the policy has to say, and what is cut cannot be right"
    change = (
        "double it; or where thoughts are not needed switch them off, "
        "chat_template_kwargs={'enable_thinking': False}; or pay for ending with rewards.overlong_reward"
    )
    return Sign(evidence, cause, "max_completion_length", change, window)


def dead_groups(log: Log, kind: str) -> Sign | None:
    """Too many dead groups, for this one cause: a group's K rewards are all equal, so its advantages are 0.  (In
    training the count includes groups that are cut and masked whole, which truncation reports.)"""
    if len(log) < WINDOW:
        return None
    window = _surely(log, DEAD_SHARE, *_too_many(log), lambda part: part.groups)
    if window is None:
        return None
    found, cause, setting, change = _why_dead(log)
    if found != kind:
        return None
    share = window.mean(DEAD_SHARE)
    evidence = (
        f"{share:.0%} of the groups without spread, reward {window.mean('reward'):.3f} ({window.steps})"
    )
    return Sign(evidence, cause, setting, change, window)


def _why_dead(log: Log) -> tuple[str, str, str, str]:
    """The kind, cause, setting and change, by how high the reward is: in the upper third, the lower one, or between."""
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


def _too_many(log: Log) -> tuple[float, float]:
    """Shares of dead groups that are too many, in few entries and in many: half, or what chance does to K completions
    where that is more, as it is for pairs."""
    k, height = log.known.completions // log.known.groups, log.height()
    usual = dead_by_chance(k, min(2 / 3, max(1 / 3, height)))
    here = dead_by_chance(k, min(0.8, max(0.2, height))) + DEAD_MARGIN
    return (DEAD if usual <= DEAD else here), max(DEAD, here)


def dead_by_chance(k: int, right: float) -> float:
    """Share of groups of K completions that are all right or all wrong where nothing is wrong.

    Each prompt has a chance of its own to be solved, from a beta distribution with mean ``right`` that makes
    completions of a prompt correlate by :data:`.log.ALIKE` (beta-binomial; Skellam 1948).

    >>> round(dead_by_chance(2, 0.5), 2), round(dead_by_chance(8, 0.5), 2)
    (0.65, 0.19)
    """
    size = (1 - ALIKE) / ALIKE
    return sum(math.prod((chance * size + i) / (size + i) for i in range(k)) for chance in (right, 1 - right))


def _surely(log: Log, metric: str, few: float, many: float, count: Callable[[Log], float]) -> Log | None:
    """The entries in which a share is surely above a threshold: the last ones (``few``), or more of them where it stays
    (``many``); None where there are none.  ``count``: how many independent ones the entries describe."""
    for size, threshold in ((2 * WINDOW, few), (MEMORY, many)):
        window = log.last(size)
        values, share = window.values(metric), window.mean(metric)
        if surely_above(share, count(window), threshold) or rules.surely_above_by_entries(values, threshold):
            return window
    return None


# --- standing still ---------------------------------------------------------------------------------------


def learning_rate_zero(log: Log) -> Sign | None:
    """The learning rate is 0, or less than a weight can keep; the end of a schedule, which is 0 for one entry, is not
    meant."""
    window = log.last(FEW)
    rates = window.values("learning_rate")
    if rates.size < FEW or rates.max() >= LOWEST_RATE:
        return None
    if rates.any() and log.values("learning_rate").max() >= LOWEST_RATE:
        return None  # the end of a cosine
    return Sign(
        f"learning_rate {rates[-1]:g} ({window.steps})",
        "with it no update changes a weight; a setting of 0, or a schedule that has ended or not begun",
        "learning_rate",
        "to 1e-5 with LoRA, or 1e-6 without; and see lr_scheduler_type, warmup_steps and max_steps",
        window,
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


def plateau(log: Log) -> Sign | None:
    """It has learned something, and no longer does, well below what the reward can pay."""
    if (found := _still(log, "reward", {STILL: WORTH * STILL / MEMORY, MEMORY: WORTH})) is None:
        return None
    change, window = found
    risen = log.change("reward", log.first(2 * WINDOW), window)
    if risen.sigmas < SURE or log.height(window) >= 2 / 3:
        return None
    rates = log.values("learning_rate")
    if rates.size and window.mean("learning_rate") < RATE_LEFT * rates.max():
        setting, advice = "lr_scheduler_type", "to constant: the schedule has taken the learning rate away"
    else:
        now = log.known.now("num_generations")
        setting, advice = "num_generations", f"double it{now}; or stop here"
    return Sign(
        f"reward {risen.before:.3f} at first, then {change} within {window.steps}",
        "what can be learned with this rate and so many completions is learned: the gradient is small beside its noise",
        setting,
        advice,
        window,
    )


def one_reward_still(log: Log) -> Sign | None:
    """One reward function is earned, and another stands still where it is seldom earned."""
    weights = log.terms() if len(log.names) > 1 else {}
    paying = [name for name, weight in weights.items() if weight > 0]
    for name in paying:
        recent = log.last(STILL)
        top = recent.largest(term(name))
        if not top.size or recent.mean(term(name)) > top.max() / 3:
            continue
        found = _still(log, term(name), dict.fromkeys((STILL, MEMORY), WORTH))
        earned = log.best([one for one in paying if one != name], log.last(WINDOW)) if found else None
        if found is None or earned is None or earned[0] < REACHED:
            continue
        change, window = found
        return Sign(
            f"{earned[1]} in {earned[0]:.0%} of the completions, and {name} {change} within {window.steps}",
            f"{earned[1]} is learned and pays no more, and {name} is too seldom earned to be learned from",
            "train_dataset",
            f"easier problems, or a reward with steps on the way to {name}",
            window,
        )
    return None


def _still(log: Log, metric: str, sizes: Mapping[int, float]) -> tuple[Change, Log] | None:
    """A metric that has not risen in its last entries, though a rise worth having would have been seen, neither now nor
    LONG entries ago: the change between their first and last third, and these entries.

    ``sizes``: how many entries, and what a rise within them is worth, in standard deviations of single completions.
    """
    for size, worth in sizes.items():
        if len(log) < size + LONG:
            break
        found = _still_now(log, metric, size, worth)
        if found and _still_now(log.first(len(log) - LONG), metric, size, worth):
            return found
    return None


def _still_now(log: Log, metric: str, size: int, worth: float) -> tuple[Change, Log] | None:
    window = log.last(size)
    change = log.change(metric, window.first(size // 3), window.last(size // 3))
    least = worth * window.spread(metric)
    seen = change.sigmas < 1.0 and change.gain + STILL_SURE * change.error < least
    return (change, window) if seen else None


def length_grows(log: Log) -> Sign | None:
    """Completions get longer and longer, and the reward no better."""
    for size in (LONG + WINDOW * 2, MEMORY):
        window = log.last(size)
        before, after = window.first(size // 3), window.last(size // 3)
        if len(log) < size or not after.mean(LENGTH) >= LONGER_ALONE * before.mean(LENGTH):
            continue
        length, paid = log.change(LENGTH, before, after), log.change("reward", before, after)
        if length.sigmas >= SURE and paid.sigmas < 1.0:
            return Sign(
                f"length {length.before:.0f} -> {length.after:.0f} tokens, reward {paid}, {before.steps} against "
                f"{after.steps}",
                "longer completions are not paid better, and cost time; the policy drifts",
                "beta",
                f"up{log.known.now('beta')}; or pay for ending with rewards.overlong_reward",
                after,
            )
    return None


# --- the table --------------------------------------------------------------------------------------------

TIERS: tuple[dict[str, Rule], ...] = (
    {"non-finite figures": rules.non_finite},
    {
        "KL explosion": rules.kl_explosion,
        "entropy explosion": rules.entropy_explosion,
        "learning rate too high, ratios clipped": rules.clipped_ratios,
        "learning rate too high, gradient grows": rules.growing_gradient,
        "gradient spikes": rules.gradient_spikes,
        "reward collapse": rules.reward_collapse,
    },
    {
        "unscored completions": unscored,
        "constant reward": constant_reward,
        "KL negative": rules.kl_negative,
        "truncation": partial(truncation, kind="too short"),
        "truncation, policy worsened": partial(truncation, kind="policy worsened"),
        "format without answers": rules.format_only,
        "dead groups, too easy": partial(dead_groups, kind="too easy"),
        "dead groups, too hard": partial(dead_groups, kind="too hard"),
        "dead groups, policy worsened": partial(dead_groups, kind="policy worsened"),
        "dead groups, completions alike": partial(dead_groups, kind="completions alike"),
        "entropy collapse": rules.entropy_collapse,
        "length hacking": rules.length_hacking,
        "length grows": length_grows,
        "learning rate 0": learning_rate_zero,
        "drowned reward": rules.drowned_term,
        "high variance": rules.high_variance,
    },
    {
        "nothing learned": nothing_learned,
        "one reward stands still": one_reward_still,
        "plateau": plateau,
    },
)
"""Name -> rule, causes before their effects: nothing can be told from NaN; a policy that has been wrecked is also cut
off, wrong, and without spread; and each of these explains why nothing was learned."""

SYMPTOMS: dict[str, Rule] = {name: rule for tier in TIERS for name, rule in tier.items()}

SELDOM = {"length grows", "high variance", *TIERS[-1]}
"""Looked for at every fifth entry (WINDOW): the more looks, the more false alarms, and these take 30 entries to see."""

CUT_OFF = ("truncation", "truncation, policy worsened")
BETTER = {
    **dict.fromkeys(
        (name for name in SYMPTOMS if name.startswith("dead groups")),
        (*CUT_OFF, "constant reward", "format without answers"),
    ),
    "format without answers": ("constant reward",),
    "length grows": ("length hacking", *CUT_OFF),
    "plateau": ("one reward stands still",),
}
"""Symptom -> those of the same tier that explain what it sees better than it does."""

QUIET = (
    5  # entries without the symptom after which an episode is over, so that the next one is reported again
)


@dataclass(frozen=True)
class Finding:
    """One symptom over the steps at which it was seen.

    Attributes:
        symptom: its name in :data:`SYMPTOMS`.
        evidence, cause, setting, change: as in :class:`~rloo_kit.watch.rules.Sign`, when it was first seen.
        first_step, last_step: of the episode.
    """

    symptom: str
    evidence: str
    cause: str
    setting: str
    change: str
    first_step: int
    last_step: int

    @classmethod
    def of(cls, symptom: str, sign: Sign) -> Finding:
        """A sign under its symptom's name, over the steps of its window."""
        steps = sign.window.entries[0]["step"], sign.window.entries[-1]["step"]
        return cls(symptom, sign.evidence, sign.cause, sign.setting, sign.change, *steps)

    def __str__(self) -> str:
        return f"{self.symptom}: {self.evidence}. Likely: {self.cause}. Change first: {self.setting}, {self.change}."


def judged(log: Log) -> list[Finding]:
    """The findings at a log's last entry, from the first tier that has any."""
    if log.entries[-1].get("reward") is None:  # so of the whole run: other rules compare rewards
        tiers: tuple[dict[str, Rule], ...] = ({"unscored completions": unscored},)
    else:
        tiers = TIERS
    for tier in tiers:
        asked = {name: rule for name, rule in tier.items() if name not in SELDOM or not len(log) % WINDOW}
        signs = {name: sign for name, rule in asked.items() if (sign := rule(log))}
        if signs:
            told = [name for name in signs if not signs.keys() & {*BETTER.get(name, ())}]
            return [Finding.of(name, signs[name]) for name in told]
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
    found = Episodes()
    for end in range(1, len(log) + 1):
        found.look(log.first(end))
    return found
