"""What a step logs: means over tokens, rewards, and clipped ratios."""

from typing import Any

import pytest
import torch

from rloo_kit.train import losses
from tests.conftest import as_loaded, random_rewards

EPSILON, EPSILON_HIGH = 0.2, 0.28


@pytest.mark.parametrize(
    ("ratio", "expected", "why"),
    [
        ([0.7, 1.5, 1.5, 1.5], [1, 2, 4], "a bad one that became likely is pushed back"),
        ([0.7, 1.2, 0.9, 0.7], [2, 0, 4], "below 1 + epsilon_high nothing is clipped"),
        ([[0.7, 0.7], [1.5, 0.7], [0.7, 1.5], [0.7, 0.7]], [4, 1, 7], "of the seven tokens that count"),
    ],
)
def test_what_is_clipped_is_counted_where_the_advantage_would_push_on(ratio, expected, why):
    taken, mask = torch.tensor([-1.0, 1.0, 1.0, -1.0]), torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1]])
    counts = losses.clip_counts(torch.tensor(ratio), taken, mask, (1 - EPSILON, 1 + EPSILON_HIGH))
    assert counts.tolist() == expected, why


def test_the_logged_entropy_is_the_mean_over_sampled_tokens_and_counts_no_padding(make_trainer, loaded_once):
    """Rows of unequal lengths in two micro-batches against each row by itself; health rules read this entropy."""
    sampled: list[tuple[Any, list[int]]] = []

    def keeps(prompts: Any, completion_ids: Any, **kwargs: Any) -> list[float]:
        sampled.extend(zip(prompts, completion_ids, strict=True))
        return random_rewards(completion_ids=completion_ids, **kwargs)

    settings = {"gradient_accumulation_steps": 2, "max_completion_length": 40, "skip_zero_variance_groups": False}
    trainer = make_trainer(keeps, **settings, temperature=1.2, logging_steps=1)
    trainer.train()
    policy, entropies = as_loaded(loaded_once), []  # with the weights that sampled
    for prompt, ids in sampled:
        (asked,) = policy.tokenize([prompt])
        with torch.no_grad():
            logits = policy.model(torch.tensor([[*asked, *ids]])).logits[0, len(asked) - 1 : -1].float()
        log_probs = (logits / 1.2).log_softmax(-1)
        entropies += (-(log_probs.exp() * log_probs).sum(-1)).tolist()
    assert len({len(ids) for _, ids in sampled}) > 1
    logged = [entry["entropy"] for entry in trainer.state.log_history if "entropy" in entry]
    assert logged == [pytest.approx(sum(entropies) / len(entropies), rel=2e-3)]
