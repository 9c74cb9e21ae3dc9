"""What ``RLOOTrainer`` is given, checked and completed before TRL sees it.

For the trainer: old names, a :class:`~rloo_kit.Policy` in place of model and tokenizer, and guarded rewards.
Configurations are checked by :mod:`.guards`, datasets and rewards by :mod:`rloo_kit.inputs`.
"""

from __future__ import annotations

import operator
from typing import Any, NoReturn

import datasets
import torch
import trl
from peft import PeftConfig
from transformers import PreTrainedTokenizerBase, ProcessorMixin, TrainerCallback

import rewards
from rloo_kit import inputs
from rloo_kit.errors import ArgumentError, ConfigError, RewardError
from rloo_kit.models import CATALOGUE
from rloo_kit.policy.policy import Policy, warn_of_temperature
from rloo_kit.session import processes
from rloo_kit.train import guards, server
from rloo_kit.train.config import RLOOConfig
from rloo_kit.train.own import Own
from rloo_kit.train.renamed_args import TRAINER_GONE, TRAINER_OLD, modern_names

Arguments = dict[str, Any]

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
    _check(given)
    args = given["args"]
    if isinstance(policy, Policy):
        warn_of_temperature(policy, args.temperature)
    own = Own.of(args)
    if not isinstance(args, RLOOConfig):  # ours has warned already
        for doubt in guards.doubts(args, own):
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


def _guarded_rewards(given: Arguments, limit: float) -> list[Any]:
    funcs = given.get("reward_funcs")
    funcs = [] if funcs is None else funcs if isinstance(funcs, list | tuple) else [funcs]
    inputs.check_rewards(funcs, given["args"].reward_weights, where="RLOOConfig")
    columns = inputs.reward_columns(given["train_dataset"])
    kept = (str, torch.nn.Module)  # reward models: TRL calls them itself
    guarded = [f if isinstance(f, kept) else rewards.guarded(f, limit=limit, columns=columns) for f in funcs]
    for func in funcs:
        _check_reward_model(func)
    inputs.check_thoughts(guarded, given.get("processing_class"))
    callables = [f for f in guarded if not isinstance(f, kept)]
    # TRL logs by name, and would average two rewards of one name into one line.
    for func, name in zip(callables, inputs.distinct([f.__name__ for f in callables]), strict=True):
        func.__name__ = name
    return guarded


def _check_reward_model(reward: object) -> None:
    if isinstance(reward, torch.nn.Module) and (not hasattr(reward, "config") or _generates(reward)):
        raise RewardError(
            "a reward model must be a transformers model for sequence classification with one output",
            where=f"RLOOTrainer(reward_funcs={type(reward).__name__})",
            todo="pass such a model, or a function that asks yours: def reward(completions, **kwargs)",
        )


def _generates(model: Any) -> bool:
    return bool(getattr(model, "can_generate", bool)())


def _check(given: Arguments) -> None:
    for name in ("model", "train_dataset"):
        if given.get(name) is None:
            raise ArgumentError(f"{name} is missing", where="RLOOTrainer", todo=f"pass {name}=...")
    args = given["args"]
    if not isinstance(args, trl.RLOOConfig):
        of_grpo = hasattr(args, "scale_rewards")
        todo = "args=rloo_kit.RLOOConfig.from_grpo(args)" if of_grpo else "args=rloo_kit.RLOOConfig(...)"
        _refuse_kind("args", args, todo)
    _check_kinds(given)
    _check_model(given)
    guards.check_config(args, Own.of(args), processes.process_count())
    if isinstance(given["model"], torch.nn.Module):
        server.check(args, given["model"])
    _check_needed(given, args)
    evaluated = given.get("eval_dataset")
    parts = evaluated if isinstance(evaluated, dict) else {"": evaluated}
    named = {"train_dataset": given["train_dataset"]}
    named |= {f"eval_dataset[{part!r}]" if part else "eval_dataset": one for part, one in parts.items()}
    for name, dataset in named.items():
        if dataset is not None:
            inputs.check_dataset(dataset, args, given.get("processing_class"), name)


def _refuse_kind(name: str, value: object, todo: str, of: str = "") -> NoReturn:
    kind = type(value).__name__
    raise ArgumentError(
        f"{of or name} cannot be a {kind}", where=f"RLOOTrainer({name}=...)", todo=f"give {todo}"
    )


def _check_needed(given: Arguments, args: trl.RLOOConfig) -> None:
    """What one argument asks of another."""
    if args.eval_strategy != "no" and given.get("eval_dataset") is None:
        raise ArgumentError(
            "evaluation is asked for and there is no eval_dataset",
            where=f"RLOOConfig(eval_strategy={str(getattr(args.eval_strategy, 'value', args.eval_strategy))!r})",
            todo="pass RLOOTrainer(eval_dataset=task.held_out), or set eval_strategy='no'",
        )
    if isinstance(given["train_dataset"], datasets.IterableDataset) and args.max_steps < 0:
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


def _check_kinds(given: Arguments) -> None:
    callbacks = given.get("callbacks", [])
    if not isinstance(callbacks, list | tuple):
        _refuse_kind("callbacks", callbacks, "a list: callbacks=[callback]")
    for one in callbacks:
        if not isinstance(one, TrainerCallback) and not (
            isinstance(one, type) and issubclass(one, TrainerCallback)
        ):
            _refuse_kind(
                "callbacks", one, "a list of transformers.TrainerCallback objects", of="an item of callbacks"
            )
    optimizers = given.get("optimizers", (None, None))
    if not isinstance(optimizers, tuple) or len(optimizers) != 2:
        _refuse_kind("optimizers", optimizers, "a pair: optimizers=(optimizer, None)")
    if not isinstance(given.get("peft_config"), PeftConfig | None):
        _refuse_kind("peft_config", given["peft_config"], "a peft.LoraConfig, or leave it to load_policy")
    if not isinstance(given["model"], str | torch.nn.Module):
        _refuse_kind("model", given["model"], "model=rloo_kit.load_policy(...)")
    tokenizer = given.get("processing_class")
    if tokenizer is not None and not isinstance(tokenizer, PreTrainedTokenizerBase | ProcessorMixin):
        _refuse_kind("processing_class", tokenizer, "the tokenizer itself: processing_class=policy.tokenizer")


def _check_model(given: Arguments) -> None:
    """Works around: on a GPU unsloth's trainer cannot take a name, and ignores peft_config silently; a catalogue name
    means nothing to the hub."""
    generated, model = trl.RLOOTrainer.__name__.startswith("Unsloth"), given["model"]
    has_config = given.get("peft_config") is not None
    if isinstance(model, str) and (generated or model in CATALOGUE):
        lora = ", with peft_config's r, lora_alpha and target_modules" if has_config else ""
        raise ConfigError(
            "the trainer takes a loaded model here, not a name",
            where=f"RLOOTrainer(model={model!r})",
            todo=f"policy = rloo_kit.load_policy({model!r}){lora}, and pass model=policy",
        )
    if has_config and hasattr(model, "peft_config"):
        raise ConfigError(
            "the policy has a LoRA already, and a second one is asked for",
            where="RLOOTrainer(peft_config=...)",
            todo="remove peft_config; its r, lora_alpha and target_modules are load_policy's",
        )
    if generated and has_config:
        raise ConfigError(
            "on a GPU unsloth ignores peft_config, and the whole model would be trained or nothing",
            where="RLOOTrainer(peft_config=...)",
            todo="attach the LoRA before: load_policy(name, lora_rank=...), or FastLanguageModel.get_peft_model",
        )
    tokenizer = given.get("processing_class")
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
            todo="load it with rloo_kit.load_policy, which attaches a LoRA; model.for_training() and "
            "requires_grad_(True) thaw one",
        )


def _check_vocabulary(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Works around: a token without a row in the embedding is an IndexError, or on a GPU an assertion that leaves the
    device unusable."""
    rows = getattr(model.get_input_embeddings(), "num_embeddings", None)
    token, last = max(tokenizer.get_vocab().items(), key=operator.itemgetter(1))
    if rows is not None and last >= rows:
        raise ConfigError(
            f"the tokenizer has tokens that the model has no embedding for: {token!r} is {last}, and there are "
            f"{rows} rows",
            where=f"RLOOTrainer(processing_class={type(tokenizer).__name__})",
            todo="load tokenizer and model from one checkpoint; added tokens need model.resize_token_embeddings(...)",
        )
