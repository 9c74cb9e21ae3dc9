"""answer_reward: what a text asserts, and whether that is the gold answer.

Tables: rules.jsonl, one rule per line; answers/*.jsonl, attacks and right answers by writers who did not know the rules
and by a generator (benchmarks/results/answer_sets.md has what was paid and refused before they were known).  If a form
is named, only the form is read, so an attack by the words around it ("not \\boxed{42}") is paid: "by_form".  A case
that the gold answer cannot decide is "set_aside".
"""

import json
import operator
import pickle
import types
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rewards
from rewards import FORMS, answer_reward, answers, instruction
from rewards.answers import is_right

HERE = Path(__file__).parent


def cases_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("rule", cases_of(HERE / "rules.jsonl"), ids=lambda rule: f"{rule['form']} {rule['why']}")
def test_the_form_is_read_and_then_the_value(rule):
    assert is_right(rule["text"], rule["gold"], rule["kind"], form=rule["form"]) is rule["right"], rule["why"]


def misjudged(cases, *, guessing):
    """Return (misjudged, all) for attacks and for right answers, with the form that was asked for or guessing it.

    A guess cannot know that the whole text should be the answer, nor that another form was asked for.
    """
    counts = {True: [0, 0], False: [0, 0]}
    groups = defaultdict(list)  # one batch per reward, as in training
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
@pytest.mark.parametrize("path", sorted((HERE / "answers").glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_form_is_read_by_its_rule_and_a_guess_refuses_in_doubt(path, algebra):
    """Algebra takes 15 to 50 s per set: unless "long" tests run, only two sets include it."""
    in_short = path.stem in ("f", "natural")
    cases = [c for c in cases_of(path) if algebra or in_short or c["kind"] != "math"]
    (paid, _), (refused, _) = misjudged(cases, guessing=False)
    assert paid == refused == 0
    prose = [case for case in cases if case["form"] == "prose"]
    (paid, attacks), (refused, right) = misjudged(prose, guessing=True)
    assert paid <= 0.02 * attacks
    assert refused <= 0.65 * right


def test_a_form_has_a_sentence_for_the_prompt_and_an_unknown_one_is_named():
    assert [form for form in FORMS if instruction(form)] == ["boxed", "####", "<answer>", "whole"]
    assert r"\boxed{}" in instruction("boxed")
    for call in (instruction, lambda form: rewards.answer_reward(form=form)):
        with pytest.raises(ValueError, match=r"There is no form 'box'\.\n.*form='box'[\s\S]*'boxed'"):
            call("box")


O, C, E = 151667, 151668, 151645  # noqa: E741 - open, close, end
PLACES = {
    "after the thought": ("<think>41</think>The answer is 42.", [O, 1, C, 2, E], 1.0),
    "only in the thought": ("<think>The answer is 42.</think>Done.", [O, 1, C, 2, E], 0.0),
    "the thought never ends": ("<think>The answer is 42.", [O, 1, 2], 0.0),
    "the end is only typed": ("<think>x</think>The answer is 42.", [O, 1, 2, 3], 0.0),
    "typed in the thought, wrong after it": ("<think>a</think>42</think>41", [O, 1, C, 2], 0.0),
    "no thought at all": ("The answer is 42.", [2, E], 1.0),
    "another tokenizer's markers": (r"<think>\boxed{42}</think> unknown", [151648, 5, 6, 151649, 7], 0.0),
    "another tokenizer's, opened in the prompt": (r"\boxed{42}</think> unknown", [5, 6, 151649, 7], 0.0),
    "another tokenizer's, never closed": (r"<think> \boxed{42}", [151648, 5, 6], 0.0),
    "another tokenizer's, right after it": (r"<think>so</think>\boxed{42}", [151648, 5, 151649, 7], 1.0),
    "a second thought": (r"<think>a</think><think>b \boxed{42}</think>", [O, 1, C, O, 2, C], 0.0),
    "a marker in it": (r"<think>a</think><think>b</think> \boxed{42}</think>", [O, 1, C, O, 2, 3, 4, C], 0.0),
    "an answer beside it": (r"<think>a</think><think>b</think> \boxed{42}", [O, 1, C, O, 2, C, 3], 1.0),
}


@pytest.mark.parametrize(("text", "ids", "score"), PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("chat", [True, False], ids=["messages", "text"])
def test_only_what_stands_after_the_thought_is_read(chat, text, ids, score):
    completion = [{"role": "assistant", "content": text}] if chat else text
    assert answer_reward()(completions=[completion], completion_ids=[ids], answer=["42"]) == [score]


def test_the_prompt_may_open_the_thought_and_a_tokenizer_settles_where_the_answer_begins():
    reward = answer_reward(tokens=rewards.ThinkTokens(151667, 151668, prompt_opens=True))
    texts, ids = ["The answer is 42.", "x</think>The answer is 42."], [[1, 2], [1, 151668, 2]]
    assert reward(completions=texts, completion_ids=ids, answer=["42"] * 2) == [0.0, 1.0]
    decoder = types.SimpleNamespace(decode=lambda ids, skip_special_tokens: "The answer is 42." if ids == [2] else "")
    text, ids = "<think>I end with </think> here. 7</think>The answer is 42.", [151667, 1, 151668, 2]
    assert answer_reward(tokenizer=decoder)(completions=[text], completion_ids=[ids], answer=["42"]) == [1.0]


def test_after_a_tool_call_the_last_message_is_the_answer_also_where_a_parser_moved_its_thought_aside():
    before = [{"role": "assistant", "content": "<think>a</think>"}, {"role": "tool", "content": "41"}]
    last = {"role": "assistant", "content": "<think>b</think>The answer is 42."}
    moved = {"role": "assistant", "reasoning_content": "b", "content": "The answer is 42."}
    ids = [[1, C, 5, 6, O, 2, C, 3], [1, C, 5, 6, 2, C, 3], [2, C, 3]]
    reward = answer_reward(tokens=rewards.ThinkTokens(O, C, prompt_opens=True))
    given = {"completions": [[*before, last], [*before, moved], [moved]], "answer": ["42"] * 3}
    assert reward(**given, completion_ids=ids) == reward(**given) == [1.0, 1.0, 1.0]


def test_no_gold_answer_means_none():
    golds = ["42", None, "", float("nan"), "a word"]
    assert answer_reward()(completions=["42"] * 5, answer=golds) == [1.0, None, None, None, None]
    whole = ["48 / 2 = 24, 48 + 24 = 72.\n#### 72", r"Therefore \boxed{72}.", r"Thus $n = \boxed 72$.", 72]
    assert answer_reward()(completions=["72"] * 4, answer=whole) == [1.0] * 4, "a whole solution"


def test_of_several_gold_answers_any_is_right():
    """As in question datasets that list a name and its aliases."""
    golds = [["Paris", "Paris, France"], ["Rome"], [], ["7", "seven"], [1, 2]]
    said = ["The answer is Paris.", "The answer is Paris.", "Paris", "7", "2"]
    assert rewards.answer_reward("exact")(completions=said, answer=golds) == [1.0, 0.0, None, 1.0, 1.0]
    assert rewards.answer_reward("number")(completions=said, answer=golds) == [None, None, None, 1.0, 1.0]
    given = {"completions": [r"\boxed{2(1-p)}", r"\boxed{p^2}"], "answer": [["x", "2-2p"]] * 2}
    assert rewards.answer_reward("math")(**given) == [1.0, 0.0]
    own = rewards.answer_reward(lambda text, gold: text in gold)
    assert own(completions=["b", "c"], answer=[["a", "b"], ["a", "b"]]) == [1.0, 0.0], "given as it is"


def test_column_scores_and_tolerance_are_arguments():
    reward = answer_reward(column="solution", right=2.0, wrong=-1.0, tolerance=0.01)
    assert reward(completions=["3.14", "3"], solution=["3.1416", "3.1416"]) == [2.0, -1.0]
    with pytest.raises(rewards.RewardValueError, match="no column 'solution'"):
        reward(completions=["3"], answer=["3"])
    with pytest.raises(ValueError, match="no kind 'maths'"):
        answer_reward("maths")
    with pytest.raises(ValueError, match=r"tolerance must be a number from 0"):
        answer_reward(tolerance="1%")


def test_a_comparison_of_ones_own_reads_the_text_after_the_thought():
    reward = pickle.loads(pickle.dumps(answer_reward(operator.eq)))
    assert reward(completions=["<think>abc</think>xy", "xyz"], answer=["xy", "xy"]) == [1.0, 0.0]
    boxed = answer_reward(operator.eq, form="boxed")
    texts = [r"So \boxed{xy}", "xy", r"\boxed{xy} \boxed{z}"]
    assert boxed(completions=texts, answer=["xy"] * 3) == [1.0, 0.0, 0.0], "what stands in the form"
    assert answer_reward(lambda text, gold: gold)(completions=["x"], answer=[0.5]) == [0.5]
    with pytest.raises(rewards.RewardValueError, match="sample 1, value 'yes'"):
        answer_reward(lambda text, gold: gold)(completions=["1", "1"], answer=[0.5, "yes"])


LOOPS = ["The answer is 42. ", r"\boxed{42} ", r"\boxed{", "\n", "answer:\n", "<!--", "7", "#### 42\n", "~~"]


@pytest.mark.parametrize("unit", LOOPS)
def test_of_a_completion_in_a_loop_only_the_end_and_a_few_statements_are_read(unit):
    text = unit * (100_000 // len(unit))
    for form in FORMS:
        assert sum(map(len, answers.stated(text, form))) <= 20_000
    for kind, gold in {"number": "43", "math": "x>y", "choice": "B", "exact": "43"}.items():
        assert answer_reward(kind)(completions=[text], answer=[gold]) == [0.0]


@settings(deadline=None)
@given(st.text(max_size=200) | st.text("0123456789+-*/.,= x^\\{}()%e "), st.text(max_size=20))
@example("9" * 5000, "9")
@example("1e999999", "1")
@example(r"\frac{1}{0}", "1")
@example("((((" * 500 + "= 1", "1")
def test_any_text_is_judged_without_a_crash(text, gold):
    for kind in ("number", "choice", "exact"):
        assert answer_reward(kind)(completions=[text], answer=[gold])[0] in (0.0, 1.0, None)
