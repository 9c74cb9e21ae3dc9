"""One process, and several by DDP, DeepSpeed's ZeRO-2 and ZeRO-3: the same first steps, on CPUs by gloo.

    OMP_NUM_THREADS=1 python -m benchmarks.scale      # writes benchmarks/results/scale.md; needs the extra deepspeed

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
from typing import Any, NoReturn

import rloo_kit
from benchmarks.tables import document, table

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
    file = str(ROOT / f"configs/accelerate/deepspeed_{engine}.json") if engine.startswith("zero") else None
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
            _child(policy, folder, engine, settings, (rank, processes, port))
    ended = [os.waitpid(one, 0)[1] for one in started]
    if any(ended):
        raise RuntimeError(f"{engine}, {processes} processes, {settings}: exit states {ended}")
    found: list[Figures] = json.loads((folder / FIGURES).read_text())
    return found


def _child(
    policy: Any, folder: Path, engine: str, settings: dict[str, Any], place: tuple[int, int, int]
) -> NoReturn:
    code, (rank, processes, port) = 1, place  # as torchrun would tell it
    try:
        if processes > 1:
            told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in told.items()}}
        figures = trained(policy, folder, processes, engine, settings)
        if rank == 0:
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


def measured(folder: Path, processes: int, settings: list[str]) -> dict[str, dict[str, list[Figures]]]:
    """setting -> engine -> the figures of each update."""
    policy = rloo_kit.load_policy("tiny", seed=0)
    found: dict[str, dict[str, list[Figures]]] = {}
    for name in settings:
        for engine in (ALONE, *SEVERAL):
            count = 1 if engine == ALONE else processes
            place = folder / f"{processes} {name} {engine}".replace(" ", "-")
            found.setdefault(name, {})[engine] = forked(policy, place, count, engine, SETTINGS[name])
    return found


def furthest(alone: list[Figures], several: list[Figures]) -> float:
    """The largest relative difference of any figure of any update."""
    pairs = [(a[name], b[name]) for a, b in zip(alone, several, strict=True) for name in a]
    return max(abs(a - b) / max(abs(a), 1e-3) for a, b in pairs)


def report(found: dict[int, dict[str, dict[str, list[Figures]]]]) -> str:
    """The page: a row a setting, with the second update of one process and how far each engine is from both."""
    versions = ", ".join(f"{n} {importlib.metadata.version(n)}" for n in ("torch", "deepspeed", "accelerate"))
    parts = []
    for processes, settings in found.items():
        rows = []
        for name, runs in settings.items():
            last = runs[ALONE][-1]
            shown = [f"{last[one]:.5f}" if one in last else "" for one in ("reward", "kl", "grad_norm")]
            rows.append([name, *shown, *(f"{furthest(runs[ALONE], runs[one]):.1e}" for one in SEVERAL)])
        columns = ("setting", "reward", "KL", "gradient norm", *SEVERAL)
        parts += [f"## {processes} processes", table(columns, "l" * len(columns), rows)]
    return document(
        "The same steps in several processes",
        f"`OMP_NUM_THREADS=1 python -m benchmarks.scale`, on a CPU, over gloo ({versions}); on no GPU.",
        f"The tiny policy, {ROWS * 2} completions an update, {K} a prompt, {STEPS} updates. The completions are given, "
        "so that every engine trains on the same. Reward, KL and gradient norm are those of the second update in one "
        "process. The column of an engine has the largest relative difference of any logged figure "
        f"({', '.join(METRICS)}) in either update.",
        *parts,
    )


def main() -> None:
    """Measure, and write the page; or one number of processes, into figures.json of a folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, help="2 or 4; default: both, and the page")
    parser.add_argument("--out", type=Path, help="a folder for the runs, from which measuring goes on")
    given = parser.parse_args()
    folder, wanted = given.out or Path(tempfile.mkdtemp()), {2: list(SETTINGS), 4: ["rloo"]}
    if given.processes:
        found = measured(folder, given.processes, wanted[given.processes])
        (folder / FIGURES).write_text(json.dumps(found))
        return
    RESULTS.write_text(report({count: measured(folder, count, names) for count, names in wanted.items()}))


if __name__ == "__main__":
    main()
