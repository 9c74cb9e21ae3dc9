"""The table of symptoms: the name of each, its rule, which one hides which, and how long one lasts.

For :mod:`.callbacks`, which read the table while a run trains, and :mod:`.diagnose`.  The rules are in
:mod:`.rules` and :mod:`.lost`.  Nothing here changes a setting; the user decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from rloo_kit.watch import lost, rules
from rloo_kit.watch.log import MEMORY, WINDOW, Log
from rloo_kit.watch.rules import Sign

Rule = Callable[[Log], Sign | None]

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
        "unscored completions": lost.unscored,
        "constant reward": lost.constant_reward,
        "KL negative": rules.kl_negative,
        "truncation": partial(lost.truncation, kind="too short"),
        "truncation, policy worsened": partial(lost.truncation, kind="policy worsened"),
        "format without answers": rules.format_only,
        "dead groups, too easy": partial(lost.dead_groups, kind="too easy"),
        "dead groups, too hard": partial(lost.dead_groups, kind="too hard"),
        "dead groups, policy worsened": partial(lost.dead_groups, kind="policy worsened"),
        "dead groups, completions alike": partial(lost.dead_groups, kind="completions alike"),
        "entropy collapse": rules.entropy_collapse,
        "length hacking": rules.length_hacking,
        "length grows": lost.at_times(lost.length_grows),
        "learning rate 0": lost.learning_rate_zero,
        "drowned reward": rules.drowned_term,
        "high variance": lost.at_times(rules.high_variance),
    },
    {
        "nothing learned": lost.at_times(lost.nothing_learned),
        "one reward stands still": lost.at_times(lost.one_reward_still),
        "plateau": lost.at_times(lost.plateau),
    },
)
"""Name -> rule, causes before their effects: nothing can be told from NaN; a policy that has been wrecked is also cut
off, wrong, and without spread; and each of these explains why nothing was learned."""

SYMPTOMS: dict[str, Rule] = {name: rule for tier in TIERS for name, rule in tier.items()}

UNREWARDED: tuple[dict[str, Rule], ...] = ({"unscored completions": lost.unscored},)
"""What is asked of a run without a single reward, with which the other rules compare."""

CUT = ("truncation", "truncation, policy worsened")
AT_ONCE = {"non-finite figures", "KL explosion", "entropy explosion", "gradient spikes"}
"""Symptoms that are told from one or two entries."""

BETTER = {
    **dict.fromkeys(
        (name for name in SYMPTOMS if name.startswith("dead groups")),
        (*CUT, "constant reward", "format without answers"),
    ),
    "format without answers": ("constant reward",),
    "length grows": ("length hacking", *CUT),
    "plateau": ("one reward stands still",),
}
"""Symptom -> those of the same tier that explain what it sees better than it does."""

QUIET = 5
"""Entries without the symptom after which an episode is over, so that the next one is reported again."""


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

    def __str__(self) -> str:
        return f"{self.symptom}: {self.evidence}. Likely: {self.cause}. Change first: {self.setting}, {self.change}."


def judged(log: Log) -> list[Finding]:
    """The findings at a log's last entry, from the first tier that has any.

    In a long run the windows that most rules compare hardly change from one entry to the next, and are compared at
    every fifth; only what is told from one or two entries is looked for at each.
    """
    every = len(log) <= MEMORY or not len(log) % WINDOW
    for tier in UNREWARDED if log.entries[-1].get("reward") is None else TIERS:
        asked = tier if every else {name: tier[name] for name in AT_ONCE & tier.keys()}
        signs = {name: sign for name, rule in asked.items() if (sign := rule(log))}
        signs = {name: sign for name, sign in signs.items() if not signs.keys() & {*BETTER.get(name, ())}}
        if signs:
            return [finding(name, sign) for name, sign in signs.items()]
    return []


def finding(name: str, sign: Sign) -> Finding:
    """A sign under its symptom's name, over the steps of its window."""
    first, last = sign.window.entries[0]["step"], sign.window.entries[-1]["step"]
    return Finding(name, sign.evidence, sign.cause, sign.setting, sign.change, first, last)


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
