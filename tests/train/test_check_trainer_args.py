"""Several processes and vLLM: settings that would silently train something else are refused; precision stays."""

import copy
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset

import rloo_kit
from rloo_kit.errors import DatasetError
from rloo_kit.policy.bundled import TINY
from rloo_kit.policy.thinking import budget_of
from rloo_kit.session import distributed
from rloo_kit.train import check_trainer_args, run_record
from tests.conftest import random_rewards
from tests.train.weights import leave_the_reference, same, trained

SERVER = {"use_vllm": True, "vllm_mode": "server"}
COLOCATE = {"use_vllm": True, "vllm_mode": "colocate"}
ROWS = [{"prompt": f"question {number}", "answer": str(number)} for number in range(40)]


def test_processes_with_rows_in_another_order_fewer_or_other_answers_are_refused(monkeypatch):
    args: Any = SimpleNamespace(deepspeed=None, fsdp=[])
    state = SimpleNamespace(num_processes=2, distributed_type=SimpleNamespace(value="MULTI_CPU"))
    accelerator: Any = SimpleNamespace(state=state, device=torch.device("cpu"))
    monkeypatch.setattr(distributed, "downgrade", lambda *given, **how: None)
    mine = Dataset.from_list(ROWS)
    for other in (ROWS[::-1], ROWS[:-1], [{**row, "answer": "7"} for row in ROWS], list(ROWS)):
        theirs = run_record.digest(Dataset.from_list(other))
        monkeypatch.setattr(check_trainer_args, "gather_object", lambda digests, theirs=theirs: [*digests, theirs])
        differ = pytest.raises(DatasetError, match="different rows") if other != ROWS else nullcontext()
        with differ:
            check_trainer_args.check_launch(accelerator, args, mine)


@pytest.mark.parametrize("where", [SERVER, COLOCATE])
def test_packed_weights_are_not_sent_to_vllm(policy, make_trainer, monkeypatch, where):
    packed = [p for p in policy.model.parameters() if hasattr(p, "quant_state")]
    if not packed:  # bitsandbytes has no 4-bit weights on this processor
        monkeypatch.setattr(next(policy.model.parameters()), "quant_state", object(), raising=False)
    with pytest.raises(ValueError, match=r"packed bytes of 4-bit weights[\s\S]*load_in_4bit=False"):
        make_trainer(**where)


def with_engine(standby: bool) -> torch.nn.Module:
    """Return a model as unsloth leaves it; its packed weights are vLLM's own, so nothing is sent."""
    model = torch.nn.Linear(2, 2)
    model.weight.quant_state = object()  # type: ignore[attr-defined]
    settings = SimpleNamespace(model_config=SimpleNamespace(enable_sleep_mode=standby))
    model.vllm_engine = SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=settings))  # type: ignore[assignment]
    return model


def test_the_trainers_settings_are_those_of_the_policys_own_engine_or_refused():
    def checked(standby: bool = False, **settings: Any) -> dict[str, Any]:
        args: Any = SimpleNamespace(**{"use_vllm": False, "vllm_mode": "colocate", "fsdp": [], **settings})
        check_trainer_args.check_vllm(args, with_engine(standby))
        return vars(args)

    for standby in (True, False):
        assert checked(standby) == {**COLOCATE, "vllm_enable_sleep_mode": standby, "fsdp": []}
    for cannot in ({"fsdp": ["full_shard"]}, SERVER):
        with pytest.raises(ValueError, match=r"works with neither[\s\S]*fast_inference=False"):
            checked(**cannot)


def test_a_step_of_a_small_learning_rate_moves_nearly_every_weight(make_trainer, policy):
    """In bfloat16, as plain TRL trains on a CPU, it moves 3 % of them."""
    leave_the_reference(policy.model, std=0.02)
    before = trained(policy.model)
    trainer = make_trainer(reward_funcs=random_rewards, learning_rate=1e-5, lr_scheduler_type="constant")
    assert same(trained(policy.model), before), "nothing is rounded"
    trainer.train()
    after = trained(policy.model)
    moved = torch.cat([(after[name] != before[name]).flatten() for name in before if "lora_A" in name])
    assert moved.float().mean() > 0.9


@pytest.mark.parametrize("thinking", [False, 5])
def test_a_model_alone_is_trained_with_its_policys_tokenizer_and_so_with_its_thinking(make_trainer, thinking):
    policy = rloo_kit.load_policy("tiny", thinking=thinking)
    assert make_trainer(model=policy.model).processing_class is policy.tokenizer
    assert make_trainer(model=policy.model)._budget == budget_of(policy.tokenizer)
    other = copy.deepcopy(policy.tokenizer)
    assert rloo_kit.Policy(policy.model, other).tokenizer is other
    assert make_trainer(model=policy).processing_class is policy.tokenizer


def test_a_model_that_is_only_named_is_left_to_trl(make_trainer):
    trainer = make_trainer(model=str(TINY.checkpoint()), reward_funcs=random_rewards)
    assert trainer.train().global_step == trainer.args.max_steps
