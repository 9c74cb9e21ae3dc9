"""Values against the types that are written at them: what passes, what is said, and what is suggested."""

import enum
import math
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from rloo_kit import values
from rloo_kit.errors import ConfigError
from rloo_kit.values import INFINITE, Count, Hint, Positive, Seed, Share, Steps


class Pace(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


# the type; what passes, with what it becomes; what does not; the type in words
TYPES: dict[str, tuple[Hint, list[tuple[Any, Any]], list[Any], str]] = {
    "a count": (Count, [(1, 1), (np.int64(3), 3)], [0, 1.0, True, "1", None], "a whole number of at least 1"),
    "a count or none": (Count | None, [(None, None), (2, 2)], [0, "2"], "or None"),
    "a count or -1": (Count | Literal[-1], [(-1, -1), (5, 5)], [0, -2], "or -1"),
    "a number": (float, [(1, 1), (0.5, 0.5)], [math.nan, math.inf, "1", True], "a finite number"),
    "an endless number": (Annotated[float, INFINITE], [(math.inf, math.inf)], ["1"], "a number"),
    "above 0": (Positive, [(0.1, 0.1)], [0, -1, math.nan], "a finite number above 0"),
    "a share": (Share, [(0, 0), (1.0, 1.0)], [1.5, math.nan], "of at least 0 and at most 1"),
    "an interval of steps": (Steps, [(0.5, 0.5), (10, 10), (10.0, 10.0)], [0, 1.5, -1], "whole"),
    "a seed": (Seed, [(42, 42)], [-1, 2**32, "42"], "at most 4294967295"),
    "a choice": (Literal["a", "b"], [("a", "a")], ["c", 1], "'a' or 'b'"),
    "a choice by value": (
        Pace | str,
        [("slow", "slow"), (Pace.FAST, Pace.FAST)],
        ["slo"],
        "'slow' or 'fast'",
    ),
    "a flag": (bool | None, [(True, True), (None, None)], ["no", 1], "True, False or None"),
    "a list": (list[float] | None, [([1, 0.5], [1, 0.5]), ((1,), [1])], [["1"], 1.0], "a finite number each"),
    "a pair": (
        tuple[float, float],
        [((0, 1), (0, 1)), ([0, 1], (0, 1))],
        [(0,), (0, "1")],
        "(a finite number, ",
    ),
    "text": (str, [("x", "x"), (Path("x"), "x")], [5, None], "text"),
}


@pytest.mark.parametrize(("hint", "right", "wrong", "words"), TYPES.values(), ids=TYPES)
def test_a_value_is_of_its_type_or_refused_in_three_parts(
    hint: Hint, right: list[tuple[Any, Any]], wrong: list[Any], words: str
) -> None:
    for given, becomes in right:
        assert values.check({"x": given}, {"x": hint}, "call") == {"x": becomes}
    for given in wrong:
        with pytest.raises(ConfigError) as caught:
            values.check({"x": given}, {"x": hint}, "call")
        what, where, todo = str(caught.value).splitlines()
        assert what.startswith("x must be ")
        assert words in what
        assert where == f"Where: call(x={given!r})."
        assert todo.startswith("What to do: ")


def test_other_names_pass_as_they_are() -> None:
    given = {"x": object()}
    assert values.check(given, {}, "call") == given


@pytest.mark.parametrize(
    ("value", "hint", "todo"),
    [
        ("2", Count, "write x=2"),
        (2.0, Count, "write x=2"),
        ("1e-5", float, "write x=1e-05"),
        ("no", bool, "write x=False"),
        (["1"], list[float], "write x=[1.0]"),
        ("Slow", Pace | str, "did you mean x='slow'?"),
        ("hot", float, None),
        (0, Count, None),
    ],
)
def test_the_nearest_right_value_is_suggested(value: object, hint: Hint, todo: str | None) -> None:
    assert values.nearest("x", value, hint) == todo


def test_advice_stands_where_no_other_form_is_right() -> None:
    with pytest.raises(ConfigError, match="What to do: 8 is usual"):
        values.check({"x": 0}, {"x": Count}, "call", {"x": "8 is usual"})


def test_a_long_choice_is_counted_and_a_secret_is_not_shown() -> None:
    assert values.described(Literal[tuple("abcdefghijklmnop")]) == "one of 16 names"
    assert values.shown("hub_token", "x") == "(not shown)"
    assert values.shown("max_new_tokens", 5) == "5"
    assert values.shown("name", "y" * 100) == "'" + "y" * 56 + "..."
