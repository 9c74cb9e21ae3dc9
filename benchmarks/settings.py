"""Compare learning rates, updates per batch, aggregations, LoRAs and warm-ups on SmolLM2-135M's sums.

    OMP_NUM_THREADS=1 python benchmarks/settings.py --seeds 0 1
    OMP_NUM_THREADS=1 python benchmarks/settings.py --seeds 0 1 --rates 3e-4 --losses "token mean" "constant length"
    OMP_NUM_THREADS=1 python benchmarks/settings.py --task sums --rates 3e-4 --losses "token sum" --rank 8 --alpha 16

The task is sums in words or in digits.  Every run makes the same number of steps, of 4 prompts x K 8, from its seed's
policy and task, and ends with 100 held-out problems answered greedily.  Each run is a process, and is stored in
results/settings_<task>.json as soon as it is done, so that the grid can be measured in pieces.  The script also writes
settings_<task>.md; --stored only writes that file again and measures nothing.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
from collections.abc import Sequence
from typing import Any

from learned import TASKS
from matplotlib.figure import Figure
from runs import Result, Spec, described, measured
from tables import RESULTS, document, student, table, write

from rloo_kit.evaluation.intervals import Interval
from rloo_kit.watch.plots import BLUE, GREEN, ORANGE, RED

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
UPDATES: dict[str, tuple[str, int]] = {"one update": ("kit", 1), "two updates, token ratios": ("kit-token", 2)}
LOSSES = {"token sum": "", "token mean": ", token mean", "constant length": ", constant length"}
TITLES = {"words": "sums in words", "sums": "sums in digits"}
SUGGESTED = "0.0003, two updates, token ratios, token sum"
CLIP = 1.0  # TRL's max_grad_norm


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--task", choices=TITLES, default="words")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--rates", type=float, nargs="+", default=list(RATES))
    parser.add_argument("--updates", nargs="+", choices=UPDATES, default=list(UPDATES))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--rank", type=int, help="of the LoRA; load_policy's is 16")
    parser.add_argument("--alpha", type=int, help="of the LoRA; load_policy's is its rank")
    parser.add_argument("--warmup", type=int, default=0, help="updates of linear warm-up")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--room", type=int, default=1, help="4: accuracy with four times the tokens, too")
    parser.add_argument("--stored", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    name = f"settings_{asked.task}"
    own = {"lora_rank": asked.rank, "lora_alpha": asked.alpha, "warmup_steps": asked.warmup, "room": asked.room}
    grid = itertools.product(asked.seeds, asked.losses, asked.rates, asked.updates)
    wanted = (spec_of(asked.task, seed, asked.steps, rate, updates, loss, own) for seed, loss, rate, updates in grid)
    runs = measured(name, () if asked.stored else wanted, lambda run: (run.spec.seed, run.spec.setting))
    write(name, lambda command: report(runs, command))
    if suggested := suggested_runs(runs):
        draw(suggested, TITLES[asked.task]).savefig(RESULTS / f"{name}.png", dpi=120)


def spec_of(task: str, seed: int, steps: int, rate: float, updates: str, loss: str, own: dict[str, Any]) -> Spec:
    """Return the run of a setting on a seed; held-out problems are answered only at its end."""
    variant, iterations = UPDATES[updates]
    named = ("".join(f", {name} {value}" for name, value in own.items() if value and name != "room")).replace("_", " ")
    given = own | TASKS[task].spec | {"learning_rate": rate, "evaluate_every": 10**9}
    count = steps * iterations  # a step of TRL is one update
    return Spec(
        variant=variant + LOSSES[loss],
        setting=f"{rate:g}, {updates}, {loss}{named}",
        task=task,
        seed=seed,
        steps=count,
        max_steps=count,
        num_iterations=iterations,
        **given,
    )


def report(runs: Sequence[Result], command: str) -> str:
    """Return the document: the machine, a row for each setting, and each aggregation's gradient norms."""
    spec = runs[0].spec
    steps = spec.max_steps // spec.num_iterations
    return document(
        f"Learning rate, updates a batch and aggregation: SmolLM2-135M on {TITLES[spec.task]}",
        f"The last piece: {command}. Another row takes its own --rates, --updates and --losses (--rank, --alpha, "
        "--warmup where it names one), and --seeds from 0, as many as it has.",
        described(runs),
        f"Each run: {steps} generation batches of {spec.prompts_per_step} prompts x K {spec.num_generations}, at most "
        f"{spec.max_completion_length} tokens, constant rate, no warm-up, beta 0, LoRA as load_policy makes it, in "
        f"float32, unless its line says otherwise. Accuracy: greedy, {spec.problems} held-out problems, mean over "
        "seeds with Student's 95 % interval where there are two or more. Paired: the mean difference by seed to the "
        "same setting with token sum, of a token sum to what is suggested, with its interval. Reward: mean of a run's "
        "last three batches.",
        setting_table(runs),
        *suggested_part(runs),
        "## How far a step goes",
        f"The gradient's norm before it is clipped at {CLIP:g}, the share of updates that are clipped, and the mean "
        "length of the completions, over all runs of an aggregation.",
        gradient_table(runs),
    )


def setting_table(runs: Sequence[Result]) -> str:
    """Return a row per setting, sorted by rate: accuracy before and after, a paired difference, reward, tokens."""
    by_rate = sorted(runs, key=lambda run: (run.spec.learning_rate, run.spec.num_iterations, run.spec.setting))
    accuracy = {(run.spec.setting, run.spec.seed): run.evaluated[-1].accuracy for run in runs}
    rows = []
    for setting, group in itertools.groupby(by_rate, key=lambda run: run.spec.setting):
        own = list(group)
        rate, _, what = setting.partition(", ")
        after = f"{after_training(own):.2f}" if own[1:] else f"{own[0].evaluated[-1].accuracy:.2f}"
        before = statistics.fmean(run.evaluated[0].accuracy for run in own)
        reward = statistics.fmean(statistics.fmean(run.rewards[-3:]) for run in own)
        tokens = statistics.fmean(run.tokens for run in own)
        twin = re.sub("token mean|constant length", "token sum", setting)
        other = twin if twin != setting else SUGGESTED
        seeds = [run.spec.seed for run in own if (other, run.spec.seed) in accuracy]
        gains = [accuracy[setting, seed] - accuracy[other, seed] for seed in seeds]
        gain = f"{student(gains):+.2f}" if gains[1:] and setting != SUGGESTED else ""
        figures = (f"{before:.2f}", after, gain, f"{reward:.2f}", f"{tokens:.0f}")
        rows.append((rate, what, str(len(own)), *figures))
    columns = ("learning rate", "setting", "seeds", "before", "after", "paired", "reward", "tokens")
    return table(columns, "rlrrllrr", rows)


def suggested_runs(runs: Sequence[Result]) -> list[Result]:
    """Return the runs at the settings that ``RLOOConfig.suggested`` takes, if also evaluated with room."""
    return [run for run in runs if run.spec.setting == SUGGESTED and run.spec.room > 1]


def suggested_part(runs: Sequence[Result]) -> list[str]:
    """Return a section with each seed at the suggested settings, and their mean."""
    if not (own := suggested_runs(runs)):
        return []
    found = {str(run.spec.seed): [*shares(run, 0), *shares(run, -1)] for run in own}
    found["mean"] = [*map(statistics.fmean, zip(*found.values(), strict=True))]
    rows = [[name, *(f"{share:.2f}" for share in every)] for name, every in found.items()]
    return [
        "## The suggested settings, seed by seed",
        f"{SUGGESTED}. With room: completions that were cut go on, up to {own[0].spec.room} times the tokens.",
        table(("seed", "before", "with room", "after", "with room"), "rrrrr", rows),
        f"![Reward by batch, and held-out accuracy](settings_{own[0].spec.task}.png)",
    ]


def shares(run: Result, at: int) -> tuple[float, float]:
    found = run.evaluated[at]
    assert found.with_room is not None
    return found.accuracy, found.with_room


def draw(runs: Sequence[Result], title: str) -> Figure:
    """Draw the reward of each batch, and held-out accuracy before and after, in a colour per seed."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    rewards, limit, room = figure.subplots(1, 3, width_ratios=(1.9, 1, 1))
    for run, colour in zip(runs, (BLUE, RED, GREEN, ORANGE), strict=False):
        label, batches = f"seed {run.spec.seed}", range(1, len(run.rewards) + 1)
        rewards.plot(batches, run.rewards, color=colour, marker=".", label=label)
        for axes, before, after in zip((limit, room), shares(run, 0), shares(run, -1), strict=True):
            axes.plot((0, 1), (before, after), color=colour, marker="o")
    rewards.set(title=f"SmolLM2-135M on {title}: training", xlabel="batch of 4 prompts x 8", ylabel="mean reward")
    rewards.legend(loc="upper left", frameon=False)
    limit.set(title="Held out, at the limit", ylabel=f"accuracy, {runs[0].spec.problems} problems")
    room.set(title=f"{runs[0].spec.room} x the tokens")
    for axes in (limit, room):
        axes.set(xticks=(0, 1), xticklabels=("before", "after"), xlim=(-0.3, 1.3))
    for axes in (rewards, limit, room):
        axes.set_ylim(0, 1)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def after_training(runs: Sequence[Result]) -> Interval:
    """Return the mean accuracy of the last evaluations, with an interval in [0, 1]."""
    mean = student([run.evaluated[-1].accuracy for run in runs])
    return Interval(mean.value, max(0.0, mean.low), min(1.0, mean.high)) if mean.is_bounded else mean


def gradient_table(runs: Sequence[Result]) -> str:
    """Return a row per aggregation: gradient norms before clipping, and the mean length of completions."""
    rows = []
    for loss in LOSSES:
        own = [run for run in runs if f", {loss}" in run.spec.setting]
        norms = sorted(norm for run in own for norm in run.gradients if norm > 0)
        if not norms:
            continue
        clipped = sum(norm > CLIP for norm in norms) / len(norms)
        sampled = own[0].spec.prompts_per_step * own[0].spec.num_generations
        length = statistics.fmean(step.tokens / sampled for run in own for step in run.steps if step.tokens)
        middle = f"{statistics.median(norms):.3f}"
        rows.append((loss, middle, f"{norms[-1]:.3f}", f"{clipped:.2f}", f"{length:.1f}"))
    return table(("aggregation", "median norm", "largest", "share clipped", "mean length"), "lrrrr", rows)


if __name__ == "__main__":
    main()
