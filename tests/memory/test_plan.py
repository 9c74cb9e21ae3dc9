"""The plan: totals, peak and whether it fits; what it advises; what planning imports; and what fits a card."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit.memory import plan as planning
from rloo_kit.memory import policy_tensors
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.model_choice import first_run, longest_completion
from rloo_kit.memory.plan import Plan, batch_sizes, largest_slice
from rloo_kit.memory.plan_settings import Settings
from rloo_kit.models import CATALOGUE
from rloo_kit.session.output import GIB
from tests.memory.conftest import LARGE, ONE_GROUP


@pytest.mark.parametrize(("room", "verdict"), [(-1, "does not fit"), (0, "tight"), (None, "fits")])
def test_the_verdict_is_set_by_the_peak_and_its_estimated_part(room, verdict):
    planned = rloo_kit.plan("qwen3-4b", card="24GB")
    room = planned.estimated_bytes if room is None else room
    device = Device("this much", planned.peak_bytes + room)
    assert dataclasses.replace(planned, device=device).fits == verdict


@pytest.mark.parametrize("rows", [1, 3, 5, 12])
def test_as_many_are_sampled_at_once_as_fit_and_no_more(rows):
    """On a device that holds exactly so many rows, with micro-batches of one."""
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
    ("card", "rows", "is_held"),
    [("rtx 4090", 32, True), ("rtx 3060 12GB", 32, False), ("rtx 4090", 16, False), ("rtx 5090", 8, True)],
)
def test_weights_are_sampled_with_in_16_bit_where_there_is_room_and_no_kernel_for_4_bit(card, rows, is_held):
    config = rloo_kit.RLOOConfig(num_generations=8, **batch_sizes(8, rows, rows))
    planned = rloo_kit.plan("qwen3-4b", config, card)
    assert ("GiB more hold the weights in 16 bit while" in str(planned)) == is_held
    assert planned.in_16_bit_bytes == 2 * CATALOGUE["qwen3-4b"].linear_parameters * is_held
    for sampled in ({"fast_sampling": False}, {"generation_kwargs": {"num_beams": 2}}):
        config = rloo_kit.RLOOConfig(num_generations=8, **batch_sizes(8, rows, rows), **sampled)
        assert rloo_kit.plan("qwen3-4b", config, card).in_16_bit_bytes == 0, "by TRL's own sampling"


WHOLE = {**vars(LARGE), "per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
"""No accumulation, so that TRL's default of steps_per_generation changes with the advice."""


@pytest.mark.parametrize("config", [vars(LARGE), WHOLE], ids=["accumulated", "whole"])
@pytest.mark.parametrize("card", [4.2 * GIB, "rtx 3060 12GB", "rtx 4090"])
def test_every_change_that_is_advised_makes_it_fit(card, config):
    planned = rloo_kit.plan("qwen3-4b", rloo_kit.RLOOConfig(**config), card)
    assert (planned.fits == "fits") == (not planned.changes)
    for change in planned.changes:
        changed = rloo_kit.RLOOConfig(**{**config, **change.config})
        after = rloo_kit.plan(change.policy.get("name", "qwen3-4b"), changed, card)
        assert (after.peak_bytes, after.fits) == (change.peak_bytes, change.fits), change
        assert after.fits != "does not fit"


def test_smaller_batches_leave_updates_and_groups_whole_and_k_ends_at_two():
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


def test_what_costs_no_quality_is_advised_first():
    all_at_once = SimpleNamespace(**vars(ONE_GROUP), generation_rows=8)
    assert rloo_kit.plan("qwen3-8b", all_at_once, "12GB").changes[0].config == {"generation_rows": 4}
    kept = rloo_kit.plan("qwen3-1.7b", LARGE, "24GB", gradient_checkpointing=False)
    assert kept.changes[0].knob == "gradient checkpointing"


def test_the_advised_length_is_the_longest_that_fits_and_comes_with_what_was_advised_before():
    def advised(name: str, card: float) -> dict[str, Any]:
        changes = rloo_kit.plan(name, LARGE, card).changes
        return next(change.config for change in changes if change.knob == "completion length")

    assert {"max_completion_length", "per_device_train_batch_size"} <= set(advised("qwen3-4b", 4.2 * GIB))
    longer = {**vars(LARGE), **advised("qwen3-1.7b", 5 * GIB)}
    longer["max_completion_length"] += 64
    assert rloo_kit.plan("qwen3-1.7b", SimpleNamespace(**longer), 5 * GIB).fits != "fits"


def test_an_evaluation_during_training_takes_as_many_rows_in_a_pass_as_it_is_given():
    def planned(**config: Any) -> rloo_kit.Plan:
        return rloo_kit.plan("qwen3-4b", SimpleNamespace(**config), "8GB")

    during = planned(eval_strategy="steps", eval_steps=9, per_device_eval_batch_size=32)
    part = "one layer's activations"
    assert during.phases["evaluation"][part] == planned(per_device_train_batch_size=32).phases["log-probs"][part]
    assert (during.fits, planned(per_device_eval_batch_size=32).fits) == ("tight", "fits")
    assert during.changes[0].knob == "evaluation batch"


def test_a_trainers_plan_names_its_model_and_not_where_it_lies(make_trainer, policy):
    title = str(make_trainer().memory_plan)
    assert title.startswith("tiny-qwen3-")
    assert str(Path(policy.model.name_or_path).parent) not in title


def test_planning_by_name_imports_neither_torch_nor_trl(script):
    said = script(
        "import sys, rloo_kit; str(rloo_kit.plan('qwen3-4b', card='8GB')); rloo_kit.fit('t4');"
        "print([name for name in ('torch', 'trl', 'transformers', 'unsloth') if name in sys.modules])"
    ).stdout
    assert said.strip() == "[]"


# --- the largest model and the longest completion that fit ---


@pytest.mark.parametrize(
    ("card", "name"),
    [(GIB, "qwen3-0.6b"), ("8GB", "qwen3-4b"), ("rtx 3060 12GB", "qwen3-8b"), ("rtx 4080", "qwen3-14b")],
)
def test_fit_gives_the_largest_model_that_fits(card, name):
    best = rloo_kit.fit(card)
    assert best.model.checkpoint.name == name
    for found in CATALOGUE.values():
        if found.parameters > best.model.checkpoint.parameters:
            model = policy_tensors.model_of(found, 16, four_bit=True)
            assert Plan.of(model, best.settings, best.device).fits != "fits"


@pytest.mark.parametrize(("card", "at_once", "micro"), [(3.4, 8, 4), (2.6, 4, 4), (2.0, 2, 2)])
def test_fit_takes_slices_and_smaller_batches_before_it_gives_up_on_the_smallest(card, at_once, micro):
    small = rloo_kit.fit(int(card * GIB))
    assert (small.fits, small.model.checkpoint.name) == ("fits", "qwen3-0.6b")
    assert (small.sampled_rows, small.settings.batch_rows) == (at_once, 8)
    assert small.settings.per_device_train_batch_size == micro


def test_fit_takes_no_larger_model_at_the_price_of_slices():
    best, config = rloo_kit.fit(6 * GIB), SimpleNamespace(max_completion_length=1024)
    assert (best.model.checkpoint.name, best.sampled_rows) == ("qwen3-1.7b", best.settings.batch_rows)
    larger = rloo_kit.plan("qwen3-4b", config, 6 * GIB)
    assert (larger.fits, larger.sampled_rows) == ("fits", 4)


def test_the_longest_completion_fits_and_a_longer_one_does_not():
    planned = rloo_kit.plan("qwen3-4b", card="12GB")
    longest = longest_completion(planned)
    for tokens, fits in ((longest, True), (longest + 64, False)):
        settings = dataclasses.replace(planned.settings, max_completion_length=tokens)
        assert (Plan.of(planned.model, settings, planned.device).fits == "fits") == fits


def test_a_first_run_takes_an_instruct_4b_where_it_fits_and_else_a_smaller_one_that_does_not_think():
    assert first_run("8GB") == ("qwen3-4b-instruct", None)
    assert first_run("6GB") == ("qwen3-1.7b", False)
