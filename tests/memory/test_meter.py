"""The meter: peaks by phase, the gauges that it reads, and a plan beside them."""

from typing import Any

import pytest
import torch

from rloo_kit.memory import formulas, hardware
from rloo_kit.memory.meter import CudaGauge, Meter, Peak, TensorGauge
from rloo_kit.session.output import GIB
from tests.memory.conftest import FakeGauge, fake_cuda


def test_a_moment_counts_for_the_innermost_phase_and_the_largest_visit_is_kept() -> None:
    meter = Meter(FakeGauge(10, 70, 20, 30, 5))
    with meter.phase("train"), meter.phase("generate"):
        pass
    for name in ("train", "generate"):
        with meter.phase(name):
            pass
    assert {name: peak.allocated_bytes for name, peak in meter.peaks.items()} == {"train": 30, "generate": 70}


def test_on_a_gpu_the_allocator_and_the_driver_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, max_memory_allocated=3, max_memory_reserved=4, reset_peak_memory_stats=None)
    monkeypatch.setattr(hardware, "nvml_process_bytes", lambda: None)
    meter = Meter(CudaGauge())
    with meter.phase("generate"):
        pass
    assert meter.peaks == {"generate": Peak(3, 4, 2 * GIB)}


def test_tensors_are_counted_once_from_birth_to_death() -> None:
    standing = torch.zeros(1000)
    gauge = TensorGauge([standing, standing.view(10, 100)])
    assert gauge.live_bytes == 4000
    with gauge:
        a = torch.zeros(500)
        b = a.view(5, 100) + 1
        del a
        c = b.t()
    assert gauge.live_bytes == 4000 + 2000
    assert gauge.read() == Peak(8000)
    del b, c
    assert gauge.live_bytes == 4000


def even_length(completions: Any, **kwargs: Any) -> list[float]:
    return [float(len(completion[0]["content"]) % 2) for completion in completions]


def test_a_runs_peaks_by_phase_stand_within_a_tenth_of_the_plan(make_trainer: Any) -> None:
    rows = {"num_generations": 4, "per_device_train_batch_size": 8}
    trainer = make_trainer(even_length, **rows, max_completion_length=24, max_steps=2, beta=0.05)
    trainer.memory = Meter.for_model(trainer.model, count_tensors=True)
    trainer.train()
    found = trainer.memory_plan.compare(trainer)
    exact = (formulas.WEIGHTS, formulas.REST, formulas.LORA, formulas.OPTIMIZER)
    assert {row.name: row.off_by for row in found.parts} == dict.fromkeys(exact, 0), found
    for row in found.phases:
        assert row.planned_bytes == pytest.approx(row.measured_bytes, rel=0.1), f"{row.name}\n{found}"
    phases = ("generate", "log-probs", "train", "optimizer")
    assert [row.name for row in found.phases] == [f"peak in {name}" for name in phases]
    assert "not measured" in str(found).splitlines()[-1], "no driver counts a process on a CPU"
