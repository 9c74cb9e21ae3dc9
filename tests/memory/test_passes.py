"""Which forward passes a configuration takes, why, and the defaults that decide about them."""

import dataclasses
from typing import Any

import pytest

from rloo_kit.memory.passes import DEFAULTS, Passes


def passes(**changed: Any) -> Passes:
    """One pass and the reference's: each update takes two whole generation batches, each used once."""
    groups = {"num_generations": 4, "micro_rows": 8, "accumulation": 4, "steps_per_generation": 2}
    return Passes.of(**{"beta": 0.05, "iterations": 1, **groups, **changed})


@pytest.mark.parametrize(
    ("changed", "single", "why"),
    [
        ({}, True, "the KL term of whole groups comes with the loss's own pass"),
        ({"steps_per_generation": 1}, True, "an update is four generation batches"),
        ({"micro_rows": 4}, True, "a micro-batch is exactly one group"),
        ({"micro_rows": 2, "beta": 0.0}, True, "torn groups matter only where advantages wait for a KL term"),
        ({"micro_rows": 2, "kl_placement": "loss"}, True, "which they do not where it is in the loss"),
        ({"groupwise": False, "normalized": True, "beta": 0.0}, True, "nor without one"),
        ({"single_pass": False}, False, "not asked for"),
        ({"iterations": 2}, False, "the policy moves before the second use"),
        ({"accumulation": 2, "steps_per_generation": 4}, False, "the policy moves within a generation batch"),
        ({"accumulation": 3}, False, "an update takes one and a half generation batches"),
        ({"iterations": 2, "micro_rows": 2}, False, "the first reason is the one that counts"),
    ],
)
def test_one_pass_suffices_where_a_loss_is_on_policy(changed: dict[str, Any], single: bool, why: str) -> None:
    found = passes(**changed)
    assert (found.single, found.two_because) == (single, ""), why


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({"micro_rows": 2}, "a micro-batch of 2 does not hold whole groups of 4: a multiple of 4 would"),
        ({"groupwise": False}, "the advantage estimator looks at more than one group"),
        ({"normalized": True}, "normalize_advantages looks at the whole generation batch"),
    ],
)
def test_a_second_pass_that_advantages_need_is_explained(changed: dict[str, Any], because: str) -> None:
    found = passes(**changed)
    assert (found.single, found.two_because) == (False, because)


def test_advantages_wait_for_a_kl_term_in_the_reward_that_only_the_losss_pass_gives() -> None:
    def found(**changed: Any) -> tuple[bool, bool, bool]:
        one = passes(**changed)
        return one.reference, one.advantages_wait, one.before_update

    assert found() == (True, True, True)
    assert found(kl_placement="loss") == found(micro_rows=2) == (True, False, True)
    assert found(beta=0.0) == (False, False, False)
    assert found(beta=0.0, single_pass=False) == (False, False, True)
    assert passes(kl_placement="loss").kl_in_loss


def test_the_defaults_are_those_of_the_configuration() -> None:
    import rloo_kit

    written = rloo_kit.RLOOConfig()
    for name, value in dataclasses.asdict(DEFAULTS).items():
        assert getattr(written, name) == value, name
