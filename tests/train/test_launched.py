"""Processes of one run have the same rows, or the run does not begin."""

import pytest
from datasets import Dataset

from rloo_kit.errors import DatasetError
from rloo_kit.train import fingerprints
from rloo_kit.train.launched import check_same

ROWS = [{"prompt": f"question {number}", "answer": str(number)} for number in range(40)]


def of(rows: list[dict[str, str]]) -> str:
    return fingerprints.rows(Dataset.from_list(rows))


def test_the_same_rows_are_taken() -> None:
    check_same([of(ROWS), of(list(ROWS))])


@pytest.mark.parametrize("other", [ROWS[::-1], ROWS[:-1], [{**row, "answer": "7"} for row in ROWS]])
def test_rows_in_another_order_fewer_or_with_other_answers_are_refused(other: list[dict[str, str]]) -> None:
    with pytest.raises(DatasetError, match=r"different rows(.|\n)*processes 0 and 2 of 3"):
        check_same([of(ROWS), of(ROWS), of(other)])
