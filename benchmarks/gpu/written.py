"""One update of the tiny policy on completions that are written down, so that every device can be asked for it.

For update.py and correct.py: the trainer, the reward, LoRA values that no machine draws for itself, and the gradient.
"""

from __future__ import annotations

import random
import tempfile
from typing import Any

K = 4
WITH, WITHOUT = "rows with a gradient", "rows without"
"""What :func:`gradient_of` counts: a row that passes through the model twice counts twice."""


def load(**options: Any) -> Any:
    """The tiny policy."""
    import rloo_kit

    return rloo_kit.load_policy("tiny", seed=0, **options)


def written(prompt_ids: Any) -> list[list[int]]:
    """The same completions on every machine: by prompt, and by place in the group; digits and an end of turn."""
    made = []
    for index, ids in enumerate(prompt_ids):
        draw = random.Random(f"{list(ids)} {index % K}")
        made.append([draw.randrange(15, 25) for _ in range(draw.randrange(1, 10))] + [151645])
    return made


def paid(completion_ids: Any, problem: Any, **kwargs: Any) -> list[float | None]:
    """One prompt in three pays everybody the same; a few completions are not scored."""
    return [
        0.5 if sum(map(ord, text)) % 3 == 0 else None if len(ids) == 3 else sum(ids) % 97 / 97
        for ids, text in zip(completion_ids, problem, strict=True)
    ]


def trainer_of(
    policy: Any, folder: str, written_down: bool = True, reward_funcs: Any = paid, **settings: Any
) -> Any:
    """The kit's trainer on sums under 50; with completions that are written down, or sampled."""
    import rloo_kit

    class Written(rloo_kit.RLOOTrainer):
        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            return written(prompt_ids)

    task = rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0)
    small = {
        "output_dir": folder,
        "num_generations": K,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "max_steps": 1,
        "max_completion_length": 12,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1e9,  # clips nothing; 0 would leave the loss scaler's factor in float16's gradients
        "save_strategy": "no",
        "live_plot": False,
        "seed": 7,
    }
    kind = Written if written_down else rloo_kit.RLOOTrainer
    config = rloo_kit.RLOOConfig(**{**small, **settings})
    return kind(model=policy, reward_funcs=reward_funcs, args=config, train_dataset=task.train)


def leave_the_reference(model: Any) -> None:
    """Give the LoRA values that every machine finds alike, and that are not the zero map."""
    import torch

    generator = torch.Generator().manual_seed(1)
    for name, parameter in sorted(model.named_parameters()):
        if parameter.requires_grad:
            scale = 0.02 if "lora_B" in name else 0.1
            drawn = scale * torch.randn(parameter.shape, generator=generator)
            if parameter.dtype != torch.float32:  # TRL's cast of a quantised policy's LoRA, on a CPU
                parameter.data = parameter.data.float()
            with torch.no_grad():  # in place: unsloth keeps copies until a weight's version changes
                parameter.copy_(drawn)


def gradient_of(policy: Any, **settings: Any) -> tuple[Any, dict[str, float]]:
    """The gradient of one update, flat and on the CPU, and what was seen of it: metrics, how many rows passed through
    the model with a gradient and without, and whether layers were checkpointed."""
    import torch
    from transformers import TrainerCallback

    class Keep(TrainerCallback):
        flat: Any = None
        checkpointed = False

        def on_pre_optimizer_step(
            self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
        ) -> None:
            named = sorted((n, p.grad) for n, p in model.named_parameters() if p.grad is not None)
            self.flat = torch.cat([grad.float().cpu().flatten() for _, grad in named])
            self.checkpointed = any(getattr(m, "gradient_checkpointing", False) for m in model.modules())

    rows = {True: 0, False: 0}

    def count(module: Any, args: Any, kwargs: Any) -> None:
        rows[torch.is_grad_enabled()] += len(kwargs["input_ids"])

    keep = Keep()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(policy, folder, learning_rate=0.0, **settings)
        trainer.add_callback(keep)
        leave_the_reference(trainer.model)
        hook = trainer.model.register_forward_pre_hook(count, with_kwargs=True)
        trainer.train()
        hook.remove()
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    _make_fresh(policy.model)
    kept = ("reward", "dead_groups", "kl", "entropy", "completions/mean_length")
    return keep.flat, {
        **{name: log[name] for name in kept if name in log},
        WITH: rows[True],
        WITHOUT: rows[False],
        "checkpointed": keep.checkpointed,
    }


def _make_fresh(model: Any) -> None:
    """Back to the zero map, so that the next trainer takes the base for its reference."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.zero_()


def trained(model: Any) -> Any:
    """The weights that are trained, flat and on the CPU."""
    import torch

    named = sorted((name, p) for name, p in model.named_parameters() if p.requires_grad)
    return torch.cat([p.detach().float().cpu().flatten() for _, p in named])
