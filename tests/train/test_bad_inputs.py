"""Every input that plain TRL accepts silently or rejects cryptically gets an error that names it.

A table: what is wrong, the part of the message that names the culprit, and when it is raised; no weight is NaN after
any case.  One case stands for the tables in tests/test_data_checks.py and tests/rewards/test_trl_interface.py, and
tests/test_warnings.py has the warnings.  benchmarks/results/bad_inputs.md shows what TRL's own trainer does with them.
"""

import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from datasets import Dataset, DatasetDict, IterableDataset
from transformers import TrainingArguments

import rloo_kit
import tests.conftest
from rewards import RewardValueError
from rloo_kit.errors import ConfigError, RLOOKitError
from tests.conftest import SMALL, random_rewards


@dataclass(frozen=True)
class Case:
    """A wrong or unusual input, and what its message must name."""

    culprit: str  # a part of the message: the setting, the column, the reward's name
    config: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] | Callable[[Any], dict[str, Any]] = field(default_factory=dict)  # or a function of a policy
    says: tuple[str, ...] = ()
    when: Literal["config", "trainer", "step"] = "trainer"

    def arguments(self, policy: Any) -> dict[str, Any]:
        return self.trainer(policy) if callable(self.trainer) else dict(self.trainer)


NAN, INF = math.nan, math.inf
VALUES: dict[str, list[Any]] = {
    "max_steps": [0, -5, "10", 1.5],
    "num_train_epochs": [-2],
    "seed": ["42", -1],
    "save_strategy": ["step"],
    "output_dir": [5],
    "num_generations": [1, "2"],
    "per_device_train_batch_size": [0, "4"],
    "generation_batch_size": [0, 6],
    "max_completion_length": [0, None, 7.5],
    "temperature": [0.0, NAN, "1"],
    "learning_rate": [NAN, INF, -1e-3, 5.0, "1e-5"],
    "lr_scheduler_type": ["cosin"],
    "optim": ["adam"],
    "beta": [-0.1, NAN, 1e30],
    "epsilon": [1.5],
    "advantage_estimator": ["rlo"],
    "kl_estimator": ["k4"],
    "loss_aggregation": ["token"],
    "skip_zero_variance_groups": ["no"],
    "on_unhealthy": ["stopp"],
    "reward_weights": ["1", [NAN]],
    "reward_clip_range": [(1, -1), (0,), 5],
    "bf16": ["yes"],
    "chat_template_kwargs": ["thinking"],
}
"""Return cases of settings that are wrong by themselves; the culprit is the setting."""

EVALUATED = {"eval_strategy": "steps", "eval_steps": 1}
BEST = {"save_strategy": "best", "metric_for_best_model": "loss", **EVALUATED}


def together(culprit: str, *says: str, when: Any = "config", **config: Any) -> Case:
    """Return a case of settings that contradict each other, or lack something."""
    return Case(culprit, config, says=says, when=when)


SETTINGS = {
    f"{name}={value!r}": together(name, **{"max_steps": -1, name: value})
    for name, values in VALUES.items()
    for value in values
} | {
    "a batch that is no multiple of K": together(
        "num_generations", "groups of 4", num_generations=4, per_device_train_batch_size=6
    ),
    "an evaluation's too": together("eval batch size", per_device_eval_batch_size=3, **EVALUATED),
    "the lowest loss as the best": together("metric_for_best_model", "eval_reward", **BEST),
    "evaluation without data": together("eval_dataset", when="trainer", **EVALUATED),
    "one weight too many": together("reward_weights", when="trainer", reward_weights=[1.0, 1.0]),
    "a synchronised reference of a LoRA": together("sync_ref_model", when="trainer", sync_ref_model=True, beta=0.1),
    "an unknown logger": together("wandbb", when="trainer", report_to="wandbb"),
    "vLLM where there is none": together("use_vllm", when="trainer", use_vllm=True),
}


QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
LONG = [{"role": "user", "content": "What is " + " + ".join(["17"] * 1500) + "?"}]
QUESTIONS = Dataset.from_list([{"question": "1"}] * 4)
IN_ORDER = {"max_steps": 2, "shuffle_dataset": False}


def dataset(*prompts: Any) -> Dataset:
    return Dataset.from_list([{"prompt": prompt, "answer": "3"} for prompt in prompts])


def stream(*prompts: Any) -> IterableDataset:
    return IterableDataset.from_generator(lambda: ({"prompt": one, "answer": "3"} for one in prompts))


def data(culprit: str, train_dataset: Any, *says: str, when: Any = "trainer", **config: Any) -> Case:
    return Case(culprit, config, {"train_dataset": train_dataset}, says, when)


DATASETS = {
    "an empty prompt": data("prompt", dataset("a", " ", "b"), "empty", "train_dataset[1]"),
    "a prompt that leaves no room": data("prompt", dataset(QUESTION, LONG), "train_dataset[1] has 6010"),
    "no dataset": data("train_dataset", None),
    "a stream with a None in the middle": data(
        "prompt", stream(QUESTION, QUESTION, None, QUESTION), "step 2", when="step", **IN_ORDER
    ),
    "a stream without max_steps": data("max_steps", stream(*[QUESTION] * 4), max_steps=-1),
    "an unnamed part to evaluate on": Case(
        "eval_dataset['bad']", EVALUATED, {"eval_dataset": {"good": dataset(QUESTION), "bad": QUESTIONS}}
    ),
}


def gives(value: Any) -> Callable[..., Any]:
    """Return a reward that pays ``value`` for the second sample and 0 for the others."""

    def reward(completions: Any, **kwargs: Any) -> Any:
        return [value if index == 1 else 0.0 for index in range(len(completions))]

    return reward


def wants_gold(completions: Any, gold: Any, **kwargs: Any) -> Any:
    return [0.0] * len(completions)


def wants_answer(completions: Any, answer: Any, **kwargs: Any) -> Any:
    return [0.0] * len(completions)


def rewarded(reward: Any, *says: str, culprit: str = "reward", when: Any = "step") -> Case:
    return Case(culprit, trainer={"reward_funcs": reward}, says=says, when=when)


REWARDS = {
    "no reward function": rewarded([], culprit="reward_funcs", when="trainer"),
    "a reward that needs a column": rewarded(wants_gold, "wants_gold", culprit="gold", when="trainer"),
    "and the set to evaluate on has not": Case(
        "answer",
        EVALUATED,
        {"reward_funcs": wants_answer, "eval_dataset": dataset(QUESTION).remove_columns("answer")},
        ("wants_answer",),
    ),
    "NaN": rewarded(gives(NAN), "sample 1", "nan"),
}


def tokenizer(culprit: str, change: Callable[[Any], object], *says: str) -> Case:
    def changed(policy: Any) -> dict[str, Any]:
        copied = copy.deepcopy(policy.tokenizer)
        change(copied)
        return {"processing_class": copied}

    return Case(culprit, trainer=changed, says=says)


def add_far_token(tokenizer: Any) -> None:
    """Add tokens until one has no row in the embedding."""
    last = max(tokenizer.get_vocab().values())
    tokenizer.add_tokens([f"<new-{index}>" for index in range(151_936 - last + 2)])


def argument(name: str, value: Any, *says: str) -> Case:
    return Case(name, trainer={name: value}, says=says)


TRAINER = {
    "no chat template": tokenizer("template", lambda one: setattr(one, "chat_template", None)),
    "tokens without an embedding": tokenizer("embedding", add_far_token, "<new-"),
    "a tokenizer's name": argument("processing_class", "qwen3"),
    "no model": argument("model", None),
    "a catalogue name": argument("model", "qwen3-0.6b", "load_policy('qwen3-0.6b')"),
    "a dict for the config": argument("args", {"max_steps": 1}, "args=rloo_kit.RLOOConfig"),
    "another trainer's config": argument("args", TrainingArguments("out")),
    "a LoRA's name": argument("peft_config", "lora"),
    "a misspelt argument": argument("reward_function", gives(1.0), "reward_funcs"),
}

CASES = {**SETTINGS, **DATASETS, **REWARDS, **TRAINER}

RIGHT = {
    "weights in a tuple": together("", reward_weights=(0.5,)),
    "a numpy number": together("", learning_rate=np.float32(1e-3), seed=np.int64(3), max_steps=np.int32(1)),
    "a path for a folder": together("", output_dir=Path("out")),
    "an endless norm": together("", max_grad_norm=float("inf")),
    "splits to evaluate on": argument("eval_dataset", DatasetDict({"a": dataset(QUESTION), "b": dataset(QUESTION)})),
    "two rewards of one name": rewarded((gives(1.0), gives(0.5))),
}
"""Unusual but right inputs: trained on without a message."""


def of(when: str) -> list[str]:
    return [name for name, case in CASES.items() if case.when == when]


def check(error: BaseException, case: Case) -> None:
    """Check that an error has three parts and names the culprit."""
    said = str(error)
    assert [part for part in (case.culprit, *case.says) if part not in said] == []
    assert [line.split(": ")[0] for line in said.splitlines()[1:]] == ["Where", "What to do"]


@pytest.mark.parametrize("name", of("config"))
def test_a_bad_setting_is_refused_by_name(name):
    with pytest.raises(ConfigError) as caught:
        rloo_kit.RLOOConfig(**{"output_dir": "out", **SMALL, **CASES[name].config})
    check(caught.value, CASES[name])


@pytest.mark.parametrize("name", of("trainer"))
def test_a_bad_argument_is_refused_before_a_completion_is_sampled(name, policy, task):
    case = CASES[name]
    given = {"model": policy, "reward_funcs": random_rewards, "train_dataset": task.train}
    given |= case.arguments(policy)
    given.setdefault("args", rloo_kit.RLOOConfig(**SMALL | case.config))
    with pytest.raises((RLOOKitError, RewardValueError)) as caught:
        rloo_kit.RLOOTrainer(**given)
    check(caught.value, case)


@pytest.mark.parametrize("name", of("step"))
def test_a_bad_value_stops_the_step_that_it_comes_in(name, make_trainer, policy):
    case = CASES[name]
    trainer = make_trainer(**SMALL | case.config, **case.arguments(policy))
    with pytest.raises((RLOOKitError, RewardValueError)) as caught:
        trainer.train()
    check(caught.value, case)
    assert all(parameter.isfinite().all() for parameter in policy.model.parameters())


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_odd_and_right_trains_without_a_word(name, make_trainer, policy, recwarn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    case = RIGHT[name]
    trainer = make_trainer(**{"reward_funcs": random_rewards} | case.config | case.arguments(policy))
    trainer.train()
    # A configuration warns at the line that makes it, which is in conftest.py.
    ours = (__file__, tests.conftest.__file__)
    assert [str(one.message) for one in recwarn if "rloo_kit" in one.filename or one.filename in ours] == []
    assert trainer.state.global_step == 1
    json.loads(trainer.args.to_json_string())
