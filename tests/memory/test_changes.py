"""What a plan advises: every change makes it fit, cheapest in quality first."""

import itertools
from types import SimpleNamespace

import pytest

import rloo_kit
from rloo_kit.memory import changes
from rloo_kit.session.show import GIB
from tests.memory.conftest import LARGE


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
    order = [name for name, _ in changes.KNOBS]
    seen = set()
    for model, card in itertools.product(("qwen3-1.7b", "qwen3-4b", "qwen3-8b"), ("8GB", "12GB", "24GB")):
        knobs = [change.knob for change in rloo_kit.plan(model, LARGE, card).changes]
        assert knobs == sorted(knobs, key=order.index)
        seen |= set(knobs)
    assert seen == set(order) - {"completions at once", "gradient checkpointing"}, "both are so by default"
    kept = rloo_kit.plan("qwen3-1.7b", LARGE, "24GB", gradient_checkpointing=False)
    assert kept.changes[0].knob == "gradient checkpointing"


LONG = SimpleNamespace(
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    num_generations=8,
    max_completion_length=4096,
)
"""One group a batch, so that there is no smaller one."""


def test_where_a_group_is_too_large_it_is_sampled_in_slices() -> None:
    by_itself = rloo_kit.plan("qwen3-8b", LONG, "12GB")
    assert (by_itself.fits, by_itself.sampled_rows, by_itself.changes) == ("fits", 4, ())
    assert "8 completions are sampled 4 at once" in str(by_itself)
    whole = rloo_kit.plan("qwen3-8b", SimpleNamespace(**vars(LONG), generation_rows=8), "12GB")
    assert (whole.fits, whole.sampled_rows, whole.sliced) == ("does not fit", 8, "")
    first = whole.changes[0]
    assert (first.config, first.peak_bytes) == ({"generation_rows": 4}, by_itself.peak_bytes)
    assert first.peak_bytes < whole.peak_bytes


def test_slices_are_advised_together_with_what_they_need() -> None:
    """Where a pass is too large as well: neither a smaller batch nor slices suffice alone."""
    asked = {**vars(LONG), "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
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


def test_a_plan_that_nothing_makes_fit_says_so() -> None:
    planned = rloo_kit.plan("qwen3-14b", LARGE, GIB)
    assert planned.changes == ()
    assert "no model, batch or length of the catalogue fits" in str(planned)
