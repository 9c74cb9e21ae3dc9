"""Check that a notebook survives running out of memory, and that release() and shutdown_kernel() free the GPU.

A process that holds nothing on the GPU watches a real Jupyter kernel.  In a rehearsal the kernel's process stands in
for the GPU.  tests/ checks which names hold a model.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import pynvml
from jupyter_client.manager import start_new_kernel

from .runner import Figure, Place

SHAPE, MIB = "qwen3-0.6b", 2**20
AFTER_EXIT_BYTES = 64 * MIB  # what a desktop holds on the same GPU varies by some MiB
AFTER_RELEASE_MIB = 32  # Unsloth's buffers: one dequantised weight, and those of its gradient checkpointing
CONTEXT_GROWTH_BYTES = 384 * MIB  # CUDA loads kernels when they are first called, and keeps them
BACK_SECONDS, SHUTDOWN_SECONDS = 2.0, 3.0  # shutdown_kernel() begins a second after its cell

START = """
import json
import sys
import rloo_kit
rloo_kit.prepare(dotenv=None, offline=True, seed=0)
import torch
from benchmarks.gpu import work
from rloo_kit.session.release import bytes_in_use
def answer(**more):
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    # Buffers of offloaded activations lie in the computer's memory, which a pretended card counts, too.
    offload = sys.modules.get("unsloth_zoo.gradient_checkpointing") if REHEARSAL else None
    on_host = sum(buffer.nbytes for buffer in getattr(offload, "CPU_BUFFERS", ()))
    print("ANSWER", json.dumps({"held": bytes_in_use() - on_host, **more}))
torch.ones(64, 64, device="cuda").matrix_power(2).sum().item()
answer()
"""

LOAD = """
policy = rloo_kit.load_policy(FOLDER, seed=0)
def trainer_of(rows):
    config = rloo_kit.RLOOConfig(**work.settings("run", 4, rows // 4, rows, 16, max_steps=1))
    return rloo_kit.RLOOTrainer(policy, work.every_other, config, work.dataset(32))
answer()
"""

# On a GPU memory is limited to little more than TRAIN takes, so that TRAIN fails if this cell's error keeps any.
RUN_OUT = """
if not REHEARSAL:
    torch.cuda.empty_cache()
    share = (torch.cuda.memory_reserved() + 1536 * 2**20) / torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, share))
def impossible(layer, inputs):
    if torch.is_grad_enabled():  # in the update: what a reward asks for is the reward's error
        hook.remove()
        torch.empty(2**46, dtype=torch.uint8)  # 64 TiB, which a CPU refuses as a GPU would
if REHEARSAL:
    hook = policy.model.get_base_model().model.layers[0].register_forward_pre_hook(impossible)
trainer = trainer_of(8) if REHEARSAL else trainer_of(256)
trainer.train()
"""

TRAIN = "trainer = trainer_of(4)\nresult = trainer.train()\nanswer(step=trainer.state.global_step)"
RELEASE = "print(rloo_kit.release())\nanswer()"


def run_cell(client: Any, code: str) -> dict[str, Any]:
    said: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        said.append(message["content"].get("text", ""))

    reply = client.execute_interactive(code, timeout=200, output_hook=hear)["content"]
    print("".join(said), flush=True)
    if reply["status"] == "error":
        print(reply["ename"], reply["evalue"], sep=": ", flush=True)
        return {"error": reply["ename"], "says": reply["evalue"]}
    answers = [line for line in "".join(said).splitlines() if line.startswith("ANSWER ")]
    return json.loads(answers[-1].removeprefix("ANSWER ")) if answers else {}


def used_bytes(process: Any, place: Place) -> int:
    """Return the bytes that the driver counts as used on the whole GPU; in a rehearsal, the process's resident set."""
    if place.is_rehearsal:
        return psutil.Process(process.pid).memory_info().rss if process and process.poll() is None else 0
    pynvml.nvmlInit()
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()  # a number or a UUID
    by_number = first.isdigit()
    card = pynvml.nvmlDeviceGetHandleByIndex(int(first)) if by_number else pynvml.nvmlDeviceGetHandleByUUID(first)
    return int(pynvml.nvmlDeviceGetMemoryInfo(card).used)


def seconds_until(reached: Callable[[], bool], most: float) -> float:
    started = time.monotonic()
    while time.monotonic() - started < most:
        if reached():
            return time.monotonic() - started
        time.sleep(0.02)
    return float("inf")


def kernel(place: Place) -> dict[str, Figure]:
    """Run a notebook that runs out of memory, trains a smaller run in the next cell, releases and shuts down."""
    before = used_bytes(None, place)
    # Posing as VS Code, whose kernels have no server: shutdown_kernel() then ends this one itself.
    variables = {**os.environ, "VSCODE_PID": str(os.getpid())}
    manager, client = start_new_kernel(startup_timeout=60, kernel_name="python3", env=variables)
    provisioner: Any = manager.provisioner
    process = provisioner.process
    try:
        rehearsed = str(place.is_rehearsal)
        empty = run_cell(client, START.replace("REHEARSAL", rehearsed))
        context = used_bytes(process, place)
        loaded = run_cell(client, LOAD.replace("FOLDER", repr(str(place.scratch / SHAPE))))
        failed = run_cell(client, RUN_OUT.replace("REHEARSAL", rehearsed))
        trained, full = run_cell(client, TRAIN), used_bytes(process, place)
        released, grown = run_cell(client, RELEASE), context + CONTEXT_GROWTH_BYTES
        slack = seconds_until(lambda: used_bytes(process, place) <= grown, BACK_SECONDS)
        run_cell(client, "rloo_kit.shutdown_kernel()")
        limit = before + AFTER_EXIT_BYTES
        back = seconds_until(lambda: process.poll() is not None and used_bytes(process, place) <= limit, 15)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    phase = "train'" if place.is_rehearsal else ""  # on a GPU, whichever phase reaches the limit first
    held = [(answer["held"] - empty["held"]) / MIB for answer in (loaded, released)]
    # A CPU returns freed pages at any time, and a busy one takes seconds to end Python.
    limits = [None] * 3 if place.is_rehearsal else [held[0], BACK_SECONDS, SHUTDOWN_SECONDS]
    return {
        "running out ends in the kit's error": Figure(failed.get("error") == "OutOfMemoryError"),
        "it names the phase": Figure(f"memory ran out in the phase '{phase}" in failed.get("says", "")),
        "the next cell trains": Figure(trained.get("step") == 1),
        "trained: the GPU holds more than before, MiB": Figure((full - before) / MIB, low=limits[0]),
        "release(): tensors left, MiB": Figure(held[1], high=AFTER_RELEASE_MIB),
        "release(): until the driver counts it back, s": Figure(slack, high=limits[1]),
        "shutdown_kernel(): until all is back, s": Figure(back, high=limits[2]),
    }
