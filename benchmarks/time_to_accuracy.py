"""How long until the policy is good: stock TRL under unsloth beside the kit, to a held-out greedy accuracy.

    OMP_NUM_THREADS=1 python benchmarks/time_to_accuracy.py

Both trainers get the bundled tiny policy in 4 bit, the quickstart's task and reward, K, learning rate and seeds.
Each run is a process of its own, one at a time, stock and kit in turn.  Every few updates the clock stops, 200
held-out problems are answered greedily, the random state is restored, and the clock continues.  Every run makes at
least --steps updates, and continues to --max-steps until the accuracy is reached.

A run that did not reach the accuracy is not hidden.  Stock's counts with the time it was given, which is too little
and so in stock's favour; the kit's counts as infinite.  Nor are two trainers called alike because their intervals
overlap: that the kit is no worse must be shown, by the seeds' own differences and within a margin.

Writes benchmarks/results/time_to_accuracy.md, .json and .png; --stored writes table and picture again from the .json.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phases import CLOCKS, PHASES
from runs import Evaluated, Result, Spec, described, measure, store, stored
from student import student
from tables import RESULTS, command_line, document, table

from rloo_kit.evaluation.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "time_to_accuracy"
MARGIN = 0.05
"""The smallest loss of held-out accuracy that matters: a tenth of what training gains here, and what one evaluation of
200 problems cannot tell from chance at 0.85 (1.96 standard errors).  Set for those reasons, but after the stored runs
had been seen."""

Runs = dict[str, list[Result]]  # Trainer -> its runs, both trainers' in the same order of seeds
TRAINERS = ("stock", "kit")


def main() -> None:
    """Run what is missing, or read what is stored, and write the table, the picture and the raw results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--steps", type=int, default=16, help="updates of every run")
    parser.add_argument("--max-steps", type=int, default=48, help="updates of a run that is not there yet")
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--evaluate-every", type=int, default=2, help="updates between evaluations")
    parser.add_argument("--problems", type=int, default=200, help="held out, for each evaluation")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    parser.add_argument(
        "--stored", action="store_true", help="write the stored runs' table and picture again"
    )
    arguments = vars(parser.parse_args())
    seeds, fresh, is_stored = (arguments.pop(name) for name in ("seeds", "fresh", "stored"))
    if not is_stored:
        results = []
        for spec in [Spec(trainer, seed=seed, **arguments) for seed in seeds for trainer in TRAINERS]:
            results.append(measure(spec, fresh))
            found = first_reached(results[-1]) or "not reached"
            print(f"{spec.variant} seed {spec.seed}: {found}", flush=True)
        store(NAME, results)
    runs = stored_runs()
    text = report(runs, command_line())
    print("\n" + text)
    (RESULTS / f"{NAME}.md").write_text(text)
    picture(runs).savefig(RESULTS / f"{NAME}.png", dpi=120)


def stored_runs() -> Runs:
    """The runs of the .json."""
    results = stored(NAME)
    return {name: [run for run in results if run.spec.variant == name] for name in TRAINERS}


def first_reached(result: Result) -> Evaluated | None:
    """The first evaluation at or above the target; None where there is none (a censored run)."""
    return next((item for item in result.evaluated if item.accuracy >= result.spec.target), None)


def seconds_to_target(result: Result, clock: str) -> float:
    """Seconds of training until the target; infinite where it was not reached."""
    there = first_reached(result)
    return getattr(there.spent, clock) if there else math.inf


def time_ratios(runs: Runs, clock: str) -> list[float]:
    """Kit's time to the target over stock's, seed by seed.

    A stock run that did not reach it counts with the time it was given: the ratio is then an upper bound.
    A kit run that did not makes it infinite.
    """
    return [
        seconds_to_target(kit, clock) / min(seconds_to_target(stock, clock), sum(stock.seconds(clock)))
        for stock, kit in zip(runs["stock"], runs["kit"], strict=True)
    ]


def step_ratios(runs: Runs, clock: str) -> list[float]:
    """Kit's mean time of a step over stock's, seed by seed: independent of how fast a seed happens to learn."""
    stock, kit = ([statistics.mean(run.seconds(clock)) for run in runs[name]] for name in TRAINERS)
    return [ours / theirs for ours, theirs in zip(kit, stock, strict=True)]


def geometric_mean(ratios: Sequence[float]) -> Interval:
    """Geometric mean over seeds: Student's interval of the logarithms."""
    found = student([math.log(ratio) for ratio in ratios])
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def accuracy_at(result: Result, tokens: float) -> float:
    """Accuracy when so many tokens had been generated, linear between evaluations.

    Raises:
        ValueError: the run has no evaluation at or after so many tokens.
    """
    for before, after in zip(result.evaluated, result.evaluated[1:], strict=False):
        if before.tokens <= tokens <= after.tokens:
            share = (tokens - before.tokens) / (after.tokens - before.tokens)
            return before.accuracy + share * (after.accuracy - before.accuracy)
    raise ValueError(f"{tokens} tokens: the last evaluation is at {result.evaluated[-1].tokens}")


def common_tokens(runs: Runs) -> int:
    """Tokens that every run had generated by the last evaluation among its first ``steps`` updates.

    Later evaluations exist only for runs that had not reached the target, and would compare the slow with the slow.
    """
    return min(
        max(item.tokens for item in run.evaluated if item.step <= run.spec.steps)
        for run in (*runs["stock"], *runs["kit"])
    )


def verdict(gap: Interval) -> str:
    """What the interval of kit - stock shows of the kit; without an interval, nothing."""
    if gap.high < 0:
        return "worse"
    if gap.low > 0:
        return "better"
    return f"not worse by more than {MARGIN}" if gap.low > -MARGIN else "not shown"


def report(runs: Runs, command: str) -> str:
    """The tables, with the command and the machine."""
    spec = runs["kit"][0].spec
    to_target = ", ".join(spelled(time_ratios(runs, clock), label) for clock, label in CLOCKS.items())
    steps = (f"{spelled(step_ratios(runs, clock))} in {label}" for clock, label in CLOCKS.items())
    return document(
        f"Time to a held-out accuracy of {spec.target}",
        command,
        described([*runs["stock"], *runs["kit"]]),
        f"stock: TRL's RLOOTrainer on a policy that unsloth loaded. Policy {spec.policy} in 4 bit, "
        f"{spec.prompts_per_step} prompts of K {spec.num_generations} completions a step, at most "
        f"{spec.max_completion_length} tokens each, learning rate {spec.learning_rate} constant, beta {spec.beta}. "
        f"Greedy accuracy on {spec.problems} held-out problems every {spec.evaluate_every} steps, outside the "
        f"clock; reached: the first evaluation at or above {spec.target}. {spec.steps} steps, up to "
        f"{spec.max_steps} where it was not reached.",
        f"ratio kit/stock: {to_target}",
        f"Geometric mean of the {len(runs['kit'])} seeds' ratios [95 %, Student's t over seeds, of the logarithms]. "
        f"{censoring(runs)}\nIt is the product of two ratios: that of a step's time, {' and '.join(steps)}, and that "
        f"of the number of steps, {steps_compared(runs)}.",
        seed_table(runs),
        "Steps, tokens: until the accuracy was reached. Peak: resident memory of the process and its libraries, "
        "before the first evaluation.",
        f"![Accuracy against CPU seconds]({NAME}.png)",
        "## A step, by phase",
        "Mean over a run's steps, median over seeds.",
        phase_table(runs),
        "## Accuracy at equal generated tokens",
        equal_tokens_table(runs),
        "Means over seeds; of the difference, taken seed by seed, Student's 95 % interval. Verdict, line by line: "
        f"worse or better where that interval excludes 0; else not worse by more than {MARGIN}, a tenth of "
        f"what training gains, where it ends above -{MARGIN}; else not shown: neither that the kit is worse nor "
        f"that it is not. Where both are past {spec.target} there is little left to differ in. The "
        f"last line's number of tokens is the largest that every run had generated within {spec.steps} steps.",
    )


def spelled(ratios: Sequence[float], clock: str = "") -> str:
    """A geometric mean with its interval, the clock's name between them."""
    value, _, interval = f"{geometric_mean(ratios):.2f}".partition(" ")
    return " ".join(word for word in (value, clock, interval) if word)


def censoring(runs: Runs) -> str:
    """How many runs did not reach the target, and what that means."""
    stock, kit = (sum(first_reached(run) is None for run in runs[name]) for name in TRAINERS)
    if not stock and not kit:
        return "Every run reached the accuracy."
    return (
        f"Not reached: in {stock} of stock's runs (counted with the time they were given, so the ratio is "
        f"at most that) and in {kit} of the kit's (counted as infinite)."
    )


def steps_compared(runs: Runs) -> str:
    """Ratio of the numbers of steps, or that there is none."""
    reached = [[first_reached(run) for run in runs[name]] for name in TRAINERS]
    ratios = [kit.step / stock.step for stock, kit in zip(*reached, strict=True) if stock and kit]
    if len(ratios) < len(reached[0]):
        return f"for which {len(reached[0]) - len(ratios)} seeds give no ratio"
    return spelled(ratios)


def seed_table(runs: Runs) -> str:
    """One line per run, and the medians."""
    columns = ("seed", "trainer", *CLOCKS.values(), "steps", "tokens", "CPU seconds in all", "last accuracy")
    rows = [seed_row(run) for both in zip(*runs.values(), strict=True) for run in both]
    for name in TRAINERS:
        times = [statistics.median(seconds_to_target(run, clock) for run in runs[name]) for clock in CLOCKS]
        shown = ("not reached" if math.isinf(value) else f"{value:.1f}" for value in times)
        rows.append(["median", name, *shown, *[""] * 5])
    return table((*columns, "peak GiB"), "rl" + "r" * 7, rows)


def seed_row(result: Result) -> list[str]:
    """What one run took."""
    there = first_reached(result)
    when = ["not reached", "not reached", f"over {len(result.steps)}", f"over {result.tokens}"]
    if there:
        spent = (there.spent.cpu_seconds, there.spent.wall_seconds)
        when = [*(f"{seconds:.1f}" for seconds in spent), str(there.step), str(there.tokens)]
    in_all = f"{sum(result.seconds('cpu_seconds')):.1f}"
    last, peak = f"{result.evaluated[-1].accuracy:.3f}", f"{result.peak_bytes / 2**30:.2f}"
    return [str(result.spec.seed), result.spec.variant, *when, in_all, last, peak]


def phase_table(runs: Runs) -> str:
    """Seconds a step in each phase, both trainers, both clocks."""

    def median(phase: str | None, trainer: str, clock: str) -> float:
        return statistics.median(statistics.mean(run.seconds(clock, phase)) for run in runs[trainer])

    rows, whole = [], median(None, "kit", "cpu_seconds")
    for phase in (*PHASES, None):
        stock, kit, *walls = (median(phase, trainer, clock) for clock in CLOCKS for trainer in TRAINERS)
        ratio = f"{kit / stock:.2f}" if stock >= 0.001 else "-"
        spent = (f"{stock:.3f}", f"{kit:.3f}", ratio, f"{kit / whole:.0%}")
        rows.append([phase or "all", *spent, *(f"{wall:.3f}" for wall in walls)])
    columns = ("phase", "stock CPU s", "kit CPU s", "ratio", "of the kit's", "stock wall s", "kit wall s")
    return table(columns, "lrrrrrr", rows)


def equal_tokens_table(runs: Runs) -> str:
    """Both accuracies at a third, two thirds and all of the common tokens, their difference and its verdict."""
    rows, last = [], common_tokens(runs)
    for tokens in (last // 3, 2 * last // 3, last):
        stock, kit = ([accuracy_at(run, tokens) for run in runs[name]] for name in TRAINERS)
        gap = student([ours - theirs for ours, theirs in zip(kit, stock, strict=True)])
        means = (f"{statistics.fmean(stock):.3f}", f"{statistics.fmean(kit):.3f}")
        rows.append([str(tokens), *means, f"{gap:+.3f}", verdict(gap)])
    return table(("tokens", *TRAINERS, "kit - stock", "verdict on the kit"), "rrrll", rows)


def picture(runs: Runs) -> Figure:
    """Accuracy against CPU seconds: each seed thin, the median thick."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for trainer, color, thin, dash in (("stock", "0.55", "0.82", "--"), ("kit", "black", "0.65", "-")):
        evaluated = [run.evaluated for run in runs[trainer]]
        curves = [[(item.spent.cpu_seconds, item.accuracy) for item in items] for items in evaluated]
        # At each evaluation that all runs have had, the median of seconds and of accuracy.
        middle = [map(statistics.median, zip(*each, strict=True)) for each in zip(*curves, strict=False)]
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=thin, linestyle=dash, linewidth=0.7)
        axes.plot(*zip(*middle, strict=True), color=color, linestyle=dash, linewidth=2.2, label=trainer)
    target = runs["kit"][0].spec.target
    axes.axhline(target, color="black", linewidth=0.6, linestyle=":")
    axes.set(xlabel="CPU seconds of training", ylabel="held-out greedy accuracy", xlim=(0, None))
    title = f"{len(runs['kit'])} seeds: thin each, thick the median over seeds; dotted {target}"
    axes.set_title(title, fontsize=9)
    axes.legend(frameon=False, loc="lower right")
    return figure


if __name__ == "__main__":
    main()
