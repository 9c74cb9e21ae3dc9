"""Values against their annotated types: what passes, the error, and its suggestion."""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from rloo_kit import argument_types
from rloo_kit.argument_types import Count, Hint, Positive, Seed, Share
from rloo_kit.errors import ConfigError
from rloo_kit.train.check_config import INFINITE

# the type; values that pass, with what they become; values that do not
TYPES: dict[str, tuple[Hint, list[tuple[Any, Any]], list[Any]]] = {
    "a count": (Count, [(1, 1), (np.int64(3), 3)], [0, 1.0, True, "1", None]),
    "a count or none": (Count | None, [(None, None), (2, 2)], [0, "2"]),
    "a count or -1": (Count | Literal[-1], [(-1, -1), (5, 5)], [0, -2]),
    "a number": (float, [(1, 1), (0.5, 0.5)], [math.nan, math.inf, "1", True]),
    "an endless number": (Annotated[float, INFINITE], [(math.inf, math.inf)], ["1"]),
    "above 0": (Positive, [(0.1, 0.1)], [0, -1, math.nan]),
    "a share": (Share, [(0, 0), (1.0, 1.0)], [1.5, math.nan]),
    "a seed": (Seed, [(42, 42)], [-1, 2**32, "42"]),
    "a choice": (Literal["a", "b"], [("a", "a")], ["c", 1]),
    "a flag": (bool | None, [(True, True), (None, None)], ["no", 1]),
    "a list": (list[float] | None, [([1, 0.5], [1, 0.5]), ((1,), [1])], [["1"], 1.0]),
    "a pair": (tuple[float, float], [((0, 1), (0, 1)), ([0, 1], (0, 1))], [(0,), (0, "1")]),
    "text": (str, [("x", "x"), (Path("x"), "x")], [5, None]),
}


@pytest.mark.parametrize(("hint", "right", "wrong"), TYPES.values(), ids=TYPES)
def test_a_value_is_of_its_type_or_refused_in_three_parts(hint, right, wrong):
    for given, becomes in right:
        assert argument_types.check({"x": given}, {"x": hint}, "call") == {"x": becomes}
    for given in wrong:
        with pytest.raises(ConfigError) as caught:
            argument_types.check({"x": given}, {"x": hint}, "call")
        what, where, todo = str(caught.value).splitlines()
        assert what.startswith("x must be ")
        assert where == f"Where: call(x={given!r})."
        assert todo.startswith("What to do: ")


@pytest.mark.parametrize(
    ("value", "hint", "todo"),
    [
        ("2", Count, "write x=2"),
        ("1e-5", float, "write x=1e-05"),
        ("no", bool, "write x=False"),
        (["1"], list[float], "write x=[1.0]"),
        ("Slow", Literal["slow", "fast"], "did you mean x='slow'?"),
        ("hot", float, "8 is usual"),
    ],
)
def test_the_nearest_right_value_is_suggested_or_the_advice_stands(value, hint, todo):
    with pytest.raises(ConfigError) as caught:
        argument_types.check({"x": value, "other": object()}, {"x": hint}, "call", {"x": "8 is usual"})
    assert caught.value.todo == todo
