"""One process, and several by DDP, DeepSpeed's ZeRO-2 and ZeRO-3: the same first steps, on CPUs by gloo.

    python -m tests.scale.engines FOLDER PROCESSES [SETTING ...]

For test_long.py; benchmarks/results/scale.md has the figures.  Completions are the same on any process, by prompt and
place in the group, and so is the global batch: what differs is the engine.  Each run takes two updates, so the second
one's figures show the first.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import rloo_kit

ROOT = Path(__file__).parents[1]
K, ROWS, STEPS = 4, 8, 2
"""Completions per prompt, rows of a micro-batch of all processes together, and updates."""

ALONE, FIGURES = "one process", "figures.json"
SEVERAL = ["ddp", "zero2", "zero3"]
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"advantage_estimator": name, "beta": 0.05} for name in ("rloo", "dr_grpo", "reinforce")},
    "grpo": {"advantage_estimator": "grpo", "beta": 0.05, "kl_placement": "loss"},
    "live rows only": {"beta": 0.0},
    "live groups only": {"beta": 0.05, "skip_zero_variance_groups": True},
    "two passes": {"beta": 0.05, "single_pass": False, "skip_zero_variance_groups": True},
}
METRICS = ("reward", "zero_variance_groups", "kl", "grad_norm")

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
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def measured(folder: Path, processes: int, settings: list[str]) -> dict[str, dict[str, list[Figures]]]:
    policy = rloo_kit.load_policy("tiny", seed=0)
    found: dict[str, dict[str, list[Figures]]] = {}
    for name in settings:
        for engine in (ALONE, *SEVERAL):
            count = 1 if engine == ALONE else processes
            place = folder / f"{processes} {name} {engine}".replace(" ", "-")
            found.setdefault(name, {})[engine] = forked(policy, place, count, engine, SETTINGS[name])
    return found


if __name__ == "__main__":
    into, count, *names = sys.argv[1:]
    found = measured(Path(into), int(count), names or list(SETTINGS))
    (Path(into) / FIGURES).write_text(json.dumps(found))
