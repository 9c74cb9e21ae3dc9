"""RLOOConfig.suggested: what fits, what was measured, what is given, and a reason for each."""

from dataclasses import replace
from typing import Any

import pytest
from datasets import IterableDataset

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.memory.plan import batch_sizes
from rloo_kit.train.suggested import GUESS, MEASURED, _evidence

CARDS = ("rtx 4060", "rtx 3060 12gb", "rtx 4060 ti 16gb", "rtx 4090")
FIT = {"qwen3-0.6b": 4, "qwen3-4b": 4, "qwen3-8b": 3, "qwen3-14b": 2}
"""Policy -> the number of cards, largest first, on which it fits."""


def reasons(config: Any) -> dict[str, str]:
    return {setting: why for setting, _, why in config.reasons}


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("policy", FIT)
def test_what_is_suggested_fits_the_card(policy, card):
    if card in CARDS[: len(CARDS) - FIT[policy]]:
        with pytest.raises(ConfigError, match=r"no batch fits[\s\S]*load a smaller policy"):
            rloo_kit.RLOOConfig.suggested(policy, None, card=card)
        return
    config = rloo_kit.RLOOConfig.suggested(policy, None, card=card)
    assert rloo_kit.plan(policy, config, card).fits == "fits"
    assert config.num_generations == 8
    assert config.per_device_train_batch_size * config.gradient_accumulation_steps == 32
    assert reasons(config)["learning_rate"] == reasons(config)["temperature"] == GUESS


@pytest.mark.parametrize(("policy", "card"), [("qwen3-1.7b", "rtx 4070"), ("qwen3-1.7b", "rtx 4090")])
def test_a_prompts_completions_are_sampled_apart_where_the_plan_takes_less_time(policy, card):
    config = rloo_kit.RLOOConfig.suggested(policy, None, card=card, named={"thinking": False})
    base = rloo_kit.plan(policy, config, card)
    seconds = {n: base.with_settings(**batch_sizes(8, n, 32)).seconds["a step"] for n in (8, 32)}
    apart = config.per_device_train_batch_size * config.steps_per_generation == 8
    assert apart == (sum(seconds[8]) < sum(seconds[32])) == (card == "rtx 4070")
    assert reasons(config)["steps_per_generation"].endswith("the faster by the plan's seconds") == apart


@pytest.mark.parametrize("card", [None, "rtx 4090"])
def test_what_was_measured_on_a_small_policy_is_suggested_for_one_in_16_bit(card):
    def evidence(name: str, bits: int) -> Any:
        planned = rloo_kit.plan("tiny", card=card, load_in_4bit=bits == 4)
        checkpoint = replace(planned.model.checkpoint, name=name)
        return _evidence(planned.of(replace(planned.model, checkpoint=checkpoint), planned.settings, planned.device))

    assert evidence("smollm2-135m", 16) is MEASURED["small"]
    assert evidence("smollm2-135m", 4).source == GUESS


def test_the_tiny_policys_settings_are_those_that_were_measured_for_its_task(policy, task, capsys):
    config = rloo_kit.RLOOConfig.suggested(policy, task, output_dir="out/mine")
    assert (config.learning_rate, config.num_iterations, config.beta) == (1e-3, 2, 0.0)
    assert config.output_dir == "out/mine"
    longest = max(map(len, policy.tokenizer(list(task.train["answer"]))["input_ids"]))
    assert config.max_completion_length == 32 + longest
    assert all(getattr(config, name) == value for name, value, _ in config.reasons)
    said = capsys.readouterr().out
    assert all(name in said and why in said for name, _, why in config.reasons)
    config.max_steps = 1
    trainer = rloo_kit.RLOOTrainer(policy, task.correct, config, task.train)
    assert trainer.memory_plan.fits == "fits"


@pytest.mark.parametrize(
    "given",
    [
        {"gradient_accumulation_steps": 8, "learning_rate": 1e-2, "seed": 3},
        {"per_device_train_batch_size": 6, "gradient_accumulation_steps": 4, "num_generations": 6},
        {"generation_batch_size": 48},
        {"generation_batch_size": 12},
        {"steps_per_generation": 2},
    ],
)
def test_what_is_given_stays_and_is_called_given(given, policy, task):
    config = rloo_kit.RLOOConfig.suggested(policy, task, **given)
    assert {name: getattr(config, name) for name in given} == given
    assert {name for name, why in reasons(config).items() if why == "given"} == {*given, "output_dir"}
    with pytest.warns(FutureWarning, match="kl_coef is now beta"):
        assert rloo_kit.RLOOConfig.suggested(policy, task, kl_coef=0.2).beta == 0.2
    evaluated = rloo_kit.RLOOConfig.suggested(policy, task, eval_strategy="steps")
    assert evaluated.eval_steps == evaluated.save_steps
    assert "eval_steps" not in reasons(config)


def test_epochs_that_are_given_are_trained_with_four_checkpoints(policy, task):
    config = rloo_kit.RLOOConfig.suggested(policy, task, num_train_epochs=0.5, eval_strategy="steps")
    assert (config.max_steps, config.num_train_epochs) == (-1, 0.5)
    assert config.save_steps == config.eval_steps == 0.25, "a share of all steps"


@pytest.mark.parametrize(
    ("policy", "card", "tokens"), [("qwen3-4b-thinking", "rtx 4090", 4096), ("qwen3-4b-thinking", "5.5GB", 2048)]
)
def test_a_thought_has_its_room_and_a_length_that_does_not_fit_is_halved(policy, card, tokens):
    config = rloo_kit.RLOOConfig.suggested(policy, None, card=card)
    assert config.max_completion_length == tokens
    assert reasons(config)["max_completion_length"].endswith("would not fit") == (card == "5.5GB")


@pytest.mark.parametrize(
    ("named", "tokens"),
    [
        ({}, 4096),
        ({"thinking": False}, 1024),
        ({"thinking": 2048}, 3072),
        ({"thinking": 2048, "max_seq_length": 1024}, 512),
    ],
)
def test_a_name_is_planned_with_the_thinking_and_the_length_that_it_would_be_loaded_with(named, tokens):
    config = rloo_kit.RLOOConfig.suggested("qwen3-1.7b", None, card="rtx 4090", named=named)
    assert config.max_completion_length == tokens


@pytest.mark.parametrize("card", ["8GB", "80GB"])
def test_a_number_of_passes_a_batch_that_is_given_is_planned_for_and_stays_on_policy(card):
    config = rloo_kit.RLOOConfig.suggested("qwen3-4b-instruct", None, card=card, steps_per_generation=4)
    assert rloo_kit.plan("qwen3-4b-instruct", config, card).fits == "fits"
    assert (config.steps_per_generation, config.per_device_train_batch_size, config.generation_batch_size) == (4, 8, 32)


@pytest.mark.parametrize(
    "given",
    [
        {"generation_batch_size": 7},
        {"generation_batch_size": 12, "num_generations": 8},
        {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 1},
    ],
)
def test_sizes_that_hold_no_whole_group_are_refused_as_such(given):
    with pytest.raises(ConfigError, match=r"no batch of whole groups[\s\S]*multiples of num_generations"):
        rloo_kit.RLOOConfig.suggested("qwen3-4b", None, card="80GB", **given)


def test_a_size_that_is_none_is_refused_before_anything_is_planned_with_it():
    with pytest.raises(ConfigError, match="steps_per_generation"):
        rloo_kit.RLOOConfig.suggested("qwen3-4b", None, card="80GB", steps_per_generation=0)


def test_of_a_stream_the_first_row_says_how_long_prompts_and_answers_are(policy, task):
    first = task.train.select(range(1))
    stream = IterableDataset.from_generator(lambda: iter(first))  # whose columns datasets does not know
    both = (rloo_kit.RLOOConfig.suggested(policy, rows) for rows in (first, stream))
    of_rows, of_stream = (reasons(config)["max_completion_length"] for config in both)
    assert of_rows == of_stream
    assert "tokens for the longest answer" in of_stream
