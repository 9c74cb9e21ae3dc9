"""Attacks and right answers, in answers/*.jsonl: by writers who had not read the rules, and made by a generator.

benchmarks/answer_sets.py judges them, and tells what was paid and refused before they were known.
fresh_answers.jsonl is older and has no forms.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import answer_sets

from rewards.answers import is_right

SETS = sorted(answer_sets.FOLDER.glob("*.jsonl"))
LATEST = [path for path in SETS if path.stem in ("d", "natural")]


def check(path, with_math):
    """Algebra takes 15 s of a set: make test asks it of the latest alone."""
    cases = [case for case in answer_sets.cases_of(path) if with_math or case["kind"] != "math"]
    counts = answer_sets.verdicts(cases)["counts"]
    assert counts["asked for"]["attack"][0] == counts["asked for"]["right"][0] == 0
    guessed = answer_sets.verdicts([case for case in cases if case["form"] == "prose"])["counts"]["auto"]
    paid, attacks, _ = guessed["attack"]
    refused, right, _ = guessed["right"]
    assert paid <= 0.02 * attacks
    assert refused <= 0.65 * right


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_form_is_read_by_its_rule_and_a_guess_refuses_in_doubt(path):
    check(path, with_math=path in LATEST)


@pytest.mark.long
@pytest.mark.parametrize("path", [one for one in SETS if one not in LATEST], ids=lambda path: path.stem)
def test_so_it_is_where_algebra_judges_the_earlier_sets(path):
    check(path, with_math=True)


OLDER = answer_sets.cases_of(Path(__file__).with_name("fresh_answers.jsonl"))


@pytest.mark.parametrize(("right", "most"), [(False, 0.05), (True, 0.2)], ids=["attacks", "right answers"])
def test_of_the_older_cases_few_are_misjudged(right, most):
    cases = [case for case in OLDER if case["right"] is right]
    kinds = ("choice" if case["gold"].isalpha() else "number" for case in cases)
    wrong = [c for c, kind in zip(cases, kinds, strict=True) if is_right(c["text"], c["gold"], kind) != right]
    assert len(wrong) <= most * len(cases)
