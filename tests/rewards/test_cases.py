"""The audit's cases."""

from rewards import CASES
from rewards.cases import fill, gold_forms


def test_the_corpus_is_as_large_as_promised_and_each_case_has_a_name_and_a_reason():
    assert len(CASES) >= 60
    assert len({case.family for case in CASES}) >= 12
    assert len({(case.family, case.name) for case in CASES}) == len(CASES)
    assert all(case.why for case in CASES)


def test_every_case_applies_to_some_gold_answer_and_a_wrong_answer_is_never_the_gold_one():
    golds = [gold_forms(gold) for gold in ("42", "1250", "-3", "1.5", "108", "C", "Mercury")]
    for case in CASES:
        made = (fill(case, forms, "?", prompt_opens=opens) for forms in golds for opens in (False, True))
        assert any(pieces is not None for pieces in made), case
    for gold in ("42", "-3", "1.5", "0", "A", "D", "Mercury"):
        forms = gold_forms(gold)
        assert gold not in (forms["wrong"], forms["wrong2"])
