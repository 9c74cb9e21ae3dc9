"""Where a step's time goes: stock TRL, the kit, and the kit with one optimisation off at a time.

    OMP_NUM_THREADS=1 python benchmarks/step.py
    OMP_NUM_THREADS=1 python benchmarks/step.py --policy out/quickstart/adapter --name step_trained
    OMP_NUM_THREADS=1 python benchmarks/step.py --trainer stock stock-grpo kit --steps 5 --name step_grpo
    OMP_NUM_THREADS=1 python benchmarks/step.py --policy smollm2-135m --task words --max-completion-length 40 \
        --learning-rate 3e-4 --trainer kit no-shared-prompts --steps 2 --name step_words
    python benchmarks/step.py --policy qwen3-4b-thinking --level 4 --max-completion-length 1024 --micro-batch 8

Any policy that ``load_policy`` takes, any device.  Each run is a process of its own, one at a time, and the trainers
take turns, so that other load on the machine affects all of them.  Repeats have the same seed: they compute the
same, and their spread is the machine's.  The first step of each run, a warm-up, is left out.
Writes benchmarks/results/NAME.md and NAME.json; --stored writes the .md again from the .json and runs nothing.
"""

import argparse
import statistics

from phases import CLOCKS, PHASES
from runs import ABLATION, VARIANTS, Result, Spec, described, measure, store, stored
from tables import RESULTS, command_line, document, table

SHARED = (
    *("policy", "task", "level", "seed", "steps", "num_generations", "prompts_per_step"),
    *("max_completion_length", "learning_rate", "beta"),
)
"""Settings of a run that the command line takes, with their defaults in ``Spec``."""

OF_GRPO = "`stock` is TRL's RLOOTrainer under unsloth, and `stock-grpo` its GRPOTrainer. "


def main() -> None:
    """Run what the command line asks for and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trainer", nargs="+", choices=VARIANTS, default=list(ABLATION), metavar="NAME")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--micro-batch", type=int, help="completions in one pass; default: all of a step")
    parser.add_argument("--name", default="step", help="of the files under benchmarks/results")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    parser.add_argument("--stored", action="store_true", help="write the stored runs' table again")
    for name in SHARED:
        value = getattr(Spec, name)
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    arguments = parser.parse_args()
    results = stored(arguments.name) if arguments.stored else measured(arguments)
    text = report(results, command_line())
    print("\n" + text)
    (RESULTS / f"{arguments.name}.md").write_text(text)


def measured(arguments: argparse.Namespace) -> list[Result]:
    """The runs, also written to the .json."""
    shared = {name: getattr(arguments, name) for name in SHARED}
    micro_batch = arguments.micro_batch or arguments.num_generations * arguments.prompts_per_step
    results = []
    for repeat in range(arguments.repeats):
        for name in arguments.trainer:
            spec = Spec(name, repeat=repeat, max_steps=arguments.steps, micro_batch=micro_batch, **shared)
            results.append(measure(spec, arguments.fresh))
            print(name, repeat, *(f"{per_step(results[-1], c):.2f} {label}" for c, label in CLOCKS.items()))
    store(arguments.name, results)
    return results


def per_step(result: Result, clock: str, phase: str | None = None) -> float:
    """Mean seconds of a step, whole or in one phase, the first step left out."""
    seconds = result.seconds(clock, phase)
    return statistics.mean(seconds[1:] or seconds)


def report(results: list[Result], command: str) -> str:
    """The tables, with the command and the machine."""
    spec, groups = results[0].spec, dict[str, list[Result]]()
    for result in results:
        groups.setdefault(result.spec.variant, []).append(result)
    columns = (
        *("trainer", "CPU seconds", "to stock", "to kit", "wall seconds", "to stock"),
        *("tokens a step", "dead groups", "peak GiB"),
    )
    return document(
        "A step's time, by phase",
        command,
        described(results),
        f"Policy {spec.policy}, {spec.prompts_per_step} prompts of K {spec.num_generations} completions a step in "
        f"micro-batches of {spec.micro_batch}, at most {spec.max_completion_length} tokens each, beta {spec.beta}. "
        f"{max(map(len, groups.values()))} runs of {spec.steps} steps each, a process each, the trainers taking "
        "turns; figures are seconds a step, the first step left out: median over runs [lowest, highest].",
        table(columns, "llrrlrrrr", [cells(name, groups) for name in groups]),
        f"{OF_GRPO if 'stock-grpo' in groups else ''}"
        "A trainer `no-X` is the kit with one optimisation off: the time it takes beyond the kit's is that "
        "optimisation's share. Dead groups: share of groups whose K rewards are all equal. Peak: "
        "the most memory held, the process and its libraries included on a CPU.",
        "## CPU seconds by phase",
        phase_table(groups, "cpu_seconds"),
        "## Wall seconds by phase",
        phase_table(groups, "wall_seconds"),
    )


def cells(name: str, groups: dict[str, list[Result]]) -> list[str]:
    """One trainer's line of the first table."""
    runs = groups[name]

    def middle(clock: str) -> str:
        values = [per_step(run, clock) for run in runs]
        return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"

    def to(base: str, clock: str) -> str:
        return f"{_median(runs, clock) / _median(groups[base], clock):.2f}" if base in groups else "-"

    return [
        *(name, middle("cpu_seconds"), to("stock", "cpu_seconds"), to("kit", "cpu_seconds")),
        *(middle("wall_seconds"), to("stock", "wall_seconds")),
        f"{statistics.mean(step.tokens for run in runs for step in run.steps):.0f}",
        f"{statistics.mean(share for run in runs for share in run.dead):.2f}",
        f"{statistics.median(run.peak_bytes for run in runs) / 2**30:.2f}",
    ]


def phase_table(groups: dict[str, list[Result]], clock: str) -> str:
    """Each trainer's medians by phase."""
    rows = [
        [name, *(f"{_median(runs, clock, phase):.3f}" for phase in PHASES)] for name, runs in groups.items()
    ]
    return table(("trainer", *PHASES), "l" + "r" * len(PHASES), rows)


def _median(runs: list[Result], clock: str, phase: str | None = None) -> float:
    return statistics.median(per_step(run, clock, phase) for run in runs)


if __name__ == "__main__":
    main()
