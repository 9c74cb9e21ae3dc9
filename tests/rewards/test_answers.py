"""answer_reward: what a text asserts, and whether that is the gold answer."""

import math
import operator
import pickle
import types

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import rewards
from rewards import FORMS, answer_reward, answers, instruction
from rewards.answers import is_right

# kind, form, gold, text after the thought, whether it is right, why.  More: answers/*.jsonl.
CASES = [
    ("number", "boxed", "42", r"There were \boxed{42} apples", True, "words around it"),
    ("number", "boxed", "42", r"If he buys 3 more he would have \boxed{42}", True, "a condition"),
    ("number", "boxed", "42", r"The number that cannot be formed is \boxed{42}", True, "a denial in the question"),
    ("number", "boxed", "42", r"The answer is 41. \boxed{42}", True, "only the form is read"),
    ("number", "boxed", "42", r"17 + 25 = \boxed{42}", True, "an equals sign before it"),
    ("number", "boxed", "42", r"within \boxed{}: \boxed{42}", True, "the prompt repeated"),
    ("number", "boxed", "42", r"\boxed{42} \boxed{42.0}", True, "boxes that agree"),
    ("number", "boxed", "42", r"\boxed{42} \boxed{43}", False, "boxes that differ"),
    ("number", "boxed", "42", r"\boxed{41 \boxed{42}}", False, "nested"),
    ("number", "boxed", "42", r"\boxed{42", False, "cut off"),
    ("number", "boxed", "-42", r"-\boxed{42}", True, "a sign belongs to it"),
    ("number", "boxed", "42", r"- \boxed{42}", True, "a list's mark"),
    ("number", "boxed", "42", r"1\boxed{42}", False, "a digit before it"),
    ("number", "boxed", "42", r"\boxed{42}.5", False, "decimals after it"),
    ("number", "boxed", "42", r"\boxed{42}^2", False, "a power"),
    ("number", "boxed", "12 m", r"\boxed{12\text{ mm}}", False, "another unit"),
    ("number", "boxed", "12 m", r"\boxed{12\text{ metres}}", True, "the unit by its name"),
    ("number", "boxed", "$5", r"\boxed{5\text{ cents}}", False, "cents for dollars"),
    ("number", "boxed", "42", "The answer is 42.", False, "no box"),
    ("number", "####", "42", "#### 41\nOops.\n#### 42", True, "of several lines the last one"),
    ("number", "####", "42", "#### 42 or 43", False, "an alternative"),
    ("number", "####", "42", "#### not 42", False, "denied in the form"),
    ("number", "<answer>", "42", "It would take <answer>42</answer> days", True, "words around it"),
    ("number", "<answer>", "42", "<answer>17 + 25 = 42</answer>", True, "a true equation"),
    ("number", "<answer>", "42", "<answer>17 + 25</answer>", False, "left undone"),
    ("number", "<answer>", "42", "<answer>42", False, "never closed"),
    ("number", "<answer>", "42", "<answer>42</answer><answer>41</answer>", False, "the last one counts"),
    ("number", "whole", "42", "17 + 25 = 42.", True, "the tiny policy's form"),
    ("number", "whole", "42", "**42 apples**", True, "unit and markup"),
    ("number", "whole", "42", "17 + 26 = 42.", False, "a false equation"),
    ("number", "whole", "72", "So it is 72.", False, "the whole answer has to be the value"),
    ("number", "auto", "-5", "- 5", True, "minus five, where that is all"),
    ("number", "auto", "42", "#### 41\n\\boxed{42}", True, "a box before a line"),
    ("number", "auto", "42", "#### Step 1\nThe answer is 42.", True, "a heading is no answer"),
    ("number", "auto", "42", r"The answer is 42. \boxed{4", False, "cut off within a box"),
    ("math", "boxed", "2-2p", r"Thus $x - p = \boxed{-2(p-1)}$.", True, "equal by algebra"),
    ("math", "boxed", "2-2p", r"\boxed{2-3p}", False, "not equal"),
    ("math", "boxed", "2-2p", r"\boxed{2-2p} \boxed{2-3p}", False, "two boxes"),
    ("math", "boxed", r"\text{Evelyn}", r"\boxed{\text{Evelyn}} is our answer.", True, "a word"),
    ("math", "boxed", "a square", r"\boxed{\text{square}}", True, "a word without its article"),
    ("math", "boxed", "x>5", r"\boxed{x<5}", False, "another direction"),
    ("math", "boxed", "x>5", r"\boxed{5}", False, "a bound is no number"),
    ("math", "boxed", "[-2,7]", r"\boxed{(-2,7)}", False, "an interval's brackets"),
    ("math", "boxed", "[-2,7]", r"\boxed{\left[-2,\ 7\right]}", True, "an interval's spelling"),
    ("math", "boxed", r"\{1,2\}", r"\boxed{\{2,1\}}", True, "sets have no order"),
    ("math", "boxed", r"\{1,2\}", r"\boxed{[1,2]}", False, "an interval for a set"),
    ("math", "boxed", "(2,3)", r"\boxed{(3,2)}", False, "a point's order"),
    ("math", "boxed", "(2,3)", r"\boxed{x = 2, y = 3}", True, "a point by its coordinates"),
    ("math", "boxed", r"x=\pm 3", r"\boxed{x = 3 \text{ or } x = -3}", True, "both signs written out"),
    ("math", "boxed", r"\pm 2", r"\boxed{2}", False, "one of two values"),
    ("math", "boxed", "a^2+2ab+b^2", r"\boxed{a^2 + b^2 + 2ab}", True, "the last letters are no unit"),
    ("math", "auto", "x^2+1", "The answer is $x^2+1$.", True, "a label"),
    ("math", "auto", "x^2+1", "The answer is not $x^2+1$.", False, "denied"),
    ("math", "auto", "42", "The answer is 42.", True, "a number needs no algebra"),
    ("choice", "boxed", "(C)", r"A is wrong, so \boxed{\text{(C) 17}}", True, "with its text"),
    ("choice", "<answer>", "A", "<answer>A and C</answer>", False, "two"),
    ("choice", "auto", "C", "Option C.", True, "a sentence"),
    ("choice", "whole", "C", "C is the one I would cross off", False, "a sentence"),
    ("exact", "boxed", "the Netherlands", r"\boxed{\text{Netherlands}}", True, "case and article"),
    ("exact", "auto", "Mercury", "The answer is **Mercury**.", True, "markup and a full stop"),
    ("exact", "auto", "Mercury", "not Mercury", False, "denied"),
    ("exact", "whole", "no", "No.", True, "a gold answer that denies"),
    ("math", "boxed", r"\text{Amy}", r"\boxed{\text{May}}", False, "an anagram"),
    ("math", "boxed", r"\text{no}", r"\boxed{\text{on}}", False, "an anagram of two letters"),
    ("math", "boxed", "listen", r"\boxed{silent}", False, "an anagram outside of text"),
    ("math", "boxed", "ABC", r"\boxed{BCA}", False, "capitals in another order"),
    ("math", "boxed", r"\text{Amy, Bob}", r"\boxed{\text{May, Bob}}", False, "an anagram in a list"),
    ("math", "boxed", r"\text{A, B}", r"\boxed{A,B}", True, "words without a space"),
    ("math", "boxed", "xyz", r"\boxed{zyx}", True, "a product of variables"),
    ("math", "boxed", "1011_2", r"\boxed{1011_3}", False, "another base"),
    ("math", "boxed", "212_{3}", r"\boxed{212_{4}}", False, "another base in braces"),
    ("math", "boxed", "212_{3}", r"\boxed{212_3}", True, "the same base"),
    ("math", "boxed", "212_{3}", r"\boxed{213_3}", False, "another digit"),
    ("math", "boxed", r"x \in [1,3]", r"\boxed{[1,3]}", True, "without its name"),
    ("math", "boxed", r"x \in [1,3]", r"\boxed{(1,3)}", False, "brackets count without it"),
    ("math", "boxed", "2^{1000}", r"\boxed{2^{1001}}", False, "too large for algebra"),
    ("math", "boxed", "2-i", r"\boxed{-i+2}", True, "another order"),
    ("math", "boxed", "1,2", r"\boxed{1 \text{ and } 2}", True, "a list with its conjunction"),
    ("math", "boxed", "1,2", r"\boxed{x=1 \text{ or } x=2}", True, "a list with its name"),
    ("math", "boxed", "1,2", r"\boxed{x=1 \text{ or } x=3}", False, "another list with its name"),
    ("math", "boxed", r"\emptyset", r"\boxed{\{\}}", True, "the empty set in braces"),
    ("math", "boxed", r"(-\infty,2]", r"\boxed{x \le 2}", True, "an inequality for an interval"),
    ("math", "boxed", r"(-\infty,2]", r"\boxed{x < 2}", False, "an inequality without its bound"),
    ("math", "boxed", "x<5", r"\boxed{(-\infty,5)}", True, "an interval for an inequality"),
    ("math", "boxed", "x<5", r"\boxed{(-\infty,5]}", False, "an interval with another bracket"),
    ("exact", "boxed", "Côte d’Ivoire", r"\boxed{Côte d'Ivoire}", True, "an apostrophe's shape"),
    ("exact", "boxed", "café", "\\boxed{cafe\u0301}", True, "an accent on its own"),
    ("exact", "whole", "Paris", "«Paris»", True, "French quotes"),
    ("exact", "whole", "東京", "「東京」", True, "Japanese quotes"),
    ("exact", "whole", "Paris", "_Paris_", True, "markup by underscores"),
    ("exact", "whole", ".5", "5", False, "a decimal point"),
    ("exact", "whole", "?", "?", True, "punctuation alone"),
    ("exact", "boxed", "+", r"\boxed{+}", True, "a sign alone"),
    ("exact", "whole", "?", "!", False, "other punctuation"),
    ("number", "####", "11", "#### 11 (eleven)", True, "its name in brackets"),
    ("number", "####", "72", "#### 72 (clips)", True, "its unit in brackets"),
    ("number", "####", "72", "#### 72 (wrong)", False, "denied in brackets"),
    ("number", "####", "72", "#### 72 (thousand)", False, "a scale in brackets"),
    ("number", "####", "72", "#### US$72", True, "a currency's country"),
    ("number", "####", "72", "#### 72</s>", True, "the end of a sequence"),
    ("number", "<answer>", "3.5", "<answer>3.5 kg (approximately)</answer>", True, "a word in brackets"),
    ("number", "whole", "1500", "Answer: 1500", True, "a label"),
    ("choice", "whole", "D", "D) Both A and B", True, "an option that names others"),
    ("choice", "whole", "A", "D) Both A and B", False, "the option that is named"),
    ("choice", "whole", "B", "(B) A and C", True, "an option that lists others"),
    ("choice", "boxed", "B", r"\boxed{\text{B) All of A, C and D}}", True, "an option that lists three"),
    ("choice", "boxed", "A", r"\boxed{(A) or (B)}", False, "two options"),
    ("choice", "boxed", "A", r"\boxed{A) B) C)}", False, "all options"),
    ("choice", "whole", "B", "B - A dog", True, "a dash before its text"),
    ("choice", "whole", "B", "答案:B", True, "a label in Chinese"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "form", "gold", "text", "right", "why"), CASES)
def test_the_form_is_read_and_then_the_value(kind, form, gold, text, right, why):
    assert is_right(text, gold, kind, form=form) is right, why


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
GUESSES = [
    ("So the answer is 42.", True),
    ("**Final Answer**\n\n42", True),
    ("Step 1: 7 + 5 = 12. Step 2: 30 + 12 = 42. The answer is 42.", True),
    ("The sum of both is **42**.", True),
    ("That gives 40 and 2 more, so he has 42 apples.", True),
    ("41 or 42", False),
    ("It is not 42.", False),
    ("The answer is at least 42.", False),
    ("The answer is 41. The answer is 42.", False),
    ("The answer is 42. Scratch that.", False),
    ("Is it 42?", False),
    ("- 41\n- 42", False),
    ("See page 42.", False),
    ("Die Antwort lautet 42.", False),
    ("答案是42。", False),
]


@pytest.mark.parametrize(("text", "right"), GUESSES)
def test_without_a_form_english_labels_and_the_last_sentence_are_read_and_nothing_in_doubt(text, right):
    assert is_right(text, "42") is right


def test_a_form_has_a_sentence_for_the_prompt_and_an_unknown_one_is_named():
    assert [form for form in FORMS if instruction(form)] == ["boxed", "####", "<answer>", "whole"]
    assert r"\boxed{}" in instruction("boxed")
    for call in (instruction, lambda form: rewards.answer_reward(form=form)):
        with pytest.raises(ValueError, match=r"There is no form 'box'\.\n.*form='box'[\s\S]*'boxed'"):
            call("box")


# ids: open 151667, close 151668, end 151645
PLACES = {
    "after the thought": ("<think>41</think>The answer is 42.", [151667, 1, 151668, 2, 151645], 1.0),
    "only in the thought": ("<think>The answer is 42.</think>Done.", [151667, 1, 151668, 2, 151645], 0.0),
    "the thought never ends": ("<think>The answer is 42.", [151667, 1, 2], 0.0),
    "the end is only typed": ("<think>x</think>The answer is 42.", [151667, 1, 2, 3], 0.0),
    "typed in the thought, wrong after it": ("<think>a</think>42</think>41", [151667, 1, 151668, 2], 0.0),
    "no thought at all": ("The answer is 42.", [2, 151645], 1.0),
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


def test_after_a_tool_call_the_last_message_is_the_answer():
    turns = [
        {"role": "assistant", "content": "<think>a</think>", "tool_calls": []},
        {"role": "tool", "content": "41"},
        {"role": "assistant", "content": "<think>b</think>The answer is 42."},
    ]
    ids = [151667, 1, 151668, 5, 6, 151667, 2, 151668, 3]
    assert answer_reward()(completions=[turns], completion_ids=[ids], answer=["42"]) == [1.0]


def test_a_thought_that_a_parser_moved_aside_is_closed():
    turns = [{"role": "assistant", "content": None}, {"role": "tool", "content": "41"}]
    last = {"role": "assistant", "reasoning_content": "b", "content": "The answer is 42."}
    reward = answer_reward(tokens=rewards.ThinkTokens(151667, 151668, prompt_opens=True))
    ids = [[1, 151668, 5, 6, 2, 151668, 3], [2, 151668, 3]]
    given = {"completions": [[*turns, last], [last]], "answer": ["42", "42"]}
    assert reward(**given, completion_ids=ids) == reward(**given) == [1.0, 1.0]


def test_no_gold_answer_means_none():
    golds = ["42", None, "", float("nan"), "a word"]
    assert answer_reward()(completions=["42"] * 5, answer=golds) == [1.0, None, None, None, None]
    whole = ["48 / 2 = 24, 48 + 24 = 72.\n#### 72", r"Therefore \boxed{72}.", 72]
    assert answer_reward()(completions=["72"] * 3, answer=whole) == [1.0, 1.0, 1.0], "a whole solution"


def test_of_several_gold_answers_any_is_right():
    """As datasets of questions have it, with a name and its aliases."""
    assert answer_reward()(completions=["2", "3"], answer=[[1, 2]] * 2) == [1.0, 0.0], "numbers too"
    golds = [["Paris", "Paris, France"], ["Rome"], [], ["7", "seven"]]
    said = ["The answer is Paris.", "The answer is Paris.", "Paris", "7"]
    assert rewards.answer_reward("exact")(completions=said, answer=golds) == [1.0, 0.0, None, 1.0]
    assert rewards.answer_reward("number")(completions=said, answer=golds) == [None, None, None, 1.0]
    formulas = [r"\boxed{2(1-p)}", r"\boxed{p^2}"]
    golds = [["x", "2-2p"]] * 2
    assert rewards.answer_reward("math")(completions=formulas, answer=golds) == [1.0, 0.0]
    own = rewards.answer_reward(lambda text, gold: text in gold)
    assert own(completions=["b", "c"], answer=[["a", "b"], ["a", "b"]]) == [1.0, 0.0], "given as it is"


def test_column_scores_and_tolerance_are_arguments():
    reward = answer_reward(column="solution", right=2.0, wrong=-1.0, tolerance=0.01)
    assert reward(completions=["3.14", "3"], solution=["3.1416", "3.1416"]) == [2.0, -1.0]
    with pytest.raises(rewards.RewardValueError, match="no column 'solution'"):
        reward(completions=["3"], answer=["3"])
    with pytest.raises(rewards.RewardValueError, match="'solution' has 1 values for 2 completions"):
        reward(completions=["3", "4"], solution=["3"])
    with pytest.raises(ValueError, match="no kind 'maths'"):
        answer_reward("maths")
    for wrong in ({"tolerance": -1}, {"tolerance": math.nan}, {"tolerance": "1%"}, {"timeout": 0}):
        with pytest.raises(ValueError, match=r"tolerance must be a number from 0, and timeout one above 0"):
            answer_reward(**wrong)


def test_a_comparison_of_ones_own_reads_the_text_after_the_thought():
    reward = pickle.loads(pickle.dumps(answer_reward(operator.eq)))
    assert reward(completions=["<think>abc</think>xy", "xyz"], answer=["xy", "xy"]) == [1.0, 0.0]
    boxed = answer_reward(operator.eq, form="boxed")
    texts = [r"So \boxed{xy}", "xy", r"\boxed{xy} \boxed{z}"]
    assert boxed(completions=texts, answer=["xy"] * 3) == [1.0, 0.0, 0.0], (
        "what stands in the form that is named"
    )
    assert answer_reward(lambda text, gold: 0.5)(completions=["x"], answer=["y"]) == [0.5]


LOOPS = [
    "The answer is 42. ",
    r"\boxed{42} ",
    r"\boxed{",
    "\n",
    "answer:\n",
    "<!--",
    "7",
    "(",
    "#### 42\n",
    "~~",
]


@pytest.mark.parametrize("unit", LOOPS)
def test_of_a_completion_in_a_loop_only_the_end_and_a_few_statements_are_read(unit):
    text = unit * (100_000 // len(unit))
    for form in FORMS:
        values = answers.stated(text, form)
        assert sum(map(len, values)) <= 20_000
    for kind in ("number", "math", "choice", "exact"):
        assert answer_reward(kind)(completions=[text], answer=["x>y" if kind == "math" else "43"])[0] in (
            0.0,
            None,
        )


@given(st.text(max_size=200), st.text(max_size=20))
@example("1/0", "1/0")
@example("9" * 5000, "9")
@example("1e999999", "1")
@example(r"\frac{1}{0}", "1")
@example("((((" * 500 + "= 1", "1")
@example("\\boxed{" * 300, "1")
def test_any_text_is_judged_without_a_crash(text, gold):
    for kind in ("number", "choice", "exact"):
        assert answer_reward(kind)(completions=[text], answer=[gold])[0] in (0.0, 1.0, None)


@given(st.integers(-(10**9), 10**9))
def test_every_integer_is_right_in_every_usual_form(value):
    for text in (f"{value}", f"{value:,}", rf"\boxed{{{value}}}", f"The answer is {value}.", f"{value}.0"):
        assert is_right(text, str(value)), text
        assert not is_right(text, str(value + 1)), text
