"""Rules for completions that were sampled for nothing: cut at the limit, or in groups whose rewards are all equal.

For :mod:`.symptoms`.  Such shares are judged twice: against what chance does to so many completions, and, over many
entries, against how much the share itself varies, which a log alone tells.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from rloo_kit.watch import thresholds as at
from rloo_kit.watch.chance import dead_by_chance, surely_above, surely_above_of
from rloo_kit.watch.log import DEAD_SHARE, LONG, MEMORY, WINDOW, Log
from rloo_kit.watch.sign import Sign, lower, worsened
from rloo_kit.watch.truncation import ENOUGH

CUT_SHARE = "completions/clipped_ratio"


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
        surely(log, CUT_SHARE, at.CUT, at.CUT, lambda entries: entries.independent)
        if len(log) >= at.FEW
        else None
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
    if (
        len(log) < WINDOW
        or not max(log.last(size).mean(DEAD_SHARE) for size in (2 * WINDOW, MEMORY)) > at.DEAD
    ):
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
    here = dead_by_chance(k, min(0.8, max(0.2, height))) + at.DEAD_MARGIN
    return (at.DEAD if usual <= at.DEAD else here), max(at.DEAD, here)


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
