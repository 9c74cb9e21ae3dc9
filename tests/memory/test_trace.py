"""The planned tensors of a GPU against live tensors of Unsloth's own GPU code, traced without a GPU."""

import json
from typing import Any

import plan_on_meta
import pytest

from tests.conftest import ROOT, python

TRACED = json.loads((ROOT / "benchmarks" / "results" / "plan_on_meta.json").read_text())
ABOVE = 1.02
"""The plan is never below the trace, and at most this factor above it."""


@pytest.mark.parametrize("entry", TRACED, ids=lambda entry: entry["case"]["model"])
def test_the_plan_of_each_phase_is_within_two_percent_of_what_was_traced_and_never_under(entry):
    planned = plan_on_meta.planned(entry["case"])
    ratios = {name: planned[name] / entry["traced"][name] for name in plan_on_meta.COUNTED}
    assert {name: ratio for name, ratio in ratios.items() if not 1 <= ratio <= ABOVE} == {}


def test_the_document_of_the_stored_traces_is_up_to_date():
    document = (ROOT / "benchmarks" / "results" / "plan_on_meta.md").read_text()
    assert document == plan_on_meta.report(TRACED, "`python benchmarks/plan_on_meta.py`")


@pytest.fixture(scope="module")
def traced_now() -> list[dict[str, Any]]:
    """Two configurations of three layers, traced in a new process."""
    if not (ROOT / ".triton" / "triton").is_dir():
        pytest.skip("make test puts Triton into .triton, on Linux")
    done = python(str(ROOT / "benchmarks" / "plan_on_meta.py"), "--short", PYTHONPATH=str(ROOT))
    return json.loads(done.stdout.splitlines()[-1])


def test_unsloths_code_makes_the_tensors_that_are_planned(traced_now):
    """Fails if an upgrade of Unsloth changes what a step holds, or if a formula changes."""
    for entry in traced_now:
        for name, ratio in zip(plan_on_meta.COUNTED, plan_on_meta.ratios(entry), strict=True):
            assert 1 <= ratio <= ABOVE, (entry, name)
