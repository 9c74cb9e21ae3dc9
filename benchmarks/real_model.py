"""A real language model on a CPU: SmolLM2-135M learns sums in words; several seeds, as a table and a picture.

    OMP_NUM_THREADS=2 python benchmarks/real_model.py --seeds 0 1 2
    OMP_NUM_THREADS=2 python benchmarks/real_model.py --baselines

Each seed (of the LoRA, the task's draw and the sampling) runs in a process of its own and is added to
benchmarks/results/real_model.json as soon as it is done: a seed that is there is not run again, and one that was begun
resumes from its last checkpoint under out/benchmarks/real_model.  ``--baselines`` measures what the policies of a CPU
know of each task before any training.  Needs the extra real-cpu, and for the baselines reasoning-gym.
"""

from __future__ import annotations

import rloo_kit  # isort: skip - unsloth first

import argparse
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learned import IN_TIME, LARGEST, right_in_time
from quickstart_seeds import picture, seed_table
from runs import OUT
from tables import RESULTS, command_line, cpu_name, document, student, table

from quickstart import Run, share  # isort: skip - scripts/, which quickstart_seeds puts on the path
from rloo_kit.policy.bundled import SMOLLM2

if TYPE_CHECKING:
    from rloo_kit.evaluation.intervals import Interval
    from rloo_kit.tasks import Task

STORED = RESULTS / "real_model.json"
POLICY = "smollm2-135m"
SHORT = 32  # tokens of a completion, where it is asked what a policy knows before
PROBLEMS, BASELINE_PROBLEMS = 100, 64  # held out, of each evaluation

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
"""Arguments of ``RLOOConfig``; the temperature is the checkpoint's own."""


def main() -> None:
    """Run what is missing, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--baselines", action="store_true")
    parser.add_argument("--one", nargs=2, metavar=("SEED", "FILE"), help="one seed in this process")
    asked = parser.parse_args()
    if asked.one:
        Path(asked.one[1]).write_text(json.dumps(dataclasses.asdict(trained(int(asked.one[0])))))
        return
    results = stored()
    for seed in asked.seeds:
        if str(seed) not in results["seeds"]:
            results["seeds"][str(seed)] = in_its_own_process(seed)
            write(results)
    if asked.baselines:
        for row in baselines(results["baselines"]):
            results["baselines"].append(row)
            write(results)
    write(results)


def stored() -> dict[str, Any]:
    """What was measured so far: ``seeds`` by number, ``baselines`` as rows."""
    empty: dict[str, Any] = {"seeds": {}, "baselines": []}
    return empty | (json.loads(STORED.read_text()) if STORED.exists() else {})


def write(results: dict[str, Any]) -> None:
    """The raw results, the table and the picture."""
    scratch = STORED.with_suffix(".part")
    scratch.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    scratch.replace(STORED)
    runs = {int(seed): Run(**run) for seed, run in sorted(results["seeds"].items())}
    STORED.with_suffix(".md").write_text(report(runs, results["baselines"], command_line()))
    if runs:
        picture(runs).savefig(STORED.with_suffix(".png"), dpi=120)


# --- a seed


def in_its_own_process(seed: int) -> dict[str, Any]:
    """The seed's result, with the peak memory of a process that did nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "run.json"
        subprocess.run([sys.executable, __file__, "--one", str(seed), str(file)], check=True)
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def trained(seed: int) -> Run:
    """Train on one seed, and measure after it and, with the adapter off, as it was before."""
    policy = rloo_kit.load_policy(POLICY, seed=seed, gradient_checkpointing=False)
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
    trainer.train(resume_from_checkpoint=True)  # at the beginning, where there is no checkpoint
    after = accuracy(policy, task)
    with policy.model.disable_adapter():
        before = accuracy(policy, task)
    print(f"seed {seed}: {before} -> {after}", flush=True)
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


def accuracy(policy: rloo_kit.Policy, task: Task) -> Interval:
    """Greedy accuracy on held-out problems."""
    found = rloo_kit.evaluate(policy, task, n=PROBLEMS, max_new_tokens=IN_TIME).accuracy
    assert found is not None  # the task has answers
    return found


# --- what policies know before


def asked_tasks(policy: rloo_kit.Policy) -> dict[str, tuple[Task, int]]:
    """Label -> a task with few problems, and the length of a completion."""
    tasks = rloo_kit.tasks
    # By name, since a policy that was loaded from a folder is none of the catalogue's.
    form = "whole" if policy.checkpoint.name == "tiny" else rloo_kit.CATALOGUE[POLICY].form
    few: dict[str, Any] = {"policy": policy, "form": form, "n_train": 1, "n_held_out": BASELINE_PROBLEMS}
    two_terms = {"max_terms": 2, "max_digits": 2}
    return {
        "arithmetic, level 1": (tasks.arithmetic(1, **few), SHORT),
        "word_sums": (tasks.word_sums(**few), SHORT),
        "word_sums, with room to finish": (tasks.word_sums(**few), 4 * SHORT),
        "reasoning_gym chain_sum, two terms of two digits": (
            tasks.reasoning_gym("chain_sum", two_terms, **few),
            SHORT,
        ),
        "reasoning_gym gsm_symbolic": (tasks.reasoning_gym("gsm_symbolic", **few), 128),
    }


def known_policies() -> Iterable[tuple[str, rloo_kit.Policy, str]]:
    """Name and policy, and what the labels of its tasks begin with.

    The small one in 4 bit as well, on the sums in words; ``load_policy`` refuses that by its name.
    """
    yield "tiny", rloo_kit.load_policy("tiny"), ""
    yield POLICY, rloo_kit.load_policy(POLICY), ""
    yield f"{POLICY}, in 4 bit", rloo_kit.load_policy(SMOLLM2.checkpoint(), load_in_4bit=True), "word_sums"


def baselines(known: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Greedy accuracy of each policy on each task before training, one row at a time; without those known."""
    done = {(row["policy"], row["task"]) for row in known}
    for name, policy, begins in known_policies():
        for label, (task, length) in asked_tasks(policy).items():
            if (name, label) in done or not label.startswith(begins):
                continue
            found = rloo_kit.evaluate(policy, task, max_new_tokens=length)
            assert found.accuracy is not None  # every task here has answers
            bounds = (found.accuracy.value, found.accuracy.low, found.accuracy.high)
            row = {"policy": name, "task": label, "length": length, "problems": len(found.completions)}
            print(row, found.accuracy, flush=True)
            yield row | {"accuracy": bounds, "truncated": found.truncated}


# --- the table


def report(runs: dict[int, Run], known: list[dict[str, Any]], command: str) -> str:
    """The tables, with the command and the machine."""
    parts = [command]
    if runs:
        parts += trained_parts(runs)
    if known:
        rows = []
        for one in known:
            measured = (str(one["problems"]), str(one["length"]), f"{one['truncated']:.0%}")
            rows.append((one["policy"], one["task"], share(one["accuracy"]), *measured))
        parts += [
            "## Before training",
            "What the two policies of a CPU know of the tasks: greedy, of held-out problems; a completion that is cut "
            "is not right. Intervals: 95 %, Wilson.",
            table(("policy", "task", "accuracy", "problems", "tokens", "cut"), "llrrrr", rows),
        ]
    return document("A real language model on a CPU", *parts)


def trained_parts(runs: dict[int, Run]) -> list[str]:
    """What a seed's run is, its table, and the gain over the seeds."""
    first = next(iter(runs.values()))
    settings = ", ".join(f"{name} {value}" for name, value in TRAINING.items())
    gains = student([run.after[0] - run.before[0] for run in runs.values()])
    return [
        f"{first.model}, in float32, on {' and '.join(sorted({run.device for run in runs.values()}))}. Task: "
        f"`rloo_kit.tasks.word_sums(largest={LARGEST})`; greedy on {PROBLEMS} "
        f"held-out problems, in at most {IN_TIME} tokens. {settings}, "
        f"temperature {rloo_kit.CATALOGUE[POLICY].temperature}. "
        "Intervals: 95 %, Wilson. Minutes are wall time of the steps, beside whatever else ran; of a run that was "
        "interrupted the peak is that of its last piece.",
        seed_table(runs, digits=2, minutes=True),
        f"Mean gain: {gains} (Student's 95 % interval over {len(runs)} seeds).",
    ]


if __name__ == "__main__":
    main()
