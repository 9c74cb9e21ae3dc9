"""What sampling a batch in slices costs: CPU seconds and the plan's memory, all at once and in 2, 4 and 8 slices.

    OMP_NUM_THREADS=1 python benchmarks/slices.py

The trainer's own sampling of one batch of the tiny policy, on any device; the slices take turns, so that other load
affects all of them alike.  Only sampling is measured: the rest of a step is not sliced.  Writes
benchmarks/results/slices.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from typing import Any

import rloo_kit  # isort: skip - unsloth first

import torch
from tables import RESULTS, command_line, cpu_name, document, table

from rloo_kit.memory.estimate import Estimate

ROWS, K, TOKENS = 32, 8, 32
SLICES = (1, 2, 4, 8)


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    trainer = make_trainer()
    asked = [row["prompt"] for row in trainer.train_dataset.select(range(ROWS // K)) for _ in range(K)]
    prompts, _, _ = trainer._tokenize_prompts(asked)
    planned = {count: plan_of(trainer.memory_plan, ROWS // count) for count in SLICES}
    spent: dict[int, list[float]] = {count: [] for count in SLICES}
    for seed in range(-1, repeats):  # the first is a warm-up
        for count in SLICES:
            trainer.memory_plan = planned[count]
            seconds = sampled(trainer, prompts, seed)
            spent[count] += [seconds] if seed >= 0 else []
    text = report(spent, planned)
    print("\n" + text)
    (RESULTS / "slices.md").write_text(text)


def make_trainer() -> Any:
    """A trainer of the tiny policy with one generation batch of ROWS."""
    policy = rloo_kit.load_policy("tiny", seed=0)
    task = rloo_kit.tasks.addition(n_train=64, n_held_out=8, seed=0)
    batch: dict[str, Any] = {
        "num_generations": K,
        "per_device_train_batch_size": ROWS,
        "gradient_accumulation_steps": 1,
    }
    how: dict[str, Any] = {"beta": 0.0, "max_completion_length": TOKENS, "max_steps": 1, "live_plot": False}
    config = rloo_kit.RLOOConfig("out/slices", save_strategy="no", **batch, **how)
    return rloo_kit.RLOOTrainer(policy, lambda completions, **_: [0.0] * len(completions), config, task.train)


def plan_of(planned: Estimate, rows: int) -> Estimate:
    """The plan with so many rows sampled at once."""
    settings = dataclasses.replace(planned.settings, generation_rows=rows)
    return type(planned).of(planned.model, settings, planned.device)


def sampled(trainer: Any, prompts: list[list[int]], seed: int) -> float:
    """CPU seconds of sampling a completion of each prompt."""
    torch.manual_seed(max(seed, 0))
    start = time.process_time()
    trainer._generate_single_turn(prompts, None, {})
    return time.process_time() - start


def report(spent: dict[int, list[float]], planned: dict[int, Estimate]) -> str:
    """The table, with the command and the machine."""
    whole = statistics.median(spent[1])
    rows = []
    for count, seconds in spent.items():
        middle, low, high = statistics.median(seconds), min(seconds), max(seconds)
        phases = planned[count].phases["generate"]
        mib = (phases.get("key-value cache", 0) + phases.get("decoding and sampling", 0)) / 2**20
        shown = f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        rows.append([str(count), str(ROWS // count), shown, f"{middle / whole:.2f}", f"{mib:.0f}"])
    return document(
        "Sampling in slices",
        command_line(),
        f"Device: {cpu_name()}, {torch.get_num_threads()} thread(s); load average {os.getloadavg()[0]:.1f}. "
        f"torch {torch.__version__}.",
        f"The tiny policy, {ROWS // K} prompts of K {K}, at most {TOKENS} tokens. CPU seconds of sampling a batch: "
        f"median of {len(spent[1])} [lowest, highest], a seed each. The last column is the plan's key-value cache, "
        "logits and probabilities at the peak of sampling; a real Qwen3's is nearly all cache.",
        table(
            ("slices", "rows at once", "CPU seconds", "to one slice", "MiB of the slice, planned"),
            "rrlrr",
            rows,
        ),
    )


if __name__ == "__main__":
    main()
