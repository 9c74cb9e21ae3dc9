"""Draw results/real_model.png from the runs stored in results/real_model.json; nothing is measured.

python benchmarks/real_model.py
"""

import json
import statistics

from matplotlib.figure import Figure
from tables import RESULTS

COLOURS = ("#0072b2", "#d55e00", "#009e73")  # Okabe and Ito 2008, one for each seed
BARS = (("before", -0.2, "0.75"), ("after", 0.2, "0.35"))


def picture(seeds: dict[str, dict]) -> Figure:
    """Reward by step of every seed, and held-out accuracy before and after."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    figure.suptitle("SmolLM2-135M learns sums in words (tasks.word_sums) on a CPU", fontsize="medium")
    curve, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    for (seed, run), colour in zip(seeds.items(), COLOURS, strict=True):
        rewards = run["rewards"]
        steps = range(1, len(rewards) + 1)
        smooth = [statistics.fmean(rewards[max(0, step - 3) : step + 2]) for step in steps]
        curve.plot(steps, smooth, color=colour, label=f"seed {seed}")
        curve.plot(steps, rewards, color=colour, alpha=0.3, linewidth=0.8, zorder=0)
    curve.set(xlabel="step", ylabel="mean reward", ylim=(0, 1.05))
    curve.set_title("Training reward (thin: each step; thick: mean of 5)", fontsize="medium")
    curve.legend(frameon=False, loc="lower right")
    for name, offset, colour in BARS:
        values, lows, highs = zip(*(run[name] for run in seeds.values()), strict=True)
        below = [value - low for value, low in zip(values, lows, strict=True)]
        above = [high - value for value, high in zip(values, highs, strict=True)]
        places = [index + offset for index in range(len(values))]
        bars.bar(places, values, width=0.38, color=colour, yerr=[below, above], capsize=2, label=name)
    bars.set_xticks(range(len(seeds)), [f"seed {seed}" for seed in seeds])
    bars.set(ylim=(0, 1.05), ylabel="share right, 100 problems")
    bars.set_title("Held-out accuracy, 95 % intervals", fontsize="medium")
    bars.legend(frameon=False, loc="upper right", ncols=2)
    return figure


if __name__ == "__main__":
    stored = json.loads((RESULTS / "real_model.json").read_text())["seeds"]
    picture(stored).savefig(RESULTS / "real_model.png", dpi=120)
