"""The GPU's memory bandwidth, from what NVML says; the figures are of data sheets."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from rloo_kit.session import bandwidth, imports


class NVMLError(Exception):
    """As pynvml raises it where there is no driver, or no such GPU."""


def nvml(clock_mhz: int, bus_bits: int, uuid: str = "GPU-1") -> Any:
    """pynvml with one GPU."""

    def by_index(index: int) -> str:
        if index != 0:
            raise NVMLError
        return uuid

    def by_uuid(wanted: str) -> str:
        if wanted != uuid:
            raise NVMLError
        return uuid

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_MEM=2,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetMaxClockInfo=lambda handle, kind: clock_mhz,
        nvmlDeviceGetMemoryBusWidth=lambda handle: bus_bits,
    )


CARDS = {"RTX 3090": (9751, 384, 936), "T4": (5001, 256, 320), "H100": (2619, 5120, 3350)}


@pytest.mark.parametrize("name", CARDS)
def test_two_transfers_a_clock_over_the_bus_are_the_data_sheets_gigabytes(
    name: str, monkeypatch: Any
) -> None:
    clock, bus, expected = CARDS[name]
    monkeypatch.setitem(sys.modules, "pynvml", nvml(clock, bus))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert bandwidth.gpu_bandwidth() == pytest.approx(expected * 1e9, rel=0.01)


@pytest.mark.parametrize(("visible", "is_found"), [("0,1", True), ("GPU-1", True), ("7", False), ("", False)])
def test_the_first_visible_gpu_is_asked(visible: str, is_found: bool, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(*CARDS["T4"][:2]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (bandwidth.gpu_bandwidth() is not None) == is_found


@pytest.mark.parametrize(("name", "value"), [("RTX 3090", "1"), ("H100", None)])
def test_4_bit_products_are_for_slow_memory(name: str, value: str | None, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(*CARDS[name][:2]))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert imports.settings()[imports.FUSED_4BIT].value == value
