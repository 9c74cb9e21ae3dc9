"""GRPO's settings in RLOO's terms: each has a row, and the update is that of TRL's GRPOTrainer."""

import dataclasses
import warnings
from typing import Any

import pytest
import trl

import rloo_kit
from rloo_kit.errors import ArgumentError, ConfigError
from rloo_kit.train import renamed_args
from rloo_kit.train.config import OWN
from tests.conftest import random_rewards
from tests.train.test_update import assert_same_gradients, one_run

PLAIN: dict[str, Any] = {"output_dir": "out/run", "bf16": False}
OURS = {item.name for item in dataclasses.fields(trl.RLOOConfig)} | set(OWN)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"kl_coef": 0.1}, "beta", 0.1),
        ({"evaluation_strategy": "no"}, "eval_strategy", "no"),
        ({"loss_type": "grpo"}, "loss_aggregation", "seq-mean-token-mean"),
        ({"scale_rewards": True, "beta": 0.0}, "advantage_estimator", "grpo"),
        ({"scale_rewards": False}, "advantage_estimator", "dr_grpo"),
    ],
)
def test_another_recipes_name_is_taken_with_one_warning_that_gives_ours(given, name, value):
    theirs = next(iter(given))
    with pytest.warns(FutureWarning, match=f"{theirs} is now {name}|{theirs}=.* is {name}={value!r}") as caught:
        settings = rloo_kit.RLOOConfig(**given)
    assert getattr(settings, name) == value
    assert [one.filename for one in caught] == [__file__]


def test_old_names_of_the_trainer_are_taken_too(policy, task):
    old = {"policy": policy.model, "tokenizer": policy.tokenizer, "config": rloo_kit.RLOOConfig(max_steps=1)}
    with pytest.warns(FutureWarning, match="policy is now model; tokenizer is now") as caught:
        trainer = rloo_kit.RLOOTrainer(**old, reward_model=random_rewards, train_dataset=task.train)
    assert trainer.model is policy.model
    assert caught[0].filename == __file__


def test_every_old_name_leads_to_a_name_that_exists():
    assert set(renamed_args.CONFIG_OLD.values()) <= OURS
    assert not {*renamed_args.CONFIG_GONE, *renamed_args.CONFIG_OLD} & OURS


def test_a_name_without_an_equal_says_what_to_do():
    for name, todo in renamed_args.CONFIG_GONE.items():
        with pytest.raises(ArgumentError, match=name) as caught:
            rloo_kit.RLOOConfig(**{name: object()})
        assert todo in str(caught.value)
        assert len(str(caught.value).splitlines()) == 3
    assert issubclass(ArgumentError, TypeError), "code that catches TRL's TypeError goes on working"


def test_one_setting_by_two_names_is_refused():
    for given in ({"kl_coef": 0.1, "beta": 0.2}, {"beta": 0.2, "kl_coef": 0.1}):
        with pytest.raises(ArgumentError, match="beta is given twice"):
            rloo_kit.RLOOConfig(**given)
    for ours in ({"loss_aggregation": "token-mean"}, {"importance_sampling_level": "token"}):
        with pytest.raises(ArgumentError, match=f"{next(iter(ours))} is given twice"):
            rloo_kit.RLOOConfig(loss_type="luspo", **ours)


@pytest.mark.parametrize(
    ("given", "todo"),
    [
        ({"loss_type": "cispo"}, "loss_aggregation='token-mean'"),
        ({"scale_rewards": "batch"}, "normalize_advantages=True"),
        ({"scale_reward": "group"}, "did you mean scale_rewards"),
        ({"entropy_coef": 0.1}, "is GRPO's, and has no counterpart here[\\s\\S]*remove it, since RLOO"),
        ({"learnin_rate": 1e-5}, "did you mean learning_rate"),
    ],
)
def test_a_value_without_an_equal_and_a_typo_say_what_to_do(given, todo):
    with pytest.raises(ArgumentError, match=todo):
        rloo_kit.RLOOConfig(**given)


def test_the_update_of_a_plain_grpo_config_is_carried_over_and_the_rest_is_the_kits():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN))
    expected = {"advantage_estimator": "grpo", "loss_aggregation": "token-mean"}
    expected |= {"importance_sampling_level": "token", "kl_placement": "loss", "kl_estimator": "k3"}
    expected |= {"use_bias_correction_kl": True, "beta": 0.0, "num_generations": 8, "learning_rate": 1e-6}
    expected |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    expected |= {"output_dir": "out/run", "save_steps": 25, "logging_steps": 1}
    assert {name: getattr(ours, name) for name in expected} == expected
    changed = {"num_generations": 4, "steps_per_generation": 1, "save_steps": 5, "max_steps": 3, "beta": 0.04}
    changed |= {"epsilon_high": 0.28, "lr_scheduler_type": "cosine", "reward_weights": [1.0, 0.5]}
    other = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN, **changed))
    assert {name: getattr(other, name) for name in changed} == changed


def test_from_grpo_takes_changes_by_grpos_names_too_in_place_of_what_has_no_equal():
    refused = trl.GRPOConfig(**PLAIN, top_entropy_quantile=0.2, loss_type="cispo")
    with pytest.raises(ArgumentError, match=r"top_entropy_quantile|loss_type='cispo'"):
        rloo_kit.RLOOConfig.from_grpo(refused)
    ours = rloo_kit.RLOOConfig.from_grpo(refused, top_entropy_quantile=1.0, loss_type="dapo")
    assert ours.loss_aggregation == "token-mean"
    ours = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN), advantage_estimator="rloo")
    assert (ours.advantage_estimator, ours.loss_aggregation) == ("rloo", "token-mean")
    with pytest.raises(ConfigError, match="takes TRL's GRPOConfig"):
        rloo_kit.RLOOConfig.from_grpo(ours)


KL = {"beta": 0.04}
CASES: list[dict[str, Any]] = [
    *({"loss_type": one, **KL} for one in ("bnpo", "dr_grpo", "dapo")),
    {"loss_type": "luspo", "importance_sampling_level": "sequence", "gradient_accumulation_steps": 2},
    {"loss_type": "grpo", "importance_sampling_level": "sequence", **KL},
    {"loss_type": "grpo", "scale_rewards": False, "use_bias_correction_kl": False, **KL},
]
TWICE: dict[str, Any] = {"num_iterations": 2, "max_steps": 2, "gradient_accumulation_steps": 1}
TWICE |= {"epsilon": 0.01, "epsilon_high": 0.02}
"""Two updates per batch, so that the second is off-policy and clipped."""


@pytest.mark.filterwarnings("ignore:.*were cut:UserWarning")
@pytest.mark.parametrize("settings", CASES, ids=lambda case: ", ".join(map(str, case.values())))
def test_a_run_of_from_grpo_makes_the_updates_of_trls_grpo_trainer(settings, loaded_once, task, tmp_path):
    settings = TWICE | settings
    _, gradients = one_run(False, loaded_once, task, tmp_path / "stock", grpo=True, **settings)
    _, ours = one_run(True, loaded_once, task, tmp_path, grpo=True, **settings)
    assert_same_gradients(gradients, ours)
