"""Estimates: totals by phase, the peak, and the verdict."""

import dataclasses
from types import SimpleNamespace

import pytest

import rloo_kit
from rloo_kit.memory.estimate import Estimate, largest_slice
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.settings import Settings
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


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 11, 12])
def test_as_many_are_sampled_at_once_as_fit_and_no_more(rows: int) -> None:
    """On a device that holds just so many, and micro-batches of one."""
    model, auto = rloo_kit.plan("qwen3-4b", card="24GB").model, Settings(batch_rows=12, micro_rows=1)

    def planned(generation_rows: int | None, device: Device) -> Estimate:
        return Estimate.of(model, dataclasses.replace(auto, generation_rows=generation_rows), device)

    needs = planned(rows, Device("large", 2**40))
    just_enough = Device("just enough", needs.peak_bytes + needs.estimated_bytes // 2)
    found = planned(None, just_enough)
    assert (found.fits, found.sampled_rows) == ("fits", largest_slice(12, rows))
    assert found.phases == planned(found.sampled_rows, just_enough).phases
    more = [size for size in range(found.sampled_rows + 1, 13) if largest_slice(12, size) == size]
    assert all(planned(size, just_enough).fits != "fits" for size in more)


@pytest.mark.parametrize(
    ("asked", "wanted", "at_once"),
    [(12, 12, 12), (100, 12, 12), (7, 12, 6), (5, 12, 4), (1, 12, 1), (8, 8, 8), (5, 8, 4), (3, 8, 3)],
)
def test_slices_are_as_few_and_as_even_as_may_be(asked: int, wanted: int, at_once: int) -> None:
    planned = rloo_kit.plan("qwen3-4b", SimpleNamespace(generation_rows=asked), "24GB")
    assert planned.rows_at_once(wanted) == at_once
    assert -(-wanted // at_once) == -(-wanted // min(asked, wanted)), "no more rounds than asked for"


def test_where_even_one_at_a_time_does_not_fit_slices_make_it_no_worse() -> None:
    """Passes are what is too large: then sampling may take as much as they do."""
    passes = SimpleNamespace(per_device_train_batch_size=8, num_generations=8, max_completion_length=3000)
    planned = rloo_kit.plan("qwen3-4b", passes, "8GB")
    assert (planned.fits, planned.peak_phase) == ("does not fit", "backward")
    at_most = planned.totals["backward"]
    assert planned.totals["generate"] <= at_most
    larger = rloo_kit.plan("qwen3-4b", SimpleNamespace(**vars(passes), generation_rows=16), "8GB")
    assert planned.sampled_rows == 16 or larger.totals["generate"] > at_most
