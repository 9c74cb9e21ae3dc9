"""Make the same first steps in one process, and in several by DDP, DeepSpeed's ZeRO-2 and ZeRO-3, on CPUs by gloo.

    python -m tests.scale.engines FOLDER PROCESSES [SETTING ...]

Used by test_long.py, and by tests/train/test_processes.py with other settings.  A completion depends only on its prompt
and place in the group, and the global batch is the same: only the engine differs.  Each run makes two updates, since
the figures of the second show the effect of the first; if the engine leaves gradients whole, the last one is stored.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
from pathlib import Path
from typing import Any

import rloo_kit

ROOT = Path(__file__).parents[2]
K, ROWS = 4, 8  # completions per prompt, and rows of a micro-batch over all processes
ENGINES = ("one process", "ddp", "zero2", "zero3")
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"advantage_estimator": name, "beta": 0.05} for name in ("rloo", "dr_grpo", "reinforce")},
    "grpo": {"advantage_estimator": "grpo", "beta": 0.05, "kl_placement": "loss"},
    "live rows only": {"beta": 0.0},
    "live groups only": {"beta": 0.05, "skip_zero_variance_groups": True},
}
METRICS = ("reward", "zero_variance_groups", "kl", "grad_norm")

Figures = dict[str, float]


def completion(ids: list[int], place: int) -> list[int]:
    """Return the completion of a prompt at a place in its group, the same on any process."""
    rng = random.Random(f"{list(ids)} {place}")
    return [rng.randrange(15, 25) for _ in range(rng.randrange(1, 8))] + [151645]


def reward(completion_ids: list[list[int]], problem: list[str], **_: object) -> list[float | None]:
    """One prompt in three pays all completions the same; a few completions are not scored."""
    return [
        0.5 if sum(map(ord, text)) % 3 == 0 else None if len(ids) == 3 else sum(ids) % 97 / 97
        for ids, text in zip(completion_ids, problem, strict=True)
    ]


def trained(policy: Any, folder: Path, processes: int, engine: str, settings: dict[str, Any]) -> list[Figures]:
    """Make two updates in this process, one of ``processes``; return their figures, and store the last gradient."""
    import torch
    from transformers import TrainerCallback

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: object) -> None:
            named = {n.removeprefix("module."): p.grad for n, p in model.named_parameters() if p.grad is not None}
            if state.is_world_process_zero:
                torch.save({name: gradient.clone() for name, gradient in named.items()}, folder / "gradient.pt")

    class Fixed(rloo_kit.RLOOTrainer):
        def _generate_single_turn(self, prompt_ids: Any, *args: object, **kwargs: object) -> Any:
            return [completion(ids, index % K) for index, ids in enumerate(prompt_ids)]

    task = rloo_kit.tasks.addition(n_train=64, n_held_out=32, seed=0)
    file = str(ROOT / f"configs/accelerate/deepspeed_{engine}.json") if engine.startswith("zero") else None
    common: dict[str, Any] = {
        "output_dir": str(folder),
        "max_steps": 2,
        "num_generations": K,
        "per_device_train_batch_size": ROWS // processes,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "adam_epsilon": 1e-2,  # smooth: at 1e-8 the first update is the gradient's sign, noise included
        "lr_scheduler_type": "constant",
        "max_completion_length": 8,
        "max_grad_norm": 1e9,  # logged, but never clipped
        "save_strategy": "no",
        "seed": 7,
        "use_cpu": True,
        "deepspeed": file,
        "ddp_find_unused_parameters": False,
    }
    generator = torch.Generator().manual_seed(1)
    for name, parameter in sorted(policy.model.named_parameters()):
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
            if "lora_B" in name:  # as if trained before, so that the KL term is not 0
                parameter.data.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    config = rloo_kit.RLOOConfig(**common | settings)
    trainer = Fixed(policy, reward, config, task.train, callbacks=[Keep()])
    trainer.train()
    state = trainer.accelerator.state
    assert (state.num_processes, state.distributed_type.value == "DEEPSPEED") == (processes, bool(file)), state
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    return [{name: float(entry[name]) for name in METRICS if name in entry} for entry in logged]


def free_port() -> int:
    """Return a free port; use it at once, before another program takes it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def forked(policy: Any, folder: Path, processes: int, engine: str, settings: dict[str, Any]) -> list[Figures]:
    """Do the same in processes forked from this one, which has already loaded all that they need."""
    folder.mkdir()
    port, started = free_port(), list[int]()
    for rank in range(processes):
        started.append(os.fork())
        if not started[-1]:
            if processes > 1:  # as torchrun would tell it
                told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", **{key: str(one) for key, one in told.items()}}
            figures = trained(policy, folder, processes, engine, settings)
            if rank == 0:
                (folder / "figures.json").write_text(json.dumps(figures))
            os._exit(0)
    assert [os.waitpid(one, 0)[1] for one in started] == [0] * processes, engine
    found: list[Figures] = json.loads((folder / "figures.json").read_text())
    return found


if __name__ == "__main__":
    into, count, *names = sys.argv[1:]
    policy = rloo_kit.load_policy("tiny", seed=0)
    found: dict[str, dict[str, list[Figures]]] = {}
    for name in names or SETTINGS:
        for engine in ENGINES:
            processes = 1 if engine == ENGINES[0] else int(count)
            place = Path(into, f"{name} {engine}")
            found.setdefault(name, {})[engine] = forked(policy, place, processes, engine, SETTINGS[name])
    Path(into, "figures.json").write_text(json.dumps(found))
