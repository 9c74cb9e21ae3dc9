"""Hygiene: the card's memory comes back after release() and shutdown_kernel(), and running out of it ends nothing.

In a real Jupyter kernel, watched from a process that holds nothing on the card.  In a rehearsal the kernel's own
tensors and its process stand in for the card.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from . import device, shapes
from .checks import BARE, Found, Place, at_least, at_most, check, holds, seen

SHAPE = "qwen3-0.6b"

AFTER_EXIT_BYTES = 64 * device.MIB
"""A process that has ended holds nothing; what the driver and a desktop hold beside it moves by some MiB."""

AFTER_RELEASE_BYTES = 32 * device.MIB
"""What unsloth keeps for the process: a buffer of one dequantised weight, 6 MiB for the smallest shape, and those of
its gradient checkpointing, some MiB.  cuBLAS's workspaces, up to 32 MiB a thread, are not counted: see START."""

ROOM_BYTES = 3 * device.GIB // 2
"""What is left to the kernel that has to run out: enough for TRAIN, if nothing is held from before."""

CONTEXT_GROWTH_BYTES = 384 * device.MIB
"""CUDA loads kernels when they are first called, and they stay with the process: cuBLAS, bitsandbytes, Triton's."""

BACK_WITHIN_SECONDS = 2.0
SHUTDOWN_DELAY_SECONDS = 1.0
"""``shutdown_kernel()`` begins that long after its cell, so that the answer arrives (rloo_kit/session/kernel.py)."""

START = """
import json
import rloo_kit
env = rloo_kit.prepare(dotenv=None, offline=True, seed=0)
import sys, torch
sys.path[:0] = {paths!r}
from benchmarks.gpu.workload import dataset, every_other, settings
on_gpu = torch.cuda.is_available()
def held():
    import gc
    from rloo_kit.session.holders import bytes_in_use
    if on_gpu:
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        return torch.cuda.memory_allocated()
    return bytes_in_use()
if on_gpu:
    (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum().item()
empty = held()
if on_gpu:
    torch.cuda.empty_cache()
print("ANSWER", json.dumps({{"held": empty}}))
"""

LOAD = """
policy = rloo_kit.load_policy({folder!r}, seed=0)
data = dataset(32)
def trainer_of(rows, tokens, reward=every_other):
    config = rloo_kit.RLOOConfig(**settings({scratch!r}, 4, rows // 4, rows, tokens, max_steps=1), live_plot=False)
    return rloo_kit.RLOOTrainer(model=policy, reward_funcs=reward, args=config, train_dataset=data)
print("ANSWER", json.dumps({{"held": held()}}))
"""

TRAIN = """
trainer = trainer_of(4, 16)
result = trainer.train()
print("ANSWER", json.dumps({"held": held(), "step": trainer.state.global_step}))
"""

RUN_OUT = """
def greedy(completions, **kwargs):
    torch.empty(2**46, dtype=torch.uint8)
if on_gpu:
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_reserved() + {room}) / total))
    trainer = trainer_of(256, 16)
else:
    trainer = trainer_of(8, 16, greedy)
trainer.train()
"""

RELEASE = """
print(rloo_kit.release())
print("ANSWER", json.dumps({"held": held()}))
"""

SHUTDOWN = "rloo_kit.shutdown_kernel()"


class Kernel:
    """A Jupyter kernel that answers cells.

    It is told that VS Code runs it, whose kernels have no server: ``shutdown_kernel()`` then ends the process itself.
    """

    def __init__(self, place: Place) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(
            startup_timeout=60, kernel_name="python3", env={**os.environ, "VSCODE_PID": str(os.getpid())}
        )
        self.place = place
        provisioner: Any = self.manager.provisioner
        self.process = provisioner.process

    def cell(self, code: str, seconds: float = 200) -> dict[str, Any]:
        """Run a cell: what it answered, and the name of the error that ended it."""
        said: list[str] = []

        def hear(message: Any) -> None:
            if message["msg_type"] == "stream":
                said.append(message["content"]["text"])
                print(message["content"]["text"], end="", flush=True)

        reply = self.client.execute_interactive(code, timeout=seconds, output_hook=hear)["content"]
        answers = [line for line in "".join(said).splitlines() if line.startswith("ANSWER ")]
        error = {"error": reply["ename"], "says": reply["evalue"]} if reply["status"] == "error" else {}
        return {**(json.loads(answers[-1][7:]) if answers else {}), **error}

    def must(self, code: str) -> dict[str, Any]:
        """Run a cell that has to succeed.

        Raises:
            RuntimeError: it did not.
        """
        answer = self.cell(code)
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['says'][:300]}")
        return answer

    @property
    def is_alive(self) -> bool:
        """Whether the process is there."""
        return self.process.poll() is None

    def close(self) -> None:
        """End it, whatever state it is in."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def used(kernel: Kernel) -> int:
    """Bytes in use: on the card, or in a rehearsal by the kernel's process."""
    if not kernel.place.is_rehearsal:
        return device.used_bytes()
    import psutil

    return psutil.Process(kernel.process.pid).memory_info().rss if kernel.is_alive else 0


def seconds_until(reached: Any, most: float) -> float:
    """How long until a condition holds; infinity where it has not after ``most`` seconds."""
    started = time.monotonic()
    while time.monotonic() - started < most:
        if reached():
            return time.monotonic() - started
        time.sleep(0.02)
    return float("inf")


@check("hygiene/memory comes back", seconds=300, takes=60, rank=35, home=BARE, needs=(f"shape/{SHAPE}",))
def comes_back(place: Place) -> Found:
    """Before, trained, released, shut down."""
    before = 0 if place.is_rehearsal else device.used_bytes()
    kernel = Kernel(place)
    try:
        empty = kernel.must(START.format(paths=_paths()))
        context = used(kernel)
        loaded = kernel.must(LOAD.format(**_folders(place)))
        trained = kernel.must(TRAIN)
        full = used(kernel)
        released = kernel.must(RELEASE)
        slack = seconds_until(lambda: used(kernel) <= context + CONTEXT_GROWTH_BYTES, BACK_WITHIN_SECONDS)
        after_release = used(kernel)
        kernel.must(SHUTDOWN)
        back = seconds_until(lambda: used(kernel) <= before + AFTER_EXIT_BYTES and not kernel.is_alive, 15)
        after = used(kernel)
    finally:
        kernel.close()
    said = "release(): seconds until the card's count is back", "shutdown_kernel(): seconds until all is back"
    watched = at_least(
        "control: used more, trained", (full - before) / device.MIB, loaded["held"] / device.MIB, "MiB"
    )
    growth = at_most(said[0], slack, BACK_WITHIN_SECONDS, "s")
    ended = at_most(said[1], back, SHUTDOWN_DELAY_SECONDS + BACK_WITHIN_SECONDS, "s")
    if place.is_rehearsal:  # a CPU hands pages back when it likes, and a busy one takes seconds to end Python
        growth, ended = seen(said[0], slack, "s"), seen(said[1], back, "s")
        watched = seen("used more, trained", (full - before) / device.MIB, "MiB")
    return Found(
        [
            holds("it trained", trained["step"] == 1),
            at_most(
                "release(): tensors left",
                (released["held"] - empty["held"]) / device.MIB,
                AFTER_RELEASE_BYTES / device.MIB,
                "MiB",
            ),
            growth,
            ended,
            watched,
            seen("used more, released", (after_release - before) / device.MIB, "MiB"),
            seen("used more, shut down", (after - before) / device.MIB, "MiB"),
        ],
        {
            "empty": empty,
            "loaded": loaded,
            "trained": trained,
            "released": released,
            "context": context - before,
        },
    )


@check(
    "hygiene/goes on after running out", seconds=300, takes=50, rank=36, home=BARE, needs=(f"shape/{SHAPE}",)
)
def goes_on(place: Place) -> Found:
    """A cell that ends in an out-of-memory error, and below it one that trains a smaller run.

    On a GPU it truly runs out, in a process that is held to little more than the smaller run takes: what the notebook
    keeps of the failed cell is then missed.  In a rehearsal a reward asks for 64 TiB.
    """
    phase = "train" if place.is_rehearsal else "generate"
    kernel = Kernel(place)
    try:
        kernel.must(START.format(paths=_paths()))
        loaded = kernel.must(LOAD.format(**_folders(place)))
        failed = kernel.cell(RUN_OUT.format(room=ROOM_BYTES))
        again = kernel.cell(TRAIN)
    finally:
        kernel.close()
    return Found(
        [
            holds("the cell ends in rloo_kit's error", failed.get("error") == "OutOfMemoryError"),
            holds("it names the phase", f"memory ran out in the phase '{phase}'" in failed.get("says", "")),
            holds("the next cell trains", again.get("step") == 1),
            seen(
                "tensors held after it, more than before",
                (again.get("held", 0) - loaded["held"]) / device.MIB,
                "MiB",
            ),
        ],
        {"failed": failed, "again": again},
    )


def _paths() -> list[str]:
    from .runner import ROOT

    return [str(ROOT), str(ROOT / "benchmarks")]


def _folders(place: Place) -> dict[str, str]:
    return {"folder": str(shapes.folder_of(SHAPE, place)), "scratch": str(place.scratch / "kernel")}
