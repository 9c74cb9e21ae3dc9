"""The checks of ``make gpu-check``, so that the command has run before it meets a card.

test_against_plain.py has the checks of an update beside plain PEFT.
"""

import pytest

from benchmarks.gpu import checks
from benchmarks.gpu.runner import MEASURED, PASSED

pytestmark = pytest.mark.long  # make gpu-path
CHECKS = ("memory/qwen3-4b", "hygiene", "memory/qwen3-8b", "speed", "correct/save and resume", "correct/fp16")
CHECKS += ("correct/learns", "4-bit")


@pytest.fixture(scope="module")
def outcomes(rehearsed):
    return rehearsed("rtx 3090", *CHECKS)


@pytest.mark.parametrize("name", [one.name for one in checks.chosen(CHECKS) if one.rehearsed])
def test_a_check_runs_to_its_end_and_holds_its_limits(outcomes, name):
    assert outcomes[name].status in (PASSED, MEASURED), outcomes[name]


def test_what_stands_in_memory_is_planned_to_the_byte(outcomes):
    """Peaks are not compared: a pretended card also counts the buffers of offloaded activations in the computer's
    memory, which at the tiny policy's size exceed all the rest."""
    figures = outcomes[checks.case(0).name].figures
    for part in ("weights", "embedding, lm_head, norms", "LoRA", "optimizer state"):
        assert figures[f"{part}, measured / planned"].value == 1.0, part
