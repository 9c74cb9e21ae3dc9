"""What a merged checkpoint keeps of 15 steps of RLOO, by type and learning rate, on both policies of a CPU.

    OMP_NUM_THREADS=1 python benchmarks/merged.py        # about 15 minutes; writes results/merged.md

Every checkpoint computes in float32, so that only its weights' rounding shows.  The one in float32 is the adapter.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tables import RESULTS, command_line, document, table
from transformers import AutoModelForCausalLM

RATES = (5e-6, 5e-5, 3e-4)
TYPES = ("float16", "bfloat16", "float32")
STEPS, PROMPTS = 15, 24
TASKS: dict[str, Any] = {"tiny": rloo_kit.tasks.addition, "smollm2-135m": rloo_kit.tasks.word_sums}


def rewarded(completion_ids: list[list[int]], **_: object) -> list[float]:
    """Differs between completions; what is learned does not matter here."""
    return [(sum(ids) % 97) / 97 for ids in completion_ids]


def trained(name: str, rate: float, folder: str) -> tuple[rloo_kit.Policy, list[list[int]]]:
    """The policy after its steps, and held-out prompts with its own greedy completions, as token ids."""
    policy, make = rloo_kit.load_policy(name, seed=0), TASKS[name]
    task = make(*([] if name == "tiny" else [policy]), n_train=64, n_held_out=PROMPTS)
    how: Any = {"learning_rate": rate, "lr_scheduler_type": "constant", "max_steps": STEPS, "beta": 0.0}
    how |= {"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    how |= {"max_completion_length": 16, "temperature": policy.checkpoint.temperature, "save_strategy": "no"}
    config = rloo_kit.RLOOConfig(f"{folder}/run", progress=False, **how)
    rloo_kit.RLOOTrainer(policy, rewarded, config, task.train).train()
    prompts = policy.tokenize(task.held_out["prompt"])
    said = policy.generate(task.held_out["prompt"], greedy=True, max_new_tokens=16)
    return policy, [prompt + list(one.ids) for prompt, one in zip(prompts, said, strict=True)]


@torch.no_grad()
def log_probs(folder: str | Path, texts: list[list[int]]) -> torch.Tensor:
    """(tokens of all texts, vocabulary) log-probabilities of the next token."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return torch.cat([model(torch.tensor([text])).logits[0].log_softmax(-1) for text in texts])


def rows(name: str, rate: float) -> Iterator[tuple[str, ...]]:
    """Of one run, a row a type."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        policy, texts = trained(name, rate, folder)
        made = {dtype: policy.save_merged(f"{folder}/{dtype}", dtype=dtype) for dtype in TYPES}
        true = log_probs(made["float32"], texts)
        for kind, place in {**made, "the base": Path(policy.base)}.items():
            found = log_probs(place, texts)
            kl = (true.exp() * (true - found)).sum(-1).mean()
            same = (true.argmax(-1) == found.argmax(-1)).float().mean()
            card = Path(place, "README.md").read_text() if kind in made else "0.0% -, the worst, 0.0%"
            share, worst = re.findall(r"([\d.]+%)", card)[:2]
            yield name, f"{rate:g}", kind, share, worst, f"{kl:.1e}", f"{same:.1%}"


if __name__ == "__main__":
    columns = ("policy", "learning rate", "written in", "kept", "worst layer")
    columns += ("KL from the adapter, nats a token", "same most probable token")  # type: ignore[assignment]
    text = table(columns, "llrrrrr", [row for name in TASKS for rate in RATES for row in rows(name, rate)])
    how = f"After {STEPS} steps of RLOO (AdamW, constant learning rate, LoRA of rank 16), on {PROMPTS} held-out prompts"
    intro = f"{command_line()}.  {how} and the policy's own completions."
    file = RESULTS / "merged.md"
    file.write_text(document("What a merged checkpoint keeps", intro, text), encoding="utf-8")
