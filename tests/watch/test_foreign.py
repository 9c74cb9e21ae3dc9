"""Logs of plain TRL's and unsloth's shape: sick ones are named, and healthy ones are not, by the log alone too."""

from __future__ import annotations

import pytest

from rloo_kit.watch.log import Known, Log, rounds, told_completions
from rloo_kit.watch.symptoms import SYMPTOMS, episodes
from tests.watch import foreign_logs, logs
from tests.watch.foreign_logs import HEALTHY, MORE_HEALTHY, MORE_SICK, SICK, Kind

SEEDS = 2  # of ten in health_alarms.md


def found_in(kind: Kind, seed: int) -> list[set[str]]:
    """The symptoms of a run, by its log alone and with its settings known."""
    entries = rounds(foreign_logs.run(kind, seed))
    both = Known.guessed(entries), Known.of(foreign_logs.config(kind))
    return [{finding.symptom for finding in episodes(Log(entries, known)).found} for known in both]


ALL_SICK, ALL_HEALTHY = {**SICK, **MORE_SICK}, {**HEALTHY, **MORE_HEALTHY}


@pytest.mark.parametrize("name", ALL_SICK)
def test_a_sick_run_is_named(name: str) -> None:
    kind = ALL_SICK[name]
    assert {*kind.named} <= SYMPTOMS.keys()
    named = [bool(found & {*kind.named}) for seed in range(SEEDS) for found in found_in(kind, seed)]
    assert all(named)


def test_a_healthy_run_has_no_symptom() -> None:
    """All kinds together: a rule that errs in one run of 100, which those on chance do, may err once here."""
    runs = [
        (name, found)
        for name, kind in ALL_HEALTHY.items()
        for s in range(SEEDS)
        for found in found_in(kind, s)
    ]
    alarms = [(name, found) for name, found in runs if found]
    assert len(alarms) <= len(runs) // 40, alarms


@pytest.mark.parametrize(("prompts", "k"), [(4, 8), (2, 4), (1, 16), (16, 16)])
def test_a_reward_of_0_and_1_tells_how_many_completions_a_step_has(prompts: int, k: int) -> None:
    entries = logs.chance_rewards(0, prompts, k, steps=30)
    assert told_completions(entries) == prompts * k
    known = Known.guessed(entries)
    assert (known.completions, known.groups) == (prompts * k, prompts)
    assert told_completions([{**entry, "reward_std": 0.31} for entry in entries]) is None
