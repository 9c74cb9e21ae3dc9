"""The work that memory.py and speed.py measure: prompts of a known length, full completions, a reward with a spread.

The plan is for completions that run to their limit, and random weights end them nowhere in particular; so sampling
waits for a token that does not exist.  (``min_new_tokens`` would do it too, with copies of all logits that no user's
run makes.)  The first step, in which kernels are compiled and the optimizer's state is made, samples a few tokens only,
and the steps after it are the ones that count.
"""

from __future__ import annotations

from typing import Any

WARM_UP_TOKENS, REHEARSAL_TOKENS = 16, 8
NO_TOKEN = 151936
"""One more than Qwen3's largest id."""


def dataset(tokens: int, count: int = 64) -> Any:
    """Conversations of about so many tokens, no two alike; a digit is one token of Qwen3."""
    from datasets import Dataset

    def question(number: int) -> str:
        digits = "".join(str((number * 7 + place * place) % 10) for place in range(max(1, tokens - 12)))
        return f"{number} {digits}"

    return Dataset.from_list([{"prompt": [{"role": "user", "content": question(n)}]} for n in range(count)])


def every_other(completions: Any, **kwargs: Any) -> list[float]:
    """1 for every other completion, so that every group has a signal."""
    return [float(index % 2) for index in range(len(completions))]


class HalfDead:
    """As :func:`every_other`, but every other group is paid alike."""

    __name__ = "half_dead"

    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, completions: Any, **kwargs: Any) -> list[float]:
        """One number per completion."""
        return [float(index % 2) * float(index // self.k % 2) for index in range(len(completions))]


def full_length(tokens: int, warm_up: int = WARM_UP_TOKENS) -> Any:
    """A callback: the first step samples ``warm_up`` tokens a row, each later one ``tokens``, neither less nor more.

    Give it to the trainer and then call ``begin(trainer)``; the trainer's own limit must be ``tokens``.
    """
    from transformers import TrainerCallback

    class FullLength(TrainerCallback):
        def begin(self, trainer: Any) -> None:
            self._generation = trainer.generation_config
            self._generation.eos_token_id = [NO_TOKEN]
            self._sample(min(warm_up, tokens))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self._sample(tokens)

        def _sample(self, count: int) -> None:
            self._generation.max_new_tokens = count

    return FullLength()


def settings(folder: str, k: int, groups: int, micro: int, tokens: int, **more: Any) -> dict[str, Any]:
    """Arguments of a config, stock or the kit's: one generation batch a step, cut into micro-batches.

    The learning rate is 0, so that a policy can be measured again and again and stays what it was; an update costs the
    same.
    """
    rows = k * groups
    return {
        "output_dir": folder,
        "seed": 0,
        "max_steps": 2,
        "num_generations": k,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": rows // micro,
        "max_completion_length": tokens,
        "learning_rate": 0.0,
        "lr_scheduler_type": "constant",
        "beta": 0.05,
        "optim": "adamw_torch_fused",
        "weight_decay": 0.0,
        "warmup_steps": 0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **more,
    }
