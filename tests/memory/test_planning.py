"""The plan as it is shown, the largest model and the longest completion that fit, and what planning imports."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rloo_kit
from rloo_kit.catalogue import CATALOGUE
from rloo_kit.memory import estimate, hardware, planning, reading
from rloo_kit.memory.planning import Plan
from rloo_kit.session.show import GIB
from tests.memory.conftest import fake_cuda


def test_a_trainers_plan_names_its_model_and_not_where_it_lies(make_trainer: Any, policy: Any) -> None:
    title = make_trainer().memory_plan.title
    assert title.startswith("tiny-qwen3-")
    assert str(Path(policy.model.name_or_path).parent) not in title


def test_the_table_names_every_part_and_marks_what_is_estimated() -> None:
    planned = rloo_kit.plan("qwen3-8b", SimpleNamespace(max_completion_length=4096), "8GB")
    shown = [f"{part} *" if part in estimate.ESTIMATED else part for part in planned.parts]
    for text in (*shown, "no figure has been measured on a consumer card", "does not fit"):
        assert text in str(planned)
    assert repr(planned) == f"Plan(qwen3-8b on a card of 8 GiB: {planned.summary})"
    assert planned._repr_html_().count("<tr>") == len(planned.rows())


def test_the_picture_shows_phases_parts_and_the_limit(tmp_path: Path) -> None:
    planned = rloo_kit.plan("qwen3-4b", card="8GB")
    figure = planned.picture(tmp_path / "plan.png")
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_xticklabels()] == list(planned.phases)
    assert {text.get_text() for text in axis.get_legend().get_texts()} == set(planned.parts)
    assert axis.get_ylabel() == "GiB, computed"
    looks = {(bar[0].get_facecolor(), bar[0].get_hatch()) for bar in axis.containers}
    assert len(looks) == len(planned.parts), "two parts look alike"
    assert any("usable" in text.get_text() for text in axis.texts)
    assert (tmp_path / "plan.png").read_bytes()[:4] == figure._repr_png_()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("card", "name"),
    [(GIB, "qwen3-0.6b"), ("8GB", "qwen3-4b"), ("rtx 3060 12GB", "qwen3-8b"), ("rtx 4080", "qwen3-14b")],
)
def test_fit_gives_the_largest_model_that_fits(card: str | int, name: str) -> None:
    best = rloo_kit.fit(card)
    assert best.model.checkpoint.name == name
    for found in CATALOGUE.values():
        if found.parameters > best.model.checkpoint.parameters:
            model = reading.model_of(found, 16, four_bit=True)
            assert Plan.of(model, best.settings, best.device).fits != "fits"


@pytest.mark.parametrize(
    ("card", "at_once", "micro", "why"),
    [
        (3.4, 8, 4, "the batch as it is"),
        (2.6, 4, 4, "sampled in slices"),
        (2.0, 2, 2, "and smaller micro-batches"),
    ],
)
def test_fit_takes_time_before_it_gives_up_on_the_smallest(
    card: float, at_once: int, micro: int, why: str
) -> None:
    small = rloo_kit.fit(int(card * GIB))
    assert (small.fits, small.model.checkpoint.name) == ("fits", "qwen3-0.6b")
    settings = small.settings
    assert (small.sampled_rows, settings.micro_rows, settings.batch_rows) == (at_once, micro, 8), why


def test_fit_takes_no_larger_model_at_the_price_of_slices() -> None:
    best = rloo_kit.fit("8GB")
    assert (best.model.checkpoint.name, best.sampled_rows) == ("qwen3-4b", best.settings.batch_rows)
    assert rloo_kit.plan("qwen3-4b", SimpleNamespace(generation_rows=1), "8GB").sampled_rows == 1


def test_what_load_policy_takes_without_a_name_is_the_largest_that_fits_the_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_cuda(monkeypatch, mem_get_info=(int(11.5 * GIB), 12 * GIB))
    monkeypatch.setattr(hardware, "nvml_process_bytes", lambda: None)
    assert rloo_kit.fit(load_in_4bit=True).model.checkpoint.name == "qwen3-8b"
    assert rloo_kit.fit(load_in_4bit=False).model.checkpoint.name == "qwen3-4b"


def test_the_longest_completion_fits_and_a_longer_one_does_not() -> None:
    planned = rloo_kit.plan("qwen3-4b", card="12GB")
    longest = planning.longest_completion(planned)
    for tokens, fits in ((longest, True), (longest + 64, False)):
        settings = dataclasses.replace(planned.settings, completion_tokens=tokens)
        assert (Plan.of(planned.model, settings, planned.device).fits == "fits") == fits


def test_planning_by_name_imports_neither_torch_nor_trl(script: Any) -> None:
    said = script(
        "import sys, rloo_kit; str(rloo_kit.plan('qwen3-4b', card='8GB')); rloo_kit.fit('t4');"
        "print([name for name in ('torch', 'trl', 'transformers', 'unsloth') if name in sys.modules])"
    ).stdout
    assert said.strip() == "[]"
