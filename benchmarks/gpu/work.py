"""Training data for memory.py, speed.py and hygiene.py: prompts of known length, full completions, unequal rewards.

Random weights end a completion at an arbitrary token, so sampling stops only at an end token that does not exist.  The
first step samples only a few tokens: it compiles kernels and makes the optimizer's state.
"""

from collections.abc import Callable
from typing import Any

from datasets import Dataset

REHEARSAL_TOKENS = 8
# The trainers that speed.py compares.
UNSLOTH, KIT = "TRL under Unsloth", "kit"


def dataset(tokens: int, count: int = 64) -> Dataset:
    """Return conversations of about ``tokens`` tokens, no two alike; a digit is one token of Qwen3."""
    digits = ["".join(str((n * 7 + i * i) % 10) for i in range(tokens - 12)) for n in range(count)]
    prompts = [[{"role": "user", "content": f"{n} {text}"}] for n, text in enumerate(digits)]
    return Dataset.from_dict({"prompt": prompts})


def every_other(completions: list[Any], **kwargs: Any) -> list[float]:
    return [float(index % 2) for index in range(len(completions))]


def listen(trainer: Any, **events: Callable[[], object]) -> None:
    from transformers import TrainerCallback  # imported late: this process may need Unsloth first

    methods = {name: lambda *_, call=call, **__: call() for name, call in events.items()}
    trainer.add_callback(type("Listener", (TrainerCallback,), methods)())


def at_full_length(trainer: Any, tokens: int) -> None:
    """Let the first step sample a few tokens per row, and each later step exactly ``tokens``."""
    # min_new_tokens would also do it, but with copies of all logits that no user's run makes.
    how = trainer.generation_config
    how.eos_token_id = [151936]  # one more than Qwen3's largest id
    how.max_new_tokens = min(16, tokens)
    listen(trainer, on_step_end=lambda: setattr(how, "max_new_tokens", tokens))


def settings(folder: str, k: int, groups: int, micro: int, tokens: int, **more: Any) -> dict[str, Any]:
    """Return a config's arguments, for TRL or the kit, at learning rate 0: ``k`` completions of each of ``groups``
    prompts, of at most ``tokens`` tokens, are sampled at once and trained on in micro-batches of ``micro``."""
    return {
        "output_dir": folder,
        "max_steps": 2,
        "num_generations": k,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": k * groups // micro,
        "max_completion_length": tokens,
        "learning_rate": 0.0,
        "beta": 0.05,
        "optim": "adamw_torch_fused",  # TRL's default; Unsloth has another on a GPU
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **more,
    }
