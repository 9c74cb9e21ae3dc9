"""Measure what a step costs by phase: plain TRL under unsloth beside the kit, on a toy and on a real model.

    OMP_NUM_THREADS=1 python benchmarks/step.py
    OMP_NUM_THREADS=1 python benchmarks/step.py words --trainer stock kit --repeats 2

Every run is its own process, and the trainers of a workload take turns.  A run stored in results/step_real.json is not
measured again, so the benchmark can be run in pieces.  The first step of a run, a warm-up, is left out.  Each workload
is measured twice: with rewards a thousandth apart, so that no group has zero variance and the whole batch is trained
on, and with its rewards as they come.  The script also writes step_real.md; --stored only writes that file again and
measures nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from learned import TASKS
from phases import PHASES
from runs import VARIANTS, Result, Spec, described, measured
from tables import document, table, write

NAME = "step_real"
LEVERS = (
    *("stock", "kit, nothing shared", "kit, shared prefill", "kit, shared loss", "kit, torch's products", "kit"),
    *("stock, recomputing", "kit, recomputing"),
)
WORKLOADS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "words": ("SmolLM2-135M, sums in words: prompts of 47 to 57 tokens", {"max_steps": 3}, LEVERS),
    "maths": (
        "SmolLM2-135M, word problems as in GSM8K: prompts of 135 to 165 tokens",
        {"max_steps": 2, "max_completion_length": 100},
        LEVERS,
    ),
    "arithmetic": (
        "The tiny policy, additions: prompts of about 20 tokens",
        {"max_steps": 5},
        (
            *("stock", "kit", "no-fast-sampling", "no-tiles", "kit, torch's products"),
            *("stock, recomputing", "kit, recomputing"),
        ),
    ),
}
"""Task -> its heading, the settings that differ from the task's own, and the trainers measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", nargs="*", help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--trainer", nargs="+", choices=VARIANTS, metavar="NAME")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="measure again what an earlier kit was measured on")
    parser.add_argument("--stored", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    runs = measured(NAME, () if asked.stored else specs(asked), order, asked.fresh)
    write(NAME, lambda command: report(runs, command))


def specs(asked: argparse.Namespace) -> Iterator[Spec]:
    """Yield the runs asked for, repeats outermost; unless named, only stock and kit get rewards as they come."""
    for repeat in range(asked.repeats):
        for task in asked.workload or WORKLOADS:
            _, settings, trainers = WORKLOADS[task]
            own: dict[str, Any] = {"steps": settings["max_steps"], **TASKS[task].spec, **settings}
            for no_ties, names in ((True, trainers), (False, ("stock", "kit"))):
                for name in asked.trainer or names:
                    yield Spec(name, task=task, repeat=repeat, no_ties=no_ties, **own)


def order(run: Result) -> tuple[object, ...]:
    """Sort by workload and trainer as listed above, with rewards a thousandth apart first."""
    spec = run.spec
    trainers = WORKLOADS[spec.task][2]
    place = trainers.index(spec.variant) if spec.variant in trainers else len(trainers)
    return list(WORKLOADS).index(spec.task), not spec.no_ties, place, spec.variant, spec.repeat


def per_token(run: Result, phase: str | None = None) -> list[float]:
    """Return CPU milliseconds per generated token of each step but the first, in total or in one phase."""
    tokens = (step.tokens for step in run.steps[1:])
    return [1000 * spent / n for spent, n in zip(run.seconds("cpu_seconds", phase)[1:], tokens, strict=True)]


def report(runs: Sequence[Result], command: str) -> str:
    """Return the document: the machine, and a table for each workload and kind of rewards."""
    parts = [
        command,
        described(runs),
        "CPU milliseconds a generated token: median over steps and repeats [lowest, highest], and by phase the median. "
        "To stock: stock's with the same `gradient_checkpointing`, which is False but where a line says recomputing. "
        "*Nothing shared*: a prompt is computed for each of its completions, in sampling (*prefill*) and in the loss. "
        "*Torch's products*: torch multiplies by frozen matrices, as in stock's runs, and not oneDNN. `no-X`: the "
        "kit with one optimisation off. Zero-variance: share of groups whose K rewards are all equal.",
    ]
    for task, (heading, _, _) in WORKLOADS.items():
        for apart in (True, False):
            groups: dict[str, list[Result]] = {}
            for run in runs:
                if run.spec.task == task and run.spec.no_ties == apart:
                    groups.setdefault(run.spec.variant, []).append(run)
            if groups:
                how = "no zero-variance groups" if apart else "rewards as they come"
                parts += [f"## {heading}; {how}", settings_of(groups), group_table(groups)]
    return document("A step by phase: a real model and a toy", *parts)


def settings_of(groups: dict[str, list[Result]]) -> str:
    spec = next(iter(groups.values()))[0].spec
    return (
        f"{spec.prompts_per_step} prompts x K {spec.num_generations} a step in micro-batches of {spec.micro_batch}, at "
        f"most {spec.max_completion_length} tokens, learning rate {spec.learning_rate:g}, beta {spec.beta:g}; "
        f"{spec.max_steps} steps a run."
    )


def group_table(groups: dict[str, list[Result]]) -> str:
    def middle(name: str, phase: str | None = None) -> float:
        return statistics.median(value for run in groups[name] for value in per_token(run, phase))

    rows = []
    for name, runs in groups.items():
        values = [value for run in runs for value in per_token(run)]
        stock = "stock, recomputing" if "recomputing" in name else "stock"
        rows.append(
            [
                *(name, str(len(runs)), f"{middle(name):.2f} [{min(values):.2f}, {max(values):.2f}]"),
                f"{middle(name) / middle(stock):.2f}" if stock in groups else "-",
                *(f"{middle(name, phase):.2f}" for phase in PHASES),
                f"{statistics.fmean(step.tokens for run in runs for step in run.steps[1:]):.0f}",
                f"{statistics.fmean(share for run in runs for share in run.dead[1:]):.2f}",
                f"{statistics.median(run.peak_bytes for run in runs) / 2**30:.2f}",
            ]
        )
    ends = ("tokens a step", "zero-variance", "peak GiB")
    columns = ("trainer", "runs", "CPU ms a token", "to stock", *PHASES, *ends)
    return table(columns, "lrl" + "r" * (len(columns) - 3), rows)


if __name__ == "__main__":
    main()
