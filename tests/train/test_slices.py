"""The trainer samples its batch in slices: as planned, in order, and in smaller slices if memory runs out."""

import dataclasses
from typing import Any

import pytest
import torch
import trl.trainer.rloo_trainer

from rloo_kit.memory.hardware import Device
from rloo_kit.memory.plan import Plan
from rloo_kit.policy import generate
from tests.policy.conftest import watched


@pytest.fixture(autouse=True)
def much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the plan much memory, whatever this machine has free."""
    much = Device("this CPU", 2**40, on_gpu=False)
    monkeypatch.setattr("rloo_kit.memory.plan.device_of", lambda card: much)


EIGHT = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}


@pytest.mark.parametrize("fast", [True, False])
def test_where_all_fit_the_draws_are_those_of_an_unsliced_batch(fast, make_trainer, policy, monkeypatch):
    trainer = make_trainer(fast_sampling=fast)
    prompts, _, _ = trainer._tokenize_prompts(trainer.train_dataset["prompt"][:8])
    assert len(set(map(len, prompts))) > 1
    torch.manual_seed(0)
    found, after = trainer._generate_single_turn(prompts, None, {}), torch.get_rng_state()
    if fast:
        bound = policy.model.generate
        monkeypatch.setattr(policy.model, "generate", lambda **given: bound(**given, custom_generate=generate.decode))
    stock = trl.trainer.rloo_trainer.RLOOTrainer._generate_single_turn
    torch.manual_seed(0)
    assert found == stock(trainer, prompts, None, {})
    assert torch.equal(after, torch.get_rng_state()), "not a random number more"


@pytest.mark.parametrize(("asked", "calls"), [(None, [8]), (100, [8]), (3, [2, 3, 3])])
def test_as_many_rows_are_sampled_at_once_as_are_asked_for(asked, calls, make_trainer, policy, monkeypatch):
    seen = watched(policy.model, monkeypatch)
    trainer = make_trainer(generation_rows=asked, **EIGHT)
    trainer.train()
    assert seen == calls
    assert trainer.memory_plan.sampled_rows == max(calls)


def test_by_default_as_many_are_sampled_at_once_as_the_plan_says_fit(make_trainer, policy, capsys, monkeypatch):
    calls = watched(policy.model, monkeypatch)
    trainer = make_trainer(per_device_train_batch_size=4, gradient_accumulation_steps=16)
    planned = trainer.memory_plan
    assert (planned.sampled_rows, planned.sliced) == (64, "")
    # With slices below 56 rows, the tiny policy's training pass takes more memory than its sampling.
    settings = dataclasses.replace(planned.settings, generation_rows=56)
    needs = type(planned).of(planned.model, settings, planned.device)
    device = Device("a small CPU", needs.peak_bytes + needs.estimated_bytes // 2, on_gpu=False)
    trainer.memory_plan = type(planned).of(planned.model, planned.settings, device)
    trainer.train()
    assert calls == [32] * 2
    assert "64 completions are sampled 32 at once, since all at once would not fit" in capsys.readouterr().out


def test_where_memory_runs_out_weights_are_no_longer_held_in_16_bit(make_trainer, policy, monkeypatch):
    calls, tried = watched(policy.model, monkeypatch), list[int]()

    def in_16_bit(model: Any) -> None:
        tried.append(len(calls))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(Plan, "in_16_bit_bytes", 1)
    monkeypatch.setattr(generate, "four_bit_rows", lambda: 4)
    monkeypatch.setattr(generate.dequantize_for_sampling, "in_16_bit", in_16_bit)
    trainer = make_trainer(max_steps=2, **EIGHT)
    with pytest.warns(UserWarning, match="ran out with 4-bit weights held in 16 bit, step 1: from here on"):
        trainer.train()
    assert (tried, calls) == ([0], [8, 8]), "once in a run"


def test_where_memory_runs_out_the_run_goes_on_with_fewer_at_once(make_trainer, policy, monkeypatch):
    calls = watched(policy.model, monkeypatch, room=2)
    trainer = make_trainer(max_steps=2, **EIGHT)
    with pytest.warns(UserWarning, match="ran out with 8 completions sampled at once, step 1.* is 2") as said:
        trainer.train()
    assert sum("ran out" in str(one.message) for one in said) == 1
    assert calls == [8, 4] + [2] * 8, "the first step's is not tried again in the second"
    assert trainer.state.global_step == 2
    assert trainer.model.training
