"""The lines that ask the card itself: names, memory, bandwidth, a cap.  On a CPU each says what stands in for it.

Few and in one place, since nothing but a GPU can try them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

GIB, MIB = 2**30, 2**20
PACKAGES = ("torch", "transformers", "trl", "peft", "unsloth", "unsloth_zoo", "bitsandbytes", "triton")

NUMBERING = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""Lets CUDA number cards as nvidia-smi and NVML do, where there are several."""

PROBE = """
import json, torch
found = torch.cuda.is_available()
print(json.dumps({"device": torch.cuda.get_device_name(), "memory": torch.cuda.mem_get_info()[1],
                  "cuda": torch.version.cuda, "torch": torch.__version__} if found else {}))
"""


def machine() -> dict[str, str]:
    """The card, its driver and the stack's versions; empty without CUDA.  A process of its own asks torch, so that
    the caller holds nothing on the card."""
    import json

    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **NUMBERING},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise SystemExit(
            f"{sys.executable} cannot ask torch for its device: {lines[-1] if lines else 'no answer'}"
        )
    found = json.loads(done.stdout.splitlines()[-1])
    if not found:
        return {}
    return {
        "device": found["device"],
        "memory": f"{found['memory'] / GIB:.1f} GiB",
        "driver": smi("driver_version") or "unknown",
        "CUDA": found["cuda"],
        "versions": versions(),
    }


def versions() -> str:
    """Of the stack and of Python."""
    return ", ".join([f"python {sys.version.split()[0]}", *(f"{name} {_version(name)}" for name in PACKAGES)])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def smi(field: str) -> str | None:
    """One of nvidia-smi's query fields of the first visible card, without its unit; None where it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    card = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    command = [program, f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", card]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    return done.stdout.strip() if done.returncode == 0 else None


def used_bytes() -> int:
    """What the driver counts as used on the whole card, without a CUDA context of one's own.

    NVML through nvidia-ml-py where it is installed (some microseconds), else through nvidia-smi (some tenths of a
    second); to the MiB.
    """
    try:
        import pynvml  # type: ignore[import-not-found,unused-ignore]

        pynvml.nvmlInit()
        number = int(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or 0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(number)).used)
    except Exception:
        answer = smi("memory.used")
        if answer is None:
            raise RuntimeError(
                "neither nvidia-ml-py nor nvidia-smi says how much of the card is used"
            ) from None
        return int(answer) * MIB


def computes_bf16() -> bool:
    """Whether the card itself computes in bfloat16: torch says so too of older ones, which emulate it."""
    import torch

    return torch.cuda.is_available() and bool(torch.cuda.is_bf16_supported(including_emulation=False))


def peaks(on_gpu: bool) -> dict[str, int]:
    """The allocator's peaks since they were last set back, in bytes: live tensors, and blocks held for them."""
    if not on_gpu:
        from phases import peak_bytes

        return {"allocated": peak_bytes("cpu"), "reserved": 0}
    import torch

    return {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}


def forget_peaks(on_gpu: bool) -> None:
    """Set the peaks back."""
    if on_gpu:
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # what loading left behind counts as held
        torch.cuda.reset_peak_memory_stats()
    else:
        from phases import reset_peak

        reset_peak("cpu")


def context_bytes() -> int:
    """What this process holds on the card beside torch's blocks: the context, kernels, libraries' workspaces.

    By NVML, or by nvidia-smi's list of processes; where neither tells processes apart (WSL, some containers), by what
    is used on the whole card, other programs included.
    """
    import torch

    from rloo_kit.memory import hardware

    torch.cuda.synchronize()
    held = hardware.nvml_process_bytes() or listed_bytes(os.getpid()) or hardware.cuda_process_bytes()
    return max(0, held - torch.cuda.memory_reserved())


def listed_bytes(pid: int) -> int | None:
    """What nvidia-smi lists for a process; None where it does not say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    rows = [line.split(",") for line in done.stdout.splitlines() if "," in line]
    found = [row[1].strip() for row in rows if row[0].strip() == str(pid)]
    return int(found[0]) * MIB if found and found[0].isdigit() else None


@contextlib.contextmanager
def capped(allowed_bytes: int) -> Iterator[None]:
    """Let torch's allocator hold so much and no more while inside, as on a smaller card."""
    import torch

    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, allowed_bytes / total))
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def copy_bandwidth(size: int = GIB, repeats: int = 20) -> float:
    """Bytes per second, read and written, of copies on the device: the best of ``repeats``."""
    import torch

    on_gpu = torch.cuda.is_available()
    source = torch.ones(size, dtype=torch.uint8, device="cuda" if on_gpu else "cpu")
    target = torch.empty_like(source)
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    best = float("inf")
    for _ in range(repeats + 2):
        wait()
        started = time.perf_counter()
        target.copy_(source)
        wait()
        best = min(best, time.perf_counter() - started)
    return 2 * size / best
