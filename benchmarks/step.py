"""Where a step's time goes, stock TRL beside the kit and the kit with one optimisation off at a time.

    OMP_NUM_THREADS=1 python benchmarks/step.py
    OMP_NUM_THREADS=1 python benchmarks/step.py --policy out/quickstart/adapter --name step_trained
    python benchmarks/step.py --policy qwen3-4b-thinking --level 4 --max-completion-length 1024 --micro-batch 8

Any policy that ``load_policy`` takes, any device.  Each run is a process of its own, one at a time, and the
trainers take turns, so that what else the machine does meets all of them.  Repeats have the same seed: they
compute the same, and their spread is the machine's.  The first step of each run, which warms up, is left out.
Writes benchmarks/results/NAME.md and NAME.json.  A rerun goes on where an interrupted one stopped.
"""

from __future__ import annotations

import argparse
import json
import statistics

from phases import PHASES, Spent
from runs import RESULTS, VARIANTS, Result, Spec, command_line, described, measure


def main() -> None:
    """Run what the command line asks for and write the table."""
    arguments = parse()
    names = {item: getattr(arguments, item) for item in SHARED}
    specs = [
        Spec(
            variant,
            repeat=repeat,
            **names,
            max_steps=arguments.steps,
            micro_batch=arguments.micro_batch or arguments.num_generations * arguments.prompts_per_step,
        )
        for repeat in range(arguments.repeats)
        for variant in arguments.trainer
    ]
    results = []
    for spec in specs:
        results.append(measure(spec, arguments.fresh))
        cost = per_step(results[-1])
        print(f"{spec.variant} {spec.repeat}: {cost.cpu_seconds:.2f} CPU s, {cost.wall_seconds:.2f} s a step")
    text = report(results, command_line())
    print("\n" + text)
    (RESULTS / f"{arguments.name}.md").write_text(text)
    raw = [json.dumps(result.to_json()) for result in results]
    (RESULTS / f"{arguments.name}.json").write_text("[\n" + ",\n".join(raw) + "\n]\n")


SHARED = (
    "policy",
    "level",
    "seed",
    "steps",
    "num_generations",
    "prompts_per_step",
    "max_completion_length",
    "learning_rate",
    "beta",
)
"""Settings of a run that the command line takes, with their defaults in ``Spec``."""


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trainer", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--micro-batch", type=int, help="completions in one pass; default: all of a step")
    parser.add_argument("--name", default="step", help="of the files under benchmarks/results")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    defaults = Spec("kit")
    for name in SHARED:
        value = getattr(defaults, name)
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return parser.parse_args()


def per_step(result: Result, phase: str | None = None) -> Spent:
    """Mean time of a step, whole or in one phase, the first step left out."""
    steps = result.steps[1:] or result.steps
    spent = [step.spent[phase] if phase else step.total for step in steps]
    total = sum(spent, Spent())
    return Spent(total.cpu_seconds / len(spent), total.wall_seconds / len(spent))


def by_variant(results: list[Result]) -> dict[str, list[Result]]:
    """The runs of each trainer, in the order in which trainers first ran."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.spec.variant, []).append(result)
    return groups


def middle(values: list[float]) -> str:
    """Median and range.

    >>> middle([1.5, 1.25, 2.0])
    '1.50 [1.25, 2.00]'
    """
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def report(results: list[Result], command: str) -> str:
    """The tables, with the command and the machine."""
    spec, groups = results[0].spec, by_variant(results)
    repeats = max(len(runs) for runs in groups.values())
    return "\n".join(
        [
            "# A step's time, by phase",
            "",
            f"`{command}`",
            "",
            described(results),
            "",
            f"Policy {spec.policy}, {spec.prompts_per_step} prompts of K {spec.num_generations} completions a step in "
            f"micro-batches of {spec.micro_batch}, at most {spec.max_completion_length} tokens each, beta {spec.beta}. "
            f"{repeats} runs of {spec.steps} steps each, a process each, the trainers taking turns; figures are "
            "seconds a step, the first step left out: median over runs [lowest, highest].",
            "",
            "| trainer | CPU seconds | to stock | to kit | wall seconds | to stock | tokens a step | dead groups "
            "| peak GiB |",
            "|---|---|---:|---:|---|---:|---:|---:|---:|",
            *(line(name, groups) for name in groups),
            "",
            "A trainer `no-X` is the kit with one optimisation off: what it takes more than the kit is that "
            "optimisation's share. Dead groups: share of groups whose K rewards are all equal. Peak: "
            "memory held at most, the process and its libraries included on a CPU.",
            "",
            "## CPU seconds by phase",
            "",
            phase_table(groups, "cpu_seconds"),
            "",
            "## Wall seconds by phase",
            "",
            phase_table(groups, "wall_seconds"),
            "",
        ]
    )


def line(name: str, groups: dict[str, list[Result]]) -> str:
    """One trainer's line of the first table."""
    runs = groups[name]
    cells = [
        name,
        middle([per_step(run).cpu_seconds for run in runs]),
        ratio(name, "stock", groups, "cpu_seconds"),
        ratio(name, "kit", groups, "cpu_seconds"),
        middle([per_step(run).wall_seconds for run in runs]),
        ratio(name, "stock", groups, "wall_seconds"),
        f"{statistics.mean(step.tokens for run in runs for step in run.steps):.0f}",
        f"{statistics.mean(share for run in runs for share in run.dead):.2f}",
        f"{statistics.median(run.peak_bytes for run in runs) / 2**30:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def ratio(name: str, base: str, groups: dict[str, list[Result]], clock: str) -> str:
    """Ratio of two trainers' medians; a dash without the base."""
    if base not in groups:
        return "-"
    medians = [
        statistics.median(getattr(per_step(run), clock) for run in groups[item]) for item in (name, base)
    ]
    return f"{medians[0] / medians[1]:.2f}"


def phase_table(groups: dict[str, list[Result]], clock: str) -> str:
    """Each trainer's medians by phase."""
    lines = [f"| trainer | {' | '.join(PHASES)} |", "|---|" + "---:|" * len(PHASES)]
    for name, runs in groups.items():
        cells = [statistics.median(getattr(per_step(run, phase), clock) for run in runs) for phase in PHASES]
        lines.append(f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
