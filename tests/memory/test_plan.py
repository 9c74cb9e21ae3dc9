"""The plan: totals, peak and verdict; what it advises; how it is shown; and what planning imports."""

import dataclasses
import inspect
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit.catalogue import CATALOGUE
from rloo_kit.memory import plan as planning
from rloo_kit.memory.formulas import ESTIMATED, Step
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.plan import Plan, largest_slice
from rloo_kit.memory.specs import Model, Settings
from rloo_kit.session.output import GIB
from tests.memory.conftest import LARGE, ONE_GROUP


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


@pytest.mark.parametrize("card", ["8GB", "rtx 3060 12GB", "t4", "rtx 4090"])
def test_every_change_that_is_advised_makes_it_fit(card: str) -> None:
    planned = rloo_kit.plan("qwen3-4b", LARGE, card)
    assert (planned.fits == "fits") == (not planned.changes)
    for change in planned.changes:
        config = SimpleNamespace(**{**vars(LARGE), **change.config})
        after = rloo_kit.plan(change.policy.get("name", "qwen3-4b"), config, card)
        assert after.fits == change.fits != "does not fit", change
        assert after.peak_bytes == change.peak_bytes


def test_advice_holds_where_steps_per_generation_follows_the_accumulation() -> None:
    """Where it was 1 because nothing was accumulated, TRL's default makes it as many as there are now."""
    whole = {**vars(LARGE), "per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
    planned = rloo_kit.plan("qwen3-4b", rloo_kit.RLOOConfig(**whole), "12GB")
    assert {change.knob for change in planned.changes} >= {"generation batch", "K"}
    for change in planned.changes:
        changed = rloo_kit.RLOOConfig(**{**whole, **change.config})
        after = rloo_kit.plan(change.policy.get("name", "qwen3-4b"), changed, "12GB")
        assert (after.peak_bytes, after.fits) == (change.peak_bytes, change.fits), change


def test_changes_come_in_the_order_that_costs_least_quality() -> None:
    order = list(planning.KNOBS)
    seen = set()
    for model, card in itertools.product(("qwen3-1.7b", "qwen3-4b", "qwen3-8b"), ("8GB", "12GB", "24GB")):
        knobs = [change.knob for change in rloo_kit.plan(model, LARGE, card).changes]
        assert knobs == sorted(knobs, key=order.index)
        seen |= set(knobs)
    assert seen == set(order) - {"completions at once", "gradient checkpointing"}, "both are so by default"
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
    assert first.peak_bytes < whole.peak_bytes


def test_slices_are_advised_together_with_what_they_need() -> None:
    """Where a pass is too large as well: neither a smaller batch nor slices suffice alone."""
    asked = {**vars(ONE_GROUP), "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    first = rloo_kit.plan("qwen3-8b", SimpleNamespace(**asked, generation_rows=8), "12GB").changes[0]
    assert (first.knob, first.config["generation_rows"]) == ("generation batch", 4)
    changed = SimpleNamespace(**{**asked, **first.config})
    assert rloo_kit.plan("qwen3-8b", changed, "12GB").peak_bytes == first.peak_bytes


def test_the_generation_batch_is_cut_without_changing_an_update() -> None:
    change = rloo_kit.plan("qwen3-4b", LARGE, "8GB").changes[0]
    assert change.knob == "generation batch"
    values = {**vars(LARGE), "steps_per_generation": 4, **change.config}
    micro, accumulation = values["per_device_train_batch_size"], values["gradient_accumulation_steps"]
    assert micro * accumulation == 32, "completions per update"
    assert accumulation % values["steps_per_generation"] == 0, "whole generation batches in an update"
    assert micro * values["steps_per_generation"] % LARGE.num_generations == 0, "whole groups in a batch"


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


def test_two_is_the_least_k_that_is_advised() -> None:
    found = [settings.num_generations for settings in planning.KNOBS["K"](Settings(num_generations=4))]
    assert found == [3, 2]


def test_a_plan_that_nothing_makes_fit_says_so() -> None:
    planned = rloo_kit.plan("qwen3-14b", LARGE, GIB)
    assert planned.changes == ()
    assert "no model, batch or length of the catalogue fits" in str(planned)


@pytest.mark.parametrize(
    ("values", "apart"),
    [
        ({}, True),
        ({"beta": 0.0}, False),
        ({"beta": 0.0, "single_pass": False}, True),
        ({"beta": 0.0, "iterations": 2}, True),
        ({"beta": 0.0, "batch_rows": 12}, True),
    ],
)
def test_a_phase_of_log_probs_is_planned_where_there_is_one(values: dict[str, Any], apart: bool) -> None:
    phases = Step(Model(CATALOGUE["tiny"], 0, 0, ()), Settings(**values)).phases()
    assert ("log-probs" in phases) == apart


def test_a_plan_assumes_a_policy_as_load_policy_loads_it() -> None:
    loads = inspect.signature(rloo_kit.load_policy).parameters
    plans = inspect.signature(rloo_kit.plan).parameters
    for name in ("lora_rank", "load_in_4bit", "gradient_checkpointing"):
        assert plans[name].default == loads[name].default, name


def test_a_trainers_plan_names_its_model_and_not_where_it_lies(make_trainer: Any, policy: Any) -> None:
    title = make_trainer().memory_plan.title
    assert title.startswith("tiny-qwen3-")
    assert str(Path(policy.model.name_or_path).parent) not in title


def test_the_table_names_every_part_and_marks_what_is_estimated() -> None:
    planned = rloo_kit.plan("qwen3-8b", SimpleNamespace(max_completion_length=4096), "8GB")
    shown = [f"{part} *" if part in ESTIMATED else part for part in planned.parts]
    for text in (*shown, "no figure has been measured on a consumer card", "does not fit"):
        assert text in str(planned)
    assert repr(planned) == f"Plan(qwen3-8b on a card of 8 GiB: {planned.summary})"
    assert planned._repr_html_().count("<tr>") == len(planned.rows())


def test_planning_by_name_imports_neither_torch_nor_trl(script: Any) -> None:
    said = script(
        "import sys, rloo_kit; str(rloo_kit.plan('qwen3-4b', card='8GB')); rloo_kit.fit('t4');"
        "print([name for name in ('torch', 'trl', 'transformers', 'unsloth') if name in sys.modules])"
    ).stdout
    assert said.strip() == "[]"
