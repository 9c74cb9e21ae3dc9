"""Logs like plain TRL's and unsloth's: sick runs are named and healthy runs are not, even from the log alone."""

import pytest

from rloo_kit.watch.statistics import Known, Log, rounds
from rloo_kit.watch.symptoms import SYMPTOMS, Episodes
from tests.watch import foreign_logs, logs
from tests.watch.foreign_logs import HEALTHY, SICK

SEEDS = 2  # of ten in health_alarms.md; of healthy runs, which are looked at to their end, one


def symptoms_in(kind, seed):
    """Return a run's symptoms from its log alone, and with its settings known."""
    entries, n = rounds(foreign_logs.run(kind, seed)), kind.prompts * kind.k
    config = logs.trl_config(per_device_train_batch_size=n, generation_batch_size=n, num_generations=kind.k)
    both = Known.guessed(entries), Known.of(config)
    return [{finding.symptom for finding in Episodes(Log(entries, known)).findings} for known in both]


@pytest.mark.parametrize("name", SICK)
def test_a_sick_run_is_named(name):
    named = {*SICK[name].named}
    assert named <= SYMPTOMS.keys()
    assert all(named & names for seed in range(SEEDS) for names in symptoms_in(SICK[name], seed))


def test_a_healthy_run_has_no_symptom():
    """All kinds together: rules on chance err in one run of 100, so one error is allowed here."""
    kinds = [(name, kind, seed) for seed, (name, kind) in enumerate(HEALTHY.items())]
    runs = [(name, names) for name, kind, seed in kinds for names in symptoms_in(kind, seed)]
    alarms = [(name, names) for name, names in runs if names]
    assert len(alarms) <= len(runs) // 40, alarms


@pytest.mark.parametrize(("prompts", "k"), [(4, 8), (2, 4), (1, 16), (16, 16)])
def test_a_reward_of_0_and_1_tells_how_many_completions_a_step_has(prompts, k):
    entries = logs.chance_rewards(0, prompts, k, steps=30)
    known = Known.guessed(entries)
    assert (known.completions, known.groups) == (prompts * k, prompts)
    other = [{**entry, "reward_std": 0.31} for entry in entries]
    assert Known.guessed(other).completions == max(8, 2 * prompts)
