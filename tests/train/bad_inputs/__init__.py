"""Inputs that are wrong or odd, each with what a message has to name.

For tests/train; benchmarks/results/bad_inputs.md has what TRL's trainer and the kit's made of each.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from transformers import TrainerCallback, TrainingArguments

from tests.train.bad_inputs import functions
from tests.train.bad_inputs.functions import does, gives, logs, returns


@dataclass(frozen=True)
class Bad:
    """An input, and what a message must name to be clear.

    Attributes:
        culprit: a part of every clear message: the setting, the column, the reward's name.
        config: settings.
        trainer: arguments of the trainer; a function of a policy of its own makes those that need one.
        says: further parts of the kit's message.
        when: the kit refuses it in the config or the trainer, stops in a step, warns and trains, or mends it.
        aka: what a clear message of TRL's may call the culprit instead.
    """

    culprit: str
    config: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] | Callable[[Any], dict[str, Any]] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    when: Literal["config", "trainer", "step", "warned", "mended"] = "trainer"
    aka: str = ""


# --- settings ---------------------------------------------------------------------------------------------

NAN, INF = math.nan, math.inf
VALUES: dict[str, list[Any]] = {
    "max_steps": [0, -5, None, "10", 1.5, True],
    "seed": ["42", -1, 2**40],
    "save_strategy": ["step"],
    "output_dir": ["", 5],
    "num_generations": [1, "2", 2.0, None],
    "per_device_train_batch_size": [0, "4", None],
    "generation_batch_size": [0, "4", 6],
    "max_completion_length": [0, None, "8", 7.5],
    "temperature": [0.0, 1e9, NAN, "1", None],
    "learning_rate": [NAN, INF, -1e-3, "1e-5", None],
    "adam_epsilon": [0.0],
    "lr_scheduler_type": ["cosin", 5],
    "optim": ["adam", None],
    "beta": [-0.1, NAN, 1e30, "0.1", INF],
    "epsilon": [1.5, 0],
    "reward_weights": ["1", [NAN], {"reward": 1.0}],
    "reward_clip_range": [(1, -1), (0,), 5, (NAN, 1)],
    "bf16": ["yes"],
    "chat_template_kwargs": ["thinking", [1], {"tokenize": False}, {"add_generation_prompt": False}],
    "generation_kwargs": ["do_sample"],
}
"""Settings that are wrong alone; the culprit is the setting."""

EVALUATED = {"eval_strategy": "steps", "eval_steps": 1}
BEST = {"save_strategy": "best", "metric_for_best_model": "loss", **EVALUATED}


def together(culprit: str, *says: str, when: Any = "config", **config: Any) -> Bad:
    """Settings that contradict each other, or lack something."""
    return Bad(culprit, config, says=says, when=when)


SETTINGS = {
    f"{name}={value!r}": together(name, **{"max_steps": -1, name: value})
    for name, values in VALUES.items()
    for value in values
} | {
    "a batch that is no multiple of K": together(
        "num_generations", "groups of 4", num_generations=4, per_device_train_batch_size=6
    ),
    "both kinds of 16 bit": together("bf16", fp16=True, bf16=True),
    "the lowest loss as the best": together("metric_for_best_model", "eval_reward", **BEST),
    "checkpoints every 2.5 steps": together("save_steps", save_strategy="steps", save_steps=2.5),
    "a KL correction without a KL term in the loss": together(
        "use_bias_correction_kl", "kl_placement", use_bias_correction_kl=True, beta=0.1
    ),
    "evaluation without data": together("eval_dataset", when="trainer", **EVALUATED),
    "one weight too many": together("reward_weights", when="trainer", reward_weights=[1.0, 1.0]),
    "weights of nothing": together("reward_weights", when="trainer", reward_weights=[0.0]),
    "a synchronised reference of a LoRA": together(
        "sync_ref_model", when="trainer", sync_ref_model=True, beta=0.1
    ),
    "an unknown logger": together("wandbb", when="trainer", report_to="wandbb"),
    "vLLM where there is none": together("use_vllm", when="trainer", use_vllm=True),
}


# --- datasets ---------------------------------------------------------------------------------------------

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
LONG = [{"role": "user", "content": "What is " + " + ".join(["17"] * 1500) + "?"}]


def dataset(*prompts: Any, **columns: Any) -> Dataset:
    """Rows of these prompts, with an answer and further columns of one value."""
    return Dataset.from_list([{"prompt": prompt, "answer": "3", **columns} for prompt in prompts])


def stream(*prompts: Any) -> IterableDataset:
    """A stream of them."""
    return IterableDataset.from_generator(lambda: ({"prompt": one, "answer": "3"} for one in prompts))


def given(culprit: str, train_dataset: Any, *says: str, when: Any = "trainer", **config: Any) -> Bad:
    """A dataset to train on."""
    return Bad(culprit, config, {"train_dataset": train_dataset}, says, when, aka="IterableDataset")


QUESTIONS = Dataset.from_list([{"question": "1"}] * 4)
IN_ORDER = {"max_steps": 2, "shuffle_dataset": False}

DATASETS = {
    "no prompt column": given("'prompt'", QUESTIONS, "question", "rename_column"),
    "an empty prompt": given("prompt", dataset("a", " ", "b"), "empty", "train_dataset[1]"),
    "a prompt that is None": given("prompt", dataset("a", None, "b"), "train_dataset[1]"),
    "fewer prompts than a generation batch": given(
        "dataset", dataset(QUESTION, QUESTION), "4 prompts", "has 2", per_device_train_batch_size=8
    ),
    "a prompt that leaves no room": given("prompt", dataset(QUESTION, LONG), "train_dataset[1] has 6010"),
    "a list for a dataset": given("train_dataset", [{"prompt": QUESTION}] * 4, "from_list"),
    "no dataset": given("train_dataset", None),
    "a stream with a None in the middle": given(
        "prompt", stream(QUESTION, QUESTION, None, QUESTION), "step 2", when="step", **IN_ORDER
    ),
    "a stream without max_steps": given("max_steps", stream(*[QUESTION] * 4), max_steps=-1),
    "a list to evaluate on": Bad("eval_dataset", EVALUATED, {"eval_dataset": [QUESTION]}),
    "an unnamed part to evaluate on": Bad(
        "eval_dataset['bad']", EVALUATED, {"eval_dataset": {"good": dataset(QUESTION), "bad": QUESTIONS}}
    ),
}


# --- rewards ----------------------------------------------------------------------------------------------


def rewarded(reward: Any, *says: str, culprit: str = "reward", when: Any = "step") -> Bad:
    """A reward, or several."""
    return Bad(culprit, trainer={"reward_funcs": reward}, says=says, when=when)


REWARDS = {
    "no reward function": rewarded([], culprit="reward_funcs", when="trainer"),
    "a reward without **kwargs": rewarded(
        functions.without_kwargs, "**kwargs", culprit="without_kwargs", when="trainer"
    ),
    "a reward that needs a column": rewarded(
        functions.wants_gold, "wants_gold", culprit="gold", when="trainer"
    ),
    "a reward that forgets to return": rewarded(returns(None), "None"),
    "a wrong length": rewarded(returns([0.0] * 3), "3 values for 4 completions"),
    "NaN": rewarded(gives(NAN), "sample 1", "nan"),
    "inf": rewarded(gives(INF), "sample 1", "inf"),
    "a reward that raises": rewarded(functions.divides, "ZeroDivisionError", culprit="divides"),
    "a reward that edits a column": rewarded(
        [does(functions.edits_answers), functions.sees_answers], when="mended"
    ),
    "a reward that seeds": rewarded(does(lambda **kwargs: torch.manual_seed(7)), when="mended"),
}


# --- models, tokenizers and other arguments ----------------------------------------------------------------


def tokenizer(culprit: str, change: Callable[[Any], object], *says: str) -> Bad:
    """A changed tokenizer."""

    def made(policy: Any) -> dict[str, Any]:
        changed = copy.deepcopy(policy.tokenizer)
        change(changed)
        return {"processing_class": changed}

    return Bad(culprit, trainer=made, says=says)


def sets(name: str, value: Any) -> Callable[[Any], None]:
    """Sets an attribute."""
    return lambda thing: setattr(thing, name, value)


def add_far_token(tokenizer: Any) -> None:
    """Add tokens until one has no row in the embedding."""
    last = max(tokenizer.get_vocab().values())
    tokenizer.add_tokens([f"<new-{index}>" for index in range(151_936 - last + 2)])


def argument(name: str, value: Any, *says: str) -> Bad:
    """An argument that is something else."""
    return Bad(name, trainer={name: value}, says=says)


TRAINER = {
    "no chat template": tokenizer("template", sets("chat_template", None)),
    "tokens without an embedding": tokenizer("embedding", add_far_token, "<new-"),
    "a tokenizer's name": argument("processing_class", "qwen3"),
    "no model": argument("model", None),
    "a catalogue name": argument("model", "qwen3-0.6b", "load_policy('qwen3-0.6b')"),
    "a dict for the config": argument("args", {"max_steps": 1}, "args=rloo_kit.RLOOConfig"),
    "another trainer's config": argument("args", TrainingArguments("out")),
    "one callback alone": argument("callbacks", TrainerCallback(), "callbacks=[callback]"),
    "a LoRA's name": argument("peft_config", "lora"),
    "a misspelt argument": argument("reward_function", gives(1.0), "reward_funcs"),
}

INPUTS: dict[str, Bad] = {**SETTINGS, **DATASETS, **REWARDS, **TRAINER}
"""Every input, by what is wrong with it."""

RIGHT = {
    "weights in a tuple": together("", reward_weights=(0.5,)),
    "a numpy number": together("", learning_rate=np.float32(1e-3), seed=np.int64(3), max_steps=np.int32(1)),
    "a path for a folder": together("", output_dir=Path("out")),
    "an endless norm": together("", max_grad_norm=float("inf")),
    "two rewards of one name": rewarded((gives(1.0), gives(0.5))),
    "a metric that is NaN": rewarded(logs("quality", float("nan"))),
}
"""Odd, and right: trained on without a word."""


def arguments(case: Bad, policy: Any) -> dict[str, Any]:
    """The trainer's arguments of a case."""
    return case.trainer(policy) if callable(case.trainer) else dict(case.trainer)


def of(*when: str) -> list[str]:
    """The inputs of which the kit speaks there."""
    return [name for name, case in INPUTS.items() if case.when in when]
