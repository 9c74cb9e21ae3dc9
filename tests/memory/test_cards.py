"""The largest model and the longest completion that fit a card."""

import dataclasses
from types import SimpleNamespace

import pytest

import rloo_kit
from rloo_kit.memory import policy_tensors
from rloo_kit.memory.cards import first_run, longest_completion
from rloo_kit.memory.plan import Plan
from rloo_kit.models import CATALOGUE
from rloo_kit.session.output import GIB


@pytest.mark.parametrize(
    ("card", "name"),
    [(GIB, "qwen3-0.6b"), ("8GB", "qwen3-4b"), ("rtx 3060 12GB", "qwen3-8b"), ("rtx 4080", "qwen3-14b")],
)
def test_fit_gives_the_largest_model_that_fits(card: str | int, name: str) -> None:
    best = rloo_kit.fit(card)
    assert best.model.checkpoint.name == name
    for found in CATALOGUE.values():
        if found.parameters > best.model.checkpoint.parameters:
            model = policy_tensors.model_of(found, 16, four_bit=True)
            assert Plan.of(model, best.settings, best.device).fits != "fits"


@pytest.mark.parametrize(("card", "at_once", "micro"), [(3.4, 8, 4), (2.6, 4, 4), (2.0, 2, 2)])
def test_fit_takes_slices_and_smaller_batches_before_it_gives_up_on_the_smallest(
    card: float, at_once: int, micro: int
) -> None:
    small = rloo_kit.fit(int(card * GIB))
    assert (small.fits, small.model.checkpoint.name) == ("fits", "qwen3-0.6b")
    assert (small.sampled_rows, small.settings.batch_rows) == (at_once, 8)
    assert small.settings.per_device_train_batch_size == micro


def test_fit_takes_no_larger_model_at_the_price_of_slices() -> None:
    best, config = rloo_kit.fit(6 * GIB), SimpleNamespace(max_completion_length=1024)
    assert (best.model.checkpoint.name, best.sampled_rows) == ("qwen3-1.7b", best.settings.batch_rows)
    larger = rloo_kit.plan("qwen3-4b", config, 6 * GIB)
    assert (larger.fits, larger.sampled_rows) == ("fits", 4)


def test_the_longest_completion_fits_and_a_longer_one_does_not() -> None:
    planned = rloo_kit.plan("qwen3-4b", card="12GB")
    longest = longest_completion(planned)
    for tokens, fits in ((longest, True), (longest + 64, False)):
        settings = dataclasses.replace(planned.settings, max_completion_length=tokens)
        assert (Plan.of(planned.model, settings, planned.device).fits == "fits") == fits


@pytest.mark.parametrize(
    ("card", "chosen"),
    [
        ("8GB", ("qwen3-4b-instruct", None)),
        ("rtx 4090", ("qwen3-4b-instruct", None)),
        ("6GB", ("qwen3-1.7b", False)),
    ],
)
def test_a_first_run_takes_an_instruct_4b_where_it_fits_and_else_a_smaller_one_that_does_not_think(
    card: str, chosen: tuple[str, bool | None]
) -> None:
    assert first_run(card) == chosen
