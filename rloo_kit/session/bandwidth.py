"""How fast the GPU's memory is, asked of the driver: torch is not imported yet where this is needed."""

from __future__ import annotations

import os

FAST = 1.5e12
"""Bytes a second: above it are the A100 and what came after it in data centres (and the RTX 5090, at 1.8e12), below it
all other consumer cards."""


def has_fast_memory() -> bool:
    """Whether the GPU that torch will take first moves over :data:`FAST` bytes a second; False without a GPU."""
    return (gpu_bandwidth() or 0.0) > FAST


def gpu_bandwidth() -> float | None:
    """Bytes a second between a GPU and its memory, of the first that ``CUDA_VISIBLE_DEVICES`` names; None where NVML
    finds none.  Two transfers a clock, as NVML counts the clock of GDDR and HBM: 9.4e11 on an RTX 3090."""
    import pynvml

    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    try:
        pynvml.nvmlInit()
        by_number = first.isdigit()
        handle = (pynvml.nvmlDeviceGetHandleByIndex if by_number else pynvml.nvmlDeviceGetHandleByUUID)(
            int(first) if by_number else first
        )
        megahertz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)
        return 2 * megahertz * 1e6 * pynvml.nvmlDeviceGetMemoryBusWidth(handle) / 8
    except pynvml.NVMLError:
        return None
