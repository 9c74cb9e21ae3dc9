"""The policy-gradient loss: weights, clipping, masks; tests/train/test_update.py compares it with the formula."""

import math

import pytest
import torch

from rloo_kit.train.losses import policy_loss, row_weights

LENGTHS = (5, 2, 7, 1)
LONGEST = 9
CLIP = (0.8, 1.2)
LEVELS = ("completion", "token", "sequence")


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("seq-mean-token-sum", [1 / 4] * 4),
        ("seq-mean-token-mean", [1 / 20, 1 / 8, 1 / 28, 1 / 4]),
        ("token-mean", [1 / 15] * 4),
        ("seq-mean-token-sum-norm", [1 / 36] * 4),
    ],
)
def test_the_weights_are_those_worked_out_by_hand_and_finite_without_a_scored_token(aggregation, expected):
    found = row_weights(aggregation, torch.tensor(LENGTHS), 4, 15, LONGEST)
    torch.testing.assert_close(found, torch.tensor(expected))
    assert found.dtype == torch.float32
    assert row_weights(aggregation, torch.tensor([0, 0]), 2, 0, LONGEST).isfinite().all()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # inside the range: the plain surrogate
        (1.0, 1.0, -1.0, -1.0),
        (1.1, 1.0, -1.1, -1.1),
        (0.9, -1.0, 0.9, 0.9),
        # a good completion that became likely enough is pushed no further
        (1.5, 1.0, -1.2, 0.0),
        # a bad completion that became unlikely enough is pushed no further
        (0.5, -1.0, 0.8, 0.0),
        # a good completion that became unlikely and a bad one that became likely are pushed back
        (0.5, 1.0, -0.5, -0.5),
        (1.5, -1.0, 1.5, 1.5),
    ],
)
@pytest.mark.parametrize("level", LEVELS)
def test_the_ratio_is_clipped_on_the_side_where_the_step_has_gone_far_enough(level, ratio, advantage, loss, slope):
    logps = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    old, ones = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    advantages = torch.tensor([advantage], dtype=torch.float64)
    found, _ = policy_loss(logps, old, advantages, ones, level, CLIP)
    assert found.item() == pytest.approx(loss)
    found.sum().backward()
    # the ratio's derivative with respect to the log-probability is the ratio
    assert logps.grad is not None
    assert logps.grad.item() == pytest.approx(slope)


def test_one_ratio_for_the_sequence_is_clipped_where_no_token_is():
    # five tokens, each 10 % likelier: each within the range, but 61 % together
    logps, old, mask = torch.full((1, 5), math.log(1.1)), torch.zeros(1, 5), torch.ones(1, 5)
    for level, loss in (("completion", -1.2), ("token", -5.5), ("sequence", -5.5)):
        assert policy_loss(logps, old, torch.ones(1), mask, level, CLIP)[0].item() == pytest.approx(loss)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("junk", [-1e4, -math.inf, math.nan])
def test_what_stands_under_the_mask_changes_neither_loss_nor_gradient(level, junk):
    mask = torch.tensor([[1.0] * n + [0.0] * (max(LENGTHS) - n) for n in LENGTHS])
    sampled, now = -3 * torch.rand(2, *mask.shape)
    advantages = torch.tensor([1.5, -0.5, 0.0, -1.0])
    found = []
    for filling in (0.0, junk):
        old, logps = (one.masked_fill(mask == 0, filling) for one in (sampled, now))
        loss, _ = policy_loss(logps.requires_grad_(), old, advantages, mask, level, CLIP)
        found.append((loss.detach(), *torch.autograd.grad(loss.sum(), logps)))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
