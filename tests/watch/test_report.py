"""A report's notes on every run: what was sampled in vain, how large chance is, and what could have been detected."""

import random
import re

import pytest

import rloo_kit
from benchmarks.health_runs import file_of, read
from rloo_kit.watch.diagnose import smallest_gain
from rloo_kit.watch.statistics import Log
from rloo_kit.watch.symptoms import Episodes
from tests.watch.logs import from_step, history, rising, terms, trainer_of


def test_a_run_with_zero_variance_groups_says_what_they_cost_though_nothing_is_found():
    entries = history(20, zero_variance_groups=lambda step: (0.25, 0.5)[step % 2], step_time=6.0)
    report = rloo_kit.diagnose(trainer_of(entries))
    assert (report.healthy, report.zero_variance_share) == (True, 0.375)
    cost = "38% of the completions were in zero-variance groups, which gave no gradient; they took about 0:45 of 2:00"
    assert report.notes[0] == cost


def test_the_time_of_a_batch_is_that_of_all_its_updates():
    entries = []
    for first in history(20, zero_variance_groups=0.5, step_time=6.0)[:20]:
        step = 2 * first["step"]
        entries += [{**first, "step": step - 1}, {"clip_ratio/region_mean": 0.1, "step_time": 2.0, "step": step}]
    trainer = trainer_of(entries)
    trainer.args.num_iterations = 2
    (cost, *_) = rloo_kit.diagnose(trainer).notes
    assert cost.endswith("about 1:20 of 2:40")


def test_a_fall_at_the_end_is_said_to_be_chance_with_its_width_or_is_found():
    """The quickstart's own rewards end with 0.89, 0.84, 0.88, 0.86, 0.68, 0.59, 0.56."""
    log = read(file_of("quickstart seed 0.healthy"))
    assert Episodes(log).findings == []
    notes = rloo_kit.diagnose(log.entries).notes
    assert "chance alone moves a step's reward by +-0.188 (a standard error), the mean of 5 by +-0.077" in notes
    fall = "reward fell 0.828 (steps 21-25) -> 0.714 (steps 26-30), 1.0 standard errors; a collapse is"
    assert any(note.startswith(fall) for note in notes)
    fallen = rloo_kit.diagnose(history(40, reward=from_step(30, 0.9, 0.1)))
    assert any("; a collapse is 4.8 or more" in note for note in fallen.notes)
    assert "reward collapse" in [finding.symptom for finding in fallen.findings]


def test_where_nothing_was_learned_it_says_how_small_a_gain_could_have_been_seen():
    flat = list(read(file_of("nothing learned.ill")).entries)
    for source, held_out, said in (
        (trainer_of(flat), 200, "0.11 with 200 held-out problems (80 % power"),
        (trainer_of(flat, eval_dataset=[{}] * 50), None, "0.23 with 50 held-out problems"),
        (flat, None, "0.12 with 200 held-out problems, 0.05 with 1,000"),
        (trainer_of(flat, eval_dataset={"easy": [{}], "hard": [{}]}), None, "0.11 with 200 held-out problems, 0.05"),
    ):
        text = str(rloo_kit.diagnose(source, held_out=held_out))
        assert f"an evaluation could detect a gain of {said}" in text
        assert re.search(r"no sure rise: reward 0.3\d+ .* could detect a change of 0\.\d+", text)
    assert "with 2 held-out problems could detect no gain" in str(rloo_kit.diagnose(flat, held_out=2))
    for shown in (flat[:9], list(read(file_of("nothing learned.mended")).entries)):
        assert "no sure rise" not in str(rloo_kit.diagnose(shown)), "too few steps, or a rise"
    with pytest.raises(ValueError, match="held_out"):
        rloo_kit.diagnose(flat, held_out=-5)


@pytest.mark.parametrize(("problems", "accuracy"), [(200, 0.5), (1000, 0.3), (400, 0.8)])
def test_the_smallest_gain_is_found_by_a_paired_test_in_four_of_five_cases(problems, accuracy):
    gain, draw = smallest_gain(problems, accuracy), random.Random(0)
    seen = 0
    for _ in range(400):
        changes = [(draw.random() < accuracy + gain) - (draw.random() < accuracy) for _ in range(problems)]
        seen += sum(changes) > 1.96 * sum(map(abs, changes)) ** 0.5  # McNemar 1947
    assert seen / 400 == pytest.approx(0.8, abs=0.05)


AFTER = {
    "a small KL": (lambda step: {"kl": 0.01}, True),
    "a large KL": (lambda step: {"kl": 0.3}, False),
    "a lower entropy": (lambda step: {"entropy": 0.9 / step}, False),
    "no entropy at all": (lambda step: {"entropy": 0.0}, False),
}


@pytest.mark.parametrize(("changed", "is_said"), AFTER.values(), ids=AFTER)
def test_no_larger_updates_are_advised_where_the_log_shows_those_that_were_made(changed, is_said):
    log = read(file_of("nothing learned.ill"))
    findings = Episodes(Log([{**entry, **changed(entry["step"])} for entry in log.entries], log.known)).findings
    assert ("nothing learned" in [finding.symptom for finding in findings]) is is_said


def test_answers_that_fell_while_the_reward_rose_are_named_and_their_problems_are_not_called_too_hard():
    fall = terms(format=(rising(0.2, 0.015), 0.45), answer=(from_step(25, 0.6, 0.02), 0.2))
    columns = {"reward": rising(0.3, 0.02), "zero_variance_groups": 0.4, **fall}
    entries = history(60, **columns)
    report = rloo_kit.diagnose(entries, {"answer": "answer", "format": "form"})
    assert "answer fell, 0.600 -> 0.020" in str(report)
    assert "something else is paid for" in str(report)
    assert "format without answers" not in [finding.symptom for finding in report.findings]


def test_a_reward_that_scored_no_completion_is_named_and_is_no_symptom():
    report = rloo_kit.diagnose([{**entry, "rewards/judge/mean": None} for entry in history(30)])
    assert report.healthy
    assert "judge scored no completion: it returned None for all" in str(report)
