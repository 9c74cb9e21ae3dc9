"""Hardware: GPUs by name, and what this machine has."""

import os
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from rloo_kit.errors import ConfigError
from rloo_kit.memory import hardware
from rloo_kit.memory.hardware import Device, device_of
from rloo_kit.session.show import GIB, MIB
from tests.memory.conftest import fake_cuda


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("rtx 3060 12GB", 12288),
        ("NVIDIA GeForce RTX 4090", 24564),
        ("4090", 24564),
        ("Tesla T4", 15360),
        ("8GB", 8192),
        ("24 GiB", 24576),
    ],
)
def test_a_card_is_known_by_its_names_and_bytes_are_taken_as_they_are(name: str, mib: int) -> None:
    assert device_of(name).usable_bytes == mib * MIB - hardware.RESERVED_BYTES
    assert device_of(mib * MIB).usable_bytes == mib * MIB


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rtx 3060", "several cards.*(12gb or rtx 3060 8gb|8gb or rtx 3060 12gb)"),
        ("rtx 4095", "did you mean.*rtx 4090"),
        ("voodoo 2", "give its memory: '12GB'"),
    ],
)
def test_an_unknown_card_is_refused_with_its_neighbours(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        device_of(name)


@pytest.mark.parametrize(
    ("reserved", "by_nvml", "fraction", "usable", "why"),
    [
        (0, None, 1.0, 6, "nothing is loaded"),
        (1, None, 1.0, 7, "what torch holds is the run's own"),
        (1, 2, 1.0, 8, "NVML counts the context too"),
        (1, None, 0.5, 4, "the process is limited to half of the card"),
        (1, 2, 0.5, 5, "and its context is not torch's"),
    ],
)
def test_this_machines_card_has_what_is_free_and_what_the_process_holds(
    monkeypatch: pytest.MonkeyPatch,
    reserved: int,
    by_nvml: int | None,
    fraction: float,
    usable: int,
    why: str,
) -> None:
    fake_cuda(monkeypatch, memory_reserved=reserved * GIB, get_per_process_memory_fraction=fraction)
    monkeypatch.setattr(hardware, "nvml_process_bytes", lambda: by_nvml and by_nvml * GIB)
    assert device_of() == Device("a fake card", usable * GIB), why


def test_without_a_gpu_the_machines_own_memory_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    process = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=GIB))
    monkeypatch.setattr(psutil, "Process", lambda: process)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=5 * GIB))
    assert device_of() == Device("this CPU", 6 * GIB, on_gpu=False)


def test_a_model_is_where_it_computes_and_not_where_its_embedding_lies() -> None:
    """unsloth's ``offload_embedding`` keeps the first parameter in the computer's memory."""
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 2, device="meta"))
    assert hardware.where_computed(model).type == "meta"
    assert hardware.where_computed(model[0]).type == "cpu"


@pytest.mark.parametrize(("pids", "expected"), [((-1, 0), 7 * GIB), ((0,), 7 * GIB), ((-1,), None)])
def test_nvml_is_asked_for_this_process_alone(
    monkeypatch: pytest.MonkeyPatch, pids: tuple[int, ...], expected: int | None
) -> None:
    rows = [SimpleNamespace(pid=pid or os.getpid(), usedGpuMemory=(9 if pid else 7) * GIB) for pid in pids]
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: rows,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    fake_cuda(monkeypatch, current_device=0, get_device_properties=SimpleNamespace(uuid="1-2"))
    assert hardware.nvml_process_bytes() == expected
