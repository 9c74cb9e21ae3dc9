"""One process, and several by DDP, DeepSpeed's ZeRO-2 and ZeRO-3: the same first steps, on CPUs by gloo.

    OMP_NUM_THREADS=1 python -m benchmarks.scale --write      # benchmarks/results/scale.md; needs the extra deepspeed
    OMP_NUM_THREADS=1 python -m benchmarks.scale --processes 2 --engines ddp --settings rloo

Completions are the same on any process, by prompt and place in the group, and so is the global batch: what differs is
the engine.  Each run takes two updates, so the second one's figures show the first.  Figures, no seconds: on two cores
several processes say nothing of speed.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import rloo_kit
from rloo_kit.session.launch import deepspeed_file

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/scale.md"
K, ROWS, STEPS = 4, 8, 2
"""Completions per prompt, rows of a micro-batch of all processes together, and updates."""

ALONE, FIGURES = "one process", "figures.json"
SEVERAL = ["ddp", "zero2", "zero3"]
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"advantage_estimator": name, "beta": 0.05} for name in ("rloo", "dr_grpo", "reinforce")},
    "grpo": {"advantage_estimator": "grpo", "beta": 0.05, "kl_placement": "loss"},
    "live rows only": {"beta": 0.0},
    "live groups only": {"beta": 0.05, "skip_dead_groups": True},
    "two passes": {"beta": 0.05, "single_pass": False, "skip_dead_groups": True},
}
METRICS = ("reward", "dead_groups", "kl", "grad_norm")

Figures = dict[str, float]


def completion(ids: list[int], place: int) -> list[int]:
    """What is sampled for a prompt at a place in its group, on any process."""
    rng = random.Random(f"{list(ids)} {place}")
    return [rng.randrange(15, 25) for _ in range(rng.randrange(1, 8))] + [151645]


def reward(completion_ids: list[list[int]], problem: list[str], **_: object) -> list[float | None]:
    """One prompt in three pays all completions the same; a few completions are not scored."""
    return [
        0.5 if sum(map(ord, text)) % 3 == 0 else None if len(ids) == 3 else sum(ids) % 97 / 97
        for ids, text in zip(completion_ids, problem, strict=True)
    ]


def trained(
    policy: Any, folder: Path, processes: int, engine: str, settings: dict[str, Any]
) -> list[Figures]:
    """Two updates in this process, one of ``processes``; the figures of each.

    Raises:
        RuntimeError: accelerate runs another engine, or another number of processes.
    """
    import torch

    class Fixed(rloo_kit.RLOOTrainer):
        def _generate_single_turn(self, prompt_ids: Any, *args: object, **kwargs: object) -> Any:
            return [completion(ids, index % K) for index, ids in enumerate(prompt_ids)]

    task = rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0)
    file = deepspeed_file(engine, str(ROOT / "configs/accelerate"))
    config = rloo_kit.RLOOConfig(
        **{"max_steps": STEPS, "save_strategy": "no", **settings},
        output_dir=str(folder),
        num_generations=K,
        per_device_train_batch_size=ROWS // processes,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        adam_epsilon=1e-2,  # smooth: at 1e-8 the first update is the gradient's sign, noise included
        lr_scheduler_type="constant",
        max_completion_length=8,
        max_grad_norm=1e9,  # logged, and never cut
        seed=7,
        logging_steps=1,
        report_to="none",
        use_cpu=True,
        deepspeed=file,
        ddp_find_unused_parameters=False,
    )
    generator = torch.Generator().manual_seed(1)
    for name, parameter in sorted(policy.model.named_parameters()):
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
            if "lora_B" in name:  # as if trained before, so that there is a KL term
                parameter.data.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    trainer = Fixed(model=policy, reward_funcs=reward, args=config, train_dataset=task.train)
    trainer.train()
    state = trainer.accelerator.state
    if state.num_processes != processes or (state.distributed_type.value == "DEEPSPEED") != bool(file):
        raise RuntimeError(f"{engine}, {processes} processes were asked for; accelerate's state: {state}")
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    found = [{name: float(entry[name]) for name in METRICS if name in entry} for entry in logged]
    policy.save(folder / f"adapter of {engine} {processes}")
    return found


def forked(policy: Any, folder: Path, processes: int, engine: str, settings: dict[str, Any]) -> list[Figures]:
    """The same, in processes forked from this one, which has loaded all that they need; or as an earlier measurement in
    that folder has it.

    Raises:
        RuntimeError: a process failed; its error stands above.
    """
    if (folder / FIGURES).is_file():
        earlier: list[Figures] = json.loads((folder / FIGURES).read_text())
        return earlier
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    sys.stdout.flush()
    started: list[int] = []
    for rank in range(processes):
        started.append(os.fork())
        if not started[-1]:
            _child(policy, folder, engine, settings, Place(rank, processes, port))
    ended = [os.waitpid(one, 0)[1] for one in started]
    if any(ended):
        raise RuntimeError(f"{engine}, {processes} processes, {settings}: exit states {ended}")
    found: list[Figures] = json.loads((folder / FIGURES).read_text())
    return found


class Place(NamedTuple):
    """A process among several, as torchrun would tell it."""

    rank: int
    processes: int
    port: int


def _child(policy: Any, folder: Path, engine: str, settings: dict[str, Any], place: Place) -> NoReturn:
    code = 1
    try:
        if place.processes > 1:
            told = {"RANK": place.rank, "LOCAL_RANK": place.rank, "WORLD_SIZE": place.processes}
            os.environ |= {name: str(value) for name, value in told.items()}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(place.port)}
        figures = trained(policy, folder, place.processes, engine, settings)
        if place.rank == 0:
            (folder / FIGURES).write_text(json.dumps(figures))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def measured(
    folder: Path, processes: int, engines: list[str], settings: list[str]
) -> dict[str, dict[str, list[Figures]]]:
    """setting -> engine -> the figures of each update."""
    policy = rloo_kit.load_policy("tiny", seed=0)
    found: dict[str, dict[str, list[Figures]]] = {}
    for name in settings:
        for engine in (ALONE, *engines):
            count = 1 if engine == ALONE else processes
            place = folder / f"{name} {engine}".replace(" ", "-")
            found.setdefault(name, {})[engine] = forked(policy, place, count, engine, SETTINGS[name])
    return found


def furthest(alone: list[Figures], several: list[Figures]) -> float:
    """The largest relative difference of any figure of any update."""
    pairs = [(a[name], b[name]) for a, b in zip(alone, several, strict=True) for name in a]
    return max(abs(a - b) / max(abs(a), 1e-3) for a, b in pairs)


def table(found: dict[str, dict[str, list[Figures]]], engines: list[str]) -> str:
    """A row a setting: the second update as one process has it, and how far each engine is from both."""
    head = ["setting", "reward", "KL", "gradient norm", *engines]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, runs in found.items():
        last = runs[ALONE][-1]
        kl = f"{last['kl']:.5f}" if "kl" in last else ""
        far = [f"{furthest(runs[ALONE], runs[engine]):.1e}" for engine in engines]
        row = [name, f"{last['reward']:.4f}", kl, f"{last['grad_norm']:.4f}", *far]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def in_two(folder: Path) -> str:
    """Every setting in 2 processes."""
    return f"## 2 processes\n\n{table(measured(folder / '2', 2, SEVERAL, list(SETTINGS)), SEVERAL)}"


def in_four(folder: Path) -> str:
    """One setting in 4."""
    return f"## 4 processes\n\n{table(measured(folder / '4', 4, SEVERAL, ['rloo']), SEVERAL)}"


PARTS = {"two": in_two, "four": in_four}


def page(folder: Path, parts: list[str]) -> str:
    """The page of results."""
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("torch", "deepspeed", "accelerate"))
    named = "" if parts == list(PARTS) else f" --parts {' '.join(parts)}"
    sections = "\n\n".join(PARTS[part](folder) for part in parts)
    return f"""# The same steps in several processes

Written by `OMP_NUM_THREADS=1 python -m benchmarks.scale --write{named}`, on a CPU, over gloo ({versions}).  No GPU was
used.

The tiny policy, {ROWS * 2} completions an update, {K} a prompt, {STEPS} updates.  The completions are given, so that
every engine trains on the same.  Reward, KL and gradient norm are those of the second update in one process.  A column
of an engine shows the largest relative difference of any logged figure ({", ".join(METRICS)}) in either update.

{sections}
"""


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--engines", nargs="*", default=SEVERAL, choices=SEVERAL)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--out", type=Path, help="a folder for the runs and for figures.json")
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=list(PARTS), help="of the page")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.relative_to(ROOT)}")
    given = parser.parse_args()
    folder = given.out or Path(tempfile.mkdtemp())
    if given.write:
        RESULTS.write_text(page(folder, given.parts))
        return
    found = measured(folder, given.processes, given.engines, given.settings)
    print(table(found, given.engines))
    (folder / FIGURES).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
