"""What of a configuration decides about memory, and which forward passes it takes."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.memory.plan_settings import Configured, Passes, Settings, settings_of


def test_the_defaults_are_those_of_the_configuration() -> None:
    written = rloo_kit.RLOOConfig()
    for name, value in dataclasses.asdict(Configured()).items():
        assert getattr(written, name) == value, name
    assert settings_of(None) == settings_of(written) == Settings()


def test_the_configuration_decides() -> None:
    batch = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8, "steps_per_generation": 4}
    asked = {**batch, "num_generations": 4, "max_completion_length": 300, "beta": 0.0}
    found = settings_of(rloo_kit.RLOOConfig(**asked, top_k=20), prompt_tokens=100)
    assert found == Settings(**asked, prompt_tokens=100, processors=("top_k",))
    assert (found.batch_rows, found.update_rows) == (8, 16)
    assert settings_of(SimpleNamespace(generation_kwargs={"top_k": 5})).processors == ("top_k",)


@pytest.mark.parametrize("name", ["max_completion_length", "generation_rows"])
def test_a_length_below_one_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be at least 1"):
        rloo_kit.plan("qwen3-4b", SimpleNamespace(**{name: 0}), "8GB")


def test_a_plain_configuration_of_trl_takes_every_pass() -> None:
    import trl

    assert settings_of(trl.RLOOConfig(output_dir="out")).single_pass is False


@pytest.mark.parametrize(("longest", "prompt"), [(1024, 124), (32768, 512), (800, 1)])
def test_a_prompt_of_unknown_length_has_the_room_that_a_completion_leaves(longest: int, prompt: int) -> None:
    assert settings_of(SimpleNamespace(max_completion_length=900), None, longest).prompt_tokens == prompt


MICRO, STEPS = "per_device_train_batch_size", "steps_per_generation"
ACCUMULATED = "gradient_accumulation_steps"


def passes(**changed: Any) -> Passes:
    """One pass and the reference's: each update takes two whole generation batches, each used once."""
    batch = {MICRO: 8, ACCUMULATED: 4, STEPS: 2}
    return Settings(**{"num_generations": 4, "beta": 0.05, **batch, **changed}).passes


@pytest.mark.parametrize(
    ("changed", "single", "why"),
    [
        ({}, True, "the KL term of whole groups comes with the loss's own pass"),
        ({STEPS: 1}, True, "an update is four generation batches"),
        ({MICRO: 4}, True, "a micro-batch is exactly one group"),
        ({MICRO: 2, "beta": 0.0}, True, "torn groups matter only where advantages wait for a KL term"),
        ({MICRO: 2, "kl_placement": "loss"}, True, "which they do not where it is in the loss"),
        ({"groupwise": False, "normalize_advantages": True, "beta": 0.0}, True, "nor without one"),
        ({"single_pass": False}, False, "not asked for"),
        ({"num_iterations": 2}, False, "the policy moves before the second use"),
        ({ACCUMULATED: 2, STEPS: 4}, False, "the policy moves within a generation batch"),
        ({ACCUMULATED: 3}, False, "an update takes one and a half generation batches"),
    ],
)
def test_one_pass_suffices_where_a_loss_is_on_policy(changed: dict[str, Any], single: bool, why: str) -> None:
    found = passes(**changed)
    assert (found.single, found.two_because) == (single, ""), why


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({MICRO: 2}, "a micro-batch of 2 does not hold whole groups of 4: a multiple of 4 would"),
        ({"groupwise": False}, "the advantage estimator looks at more than one group"),
        ({"normalize_advantages": True}, "normalize_advantages looks at the whole generation batch"),
    ],
)
def test_a_second_pass_that_advantages_need_is_explained(changed: dict[str, Any], because: str) -> None:
    found = passes(**changed)
    assert (found.single, found.two_because) == (False, because)


def test_advantages_wait_for_a_kl_term_in_the_reward_that_only_the_losss_pass_gives() -> None:
    def found(**changed: Any) -> tuple[bool, bool, bool]:
        asked = passes(**changed)
        return asked.reference, asked.advantages_wait, asked.before_update

    assert found() == (True, True, True)
    assert found(kl_placement="loss") == found(per_device_train_batch_size=2) == (True, False, True)
    assert found(beta=0.0) == (False, False, False)
    assert found(beta=0.0, single_pass=False) == (False, False, True)
    assert passes(kl_placement="loss").kl_in_loss


def test_an_estimator_that_looks_at_other_groups_takes_a_second_pass(tmp_path: Any) -> None:
    batch: Any = {"num_generations": 4, MICRO: 4, "beta": 0.05}
    for estimator, groupwise in (("rloo", True), ("reinforce", False)):
        found = settings_of(rloo_kit.RLOOConfig(str(tmp_path), **batch, advantage_estimator=estimator))
        assert (found.groupwise, found.passes.single) == (groupwise, groupwise)
