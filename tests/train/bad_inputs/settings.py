"""Settings that are wrong alone or together; the culprit is the setting."""

from __future__ import annotations

import math
from typing import Any

from tests.train.bad_inputs.case import Bad

NAN, INF = math.nan, math.inf

VALUES: dict[str, list[Any]] = {
    # the run
    "max_steps": [0, -5, None, "10", 1.5, True],
    "num_train_epochs": ["3", 0, NAN],
    "seed": ["42", -1, 2**40],
    "logging_steps": [0, -1, "1"],
    "save_total_limit": [-1],
    "save_strategy": ["step"],
    "output_dir": ["", "pyproject.toml", "pyproject.toml/run", 5],
    "shuffle_dataset": ["no"],
    # the batch
    "num_generations": [1, "2", 2.0, None],
    "per_device_train_batch_size": [0, "4", None],
    "gradient_accumulation_steps": [0, 1.5],
    "steps_per_generation": [0],
    "generation_batch_size": [0, "4"],
    "num_iterations": [0],
    # sampling
    "max_completion_length": [0, None, "8", 7.5],
    "temperature": [0.0, 1e9, NAN, "1", None],
    "top_p": [0, 1.5],
    "top_k": [-1, 2.5],
    "min_p": [2],
    "repetition_penalty": [0],
    # the optimizer
    "learning_rate": [NAN, INF, -1e-3, "1e-5", None],
    "weight_decay": [NAN, 1e6],
    "adam_epsilon": [0.0],
    "adam_beta1": [1.5],
    "max_grad_norm": [NAN, -1.0],
    "warmup_steps": ["10", -1],
    "lr_scheduler_type": ["cosin", 5],
    "optim": ["adam", None],
    # the method
    "beta": [-0.1, NAN, 1e30, "0.1", INF],
    "epsilon": [1.5, 0],
    "epsilon_high": [-1.0],
    "reward_weights": [[1.0, 1.0], "1", [NAN], [0.0], {"reward": 1.0}],
    "reward_clip_range": [(1, -1), (0,), 5, (NAN, 1)],
    "normalize_advantages": ["false"],
    "bf16": ["yes"],
    "chat_template_kwargs": ["thinking", [1]],
}
"""Settings that are wrong alone; the culprit is the setting."""

GENERATION: dict[str, Any] = {
    "do_sample": False,
    "num_beams": 2,
    "num_return_sequences": 2,
    "max_new_tokens": 100,
    "temperature": 0.1,
    "top_k": 1,
    "temprature": 1.0,
    "eos_token_id": 5,
}
"""What generation_kwargs may not say."""

BY_LOSS = {
    "save_strategy": "best",
    "metric_for_best_model": "loss",
    "eval_strategy": "steps",
    "eval_steps": 1,
}


def together(culprit: str, *says: str, when: Any = "config", **config: Any) -> Bad:
    """Settings that contradict each other, or lack something."""
    return Bad(culprit, config, says=says, when=when)


TOGETHER = {
    "a batch that is no multiple of K": together(
        "num_generations", "groups of 4", num_generations=4, per_device_train_batch_size=6
    ),
    "generation_kwargs is text": together("generation_kwargs", generation_kwargs="do_sample"),
    "a misspelt setting": together("learing_rate", "learning_rate", learing_rate=1e-5),
    "an old setting without an equal": together("missing_eos_penalty", missing_eos_penalty=1.0),
    "both kinds of 16 bit": together("bf16", fp16=True, bf16=True),
    "the lowest loss as the best": together("metric_for_best_model", "eval_reward", **BY_LOSS),
    "checkpoints every 0 steps": together("save_steps", save_strategy="steps", save_steps=0),
    "evaluation every -1 steps": together("eval_steps", eval_strategy="steps", eval_steps=-1),
    "evaluation without data": together("eval_dataset", when="trainer", eval_strategy="steps", eval_steps=1),
    "a synchronised reference of a LoRA": together(
        "sync_ref_model", when="trainer", sync_ref_model=True, beta=0.1
    ),
    "workers' batches without workers": together("dataloader_prefetch_factor", dataloader_prefetch_factor=2),
    "an unknown cache": together("cache_implementation", when="trainer", cache_implementation="statik"),
    "an unknown logger": together("wandbb", when="trainer", report_to="wandbb"),
}
