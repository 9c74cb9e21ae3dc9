"""The quickstart notebook on several seeds: what it learns each time, as a table and a picture.

    OMP_NUM_THREADS=1 python benchmarks/quickstart_seeds.py --seeds 0 1 2

Runs notebooks/01_quickstart.ipynb whole, once per seed (of the LoRA, the task's draw and the sampling), and
writes benchmarks/results/quickstart_seeds.md and .png, and quickstart_run.png, what ``rloo_kit.plot`` shows of
the first seed.  Accuracy is greedy, on 200 held-out problems.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from quickstart import NOTEBOOK, OUT, run, summary

from rloo_kit.watch import plots

RESULTS = Path(__file__).resolve().parent / "results"


def main() -> None:
    """Run the seeds and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    seeds = parser.parse_args().seeds
    results = {}
    for seed in seeds:
        results[seed] = run(NOTEBOOK, {"seed": seed}, show=False)
        print(f"seed {seed}\n{summary(results[seed])}\n", flush=True)
        if seed == seeds[0]:
            plots.plot(OUT / "quickstart", RESULTS / "quickstart_run.png")
    (RESULTS / "quickstart_seeds.md").write_text(report(results))
    picture(results).savefig(RESULTS / "quickstart_seeds.png", dpi=120)


def report(results: dict[int, dict[str, Any]]) -> str:
    """The table, with the command and the machine."""
    first = next(iter(results.values()))
    lines = [
        "# The quickstart notebook, seed by seed",
        "",
        f"`OMP_NUM_THREADS=1 python benchmarks/quickstart_seeds.py --seeds {' '.join(map(str, results))}`",
        "",
        f"{first['model']}, on {first['device']}; the machine has {os.cpu_count()} cores ({platform.machine()}). "
        "Intervals: 95 %, Wilson. Seconds are wall time of the whole notebook, beside whatever else ran.",
        "",
        "| seed | held-out accuracy before | after | gain | mean reward, first and last 5 steps | seconds | peak GiB |",
        "|---:|---|---|---:|---|---:|---:|",
    ]
    for seed, result in results.items():
        before, after = ("{:.3f} [{:.3f}, {:.3f}]".format(*result[key]) for key in ("before", "after"))
        gain = result["after"][0] - result["before"][0]
        start, end = sum(result["rewards"][:5]) / 5, sum(result["rewards"][-5:]) / 5
        peak = result["peak_bytes"] / 2**30
        lines.append(
            f"| {seed} | {before} | {after} | {gain:+.3f} | {start:.3f}, {end:.3f} "
            f"| {result['seconds']:.0f} | {peak:.2f} |"
        )
    return "\n".join(lines) + "\n"


def picture(results: dict[int, dict[str, Any]]) -> Any:
    """Reward by step of every seed, and held-out accuracy before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    curve, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    for (seed, result), style in zip(results.items(), ("-", "--", ":", "-.") * 9, strict=False):
        rewards = result["rewards"]
        smooth = [
            sum(rewards[max(0, i - 2) : i + 3]) / len(rewards[max(0, i - 2) : i + 3])
            for i in range(len(rewards))
        ]
        curve.plot(range(1, len(rewards) + 1), smooth, color="black", linestyle=style, label=f"seed {seed}")
        curve.plot(range(1, len(rewards) + 1), rewards, color="0.8", linewidth=0.8, zorder=0)
    curve.set(
        xlabel="step",
        ylabel="mean reward",
        ylim=(0, 1.05),
        title="Reward (grey: each step; black: mean of 5)",
    )
    curve.legend(frameon=False, loc="lower right")
    for offset, key, color in ((-0.2, "before", "0.75"), (0.2, "after", "0.25")):
        values = [result[key] for result in results.values()]
        heights = [value[0] for value in values]
        errors = [[v[0] - v[1] for v in values], [v[2] - v[0] for v in values]]
        places = [index + offset for index in range(len(values))]
        bars.bar(places, heights, width=0.38, color=color, yerr=errors, capsize=2, label=key)
    bars.set_xticks(range(len(results)), [f"seed {seed}" for seed in results])
    bars.set(ylim=(0, 1.05), ylabel="share right", title="Held-out accuracy, 95 %")
    bars.legend(frameon=False, loc="upper left", ncols=2, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
