"""Check the arguments of ``RLOOTrainer``, and complete them before TRL sees them.

It translates old names, takes a :class:`~rloo_kit.Policy` as model and tokenizer, guards rewards, and rejects launches
that would silently run as something else.  :mod:`rloo_kit.data_checks` checks datasets and rewards.
"""

import copy
import operator
from typing import Any

import torch
import trl
from accelerate import Accelerator
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase, ProcessorMixin

import rewards
from rloo_kit import data_checks
from rloo_kit.errors import ArgumentError, ConfigError, DatasetError, RewardError
from rloo_kit.models import CATALOGUE
from rloo_kit.policy.policy import Policy
from rloo_kit.policy.thinking import warn_of_no_room
from rloo_kit.session import distributed, output
from rloo_kit.train import check_config, config, run_record
from rloo_kit.train.renamed_args import TRAINER_OLD, todays

Arguments = dict[str, Any]


def completed(given: Arguments, known: set[str]) -> Arguments:
    """Return the trainer's arguments as TRL takes them, by today's names; an error names the first wrong one.
    ``known``: the names of all its arguments."""
    given = todays(given, known, "RLOOTrainer", TRAINER_OLD)
    if isinstance(policy := given.get("model"), Policy):
        given = {"processing_class": policy.tokenizer, **given, "model": policy.model}
    # TRL would load it by the model's name; the policy's tokenizer has the thinking setting in its chat template.
    given.setdefault("processing_class", getattr(given.get("model"), "_saved_temp_tokenizer", None))
    given["args"] = given.get("args") or config.RLOOConfig()
    _check_kinds(given)
    _check_model(given)
    args = given["args"]
    warned = isinstance(args, config.RLOOConfig) and args.given() == args._given  # warned when args was made
    args = given["args"] = config.check(given["args"])
    if isinstance(given["model"], torch.nn.Module):
        check_vllm(args, given["model"])
    for name, dataset in {"train_dataset": given.get("train_dataset"), **_evaluated(given)}.items():
        data_checks.check_dataset(dataset, args, given.get("processing_class"), name)
    if isinstance(policy, Policy):
        chosen = not hasattr(policy.model, "auto_checkpointing")  # else the plan chooses
        if chosen and policy.device.type == "cpu" and not policy.model.is_gradient_checkpointing:
            # transformers' Trainer would switch it on, TRL's default; on a GPU unsloth keeps the policy's setting.
            given["args"] = args = copy.copy(args)
            args.gradient_checkpointing = False
    if given.get("processing_class") is not None:
        warn_of_no_room(given["processing_class"], args.max_completion_length, "max_completion_length")
    for doubt in () if warned else check_config.doubts(args):
        output.warn(doubt)
    given["reward_funcs"] = _guarded_rewards(given)
    return given


def _check_kinds(given: Arguments) -> None:
    of_grpo = hasattr(given["args"], "scale_rewards")
    kinds: dict[str, tuple[Any, str]] = {
        "model": (str | torch.nn.Module, "rloo_kit.load_policy(...)"),
        "args": (trl.RLOOConfig, f"rloo_kit.RLOOConfig{'.from_grpo(args)' if of_grpo else '(...)'}"),
        "processing_class": (PreTrainedTokenizerBase | ProcessorMixin | None, "policy.tokenizer"),
    }
    for name, (kind, right) in kinds.items():
        if not isinstance(value := given.get(name), kind):
            what = f"{name} cannot be a {type(value).__name__}"
            raise ArgumentError(what, where=f"RLOOTrainer({name}=...)", todo=f"give {name}={right}")


def _check_model(given: Arguments) -> None:
    model: Any = given["model"]
    tokenizer: Any = given.get("processing_class")
    generated, named = trl.RLOOTrainer.__name__.startswith("Unsloth"), isinstance(model, str)
    # On a GPU unsloth's trainer cannot take a name; a catalogue name means nothing to the hub.
    if named and (generated or model in CATALOGUE):
        what, todo = "the trainer takes a loaded model here, not a name", f"rloo_kit.load_policy({model!r})"
        raise ConfigError(what, where=f"RLOOTrainer(model={model!r})", todo=f"give model={todo}")
    if generated and "peft_config" in given:
        what, todo = ("peft_config would be ignored: unsloth adds no LoRA here", "load_policy(name, lora_rank=...)")
        raise ConfigError(what, where="RLOOTrainer(peft_config=...)", todo=f"{todo} adds the LoRA")
    if named or tokenizer is None:
        return
    # A token without an embedding row raises an IndexError, or on a GPU an assertion that makes the device unusable.
    vocabulary = getattr(tokenizer, "tokenizer", tokenizer).get_vocab()
    token, last = max(vocabulary.items(), key=operator.itemgetter(1))
    rows = getattr(model.get_input_embeddings(), "num_embeddings", last + 1)
    if last >= rows:
        raise ConfigError(
            f"the model has no embedding for {token!r} of the tokenizer: it is {last}, and there are {rows} rows",
            where=f"RLOOTrainer(processing_class={type(tokenizer).__name__})",
            todo="load tokenizer and model from one checkpoint; added tokens need model.resize_token_embeddings(...)",
        )


def _evaluated(given: Arguments) -> dict[str, Any]:
    datasets = given.get("eval_dataset")
    parts = datasets if isinstance(datasets, dict) else {"": datasets}
    named = {f"eval_dataset[{part!r}]" if part else "eval_dataset": rows for part, rows in parts.items()}
    return {name: rows for name, rows in named.items() if rows is not None}


def _guarded_rewards(given: Arguments) -> list[Any]:
    args, funcs, models = given["args"], given.get("reward_funcs"), (str, torch.nn.Module)
    funcs = funcs if isinstance(funcs, list | tuple) else [] if funcs is None else [funcs]
    if not funcs:
        what = "there is no reward function, so every reward is 0 and nothing is learned"
        todo = "pass at least one: def reward(completions, **kwargs) -> list[float]"
        raise RewardError(what, where="RLOOTrainer(reward_funcs=[])", todo=todo)
    data_checks.check_weights(funcs, args.reward_weights, where="RLOOConfig")
    for dataset in _evaluated(given).values() if args.eval_strategy != "no" else ():
        for func in (func for func in funcs if not isinstance(func, models)):
            rewards.check_signature(func, data_checks.reward_columns(dataset))
    columns = data_checks.reward_columns(given["train_dataset"])
    guarded = [
        func if isinstance(func, models) else rewards.guarded(func, limit=args.reward_limit, columns=columns)
        for func in funcs  # TRL calls models itself
    ]
    data_checks.check_thoughts(guarded, given.get("processing_class"))
    callables = [func for func in guarded if not isinstance(func, models)]
    # TRL logs by name, and would average two rewards with the same name into one line.
    names = data_checks.distinct([func.__name__ for func in callables])
    for func, name in zip(callables, names, strict=True):
        func.__name__ = name
    return guarded


def check_vllm(args: trl.RLOOConfig, model: torch.nn.Module) -> None:
    """Works around: TRL sends a 4-bit policy's packed bytes to vLLM as its weights; and unsloth turns ``use_vllm`` on
    for a policy with ``fast_inference`` but aligns the rest only for GRPO (2026.10.9, models/rl.py), so that TRL would
    never wake an engine in standby, nor put it to sleep."""
    engine = getattr(model, "vllm_engine", None)
    if engine is not None and (args.fsdp or (args.use_vllm and args.vllm_mode == "server")):
        raise ConfigError(
            "the policy samples with unsloth's vLLM, which works with neither vllm_mode='server' nor FSDP2",
            where=f"load_policy(fast_inference=True), RLOOConfig(vllm_mode={args.vllm_mode!r}, fsdp={args.fsdp!r})",
            todo="load_policy(..., fast_inference=False), or remove the other",
        )
    if engine is not None:
        args.use_vllm, args.vllm_mode = True, "colocate"
        args.vllm_enable_sleep_mode = bool(engine.llm_engine.vllm_config.model_config.enable_sleep_mode)
    elif args.use_vllm and (packed := [n for n, p in model.named_parameters() if hasattr(p, "quant_state")]):
        raise ConfigError(
            f"vLLM would be sent packed bytes of 4-bit weights, {len(packed)} tensors, and sample from them",
            where=f"RLOOConfig(use_vllm=True, vllm_mode={args.vllm_mode!r}), first {packed[0]}",
            todo="load_policy(..., load_in_4bit=False), or remove use_vllm",
        )


def check_launch(accelerator: Accelerator, args: trl.RLOOConfig, dataset: Dataset | IterableDataset) -> None:
    """Works around: accelerate silently falls back to fewer processes or to DDP, and sends each process the same row
    numbers, even if their rows differ."""
    state, on_cpu = accelerator.state, accelerator.device.type == "cpu"
    engines = {"deepspeed": args.deepspeed, "fsdp": args.fsdp}
    kind = str(state.distributed_type.value)
    if error := distributed.downgrade(state.num_processes, kind, on_cpu=on_cpu, **engines):
        raise error
    if state.num_processes > 1 and isinstance(dataset, Dataset):
        digests = gather_object([run_record.digest(dataset)])
        if len(set(digests)) > 1:
            what = "the processes have different rows, and would score one prompt's completions as another's"
            where = f"RLOOTrainer(train_dataset=...), by process {digests}"
            todo = "make it with a fixed seed and at a fixed level: tasks.arithmetic(level=2, seed=0)"
            raise DatasetError(what, where=where, todo=todo)
