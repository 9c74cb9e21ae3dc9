"""Count the tokens generated until the policy is good: plain TRL under unsloth beside the kit, at several settings.

    OMP_NUM_THREADS=1 python benchmarks/time_to_accuracy.py --seeds 0 1 2 3
    OMP_NUM_THREADS=1 python benchmarks/time_to_accuracy.py --task words --setting stock kit --most 15000

Sampling takes nearly all of a step on a GPU, so the figure that carries over is the tokens generated until a held-out
greedy accuracy; CPU seconds stand beside it.  All settings get the same policies, tasks and rewards, seed by seed.
Each run is its own process, and the settings take turns.  Every few hundred or thousand tokens the clock stops while
100 or 200 held-out problems are answered greedily.  Between two evaluations the accuracy is assumed to be linear.

A run makes at least eight updates, and ends at the task's target or at --most tokens.  A run that misses the target is
not hidden: stock's counts with the tokens it was given, which is too few and so favours stock; any other counts as
infinite.

Runs are stored in benchmarks/results/NAME.json and not measured again, so that the benchmark can be run in pieces.  The
script also writes NAME.md; --stored only writes that file again and measures nothing.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learned import TASKS
from runs import Result, Spec, described, measured
from tables import document, student, table, write

from rloo_kit.evaluation.intervals import Interval

NAME = "time_to_accuracy"

REACH = "kit, prompts within reach"
TWO_UPDATES = {"prompts_per_step": 2, "micro_batch": 16, "num_iterations": 2}
WHOLE_BATCH = {"variant": "kit-token", "num_iterations": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "stock": {"variant": "stock"},
    "kit": {"variant": "kit"},
    "stock, two updates": {"variant": "stock", **TWO_UPDATES},
    "kit, two updates": {"variant": "kit", **TWO_UPDATES},
    "kit, half the batch": {"variant": "kit", "prompts_per_step": 2, "micro_batch": 16},
    "kit, two updates, token ratios": {"variant": "kit-token", **TWO_UPDATES},
    "kit, two updates of the whole batch, token ratios": WHOLE_BATCH,
    REACH: {"variant": "kit", "task": "words_within_reach"},
}
"""Name -> what differs from a task's settings; all are compared with the first."""

Runs = Mapping[str, Mapping[int, Result]]  # Setting -> seed -> its run


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--setting", nargs="+", choices=SETTINGS, default=list(SETTINGS)[:-1], metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(24)))
    parser.add_argument("--task", choices=TASKS, default=Spec.task)
    parser.add_argument("--most", type=int, default=12_000, help="tokens of a run that is not there yet")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured before")
    parser.add_argument("--stored", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    name = NAME if asked.task == Spec.task else f"{NAME}_{asked.task}"
    wanted = itertools.product(asked.seeds, asked.setting)
    specs = (spec_of(asked.task, setting, seed, asked.most) for seed, setting in wanted)
    runs = measured(name, () if asked.stored else specs, order, asked.fresh)
    write(name, lambda command: report(runs, command))


def spec_of(task: str, setting: str, seed: int, most: int) -> Spec:
    learned = TASKS[task]
    ends: dict[str, Any] = {"max_steps": 1000, "most": most, "target": learned.target}
    own = ends | {"evaluate_every": learned.evaluate_every, "task": task} | learned.spec | SETTINGS[setting]
    return Spec(setting=setting, seed=seed, **own)


def order(run: Result) -> tuple[int, int]:
    """Sort by seed, then setting; a stored setting that is no longer listed comes last."""
    names = list(SETTINGS)
    return run.spec.seed, names.index(run.spec.setting) if run.spec.setting in names else len(names)


def by_setting(runs: Iterable[Result]) -> Runs:
    """Return the runs by setting, in the order of :data:`SETTINGS`, and by seed."""
    found: dict[str, dict[int, Result]] = {}
    for run in sorted(runs, key=lambda run: order(run)[1]):
        found.setdefault(run.spec.setting, {})[run.spec.seed] = run
    return found


@dataclass(frozen=True)
class Reached:
    """What a run had spent when it reached an accuracy."""

    tokens: float
    cpu_seconds: float


def reached(run: Result, target: float) -> Reached | None:
    """Return when a run first had that accuracy, linear between evaluations; None if never (a censored run)."""
    for before, after in itertools.pairwise(run.evaluated):
        if after.accuracy >= target:
            rise = after.accuracy - before.accuracy
            share = max(0.0, (target - before.accuracy) / rise) if rise > 0 else 1.0
            spent = after.spent - before.spent
            return Reached(
                before.tokens + share * (after.tokens - before.tokens),
                before.spent.cpu_seconds + share * spent.cpu_seconds,
            )
    return None


def given(run: Result) -> Reached:
    last = run.evaluated[-1]
    return Reached(last.tokens, last.spent.cpu_seconds)


def pairs(runs: Runs, setting: str, same_cpu: bool) -> list[tuple[Result, Result]]:
    """Return the first setting's run and this one's of each seed that both have; if ``same_cpu``, only if on one."""
    first, own = runs[next(iter(runs))], runs[setting]
    both = [(first[seed], own[seed]) for seed in sorted(set(first) & set(own))]
    return [(base, run) for base, run in both if not same_cpu or base.machine["cpu"] == run.machine["cpu"]]


def ratios(runs: Runs, setting: str, target: float, figure: str) -> list[float]:
    """Return a setting's figure at a target over the first setting's, for each pair of runs.

    If the first setting's run missed the target, it counts with what it was given, and the ratio is an upper bound.
    If the other run missed it, the ratio is infinite.
    """
    found = []
    for base, run in pairs(runs, setting, same_cpu=figure == "cpu_seconds"):
        there, base_there = reached(run, target), reached(base, target) or given(base)
        found.append(getattr(there, figure) / getattr(base_there, figure) if there else math.inf)
    return found


def step_ratios(runs: Runs, setting: str) -> list[float]:
    """Return a setting's CPU time per generated token over the first setting's, for each pair of runs on one CPU."""

    def cost(run: Result) -> float:
        return sum(run.seconds("cpu_seconds")) / run.tokens

    return [cost(run) / cost(base) for base, run in pairs(runs, setting, same_cpu=True)]


def geometric_mean(values: Sequence[float]) -> Interval:
    found = student([math.log(value) for value in values])
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high))


def report(everything: Sequence[Result], command: str) -> str:
    spec, runs = everything[0].spec, by_setting(everything)
    first = next(iter(runs))
    learned = TASKS[spec.task]
    gone = [name for name in runs if name not in SETTINGS]
    left_out = [f"Measured by commit 665db77 or earlier, and no longer: {'; '.join(gone)}."] if gone else []
    return document(
        f"Generated tokens until a held-out accuracy of {spec.target}: {spec.task}",
        command,
        described(everything),
        f"stock: TRL's RLOOTrainer on a policy that unsloth loaded. Policy {learned.described}, at most "
        f"{spec.max_completion_length} tokens a completion, constant learning rate, beta {spec.beta}. Greedy accuracy "
        f"on {spec.problems} held-out problems every {spec.evaluate_every} tokens or the step after them, outside the "
        "clock, linear between evaluations.",
        settings_table(runs),
        f"Geometric means over seeds; ratios to {first} on the same seed, [95 %, Student's t over seeds, of the "
        "logarithms], of CPU seconds only where both runs were on one kind of CPU. "
        f"A run ends at {spec.target}, after {spec.steps} updates or more, or at {spec.most} tokens. "
        f"Missed: runs that did not get there. Of {first} they count with what they were given, so the others' ratios "
        "are at most what is said; for a setting that missed the ratio is the median of all its seeds, a missed one "
        "infinite [95 %, order statistics], and the tokens are the mean of the runs that got there.",
        *left_out,
        *reach_part(runs),
        "## Each seed",
        f"Tokens until {spec.target}.",
        seed_table(runs),
    )


def reach_part(runs: Runs) -> list[str]:
    """Say what prompts within reach cost before the run, if they were measured."""
    if REACH not in runs:
        return []
    rows = [(run.steps[0].tokens, run.spec) for run in runs["kit"].values()]
    length = statistics.fmean(tokens / (spec.prompts_per_step * spec.num_generations) for tokens, spec in rows)
    return [
        "Within reach: of the first 64 prompts those that the policy solves in 1 to 7 of 8 completions "
        f"(`task.within_reach`). Sampling these takes about {512 * length:.0f} tokens before the run, not counted here."
        " Its CPU seconds are with oneDNN's products, which the kit's other runs did not have yet."
    ]


def settings_table(runs: Runs) -> str:
    """Return a row per setting: what it is, its tokens to the target, ratios, and runs that missed."""
    columns = ("setting", "prompts x K", "learning rate", "seeds", "tokens", "ratio", "missed")
    rows = [_setting_row(runs, setting) for setting in runs]
    return table([*columns, "CPU seconds, ratio", "a token's, ratio"], "llrrrlrll", rows)


def _setting_row(runs: Runs, setting: str) -> list[str]:
    own = list(runs[setting].values())
    spec = own[0].spec
    there = [at.tokens for run in own if (at := reached(run, spec.target))]
    ratio = seconds = seconds_a_token = "1"
    if setting != next(iter(runs)):
        ratio, seconds = (spelled(ratios(runs, setting, spec.target, figure)) for figure in ("tokens", "cpu_seconds"))
        seconds_a_token = spelled(step_ratios(runs, setting))
    return [
        setting,
        f"{spec.prompts_per_step} x {spec.num_generations}",
        f"{spec.learning_rate:g}",
        str(len(own)),
        f"{geometric_mean(there).value:.0f}" if there else "-",
        ratio,
        str(len(own) - len(there)),
        seconds,
        seconds_a_token,
    ]


def spelled(values: Sequence[float]) -> str:
    """Return the geometric mean with its interval, or the median with its own if a run missed the target."""
    if all(map(math.isfinite, values)):
        return f"{geometric_mean(values):.2f}"
    return f"median {median(values):.2f}"


def median(values: Sequence[float]) -> Interval:
    """Return the median with its 95 % interval of order statistics; values may be infinite (Conover 1999, 3.2)."""
    n, ordered = len(values), sorted(values)
    below = [sum(math.comb(n, j) for j in range(k + 1)) / 2**n for k in range(n)]
    left_out = sum(chance <= 0.025 for chance in below)
    found = (ordered[left_out - 1], ordered[n - left_out]) if left_out else (0.0, math.inf)
    return Interval(statistics.median(values), *found)


def seed_table(runs: Runs) -> str:
    """Return a row per seed with the tokens until the target; a cell is empty where there is no run."""

    def cell(run: Result | None) -> str:
        there = reached(run, run.spec.target) if run else None
        return f"{there.tokens:.0f}" if there else f"over {run.evaluated[-1].tokens}" if run else ""

    seeds = sorted({seed for own in runs.values() for seed in own})
    rows = [[str(seed), *(cell(runs[setting].get(seed)) for setting in runs)] for seed in seeds]
    return table(("seed", *runs), "r" * (1 + len(runs)), rows)


if __name__ == "__main__":
    main()
