"""What a report says of every run: what was sampled for nothing, and how wide chance is."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import rloo_kit
from benchmarks.health_runs import file_of, read
from rloo_kit.watch.diagnose import cost_of, course_of
from rloo_kit.watch.log import Log, rounds
from rloo_kit.watch.symptoms import episodes
from tests.watch.logs import KNOWN, from_step, history, trl_config


def test_a_run_with_dead_groups_says_what_they_cost_though_nothing_is_found() -> None:
    entries = history(20, dead_groups=lambda step: (0.25, 0.5)[step % 2], step_time=6.0)
    report = rloo_kit.diagnose(
        SimpleNamespace(state=SimpleNamespace(log_history=entries), args=trl_config(output_dir=None))
    )
    assert report.healthy
    assert report.cost is not None
    assert (report.cost.share, report.cost.total_seconds) == (0.375, pytest.approx(120.0))
    assert "38% of the completions were in dead groups and gave no gradient of the reward" in str(report)
    assert "about 0:45 of 2:00" in str(report)
    assert cost_of(Log(rounds(history(9, dead_groups=None)), KNOWN)) is None


def test_a_fall_at_the_end_is_said_to_be_chance_with_its_width_or_is_found() -> None:
    """The quickstart's own run ends with 0.89, 0.84, 0.88, 0.86, 0.68, 0.59, 0.56."""
    log = read(file_of("quickstart seed 0.healthy"))
    course = course_of(log)
    assert course is not None
    assert course.fall is not None
    assert episodes(log).found == []
    assert 1.0 <= -course.fall.sigmas < 4.8
    assert 0.1 < course.one < 0.25, "so that 0.89 and 0.56 are two such errors of a difference apart, at most"
    text = str(rloo_kit.diagnose(list(log.entries)))
    assert "chance alone moves a step's reward by +-" in text
    assert "reward fell 0.828 (steps 21-25) -> 0.714 (steps 26-30)" in text
    fallen = Log(rounds(history(40, reward=from_step(30, 0.9, 0.1))), KNOWN)
    assert "more than chance; a collapse is 4.8" in str(course_of(fallen))
    assert "reward collapse" in [one.symptom for one in episodes(fallen).found]
