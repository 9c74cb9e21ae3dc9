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
from rloo_kit.train.validate import NAMES, Own
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
OURS = {item.name for item in dataclasses.fields(trl.RLOOConfig)} | set(NAMES)
THEIRS = {item.name for item in dataclasses.fields(trl.GRPOConfig)}


# --- every name -------------------------------------------------------------------------------------------


def test_every_field_of_trls_grpo_config_has_a_row_or_is_ours() -> None:
    missing = THEIRS - OURS - set(renamed_args.FIELDS)
    assert not missing, "a release of TRL has new fields: give each a row in rloo_kit/train/renamed_args.py"
    assert not set(renamed_args.FIELDS) & OURS, "a row of what RLOOConfig has itself is never read"


def test_what_a_row_becomes_are_settings_of_ours_and_every_default_of_trls_is_known() -> None:
    defaults = {item.name: item.default for item in dataclasses.fields(trl.GRPOConfig)}
    for name, row in renamed_args.FIELDS.items():
        assert all(set(ours) <= OURS for ours in row.becomes.values()), name
        assert bool(row.left_out) != bool(row.todo), name
        if name in THEIRS and not row.left_out:
            assert defaults[name] in (*row.becomes, *row.nothing), name


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"loss_type": "grpo"}, {"loss_aggregation": "seq-mean-token-mean"}),
        ({"loss_type": "dapo"}, {"loss_aggregation": "token-mean"}),
        ({"loss_type": "bnpo"}, {"loss_aggregation": "token-mean"}),
        ({"loss_type": "dr_grpo"}, {"loss_aggregation": "seq-mean-token-sum-norm"}),
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


def test_a_recipe_of_grpos_gets_one_warning_for_all_its_names() -> None:
    recipe = {"loss_type": "dr_grpo", "scale_rewards": False, "max_prompt_length": 256, "epsilon_high": 0.28}
    with pytest.warns(
        FutureWarning, match=r"loss_type=.*scale_rewards=.*max_prompt_length=256 is left"
    ) as caught:
        settings = rloo_kit.RLOOConfig(beta=0.0, mask_truncated_completions=True, **recipe)
    assert len(caught) == 1
    assert (settings.epsilon_high, settings.mask_truncated_completions) == (0.28, True)


def test_a_value_that_means_nothing_here_is_taken_without_a_word() -> None:
    nothing = {name: row.nothing[0] for name, row in renamed_args.FIELDS.items() if row.nothing}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rloo_kit.RLOOConfig(**nothing)


REFUSED = {name: 7 for name, row in renamed_args.FIELDS.items() if row.todo} | {
    "loss_type": "cispo",
    "scale_rewards": "batch",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_value_without_an_equal_says_what_to_do(name: str) -> None:
    with pytest.raises(ArgumentError, match=name) as caught:
        rloo_kit.RLOOConfig(**{name: REFUSED[name]})
    assert renamed_args.FIELDS[name].todo in str(caught.value)
    assert len(str(caught.value).splitlines()) == 3


def test_grpos_name_beside_ours_with_another_value_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match="loss_type='grpo' stands for loss_aggregation='seq-mean-token-mean'"
    ):
        rloo_kit.RLOOConfig(loss_type="grpo", loss_aggregation="token-mean")
    with pytest.raises(ArgumentError, match="importance_sampling_level='token' is given too"):
        rloo_kit.RLOOConfig(loss_type="luspo", importance_sampling_level="token")


# --- from_grpo --------------------------------------------------------------------------------------------


def test_the_update_of_a_plain_grpo_config_is_carried_over_and_the_rest_is_the_kits() -> None:
    ours = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN))
    assert (ours.advantage_estimator, ours.loss_aggregation) == ("grpo", "token-mean")
    assert (ours.importance_sampling_level, ours.kl_placement, ours.kl_estimator) == ("token", "loss", "k3")
    assert (ours.num_generations, ours.per_device_train_batch_size, ours.gradient_accumulation_steps) == (
        8,
        8,
        1,
    )
    assert (ours.beta, ours.learning_rate, ours.use_bias_correction_kl) == (0.0, 1e-6, True)
    assert (ours.output_dir, ours.save_steps, ours.logging_steps) == ("out/run", 25, 1)


def test_what_differs_from_grpos_defaults_is_carried_over() -> None:
    given: dict[str, Any] = {
        **{
            "num_generations": 4,
            "gradient_accumulation_steps": 4,
            "steps_per_generation": 2,
            "save_steps": 5,
        },
        **{
            "epsilon_high": 0.28,
            "mask_truncated_completions": True,
            "beta": 0.04,
            "temperature": 0.9,
            "top_k": 5,
        },
        **{"max_completion_length": 99, "max_steps": 3, "report_to": "none", "lr_scheduler_type": "cosine"},
        **{"eval_strategy": "steps", "eval_steps": 5, "reward_weights": [1.0, 0.5], "logging_steps": 3},
        **{"save_strategy": "steps", "load_best_model_at_end": True},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # top_k
        ours = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN, **given))
        same = rloo_kit.RLOOConfig(**PLAIN, **given)
    assert [name for name in given if getattr(ours, name) != getattr(same, name)] == []
    assert ours.metric_for_best_model == "eval_reward", "transformers had taken the loss"


def test_what_cannot_be_carried_over_is_refused_and_what_is_left_out_is_warned_of() -> None:
    with pytest.raises(ArgumentError, match=r"top_entropy_quantile=0\.2"):
        rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN, top_entropy_quantile=0.2))
    with pytest.raises(ConfigError, match="takes TRL's GRPOConfig"):
        rloo_kit.RLOOConfig.from_grpo({"loss_type": "grpo"})
    with pytest.warns(FutureWarning, match="max_prompt_length=64 is left out"):
        rloo_kit.RLOOConfig(max_prompt_length=64)


def test_from_grpo_takes_changes_by_grpos_names_too() -> None:
    ours = rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN), loss_type="dr_grpo")
    assert ours.loss_aggregation == "seq-mean-token-sum-norm"
    refused = trl.GRPOConfig(**PLAIN, delta=1.5, loss_type="cispo")
    ours = rloo_kit.RLOOConfig.from_grpo(refused, delta=None, loss_type="dapo")
    assert ours.loss_aggregation == "token-mean"


def test_all_that_has_no_equal_is_named_together_and_a_typo_gets_the_nearest() -> None:
    with pytest.raises(ArgumentError) as caught:
        rloo_kit.RLOOConfig(delta=1.5, top_entropy_quantile=0.2)
    what, *rest = str(caught.value).splitlines()
    assert what.startswith("delta=1.5 and top_entropy_quantile=0.2: GRPO's")
    assert len(rest) == 2
    with pytest.raises(ArgumentError, match="did you mean 'dr_grpo'"):
        rloo_kit.RLOOConfig(loss_type="drgrpo")


def test_what_vllm_samples_is_said_to_be_corrected_by_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN))
    with pytest.warns(FutureWarning, match="vllm_importance_sampling_correction=True is left out"):
        rloo_kit.RLOOConfig.from_grpo(trl.GRPOConfig(**PLAIN, use_vllm=True))


@pytest.mark.parametrize(
    ("name", "place"),
    [("peft_config", "load_policy"), ("fast_inference", "load_policy"), ("tokenizer", "RLOOTrainer"),
     ("train_dataset", "RLOOTrainer"), ("scale_reward", "scale_rewards")],
)  # fmt: skip
def test_a_name_that_belongs_elsewhere_is_told_where(name: str, place: str) -> None:
    with pytest.raises(ArgumentError, match=place):
        rloo_kit.RLOOConfig(**{name: object()})


def test_all_settings_of_a_grpo_config_at_once_lead_to_from_grpo() -> None:
    with pytest.raises(ArgumentError, match=r"RLOOConfig.from_grpo\(config\)"):
        rloo_kit.RLOOConfig(**trl.GRPOConfig(**PLAIN).to_dict())
    luspo = trl.GRPOConfig(**PLAIN, loss_type="luspo")
    with pytest.raises(ArgumentError, match="set importance_sampling_level='sequence'"):
        rloo_kit.RLOOConfig.from_grpo(luspo)
    ours = rloo_kit.RLOOConfig.from_grpo(luspo, importance_sampling_level="sequence")
    assert (ours.loss_aggregation, ours.importance_sampling_level) == ("seq-mean-token-sum", "sequence")


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
    *(
        {"loss_type": one, "beta": beta}
        for one in ("grpo", "bnpo", "dr_grpo", "dapo")
        for beta in (0.0, BETA)
    ),
    *(
        {"loss_type": one, "importance_sampling_level": "sequence"}
        for one in ("grpo", "dapo", "dr_grpo", "luspo")
    ),
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
    loss = mean_loss(play(now, **dataclasses.asdict(Own.of(ours)) | {"single_pass": False}))
    (gradient,) = torch.autograd.grad(loss, now)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 0.04, "num_iterations": 2, "max_steps": 2, "epsilon": 0.01, "epsilon_high": 0.02},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "scale_rewards": False},
    ],
    ids=["TRL's defaults with a KL term, clipped", "GSPO without scaling"],
)
@pytest.mark.training
@pytest.mark.filterwarnings("ignore:.*were cut:UserWarning")
def test_a_run_of_from_grpo_makes_the_updates_of_trls_grpo_trainer(
    settings: dict[str, Any], loaded_once: Any, task: Any, tmp_path: Path
) -> None:
    _, gradients = one_run(False, loaded_once, task, tmp_path / "stock", grpo=True, **settings)
    _, ours = one_run(True, loaded_once, task, tmp_path, grpo=True, **settings)
    for step, (theirs, mine) in enumerate(zip(gradients, ours, strict=True)):
        flat = [torch.cat([side[name].flatten() for name in sorted(theirs)]) for side in (theirs, mine)]
        assert flat[0].norm() > 0
        assert (flat[0] - flat[1]).norm() <= 1e-5 * flat[0].norm(), f"step {step + 1}"
