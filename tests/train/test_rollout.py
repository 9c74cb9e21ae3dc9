"""A rollout: padding, references, and checked scores."""

import os
from pathlib import Path

import pytest
import torch
import trl

from rloo_kit.errors import RewardError
from tests.train.weights import leave_the_reference


def test_left_padding_is_kept_from_attention_in_training_mode(make_trainer, policy):
    """On a CPU this is transformers' forward; unsloth's on a GPU needs the flag that is asserted here."""
    trainer, pad_id, answer = make_trainer(), policy.tokenizer.pad_token_id, [17, 151645]
    asked = ("What is 1 + 2?", "What is 31 + 42 + 5?")
    rows = policy.tokenize([[{"role": "user", "content": text}] for text in asked])
    policy.model.train()

    def log_probs(rows: list[list[int]]) -> torch.Tensor:
        width = max(map(len, rows))
        ids = torch.tensor([[pad_id] * (width - len(row)) + row + answer for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * (len(row) + 2) for row in rows])
        return trainer._get_per_token_logps_and_entropies(policy.model, ids, mask, 2)[0]

    (backbone,) = (module for module in policy.model.modules() if hasattr(module, "embed_tokens"))
    together = log_probs(rows)
    assert backbone._unsloth_keep_padding_mask
    for index, row in enumerate(rows):
        torch.testing.assert_close(together[index], log_probs([row])[0], atol=1e-4, rtol=1e-4)
        assert not backbone._unsloth_keep_padding_mask, "causal attention alone says the same, faster"


def test_a_trained_policy_is_its_own_reference_and_no_copy_is_kept_where_the_base_is_it(fresh_policy, make_trainer):
    for beta in (0.05, 0.0):
        make_trainer(model=fresh_policy, beta=beta)
        assert list(fresh_policy.model.peft_config) == ["default"]
    leave_the_reference(fresh_policy.model)
    make_trainer(model=fresh_policy, beta=0.05)
    assert list(fresh_policy.model.peft_config) == ["default", "ref"], "its weights: tests/policy/test_load.py"


def test_what_a_reward_seeds_or_switches_is_put_back_also_where_it_fails(make_trainer, monkeypatch):
    def meddles(*given: object) -> None:
        torch.manual_seed(42)
        trainer.model.eval()
        torch.set_grad_enabled(False)
        os.chdir("/")
        raise KeyError

    trainer = make_trainer()
    trainer.model.train()
    random_state, place = torch.get_rng_state(), Path.cwd()
    monkeypatch.setattr(trl.RLOOTrainer, "_calculate_rewards", meddles)
    with pytest.raises(KeyError):
        trainer._calculate_rewards([])
    assert torch.equal(torch.get_rng_state(), random_state)
    assert (trainer.model.training, torch.is_grad_enabled(), Path.cwd()) == (True, True, place)


@pytest.mark.parametrize("score", [torch.nan, torch.inf])
def test_a_reward_models_score_that_is_not_finite_is_named(score, make_trainer, monkeypatch):
    """TRL would take NaN to mean "does not apply"; the scores of functions are checked where they are called."""
    trainer = make_trainer()
    trainer.reward_funcs, trainer.reward_func_names = [torch.nn.Linear(1, 1)], ["judge"]
    scores = torch.tensor([[0.5], [score]])
    monkeypatch.setattr(trl.RLOOTrainer, "_calculate_rewards", lambda *given: scores)
    with pytest.raises(RewardError, match=r"not finite(.|\n)*judge, 1 of 2 completions"):
        trainer._calculate_rewards([])
