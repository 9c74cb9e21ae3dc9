"""Arguments of older TRL releases: what they are called today, or what to do instead.

For :class:`rloo_kit.RLOOConfig` and the trainer, so that published recipes run as pasted.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from rloo_kit.errors import ArgumentError
from rloo_kit.session import processes
from rloo_kit.values import shown

CONFIG_OLD = {
    "kl_coef": "beta",
    "init_kl_coef": "beta",
    "rloo_k": "num_generations",
    "cliprange": "epsilon",
    "num_ppo_epochs": "num_iterations",
    "response_length": "max_completion_length",
    "max_new_tokens": "max_completion_length",
    "normalize_reward": "normalize_advantages",
    "normalize_advantage": "normalize_advantages",
    "push_to_hub_token": "hub_token",
    "warmup_ratio": "warmup_steps",  # below 1 a share of all steps
    "evaluation_strategy": "eval_strategy",
    "no_cuda": "use_cpu",
}
"""Arguments of older TRL and transformers configs, and what they are called today."""


CONFIG_GONE = {
    "token_level_kl": "remove it: the KL term is summed over the sequence, as in Ahmadian et al. 2024",
    "total_episodes": "set max_steps = total_episodes / (batch size x accumulation x processes)",
    "num_sample_generations": "set log_completions=True, or look with policy.generate",
    "whiten_rewards": "use normalize_advantages=True, which whitens the advantages of a generation batch",
    "num_mini_batches": "set steps_per_generation to how often one generation batch is split",
    "local_rollout_forward_batch_size": "remove it: per_device_train_batch_size is used",
    "missing_eos_penalty": "write it as a reward function, or set mask_truncated_completions=True",
    "stop_token": "remove it: every eos id of the model's generation config ends a completion",
    "stop_token_id": "put the id into model.generation_config.eos_token_id",
    "sft_model_path": "load the policy with rloo_kit.load_policy(path)",
    "reward_model_path": "pass the path to the trainer, as reward_funcs=path",
    "dataset_num_proc": "map the dataset yourself before training",
    "reward_clip_value": "use reward_clip_range=(-value, value)",
    "advantage_clip_range": "clip the rewards instead, with reward_clip_range",
    "exp_name": "use run_name",
    "overwrite_output_dir": "remove it: checkpoints are overwritten one by one, and resuming is asked for in train()",
    "save_safetensors": "remove it: every checkpoint is in safetensors",
    "prompt_sampling": "remove it: prompts come as often as each other, as in TRL",
    "use_liger_loss": "remove it: the log-probabilities are fused already",
}
"""Config arguments without an equal today, and what to do instead."""


TRAINER_OLD = {
    "policy": "model",
    "tokenizer": "processing_class",
    "reward_model": "reward_funcs",
    "config": "args",
}
"""Arguments of older TRL trainers, and what they are called today."""


TRAINER_GONE = {
    "ref_policy": "remove it: the reference is the policy as it was when the trainer was made",
    "ref_model": "remove it: the reference is the policy as it was when the trainer was made",
    "value_model": "remove it: the leave-one-out baseline needs no value model",
    "data_collator": "remove it: prompts are tokenized by the trainer",
}
"""Trainer arguments without an equal today, and what to do instead."""


def modern_names(
    given: Mapping[str, Any],
    old: Mapping[str, str],
    gone: Mapping[str, str],
    known: set[str],
    where: str,
    stacklevel: int,
) -> dict[str, Any]:
    """The same arguments under today's names; an old one is warned of at the line ``stacklevel`` calls up.

    Raises:
        ArgumentError: a name without an equal, an unknown name, or an old name beside its new one.
    """
    renamed = {name: old[name] for name in given if name in old and name not in known}
    if renamed:
        pairs = ", ".join(f"{before} is now {after}" for before, after in renamed.items())
        processes.warn(f"{where}: {pairs}.", FutureWarning, stacklevel=stacklevel)
    values: dict[str, Any] = {}
    for name, value in given.items():
        new = renamed.get(name, name)
        if new not in known:
            todo = gone.get(name) or _suggestion(name, known, where)
            state = "has no equal in today's TRL" if name in gone else "is no argument"
            raise ArgumentError(f"{name} {state}", where=f"{where}({name}={shown(name, value)})", todo=todo)
        if new in values:
            raise ArgumentError(
                f"{new} is given twice", where=f"{where}: {name} is its old name", todo=f"keep {new} alone"
            )
        values[new] = value
    return values


def _suggestion(name: str, known: set[str], where: str) -> str:
    close = difflib.get_close_matches(name, known, n=2)
    return f"did you mean {' or '.join(close)}?" if close else f"remove it; see help(rloo_kit.{where})"
