"""Estimators and KL terms: by hand, against exact enumeration on a small softmax policy, and at the edges.

The enumerated policy chooses one of six arms.  A group is four draws, so there are 6^4 = 1296 groups, and an
expectation over them is a sum.
"""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rloo_kit import advantages
from rloo_kit.advantages import STD_FLOOR, dr_grpo, grpo, k1, k2, k3, reinforce, rloo
from rloo_kit.errors import ConfigError

NAN = math.nan
GROUP_ESTIMATORS = (rloo, grpo, dr_grpo)
ALL_ESTIMATORS = (*GROUP_ESTIMATORS, reinforce)
Function = Callable[[torch.Tensor], torch.Tensor]


def close(found: torch.Tensor, expected: object, **how: float) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), **how)


def apart(*distances: float) -> list[float]:
    """Return the distances in standard deviations, with TRL's floor."""
    std = math.sqrt(sum(distance**2 for distance in distances) / (len(distances) - 1))
    return [distance / (std + STD_FLOOR) for distance in distances]


#  why: estimator, rewards, advantages
BY_HAND: dict[str, tuple[Function, list[list[float]], list[list[float]]]] = {
    "rloo: the others' mean is 0 for the right one": (rloo, [[1, 0, 0]], [[1, -0.5, -0.5]]),
    "rloo: others' means 3, 11/3, 10/3 and 2": (rloo, [[3, 1, 2, 6]], [[0, -8 / 3, -4 / 3, 4]]),
    "rloo: an unscored one gets 0 and is in no baseline": (rloo, [[1, NAN, 0]], [[1, 0, -1]]),
    "rloo: one scored, none scored": (rloo, [[NAN, 5], [NAN, NAN]], [[0, 0], [0, 0]]),
    "dr_grpo: the group's mean is 3": (dr_grpo, [[3, 1, 2, 6]], [[0, -2, -1, 3]]),
    "grpo: in standard deviations": (grpo, [[3, 1, 2, 6]], [apart(0, -2, -1, 3)]),
    "grpo: an unscored one is in no spread": (grpo, [[1, NAN, 0]], [[(a := apart(0.5, -0.5))[0], 0, a[1]]]),
    "grpo: one scored, none scored": (grpo, [[NAN, 5], [NAN, NAN]], [[0, 0], [0, 0]]),
    "reinforce: the batch's mean is 1/2": (reinforce, [[1, 1], [0, 0]], [[0.5, 0.5], [-0.5, -0.5]]),
    "reinforce: the scored ones' mean is 2": (reinforce, [[1, NAN], [0, 5]], [[-1, 0], [-2, 3]]),
    "reinforce: none scored": (reinforce, [[NAN, NAN]], [[0, 0]]),
}


@pytest.mark.parametrize(("estimator", "rewards", "expected"), BY_HAND.values(), ids=BY_HAND)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_advantages_are_those_worked_out_by_hand(estimator, rewards, expected, dtype):
    found = estimator(torch.tensor(rewards, dtype=dtype))
    assert found.dtype == dtype
    close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimator", GROUP_ESTIMATORS)
def test_equal_rewards_give_exactly_0(estimator, dtype):
    # 0.1 and 1/3 have no exact sum: the plain mean of n equal values is often another value
    values = torch.tensor([0.1, 1 / 3, 0.7, 1e6 + 0.1, -1e-8, 123456.789], dtype=dtype)
    for size in range(2, 17):
        rewards = values.unsqueeze(1).repeat(1, size)
        assert (estimator(rewards) == 0).all()
        rewards[:, 0] = NAN
        assert (estimator(rewards) == 0).all()


@pytest.mark.parametrize("estimator", ALL_ESTIMATORS)
def test_a_small_spread_on_top_of_a_large_reward_survives_float32(estimator):
    # steps of 1/16 are the finest that float32 holds at 1e6
    small = torch.tensor([[0.0, 0.0625, 0.125, 0.4375], [0.25, 0.0, 0.0, 0.0]])
    close(estimator(small + 1e6), estimator(small), rtol=1e-5, atol=0)


numbers = st.one_of(st.just(NAN), st.floats(-1e6, 1e6, width=32))
groups = st.integers(2, 12).flatmap(
    lambda size: st.lists(st.lists(numbers, min_size=size, max_size=size), min_size=1, max_size=4)
)


@settings(deadline=None)
@given(groups)
def test_rloo_is_the_reward_less_the_others_mean_and_dr_grpo_times_n_over_n_minus_1(values):
    rewards = torch.tensor(values, dtype=torch.float64)
    scored = ~rewards.isnan()
    n = scored.sum(1, keepdim=True).double()
    others = (rewards.nansum(1, keepdim=True) - rewards) / (n - 1)
    expected = torch.where(scored & (n > 1), rewards - others, 0.0)
    scale = rewards.abs().nan_to_num().max().item()
    close(rloo(rewards), expected, rtol=0, atol=1e-12 * scale)
    smallest = torch.finfo(torch.float32).tiny  # below it float32 has fewer than six digits
    close(rloo(rewards.float()).double(), expected, rtol=0, atol=max(2e-6 * scale, smallest))
    close(rloo(rewards), (n / (n - 1).clamp(min=1)).clamp(min=1) * dr_grpo(rewards), rtol=1e-12, atol=0)


@settings(deadline=None)
@given(groups, st.sampled_from(ALL_ESTIMATORS))
def test_advantages_are_finite_sum_to_0_in_order_and_no_group_knows_of_another(values, estimator):
    rewards = torch.tensor(values, dtype=torch.float64)
    found = estimator(rewards)
    assert found.isfinite().all()
    rows = found.reshape(1, -1) if estimator is reinforce else found
    assert rows.sum(1).abs().max() <= 1e-9 * max(1.0, rewards.abs().nan_to_num().max().item())
    for reward_row, row in zip(rewards, found, strict=True):
        order = reward_row[~reward_row.isnan()].argsort()
        assert (row[~reward_row.isnan()][order].diff() >= 0).all()
    if estimator is not reinforce:
        close(found, torch.cat([estimator(row.unsqueeze(0)) for row in rewards]), rtol=0, atol=0)


REWARDS = torch.tensor([[0.3, 0.9, -0.2, 0.0], [1.0, 0.0, 0.5, 0.6]], dtype=torch.float64)


@given(groups)
@settings(deadline=None)
def test_normalizing_is_trls_and_leaves_a_group_without_a_signal_at_0(values):
    rewards = torch.tensor([*values, [0.1] * len(values[0])], dtype=torch.float32)
    scored, given_advantages = ~rewards.isnan(), rloo(rewards)
    found = advantages.normalized(given_advantages, scored)
    among = given_advantages[scored].double()
    expected = (given_advantages.double() - among.mean()) / (among.std() + 1e-4)
    close(found.double(), expected.masked_fill(~scored, 0.0), rtol=1e-4, atol=1e-5)
    assert found[-1].eq(0).all()
    for pair, some in (([3.0, 0.0], [True, False]), ([3.0, 0.0], [False, False]), ([2.0, 2.0], [True, True])):
        assert advantages.normalized(torch.tensor([pair]), torch.tensor([some])).eq(0).all(), "no spread"


def test_the_total_reward_is_a_weighted_sum_over_the_rewards_that_apply():
    scores, weights = torch.tensor([[1.0, 2.0], [NAN, 2.0], [NAN, NAN]]), torch.tensor([1.0, -3.0])
    close(advantages.total_rewards(scores, weights, None), [-5.0, -6.0, NAN], equal_nan=True)
    close(advantages.total_rewards(scores[:2], weights, (-5.5, 1.0)), [-5.0, -5.5])


def test_a_group_is_dead_where_its_scored_rewards_are_equal_or_fewer_than_two():
    rewards = torch.tensor([[0.1, 0.1, NAN], [0.1, 0.2, NAN], [1.0, NAN, NAN], [NAN, NAN, NAN]])
    assert advantages.zero_variance_groups(rewards).tolist() == [True, False, True, True]


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
    monkeypatch.setattr(advantages, "ESTIMATORS", dict(advantages.ESTIMATORS))


def maximum(rewards: torch.Tensor) -> torch.Tensor:
    return rewards - rewards.amax(1, keepdim=True)


def test_an_estimator_is_found_by_its_name_registered_once_and_numbered_where_the_name_is_taken():
    for function in ALL_ESTIMATORS:
        close(advantages.estimated(REWARDS, function.__name__), function(REWARDS), rtol=0, atol=0)
    assert [advantages.register(maximum) for _ in range(2)] == ["maximum"] * 2
    names = [advantages.register(function, "rloo") for function in (maximum, dr_grpo, maximum)]
    assert names == ["rloo_2", "rloo_3", "rloo_2"]


INVALID: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "one per group": (lambda rewards: rewards.mean(1), r"shape \(2,\) for rewards of shape \(2, 4\)"),
    "an array": (lambda rewards: rewards.numpy(), "a ndarray for rewards of shape"),
    "a number": (lambda rewards: rewards.sum().item(), "a float for rewards of shape"),
    "division by 0": (lambda rewards: rewards / 0.0 + 1.0, "not finite"),
    "NaN where scored": (lambda rewards: rewards - rewards.mean() * torch.nan, "not finite"),
}


@pytest.mark.parametrize(("function", "says"), INVALID.values(), ids=INVALID)
def test_an_estimator_that_returns_something_else_is_named(function, says):
    with pytest.raises(ConfigError, match=f"{says}(.|\n)*'mine'"):
        advantages.register(function, "mine")


def test_an_estimators_advantages_are_detached_cast_and_0_where_unscored():
    def careless(rewards: torch.Tensor) -> torch.Tensor:
        return (rewards - rewards.nanmean()).double().requires_grad_()

    found = advantages.estimated(torch.tensor([[1.0, NAN, 0.0]]), advantages.register(careless))
    assert (found.dtype, found.requires_grad) == (torch.float32, False)
    close(found, [[0.5, 0.0, -0.5]])


@pytest.mark.parametrize(
    ("log_ratio", "expected"),
    [
        (0.0, (0.0, 0.0, 0.0)),
        (math.log(2), (math.log(2), math.log(2) ** 2 / 2, math.log(2) - 0.5)),
        (-math.log(2), (-math.log(2), math.log(2) ** 2 / 2, 1 - math.log(2))),
        (10.0, (10.0, 50.0, 9 + math.exp(-10))),
    ],
)
def test_the_kl_terms_are_those_worked_out_by_hand(log_ratio, expected):
    for name, value in zip(("k1", "k2", "k3"), expected, strict=True):
        term = advantages.KL_ESTIMATORS[name](torch.tensor([log_ratio], dtype=torch.float64))
        close(term, [value], rtol=1e-12, atol=1e-12)
    for small in (1e-4, -1e-4, 1e-6):  # exp(-x) - 1 + x would cancel to noise in float32
        assert k3(torch.tensor([small])).item() == pytest.approx(small**2 / 2, abs=6e-8 * abs(small))


ARMS, K = 6, 4
LOGITS = torch.tensor([0.9, -0.4, 0.1, -1.2, 0.5, -0.1], dtype=torch.float64)
PAYS = torch.tensor([0.1, 0.9, 0.0, 1.0, 0.2, 0.4], dtype=torch.float64)
POLICY = LOGITS.softmax(0)
TRUE_GRADIENT = POLICY * (PAYS - POLICY @ PAYS)  # of the expected reward with respect to the logits

EVERY_GROUP = torch.cartesian_prod(*[torch.arange(ARMS)] * K)
CHANCES = POLICY[EVERY_GROUP].prod(1)


def expected_gradient(estimator: Function, pays: torch.Tensor = PAYS) -> torch.Tensor:
    """Return the mean of A_i d log p(a_i) / d logits over all groups and their draws."""
    scores = torch.eye(ARMS, dtype=torch.float64)[EVERY_GROUP] - POLICY
    return torch.einsum("g,gk,gka->a", CHANCES, estimator(pays[EVERY_GROUP]), scores) / K


def test_the_expected_gradient_is_the_true_one_shrunk_where_the_mean_contains_the_reward():
    close(expected_gradient(rloo), TRUE_GRADIENT, rtol=0, atol=1e-12)
    close(expected_gradient(dr_grpo), TRUE_GRADIENT * (K - 1) / K, rtol=0, atol=1e-12)
    assert torch.cosine_similarity(expected_gradient(grpo), TRUE_GRADIENT, dim=0) < 0.999, "points elsewhere"


REFERENCE = torch.tensor([0.0, 0.3, -0.5, 0.4, 0.2, -0.8], dtype=torch.float64).softmax(0)


def true_kl(logits: torch.Tensor) -> torch.Tensor:
    log_policy = logits.log_softmax(0)
    return (log_policy.exp() * (log_policy - REFERENCE.log())).sum()


def gradient_of(function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    logits = LOGITS.clone().requires_grad_()
    return torch.autograd.grad(function(logits), logits)[0]


def test_k1_and_k3_are_unbiased_k2_is_not_and_k3_varies_less_than_k1():
    log_ratio, truth = POLICY.log() - REFERENCE.log(), true_kl(LOGITS)
    close(POLICY @ k1(log_ratio), truth, rtol=1e-12, atol=0)
    close(POLICY @ k3(log_ratio), truth, rtol=1e-12, atol=0)
    assert abs((POLICY @ k2(log_ratio)) / truth - 1) > 0.1
    assert POLICY @ k3(log_ratio).square() < POLICY @ k1(log_ratio).square()


def test_the_expected_gradient_of_a_kl_term_inside_a_loss_and_paid_as_a_reward():
    """Inside a loss, arms are drawn from the policy, but the draw is not differentiated."""

    def in_a_loss(estimate: Function) -> torch.Tensor:
        return gradient_of(lambda logits: POLICY @ estimate(logits.log_softmax(0) - REFERENCE.log()))

    def reverse_kl(logits: torch.Tensor) -> torch.Tensor:
        return (REFERENCE * (REFERENCE.log() - logits.log_softmax(0))).sum()

    exact = {"rtol": 1e-12, "atol": 1e-12}
    close(in_a_loss(k1), torch.zeros(ARMS), **exact)
    close(in_a_loss(k2), gradient_of(true_kl), **exact)
    close(in_a_loss(k3), gradient_of(reverse_kl), **exact)
    close(expected_gradient(rloo, -k1(POLICY.log() - REFERENCE.log())), -gradient_of(true_kl), **exact)
