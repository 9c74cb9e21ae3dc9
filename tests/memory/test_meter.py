"""The meter: peaks by phase, as CUDA's allocator counts them, and a plan beside them."""

from typing import Any

import pytest
import torch

from rloo_kit.memory import formulas
from rloo_kit.memory.meter import Meter, Peak


def test_a_moment_counts_for_the_innermost_phase_and_the_largest_visit_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    peaks = iter((10, 70, 20, 30, 5))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(peaks))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 99)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    meter = Meter()
    with meter.phase("train"), meter.phase("generate"):
        pass
    for name in ("train", "generate"):
        with meter.phase(name):
            pass
    assert meter.peaks == {"train": Peak(30, 99), "generate": Peak(70, 99)}


def even_length(completions: Any, **kwargs: Any) -> list[float]:
    return [float(len(completion[0]["content"]) % 2) for completion in completions]


def test_what_a_run_holds_is_the_plan_to_the_byte_and_a_cpu_measures_no_peaks(make_trainer: Any) -> None:
    trainer = make_trainer(even_length, max_steps=1, beta=0.05)
    trainer.train()
    trainer.memory.peaks["train"] = Peak(2**20)
    found = trainer.memory_plan.compare(trainer)
    exact = (formulas.WEIGHTS, formulas.REST, formulas.LORA, formulas.OPTIMIZER)
    assert [row.name for row in found.parts] == list(exact)
    assert all(row.planned_bytes == row.measured_bytes for row in found.parts), found
    phases = {row.name: row.measured_bytes for row in found.phases}
    assert phases.pop("peak in train") == 2**20
    assert phases == dict.fromkeys(("peak in generate", "peak in log-probs", "peak in optimizer"))
    assert "not measured" in str(found)
