"""What stock TRL under Unsloth and what the kit make of 29 bad inputs.

    OMP_NUM_THREADS=1 python benchmarks/bad_inputs.py

Takes the table of tests/train/test_guards.py, gives each input to both trainers on a fresh tiny policy for one step,
and writes benchmarks/results/bad_inputs.md: refused before a completion was sampled, stopped later, or trained on
without a word, and whether every weight is still finite.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import trl

from tests.conftest import right_after_thought
from tests.train.test_guards import REFUSED, Refused, without_eos

RESULTS = Path(__file__).resolve().parent / "results"
SMALL = {
    "num_generations": 2,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "max_steps": 1,
    "max_completion_length": 8,
    "beta": 0.0,
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
    "learning_rate": 1e-3,
}


def main() -> None:
    """Try every input on both trainers and write the table."""
    task = rloo_kit.tasks.addition(n_train=64, n_held_out=32)
    stock_config = {"bf16": False}  # this CPU's; TRL would otherwise refuse every case for it
    rows = []
    for name, case in REFUSED.items():
        stock = outcome(trl.RLOOTrainer, trl.RLOOConfig, case, task, stock_config)
        ours = outcome(rloo_kit.RLOOTrainer, rloo_kit.RLOOConfig, case, task, {})
        rows.append((name, stock, ours))
        print(f"{name}: {stock} | {ours}", flush=True)
    (RESULTS / "bad_inputs.md").write_text(report(rows))


def outcome(trainer_class: Any, config_class: Any, case: Refused, task: Any, extra: dict[str, Any]) -> str:
    """What happened, in a few words."""
    policy = rloo_kit.load_policy("tiny")
    sampled: list[int] = []
    generate = policy.model.generate

    def watched(*args: Any, **kwargs: Any) -> Any:
        sampled.append(1)
        return generate(*args, **kwargs)

    policy.model.generate = watched
    arguments = {
        "model": policy.model,
        "processing_class": policy.tokenizer,
        "reward_funcs": right_after_thought,
        "train_dataset": task.train,
        **case.trainer,
    }
    if "processing_class" in case.trainer:
        arguments["processing_class"] = without_eos(policy.tokenizer)
    said = "trained on"
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            config = config_class(output_dir=folder, **{**SMALL, **extra, **case.config})
            trainer = trainer_class(args=config, **arguments)
            trainer.train()
            said = "trained on" if trainer.state.global_step else "ran no step"
        except Exception as error:
            when = "stopped" if sampled else "refused"
            said = f"{when}: {type(error).__name__}"
    finite = all(bool(parameter.isfinite().all()) for parameter in policy.model.parameters())
    return said if finite else f"{said}, NaN weights"


def report(rows: list[tuple[str, str, str]]) -> str:
    """The table and its sums."""
    sums = []
    for label, column in (("stock TRL under Unsloth", 1), ("rloo-kit", 2)):
        kinds = Counter(row[column].split(":")[0].split(",")[0] for row in rows)
        broken = sum("NaN" in row[column] for row in rows)
        counted = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        sums.append(f"- {label}: {counted}; NaN weights in {broken}")
    return "\n".join(
        [
            "# Bad inputs",
            "",
            "`OMP_NUM_THREADS=1 python benchmarks/bad_inputs.py`, on the tiny policy, on a CPU. refused: an error "
            "before the first completion was sampled; stopped: an error after; trained on, ran no step: no error. "
            "Whether an error says what to do is not counted; the kit's always do (tests/train/test_guards.py).",
            "",
            *sums,
            "",
            "| input | stock TRL under Unsloth | rloo-kit |",
            "|---|---|---|",
            *(f"| {name} | {stock} | {ours} |" for name, stock, ours in rows),
            "",
        ]
    )


if __name__ == "__main__":
    main()
