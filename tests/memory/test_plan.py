"""The plan: totals, peak and verdict; what it advises; how it is shown; and what planning imports."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit.memory import plan as planning
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.plan import Plan, batch_sizes, largest_slice
from rloo_kit.memory.plan_settings import Settings
from rloo_kit.session.output import GIB
from tests.memory.conftest import LARGE, ONE_GROUP


@pytest.mark.parametrize(("room", "verdict"), [(-1, "does not fit"), (0, "tight"), (None, "fits")])
def test_the_verdict_is_set_by_the_peak_and_its_estimated_part(room: int | None, verdict: str) -> None:
    planned = rloo_kit.plan("qwen3-4b", card="24GB")
    room = planned.estimated_bytes if room is None else room
    device = Device("this much", planned.peak_bytes + room)
    assert dataclasses.replace(planned, device=device).fits == verdict


@pytest.mark.parametrize("rows", [1, 3, 5, 12])
def test_as_many_are_sampled_at_once_as_fit_and_no_more(rows: int) -> None:
    """On a device that holds just so many, and micro-batches of one."""
    model, auto = rloo_kit.plan("qwen3-4b", card="24GB").model, Settings(**batch_sizes(1, 12, 12))

    def planned(generation_rows: int | None, device: Device) -> Plan:
        return Plan.of(model, dataclasses.replace(auto, generation_rows=generation_rows), device)

    needs = planned(rows, Device("large", 2**40))
    just_enough = Device("just enough", needs.peak_bytes + needs.estimated_bytes // 2)
    found = planned(None, just_enough)
    assert (found.fits, found.sampled_rows) == ("fits", largest_slice(12, rows))
    assert found.phases == planned(found.sampled_rows, just_enough).phases
    more = [size for size in range(found.sampled_rows + 1, 13) if largest_slice(12, size) == size]
    assert all(planned(size, just_enough).fits != "fits" for size in more)


@pytest.mark.parametrize(
    ("asked", "wanted", "at_once"), [(100, 12, 12), (7, 12, 6), (5, 12, 4), (1, 12, 1), (5, 8, 4), (3, 8, 3)]
)
def test_slices_are_as_few_and_as_even_as_may_be(asked: int, wanted: int, at_once: int) -> None:
    planned = rloo_kit.plan("qwen3-4b", SimpleNamespace(generation_rows=asked), "24GB")
    assert planned.rows_at_once(wanted) == at_once


WHOLE = {**vars(LARGE), "per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
"""Nothing is accumulated, so that TRL's default of steps_per_generation follows what is advised."""


@pytest.mark.parametrize("config", [vars(LARGE), WHOLE], ids=["accumulated", "whole"])
@pytest.mark.parametrize("card", [4.2 * GIB, "rtx 3060 12GB", "rtx 4090"])
def test_every_change_that_is_advised_makes_it_fit(card: Any, config: dict[str, Any]) -> None:
    planned = rloo_kit.plan("qwen3-4b", rloo_kit.RLOOConfig(**config), card)
    assert (planned.fits == "fits") == (not planned.changes)
    for change in planned.changes:
        changed = rloo_kit.RLOOConfig(**{**config, **change.config})
        after = rloo_kit.plan(change.policy.get("name", "qwen3-4b"), changed, card)
        assert (after.peak_bytes, after.fits) == (change.peak_bytes, change.fits), change
        assert after.fits != "does not fit"


def test_smaller_batches_leave_updates_and_groups_whole_and_k_ends_at_two() -> None:
    asked = Settings(num_generations=4, **batch_sizes(8, 16, 32))
    planned = Plan.of(rloo_kit.plan("qwen3-4b", card="24GB").model, asked, Device("large", 2**40))
    smaller = [smaller.settings for smaller in planning.knobs(planned)["generation batch"]]
    for settings in smaller:
        assert settings.update_rows == 32
        assert settings.batch_rows % 4 == 0, "whole groups"
        assert 32 % settings.batch_rows == settings.batch_rows % settings.per_device_train_batch_size == 0, (
            "whole batches"
        )
    assert {settings.batch_rows for settings in smaller} == {16, 8, 4}
    assert [found.settings.num_generations for found in planning.knobs(planned)["K"]] == [3, 2]


def test_gradient_checkpointing_is_advised_first_where_it_is_off() -> None:
    kept = rloo_kit.plan("qwen3-1.7b", LARGE, "24GB", gradient_checkpointing=False)
    assert kept.changes[0].knob == "gradient checkpointing"


def test_where_a_group_is_too_large_it_is_sampled_in_slices() -> None:
    by_itself = rloo_kit.plan("qwen3-8b", ONE_GROUP, "12GB")
    assert (by_itself.fits, by_itself.sampled_rows, by_itself.changes) == ("fits", 4, ())
    assert "8 completions are sampled 4 at once" in str(by_itself)
    whole = rloo_kit.plan("qwen3-8b", SimpleNamespace(**vars(ONE_GROUP), generation_rows=8), "12GB")
    assert (whole.fits, whole.sampled_rows, whole.sliced) == ("does not fit", 8, "")
    first = whole.changes[0]
    assert (first.config, first.peak_bytes) == ({"generation_rows": 4}, by_itself.peak_bytes)


def test_the_advised_length_is_the_longest_that_fits_and_comes_with_what_was_advised_before() -> None:
    together = next(
        c for c in rloo_kit.plan("qwen3-4b", LARGE, 4.2 * GIB).changes if c.knob == "completion length"
    )
    assert {"max_completion_length", "per_device_train_batch_size"} <= set(together.config)
    planned = rloo_kit.plan("qwen3-1.7b", LARGE, 5 * GIB)
    change = next(change for change in planned.changes if change.knob == "completion length")
    longer = {**vars(LARGE), **change.config}
    longer["max_completion_length"] += 64
    assert rloo_kit.plan("qwen3-1.7b", SimpleNamespace(**longer), planned.device).fits != "fits"


def test_a_trainers_plan_names_its_model_and_not_where_it_lies(make_trainer: Any, policy: Any) -> None:
    title = str(make_trainer().memory_plan)
    assert title.startswith("tiny-qwen3-")
    assert str(Path(policy.model.name_or_path).parent) not in title


def test_planning_by_name_imports_neither_torch_nor_trl(script: Any) -> None:
    said = script(
        "import sys, rloo_kit; str(rloo_kit.plan('qwen3-4b', card='8GB')); rloo_kit.fit('t4');"
        "print([name for name in ('torch', 'trl', 'transformers', 'unsloth') if name in sys.modules])"
    ).stdout
    assert said.strip() == "[]"
