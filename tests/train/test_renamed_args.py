"""GRPO's settings in RLOO's terms: each has a row, and the update is that of TRL's GRPOTrainer."""

import dataclasses
import types
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from accelerate import Accelerator

import rloo_kit
from rloo_kit.advantages import ESTIMATORS
from rloo_kit.errors import ArgumentError, ConfigError
from rloo_kit.train import renamed_args
from rloo_kit.train.config import OWN
from tests.train.test_update import (
    BETA,
    EPSILON,
    EPSILON_HIGH,
    GROUPS,
    LIMIT,
    TOKENS,
    K,
    Played,
    mean_loss,
    on_paper,
    one_run,
    play,
    written,
)

__all__ = ["on_paper", "play", "written"]  # fixtures

PLAIN: dict[str, Any] = {"output_dir": "out/run", "bf16": False}
OURS = {item.name for item in dataclasses.fields(trl.RLOOConfig)} | set(OWN)


# --- older releases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "value"), [("kl_coef", "beta", 0.1), ("evaluation_strategy", "eval_strategy", "no")]
)
def test_an_old_name_is_taken_with_one_warning_that_gives_the_new_one(old: str, new: str, value: Any) -> None:
    with pytest.warns(FutureWarning, match=f"{old} is now {new}") as caught:
        settings = rloo_kit.RLOOConfig(**{old: value})
    assert getattr(settings, new) == value
    assert [one.filename for one in caught] == [__file__]


def test_old_names_of_the_trainer_are_taken_too(policy: Any, task: Any) -> None:
    with pytest.warns(FutureWarning, match="policy is now model; tokenizer is now") as caught:
        trainer = rloo_kit.RLOOTrainer(
            policy=policy.model,
            tokenizer=policy.tokenizer,
            reward_model=lambda completions, **kwargs: [0.0] * len(completions),
            config=rloo_kit.RLOOConfig(max_steps=1),
            train_dataset=task.train,
        )
    assert trainer.model is policy.model
    assert caught[0].filename == __file__


def test_every_old_name_leads_to_a_name_that_exists() -> None:
    assert set(renamed_args.CONFIG_OLD.values()) <= OURS
    assert not {*renamed_args.CONFIG_GONE, *renamed_args.CONFIG_OLD} & OURS


def test_a_name_without_an_equal_says_what_to_do() -> None:
    for name, todo in renamed_args.CONFIG_GONE.items():
        with pytest.raises(ArgumentError, match=name) as caught:
            rloo_kit.RLOOConfig(**{name: object()})
        assert todo in str(caught.value)
        assert len(str(caught.value).splitlines()) == 3
    assert issubclass(ArgumentError, TypeError), "code that catches TRL's TypeError goes on working"


def test_one_setting_by_two_names_is_refused() -> None:
    for given in ({"kl_coef": 0.1, "beta": 0.2}, {"beta": 0.2, "kl_coef": 0.1}):
        with pytest.raises(ArgumentError, match="beta is given twice"):
            rloo_kit.RLOOConfig(**given)
    for ours in ({"loss_aggregation": "token-mean"}, {"importance_sampling_level": "token"}):
        with pytest.raises(ArgumentError, match=f"{next(iter(ours))} is given twice"):
            rloo_kit.RLOOConfig(loss_type="luspo", **ours)


# --- GRPO's -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"loss_type": "grpo"}, {"loss_aggregation": "seq-mean-token-mean"}),
        ({"scale_rewards": True}, {"advantage_estimator": "grpo"}),
        ({"scale_rewards": "none"}, {"advantage_estimator": "dr_grpo"}),
    ],
)
def test_a_name_of_grpos_is_mapped_with_one_warning_that_names_ours(
    given: dict[str, Any], ours: dict[str, Any]
) -> None:
    ((name, value),) = ours.items()
    with pytest.warns(FutureWarning, match=f"{next(iter(given))}=.* is {name}={value!r}") as caught:
        settings = rloo_kit.RLOOConfig(beta=0.0, **given)
    assert getattr(settings, name) == value
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize(
    ("given", "todo"),
    [
        ({"loss_type": "cispo"}, "loss_aggregation='token-mean'"),
        ({"scale_rewards": "batch"}, "normalize_advantages=True"),
        ({"scale_reward": "group"}, "did you mean scale_rewards"),
        ({"entropy_coef": 0.1}, "GRPO's, without an equal here[\\s\\S]*remove it: RLOO has no such part"),
        ({"learnin_rate": 1e-5}, "did you mean learning_rate"),
    ],
)
def test_a_value_without_an_equal_and_a_typo_say_what_to_do(given: dict[str, Any], todo: str) -> None:
    with pytest.raises(ArgumentError, match=todo):
        rloo_kit.RLOOConfig(**given)


# --- from_grpo --------------------------------------------------------------------------------------------


def test_the_update_of_a_plain_grpo_config_is_carried_over_and_the_rest_is_the_kits() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN))
    expected = {
        **{"advantage_estimator": "grpo", "loss_aggregation": "token-mean"},
        "importance_sampling_level": "token",
        **{"kl_placement": "loss", "kl_estimator": "k3", "use_bias_correction_kl": True, "beta": 0.0},
        **{"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
        **{"learning_rate": 1e-6, "output_dir": "out/run", "save_steps": 25, "logging_steps": 1},
    }
    assert {name: getattr(ours, name) for name in expected} == expected
    changed: dict[str, Any] = {
        "num_generations": 4,
        "steps_per_generation": 1,
        "save_steps": 5,
        "max_steps": 3,
    }
    changed |= {
        "epsilon_high": 0.28,
        "beta": 0.04,
        "lr_scheduler_type": "cosine",
        "reward_weights": [1.0, 0.5],
    }
    other = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN, **changed))
    assert {name: getattr(other, name) for name in changed} == changed


def test_from_grpo_takes_changes_by_grpos_names_too_in_place_of_what_has_no_equal() -> None:
    refused = trl.GRPOConfig(**PLAIN, top_entropy_quantile=0.2, loss_type="cispo")
    with pytest.raises(ArgumentError, match=r"top_entropy_quantile|loss_type='cispo'"):
        rloo_kit.RLOOConfig.from_grpo(refused)
    ours = rloo_kit.RLOOConfig.from_grpo(refused, top_entropy_quantile=1.0, loss_type="dapo")
    assert ours.loss_aggregation == "token-mean"
    ours = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN), advantage_estimator="rloo")
    assert (ours.advantage_estimator, ours.loss_aggregation) == ("rloo", "token-mean")
    with pytest.raises(ConfigError, match="takes TRL's GRPOConfig"):
        rloo_kit.RLOOConfig.from_grpo(ours)


# --- the update -------------------------------------------------------------------------------------------


def trls_loss(written: dict[str, torch.Tensor], now: torch.Tensor, config: trl.GRPOConfig) -> torch.Tensor:
    """TRL's own GRPO loss of the batch that is written down, as one micro-batch: its method on what it reads."""
    mask = (torch.arange(TOKENS) < written["lengths"][:, None]).int()
    ones = torch.ones(GROUPS * K, 1, dtype=torch.long)
    group = ESTIMATORS["grpo" if config.scale_rewards == "group" else "dr_grpo"]
    accelerator = types.SimpleNamespace(
        num_processes=1, gather=lambda one: one, reduce=lambda one, **how: one, sync_gradients=True
    )
    stand_in = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *given, **how: (now, torch.zeros_like(now), None),
        args=config, accelerator=accelerator, model=types.SimpleNamespace(training=True), beta=config.beta,
        loss_type=config.loss_type, importance_sampling_level=config.importance_sampling_level,
        epsilon_low=config.epsilon, epsilon_high=config.epsilon_high, max_completion_length=LIMIT,
        top_entropy_quantile=1.0, off_policy_mask_threshold=None, use_vllm=False,
        vllm_importance_sampling_correction=True, _entropy_bonus_enabled=False,
        aux_loss_enabled=False, current_gradient_accumulation_steps=1,
        _metrics={"train": defaultdict(list)},
    )  # fmt: skip
    inputs = {
        **{"prompt_ids": ones, "prompt_mask": ones, "completion_ids": mask, "completion_mask": mask},
        **{"old_per_token_logps": written["sampled"], "ref_per_token_logps": written["reference"]},
        "advantages": group(written["rewards"].view(GROUPS, K)).flatten(),
        "num_items_in_batch": mask.sum(),
    }
    found: torch.Tensor = trl.GRPOTrainer._compute_loss(stand_in, None, inputs)
    return found


CASES: list[dict[str, Any]] = [
    *({"loss_type": one, "beta": BETA} for one in ("grpo", "bnpo", "dr_grpo", "dapo")),
    *({"loss_type": one, "importance_sampling_level": "sequence"} for one in ("dapo", "dr_grpo", "luspo")),
    {"loss_type": "grpo", "importance_sampling_level": "sequence", "beta": BETA},
    {"loss_type": "grpo", "scale_rewards": False, "beta": BETA, "use_bias_correction_kl": False},
]


@pytest.mark.parametrize("settings", CASES, ids=lambda case: ", ".join(map(str, case.values())))
def test_loss_and_gradient_of_a_batch_are_those_of_trls_grpo_trainer(
    play: Callable[..., Played],
    on_paper: Any,
    written: Any,
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = trl.GRPOConfig(
        **PLAIN,
        num_generations=K,
        epsilon=EPSILON,
        epsilon_high=EPSILON_HIGH,
        max_completion_length=LIMIT,
        **settings,
    )
    now = written["now"].clone().requires_grad_()
    expected = trls_loss(written, now, config)
    (expected_gradient,) = torch.autograd.grad(expected, now)

    ours = rloo_kit.RLOOConfig.from_grpo(config)
    Accelerator(cpu=True)  # a configuration that is made takes the state away that trainers share
    monkeypatch.setattr(on_paper, "beta", ours.beta)
    loss = mean_loss(play(now, **{name: getattr(ours, name) for name in OWN} | {"single_pass": False}))
    (gradient,) = torch.autograd.grad(loss, now)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert gradient.abs().sum() > 0


@pytest.mark.training
@pytest.mark.filterwarnings("ignore:.*were cut:UserWarning")
def test_a_run_of_from_grpo_makes_the_updates_of_trls_grpo_trainer(
    loaded_once: Any, task: Any, tmp_path: Path
) -> None:
    settings = {"beta": 0.04, "num_iterations": 2, "max_steps": 2, "epsilon": 0.01, "epsilon_high": 0.02}
    _, gradients = one_run(False, loaded_once, task, tmp_path / "stock", grpo=True, **settings)
    _, ours = one_run(True, loaded_once, task, tmp_path, grpo=True, **settings)
    for step, (theirs, mine) in enumerate(zip(gradients, ours, strict=True)):
        flat = [torch.cat([side[name].flatten() for name in sorted(theirs)]) for side in (theirs, mine)]
        assert flat[0].norm() > 0
        assert (flat[0] - flat[1]).norm() <= 1e-5 * flat[0].norm(), f"step {step + 1}"
