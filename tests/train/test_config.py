"""RLOOConfig: the same meaning on every device, and the values it accepts."""

import dataclasses
import inspect
import json
from typing import Any

import pytest
import torch
import trl
import unsloth

import rloo_kit
from rloo_kit import advantages
from rloo_kit.errors import ArgumentError, ConfigError
from rloo_kit.train import config
from rloo_kit.train.config import OWN


def test_what_the_kit_does_not_name_stays_trls():
    ours, theirs = rloo_kit.RLOOConfig(), trl.RLOOConfig(output_dir="x", bf16=False)
    named = {*rloo_kit.RLOOConfig.__annotations__, "bf16", "fp16"}
    derived = {"generation_batch_size", "steps_per_generation", "accelerator_config", "_n_gpu"}
    for name in {item.name for item in dataclasses.fields(trl.RLOOConfig)} - named - derived:
        assert getattr(ours, name) == getattr(theirs, name), name


@pytest.mark.parametrize("name", ["token", "api_key", "misspelt"])
def test_an_error_never_shows_a_secret(name):
    secret = "hf_" + "x" * 30
    with pytest.raises(ArgumentError) as caught:
        rloo_kit.RLOOConfig(**{name: secret})
    assert secret not in str(caught.value)


def test_the_best_checkpoint_is_that_of_the_highest_reward_also_where_none_is_loaded_at_the_end():
    settings = rloo_kit.RLOOConfig(save_strategy="best", eval_strategy="steps")
    assert (settings.metric_for_best_model, settings.greater_is_better) == ("eval_reward", True)


def test_the_command_line_parser_of_trl_takes_the_kits_config():
    line = ["--output_dir", "run", "--num_generations", "8", "--per_device_train_batch_size", "8"]
    line += ["--single_pass", "false", "--chat_template_kwargs", '{"enable_thinking": false}']
    (parsed,) = trl.TrlParser((rloo_kit.RLOOConfig,)).parse_args_and_config(line)
    assert (parsed.num_generations, parsed.learning_rate, parsed.single_pass) == (8, 1e-5, False)
    assert parsed.chat_template_kwargs == {"enable_thinking": False}


def test_the_kl_estimator_is_the_fields_for_its_place():
    assert rloo_kit.RLOOConfig().kl_estimator == "k1", "in the reward, as in TRL's RLOO"
    assert rloo_kit.RLOOConfig(kl_placement="loss").kl_estimator == "k2"
    assert rloo_kit.RLOOConfig(kl_placement="loss", kl_estimator="k3").kl_estimator == "k3"


def test_an_estimator_of_ones_own_is_kept_by_name_so_that_the_config_can_be_saved():
    def halved(rewards: Any) -> Any:
        return (rewards - rewards.nanmean()) / 2

    settings = rloo_kit.RLOOConfig(advantage_estimator=halved)
    assert json.loads(settings.to_json_string())["advantage_estimator"] == "halved"
    assert advantages.ESTIMATORS["halved"] is halved
    other = rloo_kit.RLOOConfig(advantage_estimator=lambda rewards: rewards)
    again = rloo_kit.RLOOConfig(advantage_estimator=lambda rewards: -rewards)
    assert other.advantage_estimator != again.advantage_estimator, "two functions of one name are two"


def test_an_evaluations_batch_holds_whole_groups_where_none_was_asked_for():
    """TRL's own default is 8, which it refuses if K does not divide it."""
    evaluated = {"eval_strategy": "steps", "eval_steps": 5}
    for k, batch in {2: 4, 3: 6, 4: 4, 8: 8}.items():
        settings = rloo_kit.RLOOConfig(num_generations=k, per_device_train_batch_size=k, **evaluated)
        assert settings.per_device_eval_batch_size == batch
    assert rloo_kit.RLOOConfig(num_generations_eval=1, **evaluated).per_device_eval_batch_size == 4


@pytest.mark.parametrize(
    ("gpu", "given", "expected", "said"),
    [
        ("", {}, {"bf16": False, "fp16": False}, ""),
        ("", {"fp16": True}, {}, "have no effect on a CPU"),
        ("bf16", {}, {"bf16": True, "fp16": False}, ""),
        ("fp16", {}, {"bf16": False, "fp16": True}, ""),
        ("bf16", {"bf16": False}, {}, ""),
        ("bf16", {"fp16": False}, {"bf16": True, "fp16": False}, ""),  # as command lines always pass it
    ],
)
def test_the_device_decides_about_the_precision_or_the_configuration(gpu, given, expected, said, monkeypatch, recwarn):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpu))
    monkeypatch.setattr(unsloth, "is_bfloat16_supported", lambda: gpu == "bf16")
    assert config._precision(given) == expected
    assert [said in str(one.message) for one in recwarn] == [True] * bool(said)


def test_a_cpu_computes_in_float32_whatever_the_variable_says(make_trainer, monkeypatch):
    monkeypatch.setenv(config.PRECISION, "bf16")
    settings = rloo_kit.RLOOConfig(max_steps=1)
    assert settings.mixed_precision == "no"
    assert make_trainer(args=settings).accelerator.mixed_precision == "no"


def test_every_field_is_in_the_signature_the_kits_first_with_defaults():
    parameters = inspect.signature(rloo_kit.RLOOConfig).parameters
    first = ["output_dir", *OWN]
    assert list(parameters)[: len(first)] == first
    assert set(parameters) == {item.name for item in dataclasses.fields(rloo_kit.RLOOConfig) if item.init}
    assert str(parameters["learning_rate"]) == "learning_rate=1e-05"
    documented = inspect.getdoc(rloo_kit.RLOOConfig) or ""
    assert [name for name in first if f"    {name}: " not in documented] == []


def test_a_setting_changed_later_is_checked_with_those_computed_from_it(make_trainer, recwarn):
    args = rloo_kit.RLOOConfig(per_device_train_batch_size=4, num_generations=4)
    args.per_device_train_batch_size = 8
    with pytest.raises(ConfigError, match="8 completions, and its steps 16"):
        make_trainer(args=args)
    args.per_device_train_batch_size, args.kl_placement = 4, "loss"
    make_trainer(args=args)
    assert any("'k1' in the loss has no effect" in str(one.message) for one in recwarn)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"generation_kwargs": {"use_cache": True}}, ""),
        ({"min_p": 0.0}, ""),
        ({"advantage_estimator": "grpo", "beta": 0.0}, ""),
        ({"advantage_estimator": "grpo", "kl_placement": "loss", "use_bias_correction_kl": True}, ""),
        ({"warmup_steps": 0.1, "max_steps": 10}, ""),
        ({"top_p": 0.95, "top_k": 20}, "top_k=20, top_p=0.95: completions are sampled from another"),
        ({"generation_kwargs": {"suppress_tokens": [7]}}, "generation_kwargs suppress_tokens="),
        ({"repetition_penalty": 1.1}, "policy.generate takes top_p, top_k and min_p for"),
        ({"advantage_estimator": "grpo"}, "noise becomes a full-size advantage"),
        ({"kl_placement": "loss", "kl_estimator": "k1"}, "has no effect"),
        ({"use_bias_correction_kl": True, "beta": 0.1}, "no effect on a KL term in the reward"),
        ({"remove_unused_columns": True}, "rewards get none of the dataset's other columns"),
        ({"warmup_steps": 100, "max_steps": 100}, "so learning_rate is never reached"),
    ],
)
def test_what_is_hardly_meant_is_spoken_of_and_what_may_be_meant_is_taken_without_a_word(settings, said, recwarn):
    rloo_kit.RLOOConfig(**settings)
    assert [said in str(one.message) for one in recwarn] == [True] * bool(said)


@pytest.mark.parametrize(
    ("name", "todo"),
    [
        ("max_newtokens", "mean max_new_tokens"),
        ("do_sample", "leave it out"),
        ("num_return_sequences", "set num_generations"),
    ],
)
def test_generation_kwargs_that_would_do_nothing_or_fail_at_the_first_step_are_refused(name, todo):
    with pytest.raises(ConfigError, match=rf"(?s)sampled with generation_kwargs '{name}'.*{todo}"):
        rloo_kit.RLOOConfig(generation_kwargs={name: 1})
