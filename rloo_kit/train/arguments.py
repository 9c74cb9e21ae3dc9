"""What ``RLOOTrainer`` is given, checked and completed before TRL sees it.

For the trainer.  Names of older releases, a :class:`~rloo_kit.Policy` in place of model and tokenizer, guarded
rewards, and for informative sampling a dataset whose rows tell their place.  Whether values make sense is
:mod:`rloo_kit.train.guards`' business.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import trl

import rewards
from rloo_kit import inputs
from rloo_kit.catalogue import CATALOGUE
from rloo_kit.errors import ArgumentError, ConfigError
from rloo_kit.session import environment
from rloo_kit.train import config as _config
from rloo_kit.train import guards, prompts

OLD_NAMES = {
    "policy": "model",
    "tokenizer": "processing_class",
    "reward_model": "reward_funcs",
    "config": "args",
}
"""Arguments of older TRL trainers, and what they are called today."""

GONE = {
    "ref_policy": "remove it: the reference is the policy as it was when the trainer was made",
    "ref_model": "remove it: the reference is the policy as it was when the trainer was made",
    "value_model": "remove it: the leave-one-out baseline needs no value model",
    "data_collator": "remove it: prompts are tokenized by the trainer",
}
"""Trainer arguments without an equal today, and what to do instead."""

ARGUMENTS = (
    "model",
    "reward_funcs",
    "args",
    "train_dataset",
    "eval_dataset",
    "processing_class",
    "reward_processing_classes",
    "callbacks",
    "optimizers",
    "quantization_config",
    "peft_config",
)
"""TRL's; unsloth's generated class hides ``optimizers`` behind ``**kwargs``."""

ROW = "rloo_kit_row"
"""The dataset column that tells an informative sampler which prompt a group was of; rewards do not see it."""


def completed(given: dict[str, Any]) -> tuple[dict[str, Any], prompts.PromptHistory | None]:
    """The trainer's arguments as TRL takes them.

    Returns:
        The arguments by today's names, and the prompts' history where ``prompt_sampling`` is "informative".

    Raises:
        ArgumentError, ConfigError, DatasetError, RewardError: see :mod:`rloo_kit.train.guards`.
        rewards.RewardValueError: a reward that cannot be called as TRL calls it.
    """
    given = _config.modern_names(given, OLD_NAMES, GONE, set(ARGUMENTS), "RLOOTrainer", stacklevel=4)
    given = _unwrap_policy(given)
    if "args" not in given:
        given["args"] = _config.RLOOConfig()
    _check_arguments(given)
    if not isinstance(given["args"], _config.RLOOConfig):  # ours has spoken already
        for doubt in guards.doubts(given["args"]):
            warnings.warn(doubt, stacklevel=3)
    given["reward_funcs"] = _guarded_rewards(given)
    return given, _prompt_history(given)


def _unwrap_policy(given: dict[str, Any]) -> dict[str, Any]:
    from rloo_kit.policy.policy import Policy

    policy = given.get("model")
    if isinstance(policy, Policy):
        return {"processing_class": policy.tokenizer, **given, "model": policy.model}
    return given


def _guarded_rewards(given: dict[str, Any]) -> list[Any]:
    funcs = given.get("reward_funcs")
    funcs = [] if funcs is None else funcs if isinstance(funcs, list | tuple) else [funcs]
    inputs.check_rewards(funcs, given["args"].reward_weights, where="RLOOConfig")
    limit = _config.own(given["args"], "reward_limit")
    dataset = given.get("train_dataset")
    columns = inputs.reward_columns(dataset)
    kept = (str, torch.nn.Module)  # reward models: TRL calls them itself
    guarded = [f if isinstance(f, kept) else rewards.guarded(f, limit=limit, columns=columns) for f in funcs]
    callables = [f for f in guarded if not isinstance(f, kept)]
    # TRL logs by name, and would average two rewards of one name into one line.
    for func, name in zip(callables, inputs.distinct([f.__name__ for f in callables]), strict=True):
        func.__name__ = name
    return guarded


def _prompt_history(given: dict[str, Any]) -> prompts.PromptHistory | None:
    """For informative sampling: the history, and a dataset whose rows tell their place."""
    args, dataset = given["args"], given["train_dataset"]
    if _config.own(args, "prompt_sampling") == "uniform":
        return None
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "add_column")) or args.remove_unused_columns:
        raise ConfigError(
            "informative sampling needs a dataset whose rows can be drawn in any order, with all its columns",
            where="RLOOConfig(prompt_sampling='informative')",
            todo="give a datasets.Dataset, leave remove_unused_columns False, or set prompt_sampling='uniform'",
        )
    if ROW in dataset.column_names:  # of another trainer
        dataset = dataset.remove_columns(ROW)
    given["train_dataset"] = dataset.add_column(ROW, list(range(len(dataset))))
    return prompts.PromptHistory(args.num_generations)


def _check_arguments(given: dict[str, Any]) -> None:
    for name in ("model", "train_dataset"):
        if given.get(name) is None:
            raise ArgumentError(f"{name} is missing", where="RLOOTrainer", todo=f"pass {name}=...")
    args = given["args"]
    for name, wrong, todo in (
        ("args", not hasattr(args, "reward_clip_range"), "args=rloo_kit.RLOOConfig(...)"),
        (
            "callbacks",
            not isinstance(given.get("callbacks", []), list | tuple),
            "a list: callbacks=[callback]",
        ),
    ):
        if wrong:
            kind = type(given[name]).__name__
            raise ArgumentError(f"{name} cannot be a {kind}", where=f"RLOOTrainer({name}=...)", todo=todo)
    _check_model(given)
    guards.check_config(args, environment.process_count())
    evaluated = given.get("eval_dataset")
    parts = evaluated if isinstance(evaluated, dict) else {"": evaluated}
    datasets = {"train_dataset": given["train_dataset"]}
    datasets |= {
        f"eval_dataset[{part!r}]" if part else "eval_dataset": dataset for part, dataset in parts.items()
    }
    for name, dataset in datasets.items():
        if dataset is not None:
            inputs.check_dataset(dataset, args, given.get("processing_class"), name)


def _check_model(given: dict[str, Any]) -> None:
    """Answers: on a GPU unsloth's trainer cannot take a name, and ignores peft_config without a word; a catalogue name
    means nothing to the hub."""
    generated, model = trl.RLOOTrainer.__name__.startswith("Unsloth"), given["model"]
    if isinstance(model, str) and (generated or model in CATALOGUE):
        raise ConfigError(
            "the trainer takes a loaded model here, not a name",
            where=f"RLOOTrainer(model={model!r})",
            todo=f"policy = rloo_kit.load_policy({model!r}), and pass model=policy",
        )
    if generated and given.get("peft_config") is not None:
        raise ConfigError(
            "on a GPU unsloth ignores peft_config, and the whole model would be trained or nothing",
            where="RLOOTrainer(peft_config=...)",
            todo="attach the LoRA before: load_policy(name, lora_rank=...), or FastLanguageModel.get_peft_model",
        )
    tokenizer = given.get("processing_class")
    if tokenizer is not None and getattr(tokenizer, "eos_token_id", 0) is None:
        raise ConfigError(
            "the tokenizer has no end-of-sequence token, so no completion would ever end",
            where=f"RLOOTrainer(processing_class={type(tokenizer).__name__})",
            todo="set tokenizer.eos_token, or load both with rloo_kit.load_policy",
        )
