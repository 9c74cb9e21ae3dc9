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


@pytest.mark.parametrize("algebra", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "algebra"])
@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_form_is_read_by_its_rule_and_a_guess_refuses_in_doubt(path, algebra):
    """Algebra takes 15 s of a set: make test asks it of the latest alone."""
    latest = path.stem in ("d", "natural")
    cases = [c for c in answer_sets.cases_of(path) if algebra or latest or c["kind"] != "math"]
    counts = answer_sets.verdicts(cases)["counts"]
    assert counts["asked for"]["attack"][0] == counts["asked for"]["right"][0] == 0
    guessed = answer_sets.verdicts([case for case in cases if case["form"] == "prose"])["counts"]["auto"]
    (paid, attacks, _), (refused, right, _) = guessed["attack"], guessed["right"]
    assert paid <= 0.02 * attacks
    assert refused <= 0.65 * right


@pytest.mark.parametrize(("right", "most"), [(False, 0.05), (True, 0.2)], ids=["attacks", "right answers"])
def test_of_the_older_cases_few_are_misjudged(right, most):
    older = answer_sets.cases_of(Path(__file__).with_name("fresh_answers.jsonl"))
    cases = [case for case in older if case["right"] is right]
    kinds = ("choice" if case["gold"].isalpha() else "number" for case in cases)
    wrong = [c for c, kind in zip(cases, kinds, strict=True) if is_right(c["text"], c["gold"], kind) != right]
    assert len(wrong) <= most * len(cases)
