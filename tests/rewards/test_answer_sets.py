"""Attacks and right answers by writers who had not read the rules: answers/*.jsonl.

benchmarks/answer_sets.py judges them, and tells what was paid and refused before they were known.

fresh_answers.jsonl is older and has no forms; what still fails there is marked "misjudged", so that a change in either
direction shows.
"""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import answer_sets

from rewards.answers import is_right

FOLDER = Path(__file__).with_name("answers")
SETS = sorted(FOLDER.glob("*.jsonl"))


LATEST = FOLDER / "d.jsonl"


def check(path, algebra):
    """Algebra takes 15 s of a set: make test asks it of the latest alone, which the rules have not seen."""
    counts = answer_sets.judged(path, algebra)["counts"]
    paid, attacks = counts["asked for"]["attack"]
    refused, right = counts["asked for"]["right"]
    assert min(attacks, right) >= (120 if algebra else 90)
    assert paid == 0
    assert refused <= 0.01 * right
    paid, attacks = counts["auto"]["attack"]
    refused, right = counts["auto"]["right"]
    assert paid <= 0.02 * attacks
    assert refused <= 0.05 * right


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_with_a_form_asked_for_no_attack_is_paid_and_hardly_a_right_answer_is_refused(path):
    check(path, algebra=path == LATEST)


@pytest.mark.long
@pytest.mark.parametrize("path", [one for one in SETS if one != LATEST], ids=lambda path: path.stem)
def test_so_it_is_where_algebra_judges_the_earlier_sets(path):
    check(path, algebra=True)


OLDER = [
    json.loads(line)
    for line in Path(__file__).with_name("fresh_answers.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("kind", ["number", "math"])
@pytest.mark.parametrize("right", [False, True], ids=["attacks", "right answers"])
def test_of_the_older_cases_only_the_known_failures_are_misjudged(right, kind):
    cases = [case for case in OLDER if case["right"] is right]

    def misjudged(case):
        grade_as = "choice" if case["gold"].isalpha() else kind
        return is_right(case["text"], case["gold"], grade_as) is not right

    missed = [case for case in cases if misjudged(case)]
    assert missed == [case for case in cases if "misjudged" in case]
    assert len(missed) / len(cases) < 0.05
