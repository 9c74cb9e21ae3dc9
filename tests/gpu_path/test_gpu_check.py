"""The checks of ``make gpu-check``, so that the command has run before it meets a card."""

import pytest

from benchmarks.gpu import checks
from benchmarks.gpu.report import Outcomes
from benchmarks.gpu.runner import MEASURED, NOT_RUN, PASSED
from tests.gpu_path.conftest import Rehearsed

HERE = ("memory", "speed", "hygiene", "correct/save and resume")
"""The rest of ``correct`` is test_bfloat16.py's and test_float16.py's, or takes too long for every day."""


@pytest.fixture(scope="module")
def outcomes(rehearsed: Rehearsed) -> Outcomes:
    return rehearsed("rtx 3090", *HERE)


@pytest.mark.parametrize("name", [one.name for one in checks.chosen(HERE) if one.rehearsed])
def test_a_check_runs_to_its_end_and_holds_its_limits(outcomes: Outcomes, name: str) -> None:
    assert outcomes[name].status in (PASSED, MEASURED), outcomes[name]


def test_what_no_pretended_card_can_show_is_not_run(outcomes: Outcomes) -> None:
    left_out = {name for name, outcome in outcomes.items() if outcome.status == NOT_RUN}
    assert left_out == {one.name for one in checks.chosen(HERE) if not one.rehearsed}


def test_memory_is_planned_as_counted(outcomes: Outcomes) -> None:
    figures = outcomes[checks.case(0).name].figures
    for phase in ("generate", "train", "optimizer"):
        assert 0.8 < figures[f"peak in {phase}, measured / planned"].value < 1.1, phase
