"""Attacks and right answers written after the rules of answer_reward, without looking at them: fresh_answers.jsonl.

The audit's corpus and the rules have one author, so the corpus alone would flatter.  At first sight the rules failed 17
of the 100 attacks and 9 of the 88 right answers of the first round; after fixes they failed 3 of 66 and 8 of 86 of the
second, which is the best available estimate for the next one.  What still fails is marked "misjudged" in the file, so
that a change in either direction shows.
"""

import json
from pathlib import Path

import pytest

from rewards.answers import is_right

LINES = Path(__file__).with_name("fresh_answers.jsonl").read_text(encoding="utf-8").splitlines()
CASES = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("kind", ["number", "math"])
@pytest.mark.parametrize("right", [False, True], ids=["attacks", "right answers"])
def test_only_the_known_failures_are_misjudged(right, kind):
    cases = [case for case in CASES if case["right"] is right]
    assert len(cases) >= 166

    def misjudged(case):
        grade_as = "choice" if case["gold"].isalpha() else kind
        return is_right(case["text"], case["gold"], grade_as) is not right

    missed = [case for case in cases if misjudged(case)]
    assert missed == [case for case in cases if "misjudged" in case]
    assert len(missed) / len(cases) < 0.05
