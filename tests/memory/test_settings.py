"""Settings: the passes that follow from them, and the defaults that they share with load_policy."""

import inspect
from typing import Any

import pytest

import rloo_kit
from rloo_kit.catalogue import CATALOGUE
from rloo_kit.memory.footprint import Step
from rloo_kit.memory.settings import Model, Settings


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
