"""A short run in pictures: the figure of plot, the same as text, and completions before and after.

    OMP_NUM_THREADS=1 python benchmarks/run_picture.py

Trains the bundled tiny policy for 30 steps on two rewards with a KL term, so that every panel has something
to show, and writes benchmarks/results/run_picture.png and .md.  It shows the pictures, not how well RLOO
does: for that see quickstart_seeds.py.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import rloo_kit
from rloo_kit import plots

RESULTS = Path(__file__).resolve().parent / "results"
OUT = Path(__file__).resolve().parent.parent / "out" / "run_picture"
TOKENS = 32
WEIGHTS = [0.8, 0.2]


def thought_is_closed(completions: Any, **kwargs: Any) -> list[float]:
    """1 for a thought that is closed exactly once."""
    return [float(completion[0]["content"].count("</think>") == 1) for completion in completions]


def answer_is_right(completions: Any, answer: Any, **kwargs: Any) -> list[float]:
    """1 for the right number after the thought."""
    pairs = zip(completions, answer, strict=True)
    return [float(rloo_kit.tasks.answer_of(completion) == gold) for completion, gold in pairs]


def main() -> None:
    """Train, draw, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    rloo_kit.prepare(seed=given.seed)
    policy = rloo_kit.load_policy("tiny", lora_alpha=32, seed=given.seed)
    task = rloo_kit.tasks.addition(seed=given.seed)
    funcs = [answer_is_right, thought_is_closed]
    options: dict[str, Any] = {"n": 100, "max_new_tokens": TOKENS, "reward_weights": WEIGHTS}
    before = rloo_kit.evaluate(policy, task, funcs, **options)
    shutil.rmtree(OUT, ignore_errors=True)
    trainer = rloo_kit.RLOOTrainer(
        model=policy, reward_funcs=funcs, args=_config(given.seed, given.steps), train_dataset=task.train
    )
    trainer.train()
    after = rloo_kit.evaluate(policy, task, funcs, **options)
    plots.plot(OUT, RESULTS / "run_picture.png")
    comparison = rloo_kit.compare(before, after, n=3)
    (RESULTS / "run_picture.md").write_text(report(plots.as_text(OUT, 100), comparison.text(100), given))


def _config(seed: int, steps: int) -> Any:
    return rloo_kit.RLOOConfig(
        output_dir=str(OUT),
        num_generations=8,
        per_device_train_batch_size=32,
        gradient_accumulation_steps=1,
        max_steps=steps,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        beta=0.05,
        reward_weights=WEIGHTS,
        max_completion_length=TOKENS,
        save_strategy="no",
        seed=seed,
    )


def report(lines: str, comparison: str, given: argparse.Namespace) -> str:
    """The text page, with the command."""
    return "\n".join(
        [
            "# A run in pictures",
            "",
            f"`OMP_NUM_THREADS=1 python benchmarks/run_picture.py --seed {given.seed} --steps {given.steps}`",
            "",
            "The bundled tiny policy adds numbers; 0.8 for the right answer, 0.2 for a thought that is closed once,",
            "beta 0.05, 4 prompts of 8 completions a step.",
            "",
            "![The run's figure](run_picture.png)",
            "",
            "`print(rloo_kit.plot(trainer))`",
            "",
            "```",
            lines,
            "```",
            "",
            "`print(rloo_kit.compare(before, after, n=3))`, on 100 held-out problems, greedy",
            "",
            "```",
            comparison,
            "```",
            "",
        ]
    )


if __name__ == "__main__":
    main()
