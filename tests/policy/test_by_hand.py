"""A model made by hand, by the published recipe, and an adapter of supervised fine-tuning as the start."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

import rloo_kit
from rloo_kit.policy.bundled import TINY
from tests.conftest import random_rewards


def by_hand(dropout: float = 0.0) -> tuple[Any, Any]:
    """As Unsloth's notebooks write it."""
    from unsloth import FastLanguageModel

    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=str(TINY.checkpoint()), max_seq_length=1024, load_in_4bit=True, dtype=torch.float32
    )
    model = FastLanguageModel.get_peft_model(
        model,
        r=8,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        lora_alpha=16,
        lora_dropout=dropout,
        bias="none",
        use_gradient_checkpointing="unsloth",
        random_state=3407,
    )
    return model, tokenizer


def test_a_model_made_by_hand_is_a_policy_and_the_trainer_takes_either(make_trainer: Any, task: Any) -> None:
    with pytest.warns(UserWarning, match=r"dropout of 0\.1 is switched off"):
        policy = rloo_kit.Policy(*by_hand(dropout=0.1))
    assert policy.checkpoint.name == "tiny"
    assert set(policy.eos_ids) == {151645, 151643}
    assert policy.tokenizer.pad_token_id not in (None, policy.tokenizer.eos_token_id)
    assert rloo_kit.plan(policy).settings.lora_rank == 8
    assert policy.generate(task.held_out["prompt"][:2], max_new_tokens=4, greedy=True)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters() if p.requires_grad}
    make_trainer(random_rewards, model=policy, max_steps=1, learning_rate=1e-3).train()
    after = dict(policy.model.named_parameters())
    assert any(not torch.equal(before[name], after[name]) for name in before)
    make_trainer(random_rewards, model=policy.model, processing_class=policy.tokenizer, max_steps=1).train()


def test_a_tuned_adapter_is_the_start_and_the_reference(
    policy: Any, make_trainer: Any, tmp_path: Path
) -> None:
    """One argument, its folder: the KL term then holds the policy near the adapter, and not near the base."""
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.02)
    folder = policy.save(tmp_path / "tuned")
    config = LoraConfig.from_pretrained(folder)
    config.lora_dropout = 0.05  # as supervised recipes have it
    config.save_pretrained(folder)
    with pytest.warns(UserWarning, match=r"dropout of 0\.05 is switched off"):
        start = rloo_kit.load_policy(folder)
    tuned = {name: p.detach().clone() for name, p in start.model.named_parameters() if "lora_" in name}
    trainer = make_trainer(random_rewards, model=start, beta=0.05, max_steps=2, learning_rate=1e-2)
    assert trainer.memory_plan.settings.reference_copy
    trainer.train()
    reference = {name: p for name, p in start.model.named_parameters() if ".ref." in name}
    assert len(reference) == len(tuned)
    assert all(torch.equal(p, tuned[name.replace(".ref.", ".default.")]) for name, p in reference.items())
    assert trainer.state.log_history[0]["kl"] == pytest.approx(0, abs=1e-5)
    assert trainer.state.log_history[1]["kl"] != pytest.approx(0, abs=1e-5)


def test_a_policy_unpacks_as_what_unsloth_returns(policy: Any) -> None:
    model, tokenizer = policy
    assert (model, tokenizer) == (policy.model, policy.tokenizer)
