"""A rollout: padding, references, and scores that are checked."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from rloo_kit.errors import RewardError
from rloo_kit.policy.bundled import TINY
from tests.conftest import random_rewards
from tests.train.test_guards import gives, returns

# --- log-probabilities and the reference ------------------------------------------------------------------


def test_left_padding_is_kept_from_attention_in_training_mode(make_trainer: Any, policy: Any) -> None:
    """On a CPU this is transformers' forward; unsloth's on a GPU needs the flag that is asserted here."""
    trainer = make_trainer()
    rows = policy.tokenize(
        [[{"role": "user", "content": text}] for text in ("What is 1 + 2?", "What is 31 + 42 + 5?")]
    )
    answer = [17, 151645]
    policy.model.train()

    def log_probs(*pads: tuple[int, list[int]]) -> torch.Tensor:
        width = max(map(len, rows))
        ids = [
            [policy.tokenizer.pad_token_id] * (pad and width - len(row)) + row + answer for pad, row in pads
        ]
        mask = [[0] * (pad and width - len(row)) + [1] * (len(row) + 2) for pad, row in pads]
        scored, _, _ = trainer._get_per_token_logps_and_entropies(
            policy.model, torch.tensor(ids), torch.tensor(mask), 2
        )
        return scored

    (backbone,) = (module for module in policy.model.modules() if hasattr(module, "embed_tokens"))
    together = log_probs((1, rows[0]), (1, rows[1]))
    assert backbone._unsloth_keep_padding_mask
    for index, row in enumerate(rows):
        torch.testing.assert_close(together[index], log_probs((0, row))[0], atol=1e-4, rtol=1e-4)
        assert not backbone._unsloth_keep_padding_mask, "causal attention alone says the same, faster"


def test_stock_trl_refuses_a_second_trainer_on_the_same_policy(
    fresh_policy: Any, task: Any, tmp_path: Path
) -> None:
    arguments = {
        "model": fresh_policy.model,
        "processing_class": fresh_policy.tokenizer,
        "reward_funcs": random_rewards,
        "train_dataset": task.train,
    }
    config = trl.RLOOConfig(output_dir=str(tmp_path), bf16=False)
    trl.RLOOTrainer(args=config, **arguments)
    with pytest.raises(ValueError, match="ref"):
        trl.RLOOTrainer(args=config, **arguments)


def test_no_copy_of_the_adapter_is_kept_where_the_reference_is_the_base(
    fresh_policy: Any, make_trainer: Any
) -> None:
    make_trainer(model=fresh_policy, beta=0.05)
    assert list(fresh_policy.model.peft_config) == ["default"]
    make_trainer(model=fresh_policy, beta=0.0)
    assert list(fresh_policy.model.peft_config) == ["default"]


def test_a_trained_policy_is_its_own_reference(fresh_policy: Any, make_trainer: Any) -> None:
    with torch.no_grad():
        for name, parameter in fresh_policy.model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.05)
    trainer = make_trainer(model=fresh_policy, beta=0.05, reward_funcs=random_rewards)
    assert list(fresh_policy.model.peft_config) == ["default", "ref"]
    trainer.train()
    first = next(entry for entry in trainer.state.log_history if "kl" in entry)
    # Not exactly 0: TRL rounds the trained adapter to bfloat16, and not its copy.
    assert first["kl"] == pytest.approx(0.0, abs=1e-3), "the reference is the policy before the step"


def plain_model() -> Any:
    """All of the tiny policy, to be trained in float32: no LoRA, no quantization."""
    return AutoModelForCausalLM.from_pretrained(TINY.checkpoint(), dtype=torch.float32)


def logged_kl(trainer: Any) -> list[float]:
    return [entry["kl"] for entry in trainer.state.log_history if "kl" in entry]


def test_without_a_lora_the_reference_is_the_model_as_it_was_loaded(make_trainer: Any, policy: Any) -> None:
    trainer = make_trainer(
        model=plain_model(),
        processing_class=policy.tokenizer,
        reward_funcs=random_rewards,
        beta=0.05,
        max_steps=2,
        learning_rate=1e-3,
    )
    trainer.train()
    kl = logged_kl(trainer)
    assert kl[0] == pytest.approx(0.0, abs=1e-5), "before the first step they are the same"
    assert kl[1] > 1e-3


def test_a_policy_whose_lora_is_zero_but_whose_norms_were_trained_is_its_own_reference(
    make_trainer: Any, policy: Any
) -> None:
    """PEFT's ``modules_to_save``: the base model, with the adapter switched off, would have the untrained ones."""
    lora = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["norm"], task_type="CAUSAL_LM")
    model = get_peft_model(plain_model(), lora)
    trained = [p for name, p in model.named_parameters() if p.requires_grad and "lora_" not in name]
    with torch.no_grad():
        for parameter in trained:
            parameter.mul_(1.3)
    trainer = make_trainer(
        model=model, processing_class=policy.tokenizer, reward_funcs=random_rewards, beta=0.05
    )
    assert list(model.peft_config) == ["default", "ref"]
    trainer.train()
    assert logged_kl(trainer) == pytest.approx([0.0], abs=1e-5)


# --- scores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_of_a_reward_model_that_is_not_finite_is_refused_by_its_name(
    score: float, make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, scores = make_trainer(), torch.tensor([[0.5], [1.0]])
    trainer.reward_funcs, trainer.reward_func_names = [torch.nn.Identity()], ["judge"]
    monkeypatch.setattr(trl.RLOOTrainer, "_calculate_rewards", lambda self, inputs: scores)
    assert trainer._calculate_rewards([]) is scores
    scores[1] = score
    with pytest.raises(RewardError, match="judge, 1 of 2 completions"):
        trainer._calculate_rewards([])


def test_none_for_a_sample_is_allowed(make_trainer: Any) -> None:
    trainer = make_trainer(reward_funcs=[gives(None), returns([0.0, 1.0, 0.0, 1.0])])
    trainer.train()
    assert trainer.state.global_step == 1


def test_a_reward_that_is_none_for_three_batches_in_a_row_is_reported_once(make_trainer: Any) -> None:
    def never(completions: Any, **kwargs: Any) -> Any:
        return [None] * len(completions)

    with pytest.warns(UserWarning, match="'never' has returned None for every sample of 3 batches") as caught:
        make_trainer(reward_funcs=[never, returns([0.0, 1.0, 0.0, 1.0])], max_steps=5).train()
    assert sum("returned None" in str(item.message) for item in caught) == 1


def test_completions_are_printed_once_each(make_trainer: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """TRL's table comes with every log: twice for two updates on a batch, and again with the summary of the run."""
    trainer = make_trainer(log_completions=True, max_steps=4, num_iterations=2)
    trainer.train()
    assert re.findall(r"─ Step (\d+) ─", capsys.readouterr().out) == ["1", "3"]
    assert trainer.log_completions
