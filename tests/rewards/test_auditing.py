"""The audit: what it finds, its report, and its findings on well-known rewards."""

import itertools

import pytest

import rewards
from rewards import CASES, FORMS, Case, ThinkTokens, audit
from rewards.audit_cases import NOTHING, PAYS, QUESTIONS, fill, gold_forms

PROMPT_OPENS = ThinkTokens(151667, 151668, (151645,), prompt_opens=True)
REPORTED = [case for case in CASES if case.family in ("honest", "nothing", "filler thought", "negated")]


def contains_gold(completions, answer, **kwargs):
    return [float(gold in c[0]["content"]) for c, gold in zip(completions, answer, strict=True)]


BOTH = rewards.thought_then_answer(correct=rewards.answer_reward())
OPENED = rewards.answer_reward(tokens=PROMPT_OPENS)
OURS = [BOTH, OPENED, rewards.thought_then_answer(), rewards.thought_then_answer(PROMPT_OPENS, correct=OPENED)]


@pytest.mark.parametrize("reward", [*OURS, *map(rewards.answer_reward, ("number", "math", "choice", "exact"))])
def test_our_rewards_have_no_exploit_and_hardly_a_refusal(reward):
    audit(reward).raise_for(exploits=0, refusals=0.02)


def test_the_hole_in_the_copied_rule_is_named_in_one_line_and_shown_as_text_and_as_markdown():
    result = audit(rewards.thinking_reward())
    assert result.headline == (
        "thinking_reward pays 1.1, its maximum, for 'filler thought: one word, no answer': "
        "40 tokens of filler, a question mark, and no answer at all."
    )
    with pytest.raises(rewards.AuditFailed, match="exploits, and 0 are allowed"):
        result.raise_for(exploits=0)
    for shown in (str(result), result._repr_markdown_()):
        assert "... of 29 cases" in shown
        assert "{gold}" not in shown
    hostile = Case("x", "<script>", "<i>|{gold}{end}", NOTHING, NOTHING, "<b>")
    report = " ".join(audit(contains_gold, cases=[hostile]).to_markdown().split())
    assert "<script" not in report
    assert "| x: &lt;script&gt; | 5 | 1 | &lt;i&gt;\\|42 | &lt;b&gt; |" in report


def test_a_substring_check_is_farmed_by_lists_and_negations_and_a_case_is_added_in_one_line():
    case = Case("mine", "shouts", "{think}THE ANSWER IS {gold}!!!{end}", PAYS, PAYS, "loud and right")
    result = audit(contains_gold, cases=[*CASES, case])
    assert {"all listed", "negated", "only in the thought"} <= {f.case.family for f in result.exploits}
    assert [f.outcome for f in result.findings if f.case is case] == ["ok"] * len(QUESTIONS["number"])


def test_the_tasks_own_gold_answers_are_used_also_those_in_solutions():
    rows = [{"prompt": f"What is {n} + 1?", "solution": str(n + 1), "level": n} for n in range(100, 120)]
    seen = {}

    def reward(completions, solution, level, **kwargs):
        seen.update(dict(zip(solution, level, strict=True)))
        return [0.0 for _ in completions]

    result = audit(reward, cases=REPORTED, rows=rows, column="solution", limit=4)
    assert [int(gold) - level for gold, level in seen.items()] == [1] * 4
    assert {f.gold for f in result.findings} == set(seen)
    golds = ["48 / 2 = 24, so 48 + 24 = 72.\n#### 72", "3 * 4 = 12.\n#### 12", "So it is \\boxed{7}."]
    rows = [{"prompt": f"Question {n}?", "answer": gold} for n, gold in enumerate(golds)]
    result = audit(rewards.answer_reward(), cases=REPORTED, rows=rows).raise_for(0, refusals=0.0)
    assert {finding.gold for finding in result.findings} == {"72", "12", "7"}
    stream = ({"prompt": f"What is {n} + 1?", "answer": str(n + 1)} for n in itertools.count())
    result = audit(contains_gold, rows=stream, cases=REPORTED, limit=2)
    assert {finding.gold for finding in result.findings} == {"1", "2"}, "of a stream the first rows"
    with pytest.raises(ValueError, match="An audit needs a row"):
        audit(contains_gold, rows=rows, limit=0)


def test_gold_answers_as_a_column_of_floats_has_them_and_of_many_digits_are_written_right():
    golds = (42.0, 1250.0, "1250.0", "12345678", "0.1234567891", "123456789012345678901234567891")
    rows = [{"prompt": "?", "answer": gold} for gold in golds]
    audit(rewards.answer_reward(form="boxed"), rows=rows).raise_for(exploits=0, refusals=0.0)
    code = audit(rewards.answer_reward("exact", form="boxed"), rows=[{"prompt": "?", "answer": "007"}])
    assert code.share("refusal") < 0.2, "a text that is compared as a text"


@pytest.mark.parametrize("form", FORMS)
def test_the_cases_are_written_in_the_form_that_the_reward_reads(form):
    for kind in ("number", "choice", "exact"):
        result = audit(rewards.answer_reward(kind, form=form))
        assert (result.form, result.exploits, result.refusals) == (form, (), ())
        assert ('safer: form="boxed"' in str(result)) is (form in ("auto", "prose"))


def gate(reward):
    return rewards.gated(by=reward, reward=rewards.thinking_reward(PROMPT_OPENS))


@pytest.mark.parametrize("compose", [rewards.clipped, rewards.cached, rewards.guarded, gate])
def test_a_composition_is_audited_as_its_members_say(compose):
    whole = compose(rewards.answer_reward("choice", form="boxed", tokens=PROMPT_OPENS))
    assert (whole.form, whole.kind, whole.tokens.prompt_opens) == ("boxed", "choice", True)
    result = audit(whole, cases=REPORTED)
    assert (result.form, {f.gold for f in result.findings}) == ("boxed", {"A", "C"})
    assert result.full > result.floor


@pytest.mark.parametrize("score", [0.0, 1.0, None])
def test_a_reward_whose_every_score_is_equal_fails_with_a_line_that_says_so(score):
    result = audit(lambda completions, **kwargs: [score] * len(completions), cases=REPORTED)
    assert result.headline.endswith("completions. Every score is equal: nothing to learn from.")
    assert result.exploits == ()
    with pytest.raises(rewards.AuditFailed, match="Every score is equal: nothing to learn from"):
        result.raise_for(exploits=None)
    mine = Case("mine", "right", "{think}{gold}{end}", PAYS, PAYS, "one case has one score")
    audit(contains_gold, cases=[mine]).raise_for()


def test_a_reward_that_pays_honest_answers_no_more_than_empty_ones_is_said_to():
    result = audit(lambda completions, **kwargs: [float(c[0]["content"].count("</think>") > 1) for c in completions])
    unfilled = ("{gold", "{th", "{wrong", "{close", "{value")
    assert not [f.case for f in result.findings if any(name in f.completion for name in unfilled)]
    assert result.share("refusal") == 1.0
    with pytest.raises(rewards.AuditFailed, match="no more than one with nothing in it"):
        result.raise_for(exploits=None)


def test_a_reward_that_raises_is_reported_in_one_line_and_not_by_a_crash():
    def fragile(completions, answer, **kwargs):
        return [1 / len(completion[0]["content"]) for completion in completions]

    def first(completions, answer, **kwargs):
        return [float(answer[0] in completions[0][0]["content"])]

    result, every = (audit(reward, cases=REPORTED) for reward in (fragile, first))
    of = f"(on {len(result.errors)} of {len(result.findings)} completions, first on 'nothing: empty')"
    assert result.headline == f"fragile raised ZeroDivisionError: division by zero {of}."
    assert len(every.errors) == len(every.findings) > 100
    assert "It returned 1 values for" in every.headline
    assert str(every).count("RewardValueError") == every.to_markdown().count("RewardValueError") == 1
    with pytest.raises(rewards.AuditFailed, match="fragile raised"):
        result.raise_for(exploits=None)


def test_a_reward_gets_the_columns_that_trl_passes_and_no_others():
    def needs(completions, completion, answer, **kwargs):
        return [1.0] * len(completions)

    rows = [{"prompt": "?", "answer": "42", "completion": "42", "completion_ids": [1]}]
    assert "'completion'" in audit(needs, rows=rows).headline
    assert not audit(rewards.answer_reward(form="boxed"), rows=rows, form="boxed").errors


IMPOSSIBLE = {
    "no aim 'style'": {"aim": "style"},
    "no form 'boxd'": {"form": "boxd"},
    "no rows": {"rows": []},
    "gold answer in column 'answer'": {"rows": [{"prompt": "?"}]},
    "needed, not its name": {"tokenizer": "qwen"},
    "must be callable, not str": {"reward": "x"},
}


@pytest.mark.parametrize(("says", "kwargs"), IMPOSSIBLE.items())
def test_an_audit_that_cannot_be_made_says_why(says, kwargs):
    with pytest.raises(ValueError, match=says):
        audit(**{"reward": contains_gold, **kwargs})


@pytest.mark.parametrize("judges", ["form", "length"])
def test_a_penalty_of_form_or_length_does_not_fail_for_paying_nothing(judges):
    def penalty(completions, **kwargs):
        return [-float("</think></think>" in completion[0]["content"]) for completion in completions]

    penalty.judges = judges
    audit(penalty, cases=CASES).raise_for(exploits=None)


def test_each_case_has_a_name_and_a_reason_and_applies_to_some_gold_answer_and_no_wrong_one_is_right():
    golds = [gold_forms(gold) for gold in ("42", "1250", "-3", "1.5", "108", "C", "Mercury", "0", "A", "D")]
    assert not [forms for forms in golds if forms["gold"] in (forms["wrong"], forms["wrong2"])]
    assert len({case.label for case in CASES}) == len(CASES) >= 60
    for case in CASES:
        made = (fill(case, forms, "?", prompt_opens=opens) for forms in golds for opens in (False, True))
        assert case.why, case
        assert any(pieces is not None for pieces in made), case
