"""Attacks and right answers, in answers/*.jsonl: by writers who had not read the rules, and made by a generator.

benchmarks/results/answer_sets.md tells what was paid and refused before they were known.  With a form named only the
form is read, and a case that words around it make an attack ("not \\boxed{42}") is paid: it has "by_form".  A case that
the gold answer cannot decide is "set_aside".  fresh_answers.jsonl is older and has no forms.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from rewards import answer_reward
from rewards.answers import is_right

SETS = sorted((Path(__file__).parent / "answers").glob("*.jsonl"))


def cases_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def misjudged(cases, *, guessing):
    """(how many, of how many) attacks and right answers; with the form that was asked for, or guessing it.

    A guess cannot know that all of a text was to be the answer, nor that another form was asked for.
    """
    counts = {True: [0, 0], False: [0, 0]}
    groups = defaultdict(list)  # a batch for each reward, as in training
    for case in cases:
        left_out = case["form"] == "whole" or "only_form" in case if guessing else case["form"] == "prose"
        if "set_aside" not in case and not left_out:
            groups[case["kind"], "auto" if guessing else case["form"]].append(case)
    for (kind, form), batch in groups.items():
        texts, answers = ([case[key] for case in batch] for key in ("text", "gold"))
        scores = answer_reward(kind, form=form)(completions=texts, answer=answers)
        for case, score in zip(batch, scores, strict=True):
            count = counts[case["right"]]
            count[:] = count[0] + ((score == 1.0) is not case.get("by_form", case["right"])), count[1] + 1
    return counts[False], counts[True]


@pytest.mark.parametrize("algebra", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "algebra"])
@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_form_is_read_by_its_rule_and_a_guess_refuses_in_doubt(path, algebra):
    """Algebra takes 15 s of a set: make test asks it of the latest alone."""
    latest = path.stem in ("d", "natural")
    cases = [c for c in cases_of(path) if algebra or latest or c["kind"] != "math"]
    (paid, _), (refused, _) = misjudged(cases, guessing=False)
    assert paid == refused == 0
    prose = [case for case in cases if case["form"] == "prose"]
    (paid, attacks), (refused, right) = misjudged(prose, guessing=True)
    assert paid <= 0.02 * attacks
    assert refused <= 0.65 * right


@pytest.mark.parametrize(("right", "most"), [(False, 0.05), (True, 0.2)], ids=["attacks", "right answers"])
def test_of_the_older_cases_few_are_misjudged(right, most):
    older = cases_of(Path(__file__).with_name("fresh_answers.jsonl"))
    cases = [case for case in older if case["right"] is right]
    kinds = ("choice" if case["gold"].isalpha() else "number" for case in cases)
    wrong = [c for c, kind in zip(cases, kinds, strict=True) if is_right(c["text"], c["gold"], kind) != right]
    assert len(wrong) <= most * len(cases)
