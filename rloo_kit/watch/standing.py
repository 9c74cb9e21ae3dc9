"""Rules for runs that stand still: a learning rate of 0, nothing learned, a plateau, one reward or the length alone.

For :mod:`.symptoms`.  Standing still is told where a rise that is worth having would have been seen, and not earlier.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

from rloo_kit.watch import thresholds as at
from rloo_kit.watch.chance import SURE
from rloo_kit.watch.log import LONG, MEMORY, WINDOW, Change, Log, term
from rloo_kit.watch.sign import Sign

LENGTH = "completions/mean_length"


def at_times(rule: Callable[[Log], Sign | None]) -> Callable[[Log], Sign | None]:
    """The rule at every fifth entry (WINDOW): what takes 60 entries to see does not need a look at each."""

    @functools.wraps(rule)
    def seldom(log: Log) -> Sign | None:
        return None if len(log) % WINDOW else rule(log)

    return seldom


def learning_rate_zero(log: Log) -> Sign | None:
    """The learning rate is 0, or less than a weight can keep; the end of a schedule, which is 0 for one entry, is not
    meant."""
    window = log.last(at.FEW)
    rates = window.values("learning_rate")
    if len(rates) < at.FEW or max(rates) >= at.LOWEST_RATE:
        return None
    if any(rates) and max(log.values("learning_rate")) >= at.LOWEST_RATE:
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
    seen = change.sigmas < 1.0 and change.gain + at.STILL_SURE * change.error < least
    return (change, window) if seen else None


def plateau(log: Log) -> Sign | None:
    """It has learned something, and no longer does, well below what the reward can pay."""
    if (found := still(log, "reward", {at.STILL: at.WORTH * at.STILL / MEMORY, MEMORY: at.WORTH})) is None:
        return None
    change, window = found
    risen = log.change("reward", log.first(2 * WINDOW), window)
    if risen.sigmas < SURE or log.height(window) >= 2 / 3:
        return None
    rates = log.remembered.values("learning_rate")
    if rates and window.mean("learning_rate") < at.RATE_LEFT * max(rates):
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
        recent = log.last(at.STILL)
        top = recent.largest(term(name))
        if weight <= 0 or not top or recent.mean(term(name)) > max(top) / 3:
            continue
        if (found := still(log, term(name), dict.fromkeys((at.STILL, MEMORY), at.WORTH))) is None:
            continue
        change, window = found
        earned = log.best(
            [one for one, other in weights.items() if other > 0 and one != name], log.last(WINDOW)
        )
        if earned is None or earned[0] < at.REACHED:
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
        if not after.mean(LENGTH) >= at.LONGER_ALONE * before.mean(LENGTH):
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
