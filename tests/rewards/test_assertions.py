"""Where a text states its answer, and whether it commits to it."""

import pytest

from rewards.assertions import assertions, commits

STATED = [
    (r"\boxed{\frac{1}{2}} and \boxed{x}", [r"\frac{1}{2}", "x"], "boxes, braces balanced"),
    (r"\boxed{42", [], "a box that is never closed"),
    ("The answer is 41.\n#### 42", ["41.", "42"], "two labels"),
    ("7 + 5 = 12. So it is 12.", [" So it is 12."], "a last sentence that concludes"),
    ("42 " * 4000, [], "more than 4,000 characters without a label"),
    (" ".join(rf"\boxed{{{n}}}" for n in range(21)), [], "more than 20 statements"),
]


@pytest.mark.parametrize(("text", "values", "why"), STATED)
def test_boxes_labels_and_conclusions_state_an_answer(text, values, why):
    assert [assertion.value for assertion in assertions(text)] == values, why


@pytest.mark.parametrize(
    ("text", "gold", "committed"),
    [
        ("The answer is 42.", "42", True),
        ("The answer is not 42.", "42", False),
        ("The answer is at least 42.", "42", False),
        (r"The answer is not \boxed{42}.", "42", False),
        (r"\boxed{x \geq 3}", r"x \geq 3", True),
    ],
)
def test_a_clause_that_denies_or_bounds_commits_only_to_a_gold_answer_that_does(text, gold, committed):
    assert all(commits(assertion, gold) for assertion in assertions(text)) is committed
