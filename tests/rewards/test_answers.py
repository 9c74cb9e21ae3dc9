"""answer_reward: what a text asserts, and whether that is the gold answer."""

import json
import operator
import pickle
import types
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import rewards
from rewards import FORMS, answer_reward, answers, instruction
from rewards.answers import is_right

# Kind, form, gold answer, text after the thought, whether it is right, and why; more in answers/*.jsonl.
RULES = [json.loads(line) for line in Path(__file__).with_name("rules.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule['form']} {rule['why']}")
def test_the_form_is_read_and_then_the_value(rule):
    assert is_right(rule["text"], rule["gold"], rule["kind"], form=rule["form"]) is rule["right"], rule["why"]


# Golds as MATH, olympiads and textbooks have them.
GOLDS = r"""
x \in [1,3] @ x\in(-\infty,1)\cup(2,\infty) @ 2^{1000} @ 2^{2024} @ 2^{1009}-1 @ 2012^{2011} @ 100! @ \frac{1}{2^{2024}}
n\cdot 2^{2024} @ \frac{\sqrt{3}}{2} @ 2\sqrt{13} @ \pi @ 3\pi @ \frac{9\pi}{4} @ x^2+7x+10 @ (3, \frac{\pi}{2}) @ p - q
\left( \frac{3}{2}, -13 \right) @ [-2,7] @ (-\infty,2]\cup[5,\infty) @ \{1,2,3\} @ \emptyset @ \text{Evelyn}
\text{even} @ \text{(C)} @ \text{June 20} @ y = -2x + 3 @ 6r^2-4r-24 @ 1+2i @ -3 \pm \sqrt{5} @ 1,-2 @ 204_5 @ 1011_2
BC_{16} @ \infty @ \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} @ \begin{pmatrix} -1 \\ 2 \end{pmatrix} @ x > 5
1 \le x \le 3 @ x \ge -2 @ e^{i\pi/3} @ \log_2 3 @ \cos 2x @ \binom{10}{3} @ \sin^2 x @ \sqrt[3]{4} @ a^2+2ab+b^2
2k\pi, k \in \mathbb{Z} @ n!
\frac{n(n+1)}{2} @ f(x) = x^2 @ \sqrt{x} + C @ 0.\overline{3} @ \triangle ABC @ 12\sqrt{2}\text{ cm} @ 10^{100}
xyz @ AB @ \lfloor x \rfloor @ |x-1| @ \overline{AB} @ 3:2 @ 2^{n+1}-1 @ 1, 2, \ldots, 9 @ a \neq 0 @ \mathbb{R}
(x-1)^2+y^2=4
"""


def test_a_gold_answer_in_a_box_is_right_whatever_algebra_makes_of_it():
    golds = [gold.strip() for gold in GOLDS.replace("\n", "@").split("@") if gold.strip()]
    scores = answer_reward("math", form="boxed")(completions=[rf"\boxed{{{g}}}" for g in golds], answer=golds)
    assert len(golds) > 60
    assert [gold for gold, score in zip(golds, scores, strict=True) if score != 1.0] == []


# What the guess without a form reads, and what it leaves alone.
READ = ["So the answer is 42.", "**Final Answer**\n\n42", "The sum of both is **42**.",
        "Step 1: 7 + 5 = 12. Step 2: 30 + 12 = 42. The answer is 42.",
        "40 and 2 more, so he has 42 apples."]  # fmt: skip
LEFT = ["41 or 42", "It is not 42.", "The answer is at least 42.", "The answer is 41. The answer is 42.", "Is it 42?",
        "The answer is 42. Scratch that.", "- 41\n- 42", "See page 42.",
        "Die Antwort lautet 42.", "答案是42。"]  # fmt: skip


@pytest.mark.parametrize("text", READ + LEFT)
def test_without_a_form_english_labels_and_the_last_sentence_are_read_and_nothing_in_doubt(text):
    assert is_right(text, "42") is (text in READ)


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
    decoder = types.SimpleNamespace(
        decode=lambda ids, skip_special_tokens: "The answer is 42." if ids == [2] else ""
    )
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
    whole = ["48 / 2 = 24, 48 + 24 = 72.\n#### 72", r"Therefore \boxed{72}.", 72]
    assert answer_reward()(completions=["72"] * 3, answer=whole) == [1.0, 1.0, 1.0], "a whole solution"


def test_of_several_gold_answers_any_is_right():
    """As datasets of questions have it, with a name and its aliases."""
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


@given(st.text(max_size=200), st.text(max_size=20))
@example("9" * 5000, "9")
@example("1e999999", "1")
@example(r"\frac{1}{0}", "1")
@example("((((" * 500 + "= 1", "1")
def test_any_text_is_judged_without_a_crash(text, gold):
    for kind in ("number", "choice", "exact"):
        assert answer_reward(kind)(completions=[text], answer=[gold])[0] in (0.0, 1.0, None)
