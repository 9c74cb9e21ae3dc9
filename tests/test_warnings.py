"""Every warning points at the user's line: the call in a notebook or a script, not a line of the kit or of TRL."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl

import rloo_kit

FEW = {"n_prompts": 1, "n_samples": 1, "max_new_tokens": 1, "n_train": 4, "n_held_out": 2}

CALLS: dict[str, Callable[[Any, Any], object]] = {
    "sampled from another distribution": lambda make, policy: make(args=rloo_kit.RLOOConfig(top_p=0.9)),
    "top_p=0.95": lambda make, policy: make(args=trl.RLOOConfig("out", top_p=0.95, num_generations=2, bf16=False)),
    "no level has a pass rate": lambda make, policy: rloo_kit.tasks.arithmetic(policy=policy, **FEW),
}


@pytest.mark.parametrize("said", CALLS)
def test_a_warning_is_given_once_and_stands_at_the_line_of_the_call(said, make_trainer, policy):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CALLS[said](make_trainer, policy)
    ours = (__file__, str(Path(__file__).with_name("conftest.py")))  # make_trainer is defined in conftest.py
    assert [one.filename in ours for one in caught if said in str(one.message)] == [True]
