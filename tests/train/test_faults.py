"""A run that is killed at random moments, with checkpoints damaged in between, equals an undisturbed run.

Weights, optimizer, and every logged figure but times are compared to the bit.  The run has what makes resuming hard:
several steps per generation batch, two epochs, evaluations, a decaying learning rate.  benchmarks/results/faults.md has
the results of a longer version.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rloo_kit
from tests.conftest import ROOT, random_rewards

STEPS = 8
SETTINGS: dict[str, Any] = {"num_generations": 2, "per_device_train_batch_size": 4, "num_iterations": 2}
SETTINGS |= {"gradient_accumulation_steps": 1, "max_completion_length": 8, "beta": 0.05, "seed": 1}
SETTINGS |= {"learning_rate": 1e-2, "lr_scheduler_type": "linear", "max_steps": STEPS}
SETTINGS |= {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 4}
SETTINGS |= {"save_steps": 1, "save_total_limit": 3}
TIMES = ("runtime", "per_second", "time")

BEGUN, OUTPUT, RESULT = "begun", "output.txt", "result.json"
"""Files in a run's folder: a mark that training has begun, the output, and the outcome."""


def start(folder: Path, policy: rloo_kit.Policy, task: Any) -> int:
    """Start or resume a folder's run in a process forked from this one, which has no imports to repeat."""
    (folder / BEGUN).unlink(missing_ok=True)
    if process := os.fork():
        return process
    status = 1
    try:
        with (folder / OUTPUT).open("a") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        config = rloo_kit.RLOOConfig(output_dir=str(folder), **SETTINGS)
        trainer = rloo_kit.RLOOTrainer(policy, random_rewards, config, task.train, task.held_out)
        (folder / BEGUN).touch()
        trainer.train(resume_from_checkpoint=True)
        (folder / RESULT).write_text(json.dumps(outcome(trainer), sort_keys=True))
        status = 0
    except SystemExit as stopped:
        status = int(str(stopped.code))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def outcome(trainer: rloo_kit.RLOOTrainer) -> dict[str, Any]:
    """Return what equal runs have in common: digests of weights and optimizer, and the log without times."""
    import torch

    def digest(tensors: Any) -> str:
        contents = [tensor.detach().float().contiguous().cpu().numpy().tobytes() for tensor in tensors]
        return hashlib.sha256(b"".join(contents)).hexdigest()[:16]

    last = Path(trainer.args.output_dir) / f"checkpoint-{STEPS}"
    state = torch.load(last / "optimizer.pt", weights_only=True)["state"]
    log = [entry for entry in trainer.state.log_history if "train_loss" not in entry]
    timed = {name for entry in log for name in entry if any(word in name for word in TIMES)}
    return {
        "weights": digest(p for p in trainer.model.parameters() if p.requires_grad),
        "optimizer": digest(value for one in state.values() for value in one.values()),
        "log": [{name: entry[name] for name in entry.keys() - timed} for entry in log],
    }


def flip(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def trains(folder: Path) -> bool:
    """Return whether a folder's run has begun and has a checkpoint, from this start or an earlier one."""
    return (folder / BEGUN).exists() and any(folder.glob("checkpoint-*"))


DAMAGE: dict[str, Callable[[Path, random.Random], None]] = {
    "cut": lambda file, draw: os.truncate(file, draw.randrange(file.stat().st_size)),
    "removed": lambda file, draw: file.unlink(),
    "bit flipped": flip,
}


def damage(folder: Path, kind: str, draw: random.Random) -> None:
    """Damage a file of a run's newest checkpoint, if any: the run may have just removed a damaged one."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda one: int(one.name.split("-")[1]))
    if not checkpoints:
        return
    files = [file for file in sorted(checkpoints[-1].iterdir()) if file.is_file() and file.stat().st_size]
    DAMAGE[kind](draw.choice([file for file in files if file.name != "README.md"]), draw)  # users may edit it


def tried(kills: int, seed: int) -> dict[str, Any]:
    """Kill a run so often, and damage a checkpoint after each time, in each way in turn.  Return the outcomes, and that
    of an undisturbed run.  If a run ends before it is killed, another starts."""
    draw, policy = random.Random(seed), rloo_kit.load_policy("tiny", seed=0)
    task = rloo_kit.tasks.addition(n_train=6, n_held_out=2, seed=0)
    found: dict[str, Any] = {"outcomes": []}
    ways = list(itertools.islice(itertools.cycle(DAMAGE), kills))
    with tempfile.TemporaryDirectory() as scratch:
        alone = Path(tempfile.mkdtemp(dir=scratch))
        os.waitpid(start(alone, policy, task), 0)
        found["alone"] = (alone / RESULT).read_text()
        seconds = (alone / RESULT).stat().st_mtime - (alone / BEGUN).stat().st_mtime
        while ways:
            folder = Path(tempfile.mkdtemp(dir=scratch))
            while ways and not (folder / RESULT).exists():
                process = start(folder, policy, task)
                while not trains(folder):
                    time.sleep(0.001)
                time.sleep(draw.uniform(0.0, seconds / 2))
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
                if not (folder / RESULT).exists():
                    damage(folder, ways.pop(), draw)
            os.waitpid(start(folder, policy, task), 0)
            kept = folder / (RESULT if (folder / RESULT).exists() else OUTPUT)
            found["outcomes"].append(kept.read_text())
    return found


KILLED = """
import json
from tests.train import test_faults
print(json.dumps(test_faults.tried(kills=3, seed=3)))
"""


def test_a_run_that_was_killed_and_damaged_comes_out_the_same_to_the_bit(script):
    found = json.loads(script(KILLED, PYTHONPATH=str(ROOT)).stdout.splitlines()[-1])
    assert [one for one in found["outcomes"] if one != found["alone"]] == []
