"""Every symptom on real runs of the tiny policy: a run with it, the run with its setting fixed, and healthy runs."""

import json
from dataclasses import replace

import pytest

from benchmarks.health_runs import ROOT, file_of, read
from rloo_kit.watch.statistics import Known, Log
from rloo_kit.watch.symptoms import SYMPTOMS, Episodes
from tests.watch.logs import CALM, KNOWN, from_step, history, symptoms

LIVE = {"non-finite rewards", "non-finite figures"}
"""Provoked in test_health.py with plain TRL, and in foreign_logs.py: the kit's trainer refuses such a reward."""

WORDS = {"level": "train_dataset", "operands": "train_dataset", "stale_sampler": "use_vllm", "rewards": "reward_funcs"}
"""Setting of a recorded run -> its name in the trainer."""

FACTORS = {"ten times as much": 10, "a tenth of it": 1 / 10, "a third of it": 1 / 3}


@pytest.mark.parametrize("symptom", sorted(SYMPTOMS.keys() - LIVE))
def test_a_run_that_has_a_symptom_is_diagnosed_with_it_and_mended_by_the_setting_named(symptom):
    ill, mended = file_of(f"{symptom}.ill"), file_of(f"{symptom}.mended")
    finding = next(finding for finding in Episodes(read(ill)).findings if finding.symptom == symptom)
    assert any(digit in finding.evidence for digit in "0123456789"), "figures, and the steps they are from"
    assert f"step {finding.first_step}" in finding.evidence or f"s {finding.first_step}-" in finding.evidence
    assert "\n" not in str(finding)
    assert not Episodes(read(mended)).findings
    before, after = (json.loads(file.read_text())["config"] for file in (ill, mended))
    changed = {WORDS.get(name, name) for name in {*before, *after} if before.get(name) != after.get(name)}
    assert changed == {finding.setting}, "what was named first, and no more"
    # KL and entropy explosion, and the symptoms of a worsened policy, were fixed with another factor.
    wrecked = symptom.endswith(("explosion", "worsened"))
    if finding.setting == "learning_rate" and not wrecked:
        factor = next(factor for said, factor in FACTORS.items() if finding.change.startswith(said))
        assert after["learning_rate"] == pytest.approx(factor * before["learning_rate"], rel=0.11)


def test_healthy_and_mended_runs_give_no_false_alarm():
    """Both if the settings are known and from the log alone."""
    logs = [read(file) for file in CALM]
    # Runs of plain TRL and the kit that learned their task; only rewards and zero-variance groups were stored.
    for run in json.loads((ROOT / "benchmarks" / "results" / "time_to_accuracy.json").read_text()):
        if max(measured["accuracy"] for measured in run["evaluated"]) < run["spec"]["target"]:
            continue
        groups, k = run["spec"]["prompts_per_step"], run["spec"]["num_generations"]
        columns = zip(range(1, 1 + len(run["dead"])), run["rewards"], run["dead"], strict=True)
        entries = [{"step": i, "reward": r, "zero_variance_groups": d} for i, r, d in columns]
        logs.append(Log(entries, replace(KNOWN, completions=groups * k, groups=groups)))
    assert len(logs) >= 10
    both = [either for log in logs for either in (log, Log(log.entries, Known.guessed(log.entries)))]
    assert [str(finding) for log in both for finding in Episodes(log).findings] == []


def test_what_a_wrecked_policy_brings_along_is_not_named_beside_its_cause():
    rewards = {"reward": from_step(4, 0.6, 0.0), "reward_std": from_step(4, 0.45, 0.0)}
    shares = dict.fromkeys(("zero_variance_groups", "completions/clipped_ratio"), from_step(4, 0.0, 1.0))
    found = symptoms(history(12, **rewards, **shares, kl=from_step(4, 0.01, 8.0)))
    assert found[0] == "KL explosion"
    assert not {"truncation", "zero-variance groups, too hard"} & set(found)
