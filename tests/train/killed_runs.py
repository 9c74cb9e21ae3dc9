"""A run that is killed at random moments, and whose checkpoints are damaged, beside the same run left alone.

Each run is resumed until it is done, and is then compared to the bit: weights, optimizer, and every logged figure but
times.  It has what makes resuming hard: several steps a generation batch, two epochs, evaluations, a learning rate that
falls.  For test_faults.py; run as a script it stops three dozen times, as benchmarks/results/faults.md has it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rloo_kit

STEPS = 8
SETTINGS: dict[str, Any] = {"num_generations": 2, "per_device_train_batch_size": 4, "num_iterations": 2}
SETTINGS |= {"gradient_accumulation_steps": 1, "max_completion_length": 8, "beta": 0.05, "seed": 1}
SETTINGS |= {"learning_rate": 1e-2, "lr_scheduler_type": "linear", "max_steps": STEPS}
SETTINGS |= {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 4}
SETTINGS |= {"save_steps": 1, "save_total_limit": 3}
TIMES = ("runtime", "per_second", "time")


class Runs:
    """Runs in processes of their own, which import nothing anew."""

    def __init__(self) -> None:
        self.policy = rloo_kit.load_policy("tiny", seed=0)
        self.task = rloo_kit.tasks.addition(n_train=6, n_held_out=2, seed=0)

    def trainer(self, folder: Path) -> rloo_kit.RLOOTrainer:
        config = rloo_kit.RLOOConfig(output_dir=str(folder), **SETTINGS)
        return rloo_kit.RLOOTrainer(self.policy, reward, config, self.task.train, self.task.held_out)

    def start(self, folder: Path, begun: Path | None = None) -> int:
        """Start or resume the run of a folder; its state is in result.json when it is done."""
        process = os.fork()
        if process:
            return process
        status = 1
        try:
            with (folder / "output.txt").open("a") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                trainer = self.trainer(folder)
                if begun:
                    begun.touch()
                trainer.train(resume_from_checkpoint=True)
                (folder / "result.json").write_text(json.dumps(outcome(trainer), sort_keys=True))
                status = 0
        except SystemExit as stopped:
            status = int(str(stopped.code))
        except BaseException as error:
            (folder / "error.txt").write_text(repr(error))
        finally:
            os._exit(status)

    def alone(self, folder: Path) -> tuple[str, float]:
        """The outcome of a run that is left alone, and the seconds that it trained."""
        folder.mkdir()
        begun = folder / "begun"
        _, status = os.waitpid(self.start(folder, begun), 0)
        assert status == 0, (folder / "error.txt").read_text()
        seconds = (folder / "result.json").stat().st_mtime - begun.stat().st_mtime
        return (folder / "result.json").read_text(), seconds


def reward(completions: Any, completion_ids: list[list[int]], **_: object) -> list[float]:
    return [(sum(ids) % 97) / 97 for ids in completion_ids]


def outcome(trainer: rloo_kit.RLOOTrainer) -> dict[str, Any]:
    """What two equal runs have in common, weights and optimizer as digests."""
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


def _flip(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def _older(file: Path, draw: random.Random) -> None:
    others = sorted(file.parent.parent.glob(f"checkpoint-*/{file.name}"))
    shutil.copyfile(draw.choice(others), file) if others[1:] else file.unlink()


DAMAGE: dict[str, Callable[[Path, random.Random], None]] = {
    "none": lambda file, draw: None,
    "cut": lambda file, draw: os.truncate(file, draw.randrange(file.stat().st_size)),
    "removed": lambda file, draw: file.unlink(),
    "bit flipped": _flip,
    "of an older step": _older,
}


def shell_status(status: int) -> int:
    """As a shell and a job scheduler count it: 143 also where SIGTERM came before the run listened to it."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def damage(folder: Path, kind: str, draw: random.Random) -> str:
    """Damage a file of a run's newest checkpoint; which it was."""
    checkpoints = sorted(folder.glob("checkpoint-*"), key=lambda one: int(one.name.split("-")[1]))
    if not checkpoints or kind == "none":
        return "none"
    files = [file for file in sorted(checkpoints[-1].iterdir()) if file.is_file() and file.stat().st_size]
    file = draw.choice([file for file in files if file.name != "README.md"])  # a user's to edit
    DAMAGE[kind](file, draw)
    return f"{kind}: {file.name}"


def interrupted(
    runs: Runs, folder: Path, number: int, times: int, seconds: float, draw: random.Random
) -> list[dict[str, Any]]:
    """Stop a run ``times`` times at random moments with a signal, and then let it end.

    Gives of each stop that found the run at work the damage done after it, the exit status, and the seconds until it.
    """
    folder.mkdir()
    stops: list[dict[str, Any]] = []
    for index in range(times):
        begun = folder / f"begun-{index}"
        process = runs.start(folder, begun)
        while not begun.exists():
            time.sleep(0.001)
        time.sleep(draw.uniform(0.0, seconds))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
        sent = time.monotonic()
        _, status = os.waitpid(process, 0)
        if (folder / "result.json").exists():
            return stops
        kind = "none" if number == signal.SIGTERM else draw.choice(list(DAMAGE))
        took = round(time.monotonic() - sent, 2)
        done = damage(folder, kind, draw)
        stops.append({"damage": done, "status": shell_status(status), "seconds": took})
    os.waitpid(runs.start(folder), 0)
    return stops


def tried(kills: int, terms: int, seed: int) -> dict[str, Any]:
    """Every stop of runs stopped ``kills`` times by SIGKILL and ``terms`` times by SIGTERM, three stops a run, and
    which came out otherwise than the one left alone."""
    draw, runs = random.Random(seed), Runs()
    found: dict[str, Any] = {"kills": [], "terms": [], "different": [], "failed": []}
    with tempfile.TemporaryDirectory() as scratch:
        expected, seconds = runs.alone(Path(scratch) / "alone")
        tries = itertools.count()
        for name, number, wanted in (("kills", signal.SIGKILL, kills), ("terms", signal.SIGTERM, terms)):
            while (left := wanted - len(found[name])) > 0:
                folder = Path(scratch) / f"{name}-{next(tries)}"
                found[name] += interrupted(runs, folder, number, min(3, left), seconds * 0.8, draw)
                if not (folder / "result.json").exists():
                    error = folder / "error.txt"
                    found["failed"].append(error.read_text() if error.exists() else "no result")
                elif (text := (folder / "result.json").read_text()) != expected:
                    found["different"].append([expected, text])
    found["seconds alone"] = round(seconds, 2)
    return found


if __name__ == "__main__":
    print(json.dumps(tried(kills=24, terms=12, seed=0), indent=1))
