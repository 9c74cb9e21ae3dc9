"""Train two steps and print the plan beside what they took.

python scripts/measure_memory.py                       the tiny policy, on a CPU by tensors
python scripts/measure_memory.py --shape qwen3-4b      random weights of that shape, in 4 bit: for a GPU without a hub

Weights do not change what memory a step takes, so a shape with random weights measures as the checkpoint would.
Completions are made to run to their full length, since the plan is for those.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from gpu import memory, shapes

import rloo_kit
from rloo_kit.catalogue import CATALOGUE


def run(policy: Any, arguments: argparse.Namespace, output_dir: str) -> None:
    """Two steps; print the plan, and the comparison."""
    task = rloo_kit.tasks.addition(n_train=64, n_held_out=8, seed=0)
    config = rloo_kit.RLOOConfig(
        output_dir=output_dir,
        num_generations=arguments.k,
        per_device_train_batch_size=arguments.rows,
        gradient_accumulation_steps=1,
        max_completion_length=arguments.tokens,
        optim=arguments.optim,
        beta=0.05,
        max_steps=2,
        save_strategy="no",
    )
    plan, trainer = memory.train(policy, config, task.train)
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
            import torch

            device = "cuda" if torch.cuda.is_available() else "cpu"
            name = str(
                shapes.save(CATALOGUE[arguments.shape], Path(scratch) / arguments.shape, device=device)
            )
        run(rloo_kit.load_policy(name), arguments, f"{scratch}/run")


if __name__ == "__main__":
    main()
