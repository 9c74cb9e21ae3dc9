"""Shared by the memory tests: a device, configurations, plans of the tiny policy, and a fake GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.plan import Plan
from rloo_kit.session.output import GIB

CPU = Device("a CPU", 16 * GIB, on_gpu=False)

LARGE = SimpleNamespace(
    per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=8, max_completion_length=3072
)
"""A configuration that does not fit on small cards; missing settings take the kit's defaults."""

ONE_GROUP = SimpleNamespace(
    per_device_train_batch_size=2, gradient_accumulation_steps=4, num_generations=8, max_completion_length=4096
)
"""One group per batch, so that no smaller batch exists."""


def tiny_plan(policy: Any, **config: Any) -> Plan:
    return rloo_kit.plan(policy, SimpleNamespace(**config), CPU, prompt_tokens=40)


def fake_cuda(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    sizes = {"mem_get_info": (6 * GIB, 8 * GIB), "memory_reserved": 0, "memory_allocated": 0}
    known = {"is_available": True, "get_per_process_memory_fraction": 1.0, "get_device_name": "a fake card"}
    for name, answer in {**sizes, **known, **values}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, answer=answer: answer)
