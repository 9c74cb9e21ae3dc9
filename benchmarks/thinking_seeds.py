"""The notebook on rewards for thinking, on several seeds: what each of the two rewards makes of the same policy.

    OMP_NUM_THREADS=1 python benchmarks/thinking_seeds.py --seeds 0 1 2

Runs notebooks/02_thinking_rewards.ipynb whole, once per seed (of the LoRA, the task's draw and the sampling), and
writes benchmarks/results/thinking_seeds.md.  Accuracy and pay are greedy, on the notebook's held-out problems.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from quickstart import ROOT, asked, share
from tables import RESULTS, command_line, cpu_name, document, table

NOTEBOOK = ROOT / "notebooks" / "02_thinking_rewards.ipynb"
ASK = """
import json as _json
_rows = {run: {
    "accuracy": [result.accuracy.value, result.accuracy.low, result.accuracy.high],
    "paid": result.reward_means[copied.__name__],
    "tokens": result.reward_means["thought_tokens"],
    "marks": sum("?" in completion.text for completion in result.completions),
} for run, result in found.items()}
print(_json.dumps(_rows | {"in_training": [paid[:3], paid[-3:]]}))
"""
COLUMNS = ("seed", "policy", "accuracy", "the copied rule pays", "tokens of a thought", "question marks")


def main() -> None:
    """Run the seeds and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    found: dict[int, dict[str, Any]] = {}
    for seed in parser.parse_args().seeds:
        found[seed] = asked(NOTEBOOK, ASK, {"seed": seed}, show=False)
        print(f"seed {seed}: {found[seed]}", flush=True)
        (RESULTS / "thinking_seeds.md").write_text(report(found))


def report(found: dict[int, dict[str, Any]]) -> str:
    """A row per seed and policy, and what the copied rule paid while it was trained on."""
    rows, paid = [], []
    for seed, result in found.items():
        first, last = (sum(few) / len(few) for few in result["in_training"])
        paid.append(f"{first:.2f} -> {last:.2f}")
        for run, row in ((run, result[run]) for run in ("start", "copied", "better")):
            cells = (f"{row['paid']:.2f}", f"{row['tokens']:.1f}", str(row["marks"]))
            rows.append((str(seed), run, share(tuple(row["accuracy"])), *cells))
    return document(
        "Rewards for thinking, seed by seed",
        command_line(),
        f"The tiny policy on {cpu_name()}; greedy, on 100 held-out problems. Intervals: 95 %, Wilson.",
        table(COLUMNS, "rllrrr", rows),
        "What the copied rule paid for the sampled completions while it was trained on, mean of the first and of the "
        f"last three steps, seed by seed: {', '.join(paid)}.",
    )


if __name__ == "__main__":
    main()
