"""Models, tokenizers and other arguments of the trainer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainingArguments

from tests.train.bad_inputs.case import Bad
from tests.train.bad_inputs.data import FOUR
from tests.train.bad_inputs.functions import gives


def with_tokenizer(change: Callable[[Any], object]) -> Callable[[Any], dict[str, Any]]:
    """Arguments with a changed tokenizer."""

    def made(policy: Any) -> dict[str, Any]:
        tokenizer = copy.deepcopy(policy.tokenizer)
        change(tokenizer)
        return {"processing_class": tokenizer}

    return made


def sets(name: str, value: Any) -> Callable[[Any], None]:
    """Sets an attribute."""
    return lambda thing: setattr(thing, name, value)


def add_far_token(tokenizer: Any) -> None:
    """Add tokens until one has no row in the embedding."""
    tokenizer.add_tokens(
        [f"<new-{index}>" for index in range(151_936 - max(tokenizer.get_vocab().values()) + 2)]
    )


def frozen(policy: Any) -> dict[str, Any]:
    """A model none of whose parameters is trained."""
    policy.model.requires_grad_(False)
    return {}


def tokenizer(culprit: str, change: Callable[[Any], object], *says: str) -> Bad:
    """A changed tokenizer."""
    return Bad(culprit, trainer=with_tokenizer(change), says=says)


def argument(name: str, value: Any, *says: str) -> Bad:
    """An argument that is something else."""
    return Bad(name, trainer={name: value}, says=says)


TRAINER = {
    "a tokenizer without an end": tokenizer("end-of-sequence", sets("eos_token", None)),
    "a blank chat template": tokenizer("template", sets("chat_template", " ")),
    "no chat template": tokenizer("template", sets("chat_template", None)),
    "a chat template that cannot be read": tokenizer("template", sets("chat_template", "{% for")),
    "a chat template that leaves the prompt out": tokenizer("template", sets("chat_template", "Think!")),
    "tokens without an embedding": tokenizer("embedding", add_far_token, "<new-"),
    "a tokenizer's name": argument("processing_class", "qwen3"),
    "no model": argument("model", None),
    "a number for a model": argument("model", 5),
    "a catalogue name": argument("model", "qwen3-0.6b", "load_policy('qwen3-0.6b')"),
    "a model all of whose weights are frozen": Bad("frozen", trainer=frozen),
    "a dict for the config": argument("args", {"max_steps": 1}, "args=rloo_kit.RLOOConfig"),
    "another trainer's config": argument("args", TrainingArguments("out")),
    "one callback alone": argument("callbacks", TrainerCallback(), "callbacks=[callback]"),
    "a LoRA's name": argument("peft_config", "lora"),
    "dataset and reward swapped": Bad(
        "swapped",
        trainer={"reward_funcs": FOUR, "train_dataset": gives(1.0)},
        says=("reward_funcs", "train_dataset"),
    ),
    "a misspelt argument": argument("reward_function", gives(1.0), "reward_funcs"),
}
