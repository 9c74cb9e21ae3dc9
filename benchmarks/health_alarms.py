"""What the diagnosis makes of runs: the recorded ones, and simulated ones with nothing wrong.

    OMP_NUM_THREADS=1 python benchmarks/health_alarms.py --runs 100 --seed 5000

A simulated run draws rewards and nothing else: each prompt has a chance of being solved, from a beta distribution
whose mean rises with the steps; its K completions get 0.2 for form and 0.8 more for being right.  This tells how
often chance alone looks like a symptom, for batches of several sizes, and nothing about policies, of which the recorded
runs are (health_runs.py).  In simulated runs two findings are true: nothing is learned where the reward is flat, and a
step of 2 completions is worth less than the two independent ones that leave-one-out needs.  All others are false.

Logs of plain TRL's and unsloth's shape, sick and healthy ones of many kinds, are in foreign_logs.py; ten of each kind
are read, by the log alone and with the settings known.  Writes benchmarks/results/health_alarms.md.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import Counter
from pathlib import Path

from foreign_logs import HEALTHY, MORE_HEALTHY, MORE_SICK, SICK, Kind, config
from foreign_logs import run as foreign_run
from health_runs import DATA, ROOT, read

import rloo_kit
from rloo_kit.watch.log import ALIKE, Entry, Known, Log, rounds
from rloo_kit.watch.symptoms import episodes

RESULT = ROOT / "benchmarks" / "results" / "health_alarms.md"
BATCHES = ((1, 2), (2, 2), (4, 2), (1, 4), (2, 4), (1, 8), (4, 8))
"""Prompts per step, and K."""

STEPS, FOREIGN_RUNS = 100, 10
RISES = {"rising by 0.003 a step": 0.003, "flat": 0.0}
SIZE = 1 / ALIKE - 1
"""Of the beta distribution of a prompt's chance, for which two of its completions correlate by ``ALIKE``."""


def main() -> None:
    """Simulate, read the recorded runs, write the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="simulated, for each line of the table")
    parser.add_argument("--seed", type=int, default=0, help="of the first simulated run")
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.runs)
    command = f"python benchmarks/health_alarms.py --runs {given.runs} --seed {given.seed}"
    lines = ["# What the diagnosis makes of runs", "", f"`OMP_NUM_THREADS=1 {command}`"]
    lines += ["", "## Recorded runs of the tiny policy", "", *recorded_table(), ""]
    lines += [f"## Logs of plain TRL's shape, {FOREIGN_RUNS} of each kind", ""]
    lines += [*foreign_tables(range(given.seed, given.seed + FOREIGN_RUNS)), ""]
    lines += [f"## Simulated runs of {STEPS} steps, {given.runs} for each line", ""]
    lines += ["| prompts x K | mean reward | true findings | runs with a false one | which |"]
    lines += ["|---|---|---|---:|---|"]
    for prompts, k in BATCHES:
        for name, rise in RISES.items():
            lines.append(simulated(prompts, k, name, rise, seeds))
            print(lines[-1], flush=True)
    RESULT.write_text("\n".join(lines) + "\n")


def recorded_table() -> list[str]:
    """A line per recorded run, and how many that should be clear are not."""
    rows = {file.stem: recorded(file) for file in sorted(DATA.glob("*.json"))}
    calm = [row for name, row in rows.items() if not name.endswith(".ill")]
    alarms = sum(not row.endswith("| - | - |") for row in calm)
    count = f"False alarms: {alarms} in {len(calm)} runs that are healthy or mended."
    return ["| run | steps | found | from its log alone |", "|---|---:|---|---|", *rows.values(), "", count]


def recorded(file: Path) -> str:
    """A line on a recorded run: what is found with its settings known, and without."""
    log, name = read(file), file.stem.replace("_", " ")
    both = (episodes(log).found, rloo_kit.diagnose(list(log.entries)).findings)
    found, alone = (", ".join(finding.symptom for finding in findings) or "-" for findings in both)
    return f"| {name} | {log.entries[-1]['step']} | {found} | {alone} |"


def foreign_tables(seeds: range) -> list[str]:
    """How many runs of each sick kind are named, and of each healthy kind have a finding."""
    lines = ["| sick | one of | named by the log alone | with settings |", "|---|---|---:|---:|"]
    named, sick = [0, 0], 0
    for name, kind in {**SICK, **MORE_SICK}.items():
        found = [found_in(kind, seed) for seed in seeds]
        counts = [sum(bool(both[i] & {*kind.named}) for both in found) for i in (0, 1)]
        named, sick = [named[i] + counts[i] for i in (0, 1)], sick + len(found)
        lines.append(f"| {name} | {', '.join(kind.named)} | {counts[0]} | {counts[1]} |")
        print(lines[-1], flush=True)
    lines += ["", f"Of {sick} sick runs {named[0]} are named by the log alone, {named[1]} with settings.", ""]
    lines += ["| healthy | with a finding, by the log alone | with settings | which |", "|---|---:|---:|---|"]
    alarms, healthy = [0, 0], 0
    for name, kind in {**HEALTHY, **MORE_HEALTHY}.items():
        found = [found_in(kind, seed) for seed in seeds]
        counts = [sum(bool(both[i]) for both in found) for i in (0, 1)]
        alarms, healthy = [alarms[i] + counts[i] for i in (0, 1)], healthy + len(found)
        which = Counter(symptom for both in found for symptom in both[0] | both[1])
        text = ", ".join(f"{symptom} {n}" for symptom, n in which.most_common())
        lines.append(f"| {name} | {counts[0]} | {counts[1]} | {text or '-'} |")
        print(lines[-1], flush=True)
    alone, known = alarms
    return [
        *lines,
        "",
        f"False alarms in {healthy} healthy runs: {alone} by the log alone, {known} with settings.",
    ]


def found_in(kind: Kind, seed: int) -> tuple[set[str], set[str]]:
    """The symptoms in a run, by its log alone and with its settings known."""
    entries = rounds(foreign_run(kind, seed))
    both = [episodes(Log(entries, known)).found for known in (Known.guessed(entries), Known.of(config(kind)))]
    alone, known = ({finding.symptom for finding in found} for found in both)
    return alone, known


def simulated(prompts: int, k: int, name: str, rise: float, seeds: range) -> str:
    """A line on simulated runs of one batch size."""
    true = {"nothing learned"} if rise == 0.0 else set()
    if prompts * k / (1 + (k - 1) * ALIKE) < 2:
        true.add("high variance")
    found: Counter[str] = Counter()
    ill = 0
    for seed in seeds:
        log = Log(run(random.Random(seed), prompts, k, rise), Known(prompts * k, prompts, (1.0,)))
        names = {finding.symptom for finding in episodes(log).found}
        found.update(names)
        ill += bool(names - true)
    right = ", ".join(f"{symptom} {found.pop(symptom, 0)}" for symptom in sorted(true))
    wrong = ", ".join(f"{symptom} {n}" for symptom, n in found.most_common())
    return f"| {prompts} x {k} | {name} | {right or '-'} | {ill} of {len(seeds)} | {wrong or '-'} |"


def run(rng: random.Random, prompts: int, k: int, rise: float) -> list[Entry]:
    """The log of a simulated run."""
    return [step(rng, number, prompts, k, min(0.95, 0.35 + rise * number)) for number in range(1, STEPS + 1)]


def step(rng: random.Random, number: int, prompts: int, k: int, chance: float) -> Entry:
    """One step's metrics; those without a say in this are steady, with a little noise."""
    groups = [group(rng, rng.betavariate(chance * SIZE, (1 - chance) * SIZE), k) for _ in range(prompts)]
    rewards = [reward for one in groups for reward in one]
    dead = sum(len(set(one)) == 1 for one in groups) / prompts
    return {
        "step": number,
        "reward": statistics.mean(rewards),
        "reward_std": statistics.stdev(rewards),
        "dead_groups": dead,
        "grad_norm": math.exp(rng.gauss(0, 0.6)) if dead < 1 else 0.0,
        "entropy": 0.3 * math.exp(rng.gauss(0, 0.15)),
        "learning_rate": 1e-5,
        "completions/mean_length": 200 * math.exp(rng.gauss(0, 0.1)),
        "completions/clipped_ratio": sum(rng.random() < 0.08 for _ in rewards) / len(rewards),
    }


def group(rng: random.Random, chance: float, k: int) -> list[float]:
    """The rewards of one prompt's completions."""
    closed = [rng.random() < 0.5 + chance / 2 for _ in range(k)]
    return [0.2 * one + 0.8 * (one and rng.random() < chance / (0.5 + chance / 2)) for one in closed]


if __name__ == "__main__":
    main()
