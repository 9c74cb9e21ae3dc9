"""What a stranger to the kit tried, without a look at its code; and odd inputs that are right, and must pass."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.train.bad_inputs.case import Bad
from tests.train.bad_inputs.data import QUESTION, dataset, given, rows
from tests.train.bad_inputs.functions import does, gives, named, returns, rewarded
from tests.train.bad_inputs.settings import together


def exits(completions: Any, **kwargs: Any) -> Any:
    """Ends the process."""
    sys.exit("no license")


def turns_back(trainer_state: Any, **kwargs: Any) -> None:
    """Sets the step back, for ever."""
    trainer_state.global_step = 0


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
    "a reward that sets the step back": rewarded(does(turns_back), when="mended"),
    "a reward that changes the folder": rewarded(does(moves), when="mended"),
    "a metric that is text": rewarded(logs("quality", "high"), "quality", "high"),
    "a logged column of another length": rewarded(adds("notes", ["x"]), "notes", "1 values for 4"),
    "an argument that is left open": named(needs_two, culprit="scale", when="trainer"),
    "a config for the rewards": rewarded({"max_steps": 3}, when="trainer"),
    "the tokenizer for the model": Bad("model", trainer=swapped),
    "a prompt with a message that is None": given("prompt", dataset(*[[*QUESTION, None]] * 4), "role"),
    "a chat template's argument that the trainer gives": together(
        "chat_template_kwargs", "tokenize", chat_template_kwargs={"tokenize": False}
    ),
    "no start of the answer": together(
        "chat_template_kwargs", "add_generation_prompt", chat_template_kwargs={"add_generation_prompt": False}
    ),
    "a warm-up longer than the run": together("warmup_steps", when="warned", warmup_steps=100, max_steps=1),
    "checkpoints every 2.5 steps": together("save_steps", save_strategy="steps", save_steps=2.5),
    "a missing file of DeepSpeed": together("deepspeed", deepspeed="missing.json"),
    "vLLM where there is none": together("use_vllm", when="trainer", use_vllm=True),
    "a completion of a milliard tokens": together(
        "max_completion_length", when="trainer", max_completion_length=10**9
    ),
    "a folder that cannot be written": together("/proc/run", when="trainer", output_dir="/proc/run"),
    "two rows a group that is never whole": together(
        "generation_batch_size", generation_batch_size=6, per_device_train_batch_size=4
    ),
}

RIGHT = {
    "weights in a tuple": together("", reward_weights=(0.5,)),
    "a numpy number": together("", learning_rate=np.float32(1e-3), seed=np.int64(3), max_steps=np.int32(1)),
    "a path for a folder": together("", output_dir=Path("out")),
    "an endless norm": together("", max_grad_norm=float("inf")),
    "a schedule by its name": together("", lr_scheduler_type="constant", optim="sgd"),
    "a system message": rows("", [*SYSTEM, *QUESTION]),
    "a generator of scores": rewarded(
        lambda completions, **kwargs: (float(i) for i, _ in enumerate(completions))
    ),
    "an array of objects": rewarded(returns(np.array([0.5, None, 1.0, 0.0], dtype=object))),
    "a partial": rewarded(functools.partial(needs_two, 0.5)),
    "two rewards of one name": rewarded((gives(1.0), gives(0.5))),
    "a metric": rewarded(logs("quality", np.float32(0.5))),
    "a metric that is NaN": rewarded(logs("quality", float("nan"))),
    "a logged column": rewarded(adds("notes", np.arange(4))),
}
"""Odd, and right: trained on without a word."""
