"""Train two steps and print the plan beside what they took.

python scripts/measure_memory.py                       the tiny policy, on a CPU by tensors
python scripts/measure_memory.py --shape qwen3-4b      random weights of that shape, in 4 bit: for a GPU without a hub

Weights do not change what memory a step takes, so a shape with random weights measures as the checkpoint would.
Completions are made to run to their full length, since the plan is for those.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import rloo_kit
from rloo_kit import tiny
from rloo_kit.catalogue import CATALOGUE, Card


def random_checkpoint(card: Card, folder: Path) -> Path:
    """A checkpoint of random 16-bit weights, with the tiny policy's tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shutil.copytree(tiny.checkpoint(), folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    config = Qwen3Config(
        vocab_size=card.vocabulary,
        hidden_size=card.hidden_size,
        intermediate_size=card.ffn_size,
        num_hidden_layers=card.layers,
        num_attention_heads=card.heads,
        num_key_value_heads=card.kv_heads,
        head_dim=card.head_dim,
        tie_word_embeddings=card.tied,
        max_position_embeddings=40960,
        dtype=torch.bfloat16,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def reward(completions: Any, **kwargs: Any) -> list[float]:
    """Anything with a spread."""
    return [float(index % 2) for index in range(len(completions))]


def run(policy: Any, arguments: argparse.Namespace, output_dir: str) -> None:
    """Two steps; print the plan, and the comparison."""
    from rloo_kit.measure import Meter

    task = rloo_kit.tasks.addition(n_train=64, n_held_out=8, seed=0)
    config = rloo_kit.RLOOConfig(
        output_dir=output_dir,
        num_generations=arguments.k,
        per_device_train_batch_size=arguments.rows,
        gradient_accumulation_steps=1,
        max_completion_length=arguments.tokens,
        generation_kwargs={"min_new_tokens": arguments.tokens},
        optim=arguments.optim,
        beta=0.05,
        max_steps=2,
        save_strategy="no",
    )
    trainer = rloo_kit.RLOOTrainer(model=policy, reward_funcs=reward, args=config, train_dataset=task.train)
    longest = max(len(ids) for ids in policy.tokenize(task.train["prompt"]))
    plan = rloo_kit.plan(policy, config, prompt_tokens=longest)
    trainer.memory = Meter.for_model(trainer.model, count_tensors=True)
    trainer.train()
    print(f"\n{plan}\n\n{plan.compare(trainer)}")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=[name for name in CATALOGUE if name != "tiny"])
    parser.add_argument("--rows", type=int, default=8, help="completions at once and per pass")
    parser.add_argument("--tokens", type=int, default=32, help="of a completion")
    parser.add_argument("--k", type=int, default=4, help="completions per prompt")
    parser.add_argument("--optim", default="adamw_torch_fused")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rloo-kit-") as scratch:
        name = "tiny"
        if arguments.shape:
            rloo_kit.prepare()
            name = str(random_checkpoint(CATALOGUE[arguments.shape], Path(scratch) / arguments.shape))
        run(rloo_kit.load_policy(name), arguments, f"{scratch}/run")


if __name__ == "__main__":
    main()
