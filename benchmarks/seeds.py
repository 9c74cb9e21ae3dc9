"""Training runs on several seeds, as a table and a picture: the quickstart notebook, and a real language model.

    OMP_NUM_THREADS=1 python benchmarks/seeds.py quickstart --seeds 0 1 2
    OMP_NUM_THREADS=2 python benchmarks/seeds.py real_model --seeds 0 1 2

quickstart runs notebooks/01_quickstart.ipynb whole; real_model has SmolLM2-135M learn sums in words, and needs the
extra real-cpu.  Each seed (of the LoRA, the task's draw and the sampling) runs in a process of its own and is added to
benchmarks/results/NAME.json as soon as it is done: a seed that is there is not run again, and one of real_model that
was begun resumes from its last checkpoint.  Writes NAME.md and NAME.png beside it.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from learned import IN_TIME, LARGEST, right_in_time
from runs import OUT
from tables import RESULTS, command_line, cpu_name, document, student, table

import quickstart  # isort: skip - of scripts/
from quickstart import Run, share  # isort: skip

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rloo_kit.evaluation.intervals import Interval

POLICY, PROBLEMS = "smollm2-135m", 100
TRAINING: dict[str, Any] = {
    "num_generations": 8,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "max_steps": 30,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "cosine",  # at a constant rate the reward of a seed fell again towards the end
    "beta": 0.0,
    "max_completion_length": IN_TIME,
}
"""Of real_model: arguments of ``RLOOConfig``; the temperature is the checkpoint's own."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito 2008
TITLES = {
    "quickstart": "The quickstart notebook, seed by seed",
    "real_model": "A real language model on a CPU",
}
FILES = {"quickstart": "quickstart_seeds", "real_model": "real_model"}
"""What runs -> the name of its results."""


def main() -> None:
    """Run the seeds that are missing, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=TITLES)
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--into", type=Path, help="run the only seed in this process, into this file")
    asked = parser.parse_args()
    if asked.into:
        run = {"quickstart": of_quickstart, "real_model": of_real_model}[asked.what](*asked.seeds)
        asked.into.write_text(json.dumps(dataclasses.asdict(run)))
        return
    found = stored(asked.what)
    for seed in asked.seeds:
        if seed not in found:
            found[seed] = in_its_own_process(asked.what, seed)
            write(asked.what, found)
    write(asked.what, found)


def stored(what: str) -> dict[int, Run]:
    file = RESULTS / f"{FILES[what]}.json"
    seeds = json.loads(file.read_text())["seeds"] if file.exists() else {}
    return {int(seed): Run(**run) for seed, run in sorted(seeds.items())}


def write(what: str, runs: dict[int, Run]) -> None:
    file = RESULTS / f"{FILES[what]}.json"
    scratch = file.with_suffix(".part")
    seeds = {str(seed): dataclasses.asdict(run) for seed, run in runs.items()}
    scratch.write_text(json.dumps({"seeds": seeds}, indent=1, sort_keys=True) + "\n")
    scratch.replace(file)
    file.with_suffix(".md").write_text(report(what, runs, command_line()))
    picture(runs).savefig(file.with_suffix(".png"), dpi=120)


def in_its_own_process(what: str, seed: int) -> Run:
    """The seed's result, with the peak memory of a process that did nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        command = [sys.executable, __file__, what, "--seeds", str(seed), "--into", str(file)]
        subprocess.run(command, check=True)
        return Run(**json.loads(file.read_text()))


def of_quickstart(seed: int) -> Run:
    """The notebook, whole; of seed 0 also the plot of its run."""
    found = quickstart.run(quickstart.NOTEBOOK, seed)
    if seed == 0:
        rloo_kit.plot(quickstart.OUT / "quickstart", RESULTS / "quickstart_run.png")
    return found


def of_real_model(seed: int) -> Run:
    """Train, and measure after it and, with the adapter off, as it was before."""
    policy = rloo_kit.load_policy(POLICY, seed=seed)
    task = rloo_kit.tasks.word_sums(policy, largest=LARGEST, seed=seed)
    config = rloo_kit.RLOOConfig(
        str(OUT / "real_model" / f"seed-{seed}"),
        **TRAINING,
        temperature=policy.checkpoint.temperature,
        seed=seed,
        save_steps=5,
        live_plot=False,
    )
    trainer = rloo_kit.RLOOTrainer(policy, right_in_time(task), config, task.train)

    def accuracy() -> Interval:
        found = rloo_kit.evaluate(policy, task, n=PROBLEMS, max_new_tokens=IN_TIME).accuracy
        assert found is not None  # the task has answers
        return found

    trainer.train(resume_from_checkpoint=True)  # at the beginning, where there is no checkpoint
    after = accuracy()
    with policy.model.disable_adapter():
        before = accuracy()
    log = trainer.state.log_history
    return Run(
        device=f"cpu ({cpu_name()}, {os.environ.get('OMP_NUM_THREADS', 'all')} threads)",
        model=str(policy.checkpoint),
        before=(before.value, before.low, before.high),
        after=(after.value, after.low, after.high),
        rewards=[entry["reward"] for entry in log if "reward" in entry],
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        adapter="",
        seconds=sum(entry["step_time"] for entry in log if "step_time" in entry),
    )


def report(what: str, runs: dict[int, Run], command: str) -> str:
    """The table, with the command, the machine, and the mean gain over the seeds."""
    first = next(iter(runs.values()))
    devices = " and ".join(sorted({run.device for run in runs.values()}))
    said = f"{first.model}, on {devices}. Intervals: 95 %, Wilson. Seconds are wall time, beside whatever else ran."
    parts = [command, said]
    if what == "real_model":
        settings = ", ".join(f"{name} {value}" for name, value in TRAINING.items())
        parts.append(
            f"Task: `rloo_kit.tasks.word_sums(largest={LARGEST})`; greedy on {PROBLEMS} held-out problems, in at most "
            f"{IN_TIME} tokens. In float32. {settings}, temperature {rloo_kit.CATALOGUE[POLICY].temperature}. Seconds "
            "are those of the steps; of a run that was interrupted the peak is that of its last piece."
        )
    gains = student([run.after[0] - run.before[0] for run in runs.values()])
    gain = f"Mean gain: {gains} (Student's 95 % interval over {len(runs)} seeds)."
    return document(TITLES[what], *parts, seed_table(runs), gain)


def seed_table(runs: dict[int, Run]) -> str:
    """A row per seed: accuracy before and after, reward, time and memory."""
    rows = []
    for seed, one in runs.items():
        ends = ", ".join(f"{statistics.fmean(few):.2f}" for few in (one.rewards[:5], one.rewards[-5:]))
        cost = (f"{one.seconds:.0f}", f"{one.peak_bytes / 2**30:.2f}")
        gain = f"{one.after[0] - one.before[0]:+.2f}"
        rows.append((str(seed), share(one.before), share(one.after), gain, ends, *cost))
    columns = ("seed", "held-out accuracy before", "after", "gain", "mean reward, first and last 5 steps")
    return table((*columns, "seconds", "peak GiB"), "rllrlrr", rows)


def picture(results: dict[int, Run]) -> Figure:
    """Reward by step of every seed, and held-out accuracy before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    curve, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    for index, (seed, result) in enumerate(results.items()):
        steps = range(1, len(result.rewards) + 1)
        smooth = [statistics.fmean(result.rewards[max(0, step - 3) : step + 2]) for step in steps]
        color = COLOURS[index % len(COLOURS)]
        curve.plot(steps, smooth, color=color, label=f"seed {seed}")
        curve.plot(steps, result.rewards, color=color, alpha=0.3, linewidth=0.8, zorder=0)
    curve.set(xlabel="step", ylabel="mean reward", ylim=(0, 1.05))
    curve.set_title("Reward (thin: each step; thick: mean of 5)")
    curve.legend(frameon=False, loc="lower right")
    for offset, name, color in ((-0.2, "before", "0.75"), (0.2, "after", COLOURS[0])):
        values = [getattr(result, name) for result in results.values()]
        errors = [[value - low for value, low, _ in values], [high - value for value, _, high in values]]
        places = [index + offset for index in range(len(values))]
        heights = [value for value, _, _ in values]
        bars.bar(places, heights, width=0.38, color=color, yerr=errors, capsize=2, label=name)
    bars.set_xticks(range(len(results)), [f"seed {seed}" for seed in results])
    bars.set(ylim=(0, 1.05), ylabel="share right", title="Held-out accuracy, 95 %")
    bars.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, -0.35), ncols=2)
    return figure


if __name__ == "__main__":
    main()
