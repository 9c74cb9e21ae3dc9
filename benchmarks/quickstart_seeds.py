"""The quickstart notebook on several seeds: what it learns each time, as a table and a picture.

    OMP_NUM_THREADS=1 python benchmarks/quickstart_seeds.py --seeds 0 1 2

Runs notebooks/01_quickstart.ipynb whole, once per seed (of the LoRA, the task's draw and the sampling), and writes
benchmarks/results/quickstart_seeds.md and .png, and quickstart_run.png, what ``rloo_kit.plot`` shows of the first
seed.  Accuracy is greedy, on 200 held-out problems.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from quickstart import NOTEBOOK, OUT, Run, run, share, summary
from tables import RESULTS, command_line, document, table

import rloo_kit

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def main() -> None:
    """Run the seeds and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    results: dict[int, Run] = {}
    for seed in parser.parse_args().seeds:
        results[seed] = run(NOTEBOOK, {"seed": seed}, show=False)
        print(f"seed {seed}\n{summary(results[seed])}\n", flush=True)
        if len(results) == 1:
            rloo_kit.plot(OUT / "quickstart", RESULTS / "quickstart_run.png")
    first = next(iter(results.values()))
    text = document(
        "The quickstart notebook, seed by seed",
        command_line(),
        f"{first.model}, on {first.device}; the machine has {os.cpu_count()} cores ({platform.machine()}). "
        "Intervals: 95 %, Wilson. Seconds are wall time of the whole notebook, beside whatever else ran.",
        seed_table(results),
    )
    (RESULTS / "quickstart_seeds.md").write_text(text)
    picture(results).savefig(RESULTS / "quickstart_seeds.png", dpi=120)


def seed_table(runs: dict[int, Run], digits: int = 3, minutes: bool = False) -> str:
    """A row per seed: accuracy before and after, reward, time and memory."""
    rows = []
    for seed, one in runs.items():
        ends = ", ".join(f"{statistics.fmean(few):.{digits}f}" for few in (one.rewards[:5], one.rewards[-5:]))
        gain = f"{one.after[0] - one.before[0]:+.{digits}f}"
        cost = (f"{one.seconds / (60 if minutes else 1):.0f}", f"{one.peak_bytes / 2**30:.2f}")
        rows.append((str(seed), share(one.before), share(one.after), gain, ends, *cost))
    columns = ("seed", "held-out accuracy before", "after", "gain", "mean reward, first and last 5 steps")
    return table((*columns, "minutes" if minutes else "seconds", "peak GiB"), "rllrlrr", rows)


def picture(results: dict[int, Run]) -> Figure:
    """Reward by step of every seed, and held-out accuracy before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    curve, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    for (seed, result), style in zip(results.items(), ("-", "--", ":", "-.") * 9, strict=False):
        steps = range(1, len(result.rewards) + 1)
        smooth = [statistics.fmean(result.rewards[max(0, step - 3) : step + 2]) for step in steps]
        curve.plot(steps, smooth, color="black", linestyle=style, label=f"seed {seed}")
        curve.plot(steps, result.rewards, color="0.8", linewidth=0.8, zorder=0)
    curve.set(xlabel="step", ylabel="mean reward", ylim=(0, 1.05))
    curve.set_title("Reward (grey: each step; black: mean of 5)")
    curve.legend(frameon=False, loc="lower right")
    for offset, name, color in ((-0.2, "before", "0.75"), (0.2, "after", "0.25")):
        values = [getattr(result, name) for result in results.values()]
        errors = [[value - low for value, low, _ in values], [high - value for value, _, high in values]]
        places = [index + offset for index in range(len(values))]
        heights = [value for value, _, _ in values]
        bars.bar(places, heights, width=0.38, color=color, yerr=errors, capsize=2, label=name)
    bars.set_xticks(range(len(results)), [f"seed {seed}" for seed in results])
    bars.set(ylim=(0, 1.05), ylabel="share right", title="Held-out accuracy, 95 %")
    bars.legend(frameon=False, loc="upper left", ncols=2, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
