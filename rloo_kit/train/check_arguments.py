"""What ``RLOOTrainer`` is given, checked and completed before TRL sees it.

For the trainer: old names, a :class:`~rloo_kit.Policy` in place of model and tokenizer, and guarded rewards.
Configurations are checked by :mod:`.validate`, datasets and rewards by :mod:`rloo_kit.data_checks`.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import trl
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase, ProcessorMixin

import rewards
from rloo_kit import data_checks
from rloo_kit.errors import ArgumentError, ConfigError, RewardError
from rloo_kit.models import CATALOGUE
from rloo_kit.policy.policy import Policy, warn_of_temperature
from rloo_kit.session import processes
from rloo_kit.train import distributed, validate
from rloo_kit.train.config import RLOOConfig
from rloo_kit.train.renamed_args import TRAINER_GONE, TRAINER_OLD, modern_names
from rloo_kit.train.validate import Own

Arguments = dict[str, Any]

ARGUMENTS = (
    *("model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class"),
    *("reward_processing_classes", "callbacks", "optimizers", "quantization_config", "peft_config"),
)
"""TRL's; unsloth's generated class hides ``optimizers`` behind ``**kwargs``."""


def completed(given: Arguments) -> Arguments:
    """The trainer's arguments as TRL takes them, by today's names.

    Raises:
        ArgumentError, ConfigError, DatasetError, RewardError: the first argument that is wrong.
        VersionError: a vLLM that TRL does not take.
        rewards.RewardValueError: a reward that cannot be called as TRL calls it.
    """
    given = modern_names(given, TRAINER_OLD, TRAINER_GONE, set(ARGUMENTS), "RLOOTrainer")
    if isinstance(policy := given.get("model"), Policy):
        given = {"processing_class": policy.tokenizer, **given, "model": policy.model}
        _warn_of_other_prompts(policy, given["processing_class"])
    given = given if "args" in given else {**given, "args": RLOOConfig()}  # which may warn
    _check_kinds(given)
    _check_model(given)
    args = given["args"]
    own = Own.of(args)
    validate.check(args, own, processes.process_count())
    if isinstance(given["model"], torch.nn.Module):
        distributed.check_vllm(args, given["model"])
    _check_needed(given)
    _check_datasets(given)
    if isinstance(policy, Policy):
        warn_of_temperature(policy, args.temperature)
    if not isinstance(args, RLOOConfig):  # ours has warned already
        for doubt in validate.doubts(args, own):
            processes.warn(doubt)
    given["reward_funcs"] = _guarded_rewards(given, own.reward_limit)
    return given


def _warn_of_other_prompts(policy: Policy, tokenizer: Any) -> None:
    template = getattr(tokenizer, "chat_template", None)
    if template is not None and template != policy.tokenizer.chat_template:
        processes.warn(
            "processing_class has another chat template than the policy: training takes the first, evaluate, "
            "policy.generate and policy.save the second. What to do: set policy.tokenizer.chat_template, and leave "
            "processing_class out.",
        )


def _check_kinds(given: Arguments) -> None:
    if isinstance(given.get("reward_funcs"), Dataset | IterableDataset) and callable(
        given.get("train_dataset")
    ):
        raise ArgumentError(
            "reward_funcs is a dataset and train_dataset a function: they are swapped",
            where="RLOOTrainer(reward_funcs=..., train_dataset=...)",
            todo="give them by name: reward_funcs=[reward], train_dataset=task.train",
        )
    for name in ("model", "train_dataset"):
        if given.get(name) is None:
            raise ArgumentError(f"{name} is missing", where="RLOOTrainer", todo=f"pass {name}=...")
    of_grpo = hasattr(given["args"], "scale_rewards")
    config = "rloo_kit.RLOOConfig.from_grpo(args)" if of_grpo else "rloo_kit.RLOOConfig(...)"
    kinds: dict[str, tuple[Any, str]] = {
        "args": (trl.RLOOConfig, config),
        "model": (str | torch.nn.Module, "rloo_kit.load_policy(...)"),
        "processing_class": (PreTrainedTokenizerBase | ProcessorMixin | None, "policy.tokenizer"),
        "callbacks": (list | tuple | None, "[callback]"),
    }
    for name, (kind, right) in kinds.items():
        if not isinstance(value := given.get(name), kind):
            what = f"{name} cannot be a {type(value).__name__}"
            raise ArgumentError(what, where=f"RLOOTrainer({name}=...)", todo=f"give {name}={right}")


def _check_needed(given: Arguments) -> None:
    """What one argument asks of another."""
    args = given["args"]
    if args.eval_strategy != "no" and given.get("eval_dataset") is None:
        raise ArgumentError(
            "evaluation is asked for and there is no eval_dataset",
            where=f"RLOOConfig(eval_strategy={str(getattr(args.eval_strategy, 'value', args.eval_strategy))!r})",
            todo="pass RLOOTrainer(eval_dataset=task.held_out), or set eval_strategy='no'",
        )
    if isinstance(given["train_dataset"], IterableDataset) and args.max_steps < 0:
        raise ConfigError(
            "a stream does not say how long it is, so the run needs max_steps",
            where=f"RLOOConfig(max_steps={args.max_steps}), train_dataset is a stream",
            todo="set max_steps to the number of updates",
        )
    if args.sync_ref_model and (args.beta == 0 or hasattr(given["model"], "peft_config")):
        raise ConfigError(
            "sync_ref_model moves a reference of its own, and a LoRA's is its base; without beta there is none",
            where=f"RLOOConfig(sync_ref_model=True, beta={args.beta})",
            todo="remove sync_ref_model",
        )


def _check_model(given: Arguments) -> None:
    """Works around: on a GPU unsloth's trainer cannot take a name, and ignores peft_config silently; a catalogue name
    means nothing to the hub; and a frozen model trains nothing."""
    generated, model = trl.RLOOTrainer.__name__.startswith("Unsloth"), given["model"]
    has_config, tokenizer = given.get("peft_config") is not None, given.get("processing_class")
    if isinstance(model, str) and (generated or model in CATALOGUE):
        raise ConfigError(
            "the trainer takes a loaded model here, not a name",
            where=f"RLOOTrainer(model={model!r})",
            todo=f"policy = rloo_kit.load_policy({model!r}), and pass model=policy",
        )
    if has_config and (generated or hasattr(model, "peft_config")):
        raise ConfigError(
            "peft_config would be ignored: the policy has its LoRA already, and on a GPU unsloth adds none here",
            where="RLOOTrainer(peft_config=...)",
            todo="remove it; r, lora_alpha and target_modules are load_policy's: load_policy(name, lora_rank=...)",
        )
    if tokenizer is not None and tokenizer.eos_token_id is None:
        raise ConfigError(
            "the tokenizer has no end-of-sequence token, so no completion would ever end",
            where=f"RLOOTrainer(processing_class={type(tokenizer).__name__})",
            todo="set tokenizer.eos_token, or load both with rloo_kit.load_policy",
        )
    if isinstance(model, str):
        return
    if tokenizer is not None:
        _check_vocabulary(model, getattr(tokenizer, "tokenizer", tokenizer))
    if not has_config and not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(
            "the model has no parameter to train: all are frozen",
            where=f"RLOOTrainer(model={type(model).__name__})",
            todo="load it with rloo_kit.load_policy, which attaches a LoRA",
        )


def _check_vocabulary(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Works around: a token without a row in the embedding is an IndexError, or on a GPU an assertion that leaves the
    device unusable."""
    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    token, last = max(tokenizer.get_vocab().items(), key=operator.itemgetter(1))
    if rows is not None and last >= rows:
        raise ConfigError(
            f"the model has no embedding for {token!r} of the tokenizer: it is {last}, and there are {rows} rows",
            where=f"RLOOTrainer(processing_class={type(tokenizer).__name__})",
            todo="load tokenizer and model from one checkpoint; added tokens need model.resize_token_embeddings(...)",
        )


def _check_datasets(given: Arguments) -> None:
    evaluated = given.get("eval_dataset")
    parts = evaluated if isinstance(evaluated, dict) else {"": evaluated}
    named = {"train_dataset": given["train_dataset"]}
    named |= {f"eval_dataset[{part!r}]" if part else "eval_dataset": one for part, one in parts.items()}
    for name, dataset in named.items():
        if dataset is not None:
            data_checks.check_dataset(dataset, given["args"], given.get("processing_class"), name)


def _guarded_rewards(given: Arguments, limit: float) -> list[Any]:
    funcs = given.get("reward_funcs")
    funcs = [] if funcs is None else funcs if isinstance(funcs, list | tuple) else [funcs]
    data_checks.check_rewards(funcs, given["args"].reward_weights, where="RLOOConfig")
    columns = data_checks.reward_columns(given["train_dataset"])
    for func in funcs:
        _check_reward_model(func)
    models = (str, torch.nn.Module)  # TRL calls them itself
    guarded = [
        f if isinstance(f, models) else rewards.guarded(f, limit=limit, columns=columns) for f in funcs
    ]
    data_checks.check_thoughts(guarded, given.get("processing_class"))
    callables = [f for f in guarded if not isinstance(f, models)]
    # TRL logs by name, and would average two rewards of one name into one line.
    for func, name in zip(callables, data_checks.distinct([f.__name__ for f in callables]), strict=True):
        func.__name__ = name
    return guarded


def _check_reward_model(reward: Any) -> None:
    if not isinstance(reward, torch.nn.Module):
        return
    generates = getattr(reward, "can_generate", bool)()
    if generates or not hasattr(reward, "config"):
        raise RewardError(
            "a reward model must be a transformers model for sequence classification with one output",
            where=f"RLOOTrainer(reward_funcs={type(reward).__name__})",
            todo="pass such a model, or a function that asks yours: def reward(completions, **kwargs)",
        )
