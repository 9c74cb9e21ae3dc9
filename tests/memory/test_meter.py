"""The meter: peaks by phase, as CUDA's allocator counts them, and a plan beside them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit.memory import formulas, policy_tensors
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


def test_a_plan_is_set_beside_what_was_measured() -> None:
    planned = rloo_kit.plan("qwen3-4b", card="24GB")
    trainer = SimpleNamespace(memory=SimpleNamespace(peaks={"train": Peak(planned.totals["backward"] // 2)}))
    found = planned.compare(trainer)
    assert found["generate"][1] is None
    tensors = {
        name: planned.totals[name] - planned.phases[name]["context"] - planned.phases[name]["fragmentation"]
        for name in ("generate", "forward", "backward")
    }
    assert found["train"][0] == max(tensors["forward"], tensors["backward"])
    assert found["generate"][0] == tensors["generate"]
    said = " ".join(str(found).split())
    assert all(part in said for part in ("peak in generate", "not measured", "peak in train", "+"))


def even_length(completions: Any, **kwargs: Any) -> list[float]:
    return [float(len(completion[0]["content"]) % 2) for completion in completions]


def test_what_a_run_holds_is_the_plan_to_the_byte(make_trainer: Any) -> None:
    trainer = make_trainer(even_length, max_steps=1, beta=0.05)
    trainer.train()
    lora = [p for name, p in trainer.model.named_parameters() if "lora_" in name]
    state = [t for state in trainer.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
    linear, rest = policy_tensors.weight_bytes(trainer.model)
    held = {formulas.WEIGHTS: linear, formulas.REST: rest}
    held |= {formulas.LORA: policy_tensors.bytes_of(lora), formulas.OPTIMIZER: policy_tensors.bytes_of(state)}
    planned = trainer.memory_plan.phases["optimizer"]
    assert {part: planned[part] for part in held} == held
    assert set(trainer.memory_plan.compare(trainer)) == {"generate", "log-probs", "train", "optimizer"}
