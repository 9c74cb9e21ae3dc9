"""How long until the policy is good: stock TRL under unsloth beside the kit, to a held-out greedy accuracy.

    OMP_NUM_THREADS=1 python benchmarks/time_to_accuracy.py
    python benchmarks/time_to_accuracy.py --stored    # the table and picture again, from the stored runs

Both trainers get the bundled tiny policy in 4 bit, the quickstart's task and reward, K, learning rate and seeds.
Each run is a process of its own, one at a time, stock and kit by turns.  Every few updates the clock stops,
200 held-out problems are answered greedily, the random state is put back, and the clock goes on.  Every run makes
at least --steps updates, and goes on to --max-steps where the accuracy has not been reached.

What it does not do: hide a run that did not reach the accuracy.  Stock's then counts with the time it was given,
which is too little and so in stock's favour; the kit's counts as endless.  Nor does it call two trainers alike
because their intervals overlap: that the kit is no worse must be shown, by the seeds' own differences and within a
margin.

Writes benchmarks/results/time_to_accuracy.md, .json and .png.  A rerun goes on where an interrupted one stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from typing import Any

from phases import PHASES
from runs import RESULTS, Evaluated, Result, Spec, command_line, described, measure
from student import student

from rloo_kit.evaluation.intervals import Interval

TRAINERS = ("stock", "kit")
CLOCKS = {"cpu_seconds": "CPU seconds", "wall_seconds": "wall seconds"}
NAME = "time_to_accuracy"

MARGIN = 0.05
"""Held-out accuracy that is worth the name of a loss: a tenth of what training gains here, and what one evaluation
of 200 problems cannot tell from chance at 0.85 (1.96 standard errors).  Set for those reasons, but after the stored
runs had been seen."""


def main() -> None:
    """Run what is missing, or read what is stored, and write the table, the picture and the raw results."""
    arguments = parse()
    pairs = stored() if arguments.stored else measured(arguments)
    text = report(pairs, command_line())
    print("\n" + text)
    (RESULTS / f"{NAME}.md").write_text(text)
    picture(pairs).savefig(RESULTS / f"{NAME}.png", dpi=120)


def measured(arguments: argparse.Namespace) -> list[Pair]:
    """Both trainers' runs on each seed, also written to the .json."""
    pairs = []
    for seed in arguments.seeds:
        specs = [spec_of(trainer, seed, arguments) for trainer in TRAINERS]
        pairs.append(Pair(*(told(measure(spec, arguments.fresh)) for spec in specs)))
    raw = [json.dumps(result.to_json()) for pair in pairs for result in (pair.stock, pair.kit)]
    (RESULTS / f"{NAME}.json").write_text("[\n" + ",\n".join(raw) + "\n]\n")
    return pairs


def stored() -> list[Pair]:
    """The runs of the .json."""
    results = [Result.from_json(data) for data in json.loads((RESULTS / f"{NAME}.json").read_text())]
    runs = {(result.spec.variant, result.spec.seed): result for result in results}
    seeds = dict.fromkeys(result.spec.seed for result in results)
    return [Pair(*(runs[trainer, seed] for trainer in TRAINERS)) for seed in seeds]


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(8)))
    parser.add_argument("--steps", type=int, default=16, help="updates of every run")
    parser.add_argument("--max-steps", type=int, default=48, help="updates of a run that is not there yet")
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--evaluate-every", type=int, default=2, help="updates between evaluations")
    parser.add_argument("--problems", type=int, default=200, help="held out, for each evaluation")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    parser.add_argument("--stored", action="store_true", help="run nothing: draw the stored runs again")
    return parser.parse_args()


def spec_of(trainer: str, seed: int, arguments: argparse.Namespace) -> Spec:
    """The run of a trainer on a seed."""
    names = ("steps", "max_steps", "target", "evaluate_every", "problems")
    return Spec(trainer, seed=seed, **{name: getattr(arguments, name) for name in names})


def told(result: Result) -> Result:
    """The same result, with a line on the screen."""
    there = first_reached(result)
    when = f"at step {there.step}, {there.spent.cpu_seconds:.0f} CPU s" if there else "not reached"
    print(f"{result.spec.variant} seed {result.spec.seed}: {result.spec.target} {when}", flush=True)
    return result


# --- what a run's figures say -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Both trainers' runs on one seed."""

    stock: Result
    kit: Result


def first_reached(result: Result) -> Evaluated | None:
    """The first evaluation at or above the target; None where there is none (a censored run)."""
    return next((item for item in result.evaluated if item.accuracy >= result.spec.target), None)


def seconds_to_target(result: Result, clock: str) -> float:
    """Seconds of training until the target; infinite where it was not reached."""
    there = first_reached(result)
    return getattr(there.spent, clock) if there else math.inf


def seconds_in_all(result: Result, clock: str) -> float:
    """Seconds of training in the whole run."""
    return sum(getattr(step.total, clock) for step in result.steps)


def time_ratios(pairs: list[Pair], clock: str) -> list[float]:
    """Kit's time to the target over stock's, seed by seed.

    A stock run that did not get there counts with the time it was given: the ratio is then at most that.
    A kit run that did not makes it infinite.
    """
    return [
        seconds_to_target(pair.kit, clock)
        / min(seconds_to_target(pair.stock, clock), seconds_in_all(pair.stock, clock))
        for pair in pairs
    ]


def geometric_mean(ratios: list[float]) -> Interval:
    """Geometric mean over seeds: Student's interval of the logarithms."""
    found = student([math.log(ratio) for ratio in ratios])
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def step_ratios(pairs: list[Pair], clock: str) -> list[float]:
    """Kit's mean time of a step over stock's, seed by seed: nothing in it of the luck of learning."""

    def mean(result: Result) -> float:
        return seconds_in_all(result, clock) / len(result.steps)

    return [mean(pair.kit) / mean(pair.stock) for pair in pairs]


def accuracy_at(result: Result, tokens: float) -> float:
    """Accuracy when so many tokens had been generated, between evaluations by a straight line.

    Raises:
        ValueError: the run has no evaluation at or after so many tokens.
    """
    for before, after in zip(result.evaluated, result.evaluated[1:], strict=False):
        if before.tokens <= tokens <= after.tokens:
            share = (tokens - before.tokens) / (after.tokens - before.tokens)
            return before.accuracy + share * (after.accuracy - before.accuracy)
    raise ValueError(f"{tokens} tokens: the last evaluation is at {result.evaluated[-1].tokens}")


def common_tokens(pairs: list[Pair]) -> int:
    """Tokens that every run had generated by the last evaluation among its first ``steps`` updates.

    A later evaluation exists only for a run that was not there yet, and would compare the late with the late.
    """
    return min(
        max(item.tokens for item in result.evaluated if item.step <= result.spec.steps)
        for pair in pairs
        for result in (pair.stock, pair.kit)
    )


# --- the table --------------------------------------------------------------------------------------------


def report(pairs: list[Pair], command: str) -> str:
    """The tables, with the command and the machine."""
    spec, results = pairs[0].kit.spec, [result for pair in pairs for result in (pair.stock, pair.kit)]
    return "\n".join(
        [
            f"# Time to a held-out accuracy of {spec.target}",
            "",
            f"`{command}`{' (without `--stored` the runs are made anew)' if '--stored' in command else ''}",
            "",
            described(results),
            "",
            f"stock: TRL's RLOOTrainer on a policy that unsloth loaded. Policy {spec.policy} in 4 bit, "
            f"{spec.prompts_per_step} prompts of K {spec.num_generations} completions a step, at most "
            f"{spec.max_completion_length} tokens each, learning rate {spec.learning_rate} constant, beta {spec.beta}. "
            f"Greedy accuracy on {spec.problems} held-out problems every {spec.evaluate_every} steps, outside the "
            f"clock; reached: the first evaluation at or above {spec.target}. {spec.steps} steps, up to "
            f"{spec.max_steps} where it was not reached.",
            "",
            ratio_line(pairs),
            "",
            f"Geometric mean of the {len(pairs)} seeds' ratios [95 %, Student's t over seeds, of the logarithms]. "
            f"{censoring(pairs)}",
            f"It is the product of two: a step's time, {spelled(step_ratios(pairs, 'cpu_seconds'))} of stock's in "
            f"CPU seconds and {spelled(step_ratios(pairs, 'wall_seconds'))} in wall seconds, and the number of "
            f"steps, {steps_compared(pairs)}.",
            "",
            *seed_table(pairs),
            "",
            "Steps, tokens: until the accuracy was reached. Peak: resident memory of the process and its libraries, "
            "before the first evaluation.",
            "",
            "![Accuracy against CPU seconds](time_to_accuracy.png)",
            "",
            "## A step, by phase",
            "",
            "Mean over a run's steps, median over seeds.",
            "",
            *phase_table(pairs),
            "",
            "## Accuracy at equal generated tokens",
            "",
            *equal_tokens_table(pairs),
            "",
            "Means over seeds; of the difference, taken seed by seed, Student's 95 % interval. Verdict, each line for "
            f"itself: worse or better where that interval excludes 0; else not worse by more than {MARGIN}, a tenth of "
            f"what training gains, where it ends above -{MARGIN}; else not shown: neither that the kit is worse nor "
            f"that it is not. Where both are past {spec.target} little is left that could differ. The "
            f"last line's number of tokens is the largest that every run had generated within {spec.steps} steps.",
            "",
        ]
    )


def ratio_line(pairs: list[Pair]) -> str:
    """The result in one line."""
    parts = [f"{spelled(time_ratios(pairs, clock), clock)}" for clock in CLOCKS]
    return "ratio kit/stock: " + ", ".join(parts)


def spelled(ratios: list[float], clock: str = "") -> str:
    """A geometric mean with its interval, the clock's name between them."""
    found = geometric_mean(ratios)
    value, _, interval = f"{found:.2f}".partition(" ")
    return " ".join(word for word in (value, CLOCKS.get(clock), interval) if word)


def censoring(pairs: list[Pair]) -> str:
    """How many runs did not get there, and what that means."""
    stock = sum(first_reached(pair.stock) is None for pair in pairs)
    kit = sum(first_reached(pair.kit) is None for pair in pairs)
    if not stock and not kit:
        return "Every run got there."
    return (
        f"Not there within its steps: {stock} of stock's runs (counted with the time they were given, so the ratio is "
        f"at most that) and {kit} of the kit's (counted as endless)."
    )


def steps_compared(pairs: list[Pair]) -> str:
    """Ratio of the numbers of steps, or that there is none."""
    reached = [(first_reached(pair.kit), first_reached(pair.stock)) for pair in pairs]
    ratios = [kit.step / stock.step for kit, stock in reached if kit and stock]
    if len(ratios) < len(pairs):
        return f"for which {len(pairs) - len(ratios)} seeds give no ratio"
    return spelled(ratios)


def seed_table(pairs: list[Pair]) -> list[str]:
    """One line per seed, and the medians."""
    lines = [
        "| seed | trainer | CPU seconds | wall seconds | steps | tokens | CPU seconds in all | last accuracy "
        "| peak GiB |",
        "|---:|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for pair in pairs:
        lines += [seed_line(result) for result in (pair.stock, pair.kit)]
    for trainer in TRAINERS:
        runs = [getattr(pair, trainer) for pair in pairs]
        medians = [statistics.median(seconds_to_target(run, clock) for run in runs) for clock in CLOCKS]
        shown = " | ".join("not reached" if math.isinf(value) else f"{value:.1f}" for value in medians)
        lines.append(f"| median | {trainer} | {shown} | | | | | |")
    return lines


def seed_line(result: Result) -> str:
    """What one run took."""
    there = first_reached(result)
    if there:
        spent = there.spent
        when = f"{spent.cpu_seconds:.1f} | {spent.wall_seconds:.1f} | {there.step} | {there.tokens}"
    else:
        when = f"not reached | not reached | over {len(result.steps)} | over {result.tokens}"
    return (
        f"| {result.spec.seed} | {result.spec.variant} | {when} | {seconds_in_all(result, 'cpu_seconds'):.1f} "
        f"| {result.evaluated[-1].accuracy:.3f} | {result.peak_bytes / 2**30:.2f} |"
    )


def phase_table(pairs: list[Pair]) -> list[str]:
    """Seconds a step in each phase, both trainers, both clocks."""
    lines = [
        "| phase | stock CPU s | kit CPU s | ratio | of the kit's | stock wall s | kit wall s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    whole = phase_medians(pairs, None, "kit", "cpu_seconds")
    for phase in (*PHASES, None):
        stock, kit = (phase_medians(pairs, phase, trainer, "cpu_seconds") for trainer in TRAINERS)
        walls = [phase_medians(pairs, phase, trainer, "wall_seconds") for trainer in TRAINERS]
        ratio = f"{kit / stock:.2f}" if stock >= 0.001 else "-"
        lines.append(
            f"| {phase or 'all'} | {stock:.3f} | {kit:.3f} | {ratio} | {kit / whole:.0%} | {walls[0]:.3f} | "
            f"{walls[1]:.3f} |"
        )
    return lines


def phase_medians(pairs: list[Pair], phase: str | None, trainer: str, clock: str) -> float:
    """Median over seeds of a run's mean seconds a step, in one phase or in all."""

    def mean(result: Result) -> float:
        spent = [step.spent[phase] if phase else step.total for step in result.steps]
        return statistics.mean(getattr(item, clock) for item in spent)

    return statistics.median(mean(getattr(pair, trainer)) for pair in pairs)


def equal_tokens_table(pairs: list[Pair]) -> list[str]:
    """Both accuracies at a third, two thirds and all of the common tokens, their difference and its verdict."""
    lines = ["| tokens | stock | kit | kit - stock | verdict on the kit |", "|---:|---:|---:|---|---|"]
    last = common_tokens(pairs)
    for tokens in (last // 3, 2 * last // 3, last):
        stock = [accuracy_at(pair.stock, tokens) for pair in pairs]
        kit = [accuracy_at(pair.kit, tokens) for pair in pairs]
        gap = student([ours - theirs for ours, theirs in zip(kit, stock, strict=True)])
        means = f"{statistics.fmean(stock):.3f} | {statistics.fmean(kit):.3f}"
        lines.append(f"| {tokens} | {means} | {gap:+.3f} | {verdict(gap)} |")
    return lines


def verdict(gap: Interval) -> str:
    """What the interval of kit - stock shows of the kit; without an interval, nothing."""
    if gap.high < 0:
        return "worse"
    if gap.low > 0:
        return "better"
    return f"not worse by more than {MARGIN}" if gap.low > -MARGIN else "not shown"


# --- the picture ------------------------------------------------------------------------------------------


def picture(pairs: list[Pair]) -> Any:
    """Accuracy against CPU seconds: each seed thin, the median thick."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for trainer, color, thin, dash in (("stock", "0.55", "0.82", "--"), ("kit", "black", "0.65", "-")):
        runs = [getattr(pair, trainer) for pair in pairs]
        for run in runs:
            curve = [(item.spent.cpu_seconds, item.accuracy) for item in run.evaluated]
            axes.plot(*zip(*curve, strict=True), color=thin, linestyle=dash, linewidth=0.7)
        axes.plot(*median_curve(runs), color=color, linestyle=dash, linewidth=2.2, label=trainer)
    target = pairs[0].kit.spec.target
    axes.axhline(target, color="black", linewidth=0.6, linestyle=":")
    axes.set(xlabel="CPU seconds of training", ylabel="held-out greedy accuracy", xlim=(0, None))
    axes.set_title(f"{len(pairs)} seeds: thin each, thick the median over seeds; dotted {target}", fontsize=9)
    axes.legend(frameon=False, loc="lower right")
    return figure


def median_curve(runs: list[Result]) -> tuple[list[float], list[float]]:
    """Median seconds and median accuracy at each evaluation that all runs have had."""
    rounds = list(zip(*(run.evaluated for run in runs), strict=False))
    seconds = [statistics.median(item.spent.cpu_seconds for item in each) for each in rounds]
    return seconds, [statistics.median(item.accuracy for item in each) for each in rounds]


if __name__ == "__main__":
    main()
