"""Make ``torch.cuda`` answer as on a machine with the card: counts, properties, and streams that do nothing.

The memory that it reports is that of the process's tensors, counted at every operation, CPU tensors included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from .cards import Card
from .gauge import TensorGauge

FREE_SHARE = 0.95
"""Share of the card's memory that is free before anything is loaded: the driver and the context have the rest."""


class Event:
    """Stands for a CUDA event, stream or device context; work on a CPU is done when the call returns."""

    cuda_stream = 0
    device_index = idx = 0
    device = torch.device("cuda:0")

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __enter__(self) -> Event:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return 0.0

    def _nothing(self, *args: object) -> None:
        pass

    synchronize = wait_stream = wait_event = record = wait = _nothing


def _always(value: Any) -> Callable[..., Any]:
    """Return a new function for each name: torch._dynamo refuses one function under two names."""
    return lambda *args, **kwargs: value


def answers(card: Card, gauge: TensorGauge) -> dict[str, Callable[..., Any]]:
    stream, major_minor = Event(), card.capability
    fixed: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "_device_count_nvml": 1,
        "current_device": 0,
        "is_initialized": True,
        "_is_in_bad_fork": False,
        "get_device_name": card.properties().name,
        "get_device_capability": major_minor,
        "get_device_properties": card.properties(),
        "get_arch_list": [f"sm_{major_minor[0]}{major_minor[1]}"],
        "memory_stats": {},
        "memory_summary": "",
        "get_per_process_memory_fraction": 1.0,
        "current_stream": stream,
        "default_stream": stream,
        "is_current_stream_capturing": False,
        "can_device_access_peer": False,
        "utilization": 0,
        "is_tf32_supported": card.has_bfloat16,
    }
    now = ("memory_allocated", "memory_reserved")
    peaks = ("max_memory_allocated", "max_memory_reserved")
    silent = (
        *("init", "_lazy_init", "set_device", "synchronize", "empty_cache", "ipc_collect", "set_stream"),
        "reset_accumulated_memory_stats",
        *("set_per_process_memory_fraction", "manual_seed", "manual_seed_all", "seed", "seed_all"),
        *("set_rng_state", "set_rng_state_all"),
    )
    return {
        **{name: _always(value) for name, value in fixed.items()},
        **{name: lambda *args: gauge.live_bytes for name in now},
        **{name: lambda *args: gauge.peak_bytes for name in peaks},
        "reset_peak_memory_stats": lambda *args: gauge.restart(),
        "mem_get_info": lambda *args: (int(FREE_SHARE * card.total_bytes) - gauge.live_bytes, card.total_bytes),
        **{name: _always(None) for name in silent},
        # As in torch: with emulation every card takes bfloat16.
        "is_bf16_supported": lambda including_emulation=True: including_emulation or card.has_bfloat16,
        "get_rng_state": lambda *args: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "Stream": Event,
        "Event": Event,
        "device": Event,
        "device_of": Event,
        "stream": lambda stream=None: contextlib.nullcontext(),
    }


def pretend(card: Card, is_counted: bool) -> None:
    gauge = TensorGauge()
    if is_counted:
        gauge.__enter__()
    given = answers(card, gauge)
    for module in (torch.cuda, torch.cuda.memory, torch.cuda.random):
        for name, value in given.items():
            if module is torch.cuda or hasattr(module, name):
                setattr(module, name, value)
    torch._C._cuda_getCurrentRawStream = _always(0)
    torch._C._cuda_getDeviceCount = _always(1)
    torch._C._cuda_clearCublasWorkspaces = _always(None)
    torch.version.cuda = "12.8"
