"""Sums in words: right answers, a split that no wording crosses, the form that the policy is asked for."""

import re
from typing import Any

import pytest

from rloo_kit import tasks
from rloo_kit.errors import DatasetError


def sum_in(row: dict[str, Any]) -> tuple[int, ...]:
    """The operands and the answer, by which a sum is told from another whatever its wording."""
    a, b = sorted(int(number) for number in re.findall(r"\d+", row["problem"]))
    return a, b, int(row["answer"])


@pytest.fixture(scope="module")
def task() -> tasks.Task:
    return tasks.word_sums(seed=3)


def test_the_answer_is_that_of_the_question(task: tasks.Task) -> None:
    for row in task.train:
        a, b, answer = sum_in(row)
        more = re.search(r"more|in all|altogether|together", row["problem"])
        less = re.search(r"left|still|lost|missing", row["problem"])
        assert bool(more) != bool(less), row["problem"]
        assert answer == (a + b if more else b - a), row["problem"]


def test_no_sum_is_on_both_sides_in_any_wording_or_seed(task: tasks.Task) -> None:
    other = tasks.word_sums(seed=4)
    assert not {sum_in(row) for row in task.train} & {sum_in(row) for row in other.held_out}
    assert len(set(task.train["problem"])) == 1000
    assert len(set(task.held_out["problem"])) == 200
    assert task.train["problem"] != other.train["problem"]


def test_its_reward_reads_what_a_small_model_says(task: tasks.Task) -> None:
    said = ["Tom has 7 + 5 = 12 apples now.", "12", "#### 12", "Tom has 13 apples.", "12 or 13", "7 + 5"]
    assert task.correct(completions=said, answer=["12"] * 6) == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_few_numbers_make_few_problems(monkeypatch: Any) -> None:
    monkeypatch.setattr("rloo_kit.tasks.task.EXHAUSTED", 2000)
    with pytest.raises(DatasetError, match=r"only \d+ held_out word problems with numbers up to 4"):
        tasks.word_sums(largest=4, n_held_out=10**5)
