"""The audit's cases."""

from rewards import CASES
from rewards.audit_cases import fill, gold_forms


def test_each_case_has_a_name_and_a_reason_and_applies_to_some_gold_answer():
    golds = [gold_forms(gold) for gold in ("42", "1250", "-3", "1.5", "108", "C", "Mercury")]
    assert len({case.label for case in CASES}) == len(CASES) >= 60
    for case in CASES:
        made = (fill(case, forms, "?", prompt_opens=opens) for forms in golds for opens in (False, True))
        assert case.why, case
        assert any(pieces is not None for pieces in made), case


def test_a_wrong_answer_is_never_the_gold_one():
    for gold in ("42", "-3", "1.5", "0", "A", "D", "Mercury"):
        forms = gold_forms(gold)
        assert gold not in (forms["wrong"], forms["wrong2"])
