"""A real language model learns on a CPU, seed by seed: SmolLM2-135M on sums in words.

    OMP_NUM_THREADS=1 python benchmarks/real_model.py --seeds 0 1 2

Each seed (of the LoRA, the task's draw and the sampling) is stored in results/real_model.json as soon as it is done, is
not run again, and resumes from its last checkpoint where it was begun.  Writes real_model.md and .png beside it;
--stored writes them again and measures nothing.  It needs the extra real-cpu.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
from typing import Any

from matplotlib.figure import Figure
from tables import RESULTS, cpu_name, document, student, table, write

POLICY, PROBLEMS, LARGEST = "smollm2-135m", 100, 10
TRAINING: dict[str, Any] = {
    "num_generations": 8,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "max_steps": 30,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "cosine",  # at a constant rate the reward of a seed fell again towards the end
    "beta": 0.0,
    "max_completion_length": 40,
    "temperature": 0.6,
}
FILE = RESULTS / "real_model.json"
COLOURS = ("#0072b2", "#d55e00", "#009e73")  # Okabe and Ito 2008, by turns
BARS = (("before", -0.2, "0.75"), ("after", 0.2, "0.35"))

Run = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", nargs="+", default=["0", "1", "2"])
    parser.add_argument("--stored", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    runs: dict[str, Run] = json.loads(FILE.read_text())["seeds"] if FILE.exists() else {}
    for seed in asked.seeds:
        if seed not in runs and not asked.stored:
            runs[seed] = measured(int(seed))
            FILE.write_text(json.dumps({"seeds": runs}, indent=1, sort_keys=True) + "\n")
    write("real_model", lambda command: report(runs, command))
    picture(runs).savefig(FILE.with_suffix(".png"), dpi=120)


def measured(seed: int) -> Run:
    """Train, and measure after it and, with the adapter off, as it was before."""
    import rloo_kit  # isort: skip - unsloth first

    from learned import right_in_time
    from runs import OUT

    policy = rloo_kit.load_policy(POLICY, seed=seed)
    task = rloo_kit.tasks.word_sums(policy, largest=LARGEST, seed=seed)
    folder = str(OUT / "real_model" / f"seed-{seed}")
    config = rloo_kit.RLOOConfig(folder, **TRAINING, seed=seed, save_steps=5, live_plot=False)
    trainer = rloo_kit.RLOOTrainer(policy, right_in_time(task), config, task.train)

    def accuracy() -> tuple[float, float, float]:
        length = TRAINING["max_completion_length"]
        found = rloo_kit.evaluate(policy, task, n=PROBLEMS, max_new_tokens=length).accuracy
        assert found is not None  # the task has answers
        return found.value, found.low, found.high

    trainer.train(resume_from_checkpoint=True)  # at the beginning, where there is no checkpoint
    after = accuracy()
    with policy.model.disable_adapter():
        before = accuracy()
    log = trainer.state.log_history
    return {
        "device": f"cpu ({cpu_name()}, {os.environ.get('OMP_NUM_THREADS', 'all')} threads)",
        "model": str(policy.checkpoint),
        "before": before,
        "after": after,
        "rewards": [entry["reward"] for entry in log if "reward" in entry],
        "seconds": sum(entry["step_time"] for entry in log if "step_time" in entry),
    }


def report(runs: dict[str, Run], command: str) -> str:
    first, *_ = runs.values()
    settings = ", ".join(f"{name} {value}" for name, value in TRAINING.items())
    rows = []
    for seed, run in sorted(runs.items()):
        few = ", ".join(f"{statistics.fmean(part):.2f}" for part in (run["rewards"][:5], run["rewards"][-5:]))
        shares = ["{:.3f} [{:.3f}, {:.3f}]".format(*run[name]) for name in ("before", "after")]
        gain = f"{run['after'][0] - run['before'][0]:+.2f}"
        rows.append((seed, *shares, gain, few, f"{run['seconds']:.0f}"))
    ends = "mean reward, first and last 5 steps"
    head = ("seed", "held-out accuracy before", "after", "gain", ends, "seconds")
    mean_gain = student([run["after"][0] - run["before"][0] for run in runs.values()])
    return document(
        "A real language model on a CPU",
        command,
        f"{first['model']}, on {' and '.join(sorted({run['device'] for run in runs.values()}))}. Intervals: 95 %, "
        "Wilson. Seconds are wall time of the steps, beside whatever else ran.",
        f"Task: `rloo_kit.tasks.word_sums(largest={LARGEST})`; greedy on {PROBLEMS} held-out problems. In float32. "
        f"{settings}.",
        table(head, "rllrlr", rows),
        f"Mean gain: {mean_gain} (Student's 95 % interval over {len(runs)} seeds).",
        "![Reward by step, and held-out accuracy before and after](real_model.png)",
    )


def picture(runs: dict[str, Run]) -> Figure:
    """Reward by step of every seed, and held-out accuracy before and after."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    figure.suptitle("SmolLM2-135M learns sums in words (tasks.word_sums) on a CPU", fontsize="medium")
    curve, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    for (seed, run), colour in zip(runs.items(), itertools.cycle(COLOURS), strict=False):
        rewards = run["rewards"]
        steps = range(1, len(rewards) + 1)
        smooth = [statistics.fmean(rewards[max(0, step - 3) : step + 2]) for step in steps]
        curve.plot(steps, smooth, color=colour, label=f"seed {seed}")
        curve.plot(steps, rewards, color=colour, alpha=0.3, linewidth=0.8, zorder=0)
    curve.set(xlabel="step", ylabel="mean reward", ylim=(0, 1.05))
    curve.set_title("Training reward (thin: each step; thick: mean of 5)", fontsize="medium")
    curve.legend(frameon=False, loc="lower right")
    for name, offset, colour in BARS:
        values, lows, highs = zip(*(run[name] for run in runs.values()), strict=True)
        below = [value - low for value, low in zip(values, lows, strict=True)]
        above = [high - value for value, high in zip(values, highs, strict=True)]
        places = [index + offset for index in range(len(values))]
        bars.bar(places, values, width=0.38, color=colour, yerr=[below, above], capsize=2, label=name)
    bars.set_xticks(range(len(runs)), [f"seed {seed}" for seed in runs])
    bars.set(ylim=(0, 1.05), ylabel=f"share right, {PROBLEMS} problems")
    bars.set_title("Held-out accuracy, 95 % intervals", fontsize="medium")
    bars.legend(frameon=False, loc="upper right", ncols=2)
    return figure


if __name__ == "__main__":
    main()
