"""Inputs that are wrong or odd, each with what a message has to name.

For tests/train/test_validate.py and benchmarks/bad_inputs.py: each is given to TRL's trainer and to the kit's alike.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.train.bad_inputs import data, functions, newcomer, others, settings
from tests.train.bad_inputs.case import Bad


def _of_value(culprit: str, value: Any, name: str = "") -> Bad:
    counted = {"max_steps": -1} if culprit == "num_train_epochs" else {}  # which max_steps would override
    return Bad(culprit, {**counted, name or culprit: value}, when="config")


ALONE = {
    f"{name}={value!r}": _of_value(name, value)
    for name, values in settings.VALUES.items()
    for value in values
}
SAMPLING = {
    f"generation_kwargs {name}": _of_value(name, {name: value}, "generation_kwargs")
    for name, value in settings.GENERATION.items()
}
INPUTS: dict[str, Bad] = {
    **ALONE,
    **SAMPLING,
    **settings.TOGETHER,
    **data.DATASETS,
    **functions.REWARDS,
    **others.TRAINER,
    **newcomer.NEWCOMER,
}
"""Every input, by what is wrong with it."""

for _name in ("reward_weights=[1.0, 1.0]", "reward_weights=[0.0]"):
    INPUTS[_name] = dataclasses.replace(INPUTS[_name], when="trainer")


def arguments(case: Bad, policy: Any) -> dict[str, Any]:
    """The trainer's arguments of a case."""
    return case.trainer(policy) if callable(case.trainer) else dict(case.trainer)


def of(when: str) -> list[str]:
    """The inputs of which the kit speaks there."""
    return [name for name, case in INPUTS.items() if case.when == when]
