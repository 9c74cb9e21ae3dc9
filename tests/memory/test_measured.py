"""A plan beside what a run took."""

from types import SimpleNamespace
from typing import Any

import pytest

from rloo_kit.memory import footprint
from rloo_kit.memory.meter import Meter
from tests.memory.conftest import tiny_plan


def even_length(completions: Any, **kwargs: Any) -> list[float]:
    return [float(len(completion[0]["content"]) % 2) for completion in completions]


def test_a_runs_peaks_by_phase_stand_within_a_tenth_of_the_plan(make_trainer: Any) -> None:
    rows = {"num_generations": 4, "per_device_train_batch_size": 8}
    trainer = make_trainer(even_length, **rows, max_completion_length=24, max_steps=2, beta=0.05)
    trainer.memory = Meter.for_model(trainer.model, count_tensors=True)
    trainer.train()
    found = trainer.memory_plan.compare(trainer)
    exact = (footprint.WEIGHTS, footprint.REST, footprint.LORA, footprint.OPTIMIZER)
    assert {row.name: row.off_by for row in found.parts} == dict.fromkeys(exact, 0), found
    for row in found.phases:
        assert row.planned_bytes == pytest.approx(row.measured_bytes, rel=0.1), f"{row.name}\n{found}"
    phases = ("generate", "log-probs", "train", "optimizer")
    assert [row.name for row in found.phases] == [f"peak in {name}" for name in phases]
    assert "not measured" in str(found).splitlines()[-1], "no driver counts a process on a CPU"


@pytest.mark.parametrize("memory", [Meter(), None], ids=["no gauge", "no meter"])
def test_without_peaks_phases_are_said_to_be_unmeasured(policy: Any, memory: Meter | None) -> None:
    trainer = SimpleNamespace(model=policy.model, optimizer=None, memory=memory)
    found = tiny_plan(policy).compare(trainer)
    assert found.parts[0].off_by == 0
    assert all(row.measured_bytes is None for row in found.phases)
    assert "<table>" in found._repr_html_()
