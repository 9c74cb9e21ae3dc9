"""What memory.py, speed.py and hygiene.py train on: prompts of a known length, full completions, rewards that differ.

Checkpoints have random weights, which end a completion at no particular token, so sampling waits for one that does not
exist.  The first step samples a few tokens only: kernels are compiled in it and the optimizer's state is made.
"""

from collections.abc import Callable
from typing import Any

from datasets import Dataset

REHEARSAL_TOKENS = 8
# The trainers that speed.py compares.
UNSLOTH, KIT = "TRL under Unsloth", "kit"


def dataset(tokens: int, count: int = 64) -> Dataset:
    """Conversations of about so many tokens, no two alike; a digit is one token of Qwen3."""
    digits = ["".join(str((n * 7 + i * i) % 10) for i in range(tokens - 12)) for n in range(count)]
    prompts = [[{"role": "user", "content": f"{n} {text}"}] for n, text in enumerate(digits)]
    return Dataset.from_dict({"prompt": prompts})


def every_other(completions: list[Any], **kwargs: Any) -> list[float]:
    return [float(index % 2) for index in range(len(completions))]


def listen(trainer: Any, **events: Callable[[], object]) -> None:
    from transformers import TrainerCallback  # not earlier: this process may need Unsloth first

    methods = {name: lambda *_, call=call, **__: call() for name, call in events.items()}
    trainer.add_callback(type("Listener", (TrainerCallback,), methods)())


def at_full_length(trainer: Any, tokens: int) -> None:
    """Let the first step sample a few tokens a row, and each later one ``tokens``, neither less nor more."""
    # min_new_tokens would do it too, with copies of all logits that no user's run makes.
    how = trainer.generation_config
    how.eos_token_id = [151936]  # one more than Qwen3's largest id
    how.max_new_tokens = min(16, tokens)
    listen(trainer, on_step_end=lambda: setattr(how, "max_new_tokens", tokens))


def settings(folder: str, k: int, groups: int, micro: int, tokens: int, **more: Any) -> dict[str, Any]:
    """Arguments of a config, TRL's or the kit's, at learning rate 0: ``k`` completions of each of ``groups`` prompts
    are sampled at once, ``tokens`` at most, and trained on in passes of ``micro``."""
    return {
        "output_dir": folder,
        "max_steps": 2,
        "num_generations": k,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": k * groups // micro,
        "max_completion_length": tokens,
        "learning_rate": 0.0,
        "beta": 0.05,
        "optim": "adamw_torch_fused",  # TRL's default, and not Unsloth's on a GPU
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **more,
    }
