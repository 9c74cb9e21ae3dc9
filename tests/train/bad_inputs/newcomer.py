"""What a stranger to the kit tried, without a look at its code; and odd inputs that are right, and must pass."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.train.bad_inputs.case import Bad
from tests.train.bad_inputs.data import QUESTION, dataset, given, row, rows
from tests.train.bad_inputs.functions import does, gives, named, returns, rewarded
from tests.train.bad_inputs.others import argument, tokenizer
from tests.train.bad_inputs.settings import together


def exits(completions: Any, **kwargs: Any) -> Any:
    """Ends the process."""
    sys.exit("no license")


def speaks_at_length(completions: Any, **kwargs: Any) -> Any:
    """Raises a long text of many lines."""
    raise ValueError("\n".join(["a long line of a library's message"] * 200))


def is_mute(completions: Any, **kwargs: Any) -> Any:
    """Raises without a text."""
    raise AssertionError


def turns_back(trainer_state: Any, **kwargs: Any) -> None:
    """Sets the step back, for ever."""
    trainer_state.global_step = 0


def prolongs(trainer_state: Any, **kwargs: Any) -> None:
    """Moves the end away."""
    trainer_state.max_steps = 10**9


def moves(**kwargs: Any) -> None:
    """Changes the folder of the process."""
    os.chdir("/")


def logs(name: Any, value: Any) -> Callable[..., Any]:
    """A reward that logs a metric."""

    def reward(completions: Any, log_metric: Any, **kwargs: Any) -> Any:
        log_metric(name, value)
        return [float(index) for index in range(len(completions))]

    return reward


def adds(column: Any, values: Any) -> Callable[..., Any]:
    """A reward that logs a column."""

    def reward(completions: Any, log_extra: Any, **kwargs: Any) -> Any:
        log_extra(column, values)
        return [float(index) for index in range(len(completions))]

    return reward


def needs_two(scale: float, completions: Any, **kwargs: Any) -> Any:
    """An argument of one's own."""
    return [scale] * len(completions)


def swapped(policy: Any) -> dict[str, Any]:
    """The tokenizer for the model."""
    return {"model": policy.tokenizer}


SYSTEM = [{"role": "system", "content": "Think."}]
PREFILLED = [*QUESTION, {"role": "assistant", "content": "It is"}]

NEWCOMER = {
    "a reward that ends the process": named(exits, "no license"),
    "a reward that raises 200 lines": named(speaks_at_length, "a long line"),
    "a reward that raises without a text": named(is_mute, "AssertionError"),
    "a reward that sets the step back": rewarded(does(turns_back), when="mended"),
    "a reward that moves the end away": rewarded(does(prolongs), when="mended"),
    "a reward that changes the folder": rewarded(does(moves), "folder", when="warned"),
    "a metric that is text": rewarded(logs("quality", "high"), "quality", "high"),
    "a metric without a name": rewarded(logs(None, 1.0), "None"),
    "a logged column of another length": rewarded(adds("notes", ["x"]), "notes", "1 values for 4"),
    "a logged column that is a number": rewarded(adds("notes", 5), "notes"),
    "an argument that is left open": named(needs_two, culprit="scale", when="trainer"),
    "a config for the rewards": rewarded({"max_steps": 3}, when="trainer"),
    "None among the rewards": rewarded([gives(1.0), None], when="trainer"),
    "rewards in a further list": rewarded([[gives(1.0)]], when="trainer"),
    "a text for a dataset": argument("train_dataset", "openai/gsm8k", "load_dataset"),
    "the tokenizer for the model": Bad("model", trainer=swapped),
    "the class of a model": argument("model", torch.nn.Module),
    "a prompt of blank lines": given("prompt", dataset("a", "\n\t\n", "b"), "empty"),
    "a prompt with a message that is None": given("prompt", dataset(*[[*QUESTION, None]] * 4), "role"),
    "a chat template's argument that the trainer gives": together(
        "chat_template_kwargs", "tokenize", chat_template_kwargs={"tokenize": False}
    ),
    "no start of the answer": together(
        "chat_template_kwargs", "add_generation_prompt", chat_template_kwargs={"add_generation_prompt": False}
    ),
    "a warm-up longer than the run": together("warmup_steps", when="warned", warmup_steps=100, max_steps=1),
    "a share above 1": together("logging_steps", logging_steps=1.5),
    "checkpoints every 2.5 steps": together("save_steps", save_strategy="steps", save_steps=2.5),
    "a missing file of DeepSpeed": together("deepspeed", deepspeed="missing.json"),
    "vLLM where there is none": together("use_vllm", when="trainer", use_vllm=True),
    "a run of 10**30 steps": together("max_steps", max_steps=10**30),
    "1e300 epochs": together("num_train_epochs", max_steps=-1, num_train_epochs=1e300),
    "a completion of a milliard tokens": together(
        "max_completion_length", when="trainer", max_completion_length=10**9
    ),
    "a folder that cannot be written": together("/proc/run", when="trainer", output_dir="/proc/run"),
    "two rows a group that is never whole": together(
        "generation_batch_size", generation_batch_size=6, per_device_train_batch_size=4
    ),
    "a list for a data set to evaluate in parts": argument("eval_dataset", {"one": [row()]}),
}

RIGHT = {
    "weights in a tuple": together("", reward_weights=(0.5,)),
    "a numpy number": together("", learning_rate=np.float32(1e-3), seed=np.int64(3), max_steps=np.int32(1)),
    "a path for a folder": together("", output_dir=Path("out")),
    "an endless norm": together("", max_grad_norm=float("inf")),
    "a schedule by its name": together("", lr_scheduler_type="constant", optim="sgd"),
    "a prefilled answer": rows("", PREFILLED),
    "a system message": rows("", [*SYSTEM, *QUESTION]),
    "emoji": rows("", "What is 1 + 2? \U0001f600"),
    "plain text": rows("", "1 + 2 ="),
    "a generator of scores": rewarded(
        lambda completions, **kwargs: (float(i) for i, _ in enumerate(completions))
    ),
    "an array of objects": rewarded(returns(np.array([0.5, None, 1.0, 0.0], dtype=object))),
    "a partial": rewarded(functools.partial(needs_two, 0.5)),
    "two rewards of one name": rewarded((gives(1.0), gives(0.5))),
    "a metric": rewarded(logs("quality", np.float32(0.5))),
    "a metric that is NaN": rewarded(logs("quality", float("nan"))),
    "a pad token that was added": tokenizer("", lambda one: one.add_special_tokens({"pad_token": "<p>"})),
    "a logged column": rewarded(adds("notes", np.arange(4))),
}
"""Odd, and right: trained on without a word."""
