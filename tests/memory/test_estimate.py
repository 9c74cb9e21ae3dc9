"""Estimates: totals by phase, the peak, and the verdict."""

import dataclasses

import pytest

import rloo_kit
from rloo_kit.memory.hardware import Device
from tests.memory.conftest import LARGE


def test_parts_phases_and_peak_agree() -> None:
    planned = rloo_kit.plan("qwen3-4b", LARGE, "8GB")
    assert planned.peak_bytes == max(planned.totals.values()) == planned.totals[planned.peak_phase]
    for parts in planned.phases.values():
        assert all(0 < size <= planned.parts[part] for part, size in parts.items())


@pytest.mark.parametrize(("room", "verdict"), [(-1, "does not fit"), (0, "tight"), (None, "fits")])
def test_the_verdict_is_set_by_the_peak_and_its_estimated_part(room: int | None, verdict: str) -> None:
    planned = rloo_kit.plan("qwen3-4b", card="24GB")
    room = planned.estimated_bytes if room is None else room
    device = Device("this much", planned.peak_bytes + room)
    assert dataclasses.replace(planned, device=device).fits == verdict
