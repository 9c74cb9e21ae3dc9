"""Rules for runs whose sampling is lost: no reward, one that never differs, completions cut off, dead groups, and runs
that stand still.

For :mod:`.symptoms`.  Shares are judged twice: against what chance does to so many completions, and, over many entries,
against how much the share itself varies, which a log alone tells.  Standing still is told where a rise that is worth
having would have been seen, and not earlier.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

from rloo_kit.watch.chance import SURE, Change, dead_by_chance, surely_above, surely_above_of
from rloo_kit.watch.log import CUT_SHARE, DEAD_SHARE, LONG, MEMORY, WINDOW, Log, term
from rloo_kit.watch.rules import ENOUGH, FEW, REACHED, Sign, lower, worsened

LENGTH = "completions/mean_length"

# Thresholds; see those of :mod:`.rules`.

DEAD = 0.5
"""Share of dead groups: more than half of what is sampled then teaches nothing.  With few completions per prompt chance
alone leads there, and :func:`.chance.dead_by_chance` takes its place."""

DEAD_MARGIN = 0.15
"""Share of dead groups by which what chance does must be passed: how much the completions of a prompt are alike,
:data:`.chance.ALIKE`, is assumed, and many entries would find out that it is not quite so."""

CUT = 0.2
"""Share of truncated completions: one in five cannot be right whatever it says.  The healthy runs of tests/data/health
stay below 0.13 in every step."""

EQUAL = 1e-6
"""Difference of two means of one constant, as float32 sums it."""

LEAST = 40
"""Completions from which a reward is said to be constant: of a policy that is right once in ten, none of so many is
right with a chance of one in 70."""

ALL_CUT = 0.9
"""Share of truncated completions that explains by itself why none is right."""

PATIENCE = 100
"""Entries after which a rise should have been seen.  It is :data:`WORTH` from the first third to the last, so that
fewer entries would ask for a faster rise; 100 ask for one more right answer in 100 every five steps."""

WORTH = 0.25
"""A rise worth having, in standard deviations of single completions: about Cohen's (1988) small effect.  A log too
noisy to have shown it is not judged."""

STILL, STILL_SURE = 60, 2.5
"""Entries in which what has risen no longer does, and the standard errors by which its gain must be below what is worth
having, now and LONG entries ago.  For the reward that is :data:`WORTH` in MEMORY entries, so much less in fewer: a rise
of one more right answer in 100 every five steps is slow, and no plateau."""

RATE_LEFT = 0.1
"""Share of its highest value below which the learning rate explains that nothing more is learned."""

LONGER_ALONE = 1.5
"""Growth of the mean length, where the reward gets no better, that is more than drift: half as much time a step."""

LOWEST_RATE = 1e-9
"""Adam moves a weight by about the learning rate, and float32 keeps of a weight of 0.01 steps of 6e-10."""


def unscored(log: Log) -> Sign | None:
    """No completion has got a reward since the start: each function returned None for all."""
    if len(log) < FEW or log.last(MEMORY).values("reward"):
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
    run = log.remembered
    values, shares = run.values("reward"), run.values(DEAD_SHARE)
    if len(log) < WINDOW or log.completions < LEAST or not values or max(values) - min(values) > EQUAL:
        return None
    if any(run.values("reward_std")) or min(shares, default=0.0) < 1.0 or run.mean(CUT_SHARE) >= ALL_CUT:
        return None
    if max(whole := log.values("reward")) - min(whole) > EQUAL:  # between the ends, which most looks end at
        return None
    return Sign(
        f"every reward is {values[0]:.3f}, of {log.completions} completions ({log.steps})",
        "the reward pays the same whatever is written: a constant, a text compared with a list, the wrong column; or "
        f"all problems are too {'easy' if log.height() >= 2 / 3 else 'hard'}",
        "reward_funcs",
        "try rewards.audit(reward, rows=dataset); if it tells right from wrong, other problems",
        log,
    )


def surely(log: Log, metric: str, few: float, many: float, count: Callable[[Log], float]) -> Log | None:
    """The entries in which a share is surely above a threshold: the last ones, or more of them where it stays; None
    where there are none.

    Args:
        few, many: the thresholds for the last entries, and for more of them.
        count: how many independent ones the entries describe.
    """
    for size, threshold in ((2 * WINDOW, few), (MEMORY, many)):
        window = log.last(size)
        values, share = window.values(metric), window.mean(metric)
        if share > threshold and (
            surely_above(share, count(window), threshold)
            or (len(values) >= LONG and surely_above_of(values, threshold))
        ):
            return window
    return None


def truncation(log: Log, kind: str) -> Sign | None:
    """Too many completions are cut at the length limit: it is too short, or the policy has got worse."""
    window = (
        surely(log, CUT_SHARE, CUT, CUT, lambda entries: entries.independent) if len(log) >= FEW else None
    )
    if window is None:
        return None
    share = window.mean(CUT_SHARE)
    fall = worsened(log) if log.first(1).mean(CUT_SHARE) <= ENOUGH else None
    if (kind == "policy worsened") != bool(fall):
        return None
    limit = window.values("completions/max_length")
    evidence = f"{share:.0%} of the completions cut{f' at {max(limit):.0f} tokens' if limit else ''} ({window.steps})"
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
    found = _dead(log)
    return found[1] if found and found[0] == kind else None


@functools.lru_cache(maxsize=1)  # each kind of reason asks
def _dead(log: Log) -> tuple[str, Sign] | None:
    """The kind, and the sign."""
    if len(log) < WINDOW or not max(log.last(size).mean(DEAD_SHARE) for size in (2 * WINDOW, MEMORY)) > DEAD:
        return None
    window = surely(log, DEAD_SHARE, *too_many(log), lambda entries: entries.groups)
    if window is None:
        return None
    kind, cause, setting, change = dead_kind(log)
    share = window.mean(DEAD_SHARE)
    seen = f"{share:.0%} of the groups without spread, reward {window.mean('reward'):.3f} ({window.steps})"
    return kind, Sign(seen, cause, setting, change, window)


def too_many(log: Log) -> tuple[float, float]:
    """Shares of dead groups that are too many, in few entries and in many: half, or what chance does to K completions
    where that is more, as it is for pairs."""
    k, height = log.known.completions // log.known.groups, log.height()
    usual = dead_by_chance(k, min(2 / 3, max(1 / 3, height)))
    here = dead_by_chance(k, min(0.8, max(0.2, height))) + DEAD_MARGIN
    return (DEAD if usual <= DEAD else here), max(DEAD, here)


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


# --- standing still ----------------------------------------------------------------------------------


def at_times(rule: Callable[[Log], Sign | None]) -> Callable[[Log], Sign | None]:
    """The rule at every fifth entry (WINDOW): what takes 60 entries to see does not need a look at each."""

    @functools.wraps(rule)
    def seldom(log: Log) -> Sign | None:
        return None if len(log) % WINDOW else rule(log)

    return seldom


def learning_rate_zero(log: Log) -> Sign | None:
    """The learning rate is 0, or less than a weight can keep; the end of a schedule, which is 0 for one entry, is not
    meant."""
    window = log.last(FEW)
    rates = window.values("learning_rate")
    if len(rates) < FEW or max(rates) >= LOWEST_RATE:
        return None
    if any(rates) and max(log.values("learning_rate")) >= LOWEST_RATE:
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


def still(log: Log, metric: str, sizes: Mapping[int, float]) -> tuple[Change, Log] | None:
    """A metric that has not risen in its last entries, though a rise worth having would have been seen, neither now nor
    LONG entries ago: the change between their first and last third, and these entries.

    ``sizes``: how many entries, and what a rise within them is worth, in standard deviations of single completions.
    """
    for size, worth in sizes.items():
        if len(log) < size + LONG:
            break
        found = _still(log, metric, size, worth)
        if found and _still(log.first(len(log) - LONG), metric, size, worth):
            return found
    return None


def _still(log: Log, metric: str, size: int, worth: float) -> tuple[Change, Log] | None:
    window = log.last(size)
    first, last, least = window.first(size // 3), window.last(size // 3), worth * window.spread(metric)
    if not last.mean(metric) - first.mean(metric) < least:  # most looks end here, before errors are computed
        return None
    change = log.change(metric, first, last)
    seen = change.sigmas < 1.0 and change.gain + STILL_SURE * change.error < least
    return (change, window) if seen else None


def plateau(log: Log) -> Sign | None:
    """It has learned something, and no longer does, well below what the reward can pay."""
    if (found := still(log, "reward", {STILL: WORTH * STILL / MEMORY, MEMORY: WORTH})) is None:
        return None
    change, window = found
    risen = log.change("reward", log.first(2 * WINDOW), window)
    if risen.sigmas < SURE or log.height(window) >= 2 / 3:
        return None
    rates = log.remembered.values("learning_rate")
    if rates and window.mean("learning_rate") < RATE_LEFT * max(rates):
        setting, advice = "lr_scheduler_type", "to constant: the schedule has taken the learning rate away"
    else:
        known = log.known
        setting, advice = "num_generations", f"double it{known.now('num_generations')}; or stop here"
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
    for name, weight in weights.items():
        recent = log.last(STILL)
        top = recent.largest(term(name))
        if weight <= 0 or not top or recent.mean(term(name)) > max(top) / 3:
            continue
        if (found := still(log, term(name), dict.fromkeys((STILL, MEMORY), WORTH))) is None:
            continue
        change, window = found
        earned = log.best(
            [one for one, other in weights.items() if other > 0 and one != name], log.last(WINDOW)
        )
        if earned is None or earned[0] < REACHED:
            continue
        return Sign(
            f"{earned[1]} in {earned[0]:.0%} of the completions, and {name} {change} within {window.steps}",
            f"{earned[1]} is learned and pays no more, and {name} is too seldom earned to be learned from",
            "train_dataset",
            f"easier problems, or a reward with steps on the way to {name}",
            window,
        )
    return None


def length_grows(log: Log) -> Sign | None:
    """Completions get longer and longer, and the reward no better."""
    for before, after in _thirds(log):
        if not after.mean(LENGTH) >= LONGER_ALONE * before.mean(LENGTH):
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


def _thirds(log: Log) -> Iterator[tuple[Log, Log]]:
    """The first and the last third of the last entries, of a few and of many."""
    for size in (LONG + WINDOW * 2, MEMORY):
        if len(log) >= size:
            window = log.last(size)
            yield window.first(size // 3), window.last(size // 3)
