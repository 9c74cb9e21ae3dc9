"""answer_reward: what a text asserts, and whether that is the gold answer."""

from __future__ import annotations

import pickle
import threading
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import rewards
from rewards import answer_reward
from rewards.answers import is_right
from rewards.assertions import assertions
from rewards.quantities import to_number

# (gold, text after the thought, why it is right)
NUMBERS_RIGHT = [
    ("42", "42", "bare"),
    ("42", "The answer is 42.", "labelled"),
    ("42", r"\boxed{42}", "boxed"),
    ("42", "#### 42", "GSM8K"),
    ("42", "<answer>42</answer>", "tagged"),
    ("42", "### Answer\n\n42", "under a heading"),
    ("42", "The answer is:\n\n$$\n\\boxed{42}\n$$", "over several lines"),
    ("42", "Step 1: 7 + 5 = 12. Step 2: 30 + 12 = 42. The answer is 42.", "steps are not answers"),
    ("42", "Add 17 and 25.\n7 + 5 = 12, carry 1.\nSo 17 + 25 = 42.", "the last sentence concludes"),
    ("42", "17 + 25 = 42", "a true equation"),
    ("42", "17 + 25 equals 42", "a true equation in words"),
    ("42", "The answer is 42 because 17 + 25 = 42.", "a reason after it"),
    ("42", "The answer is 42. I am sure of it. Is there more I can do?", "a question to the reader"),
    ("42", "You might think it is 41, but the answer is 42.", "another value is set aside"),
    ("42", "It is not hard to see that the answer is 42.", "an idiom denies nothing"),
    ("42", "```python\nresult = 6 * 9\n```\nThe answer is 42.", "code beside prose is no answer"),
    ("42", r"\boxed{42\,\mathrm{cm}^2}", "a unit with a power"),
    ("42", "It takes 42 km/h.", "a compound unit"),
    ("42", "总共有42个苹果。", "digits amid Chinese"),
    ("42", "f(4) = 42", "a function's value"),
    ("1000", "1,000", "thousands comma"),
    ("1000", "1000.0", "decimal point"),
    ("1000", r"\frac{2000}{2}", "fraction"),
    ("1000", r"\boxed{1{,}000}", "LaTeX comma"),
    ("1000", "1\u202f000", "narrow space"),
    ("1000", "$1,000.00", "currency"),
    ("1000", "10^3 = 1000", "an equation whose left side is not evaluated"),
    ("1000", r"$1 \times 10^{3}$", "scientific"),
    ("2000000", "2 million", "scale word"),
    ("3/2", "1 1/2", "mixed number"),
    ("1.5", r"1\frac{1}{2}", "mixed number in LaTeX"),
    ("1/3", "0.333333", "no decimal is exact"),
    ("50%", "0.5", "percent of the gold"),
    ("50", "50%", "percent of the answer"),
    ("5 meters", "5 m", "the unit abbreviated"),
    ("90", r"90^\circ", "degrees"),
    ("-3", "−3", "typographic minus"),
]  # fmt: skip
NUMBERS_WRONG = [
    ("42", "", "nothing"),
    ("42", "The answer is not 42", "math-verify accepts this one"),
    ("42", "41 or 42", "two answers"),
    ("42", "40, 41, 42, 43", "all of them"),
    ("42", "The answer is 41. The answer is 42.", "two answers"),
    ("42", r"\boxed{41} \boxed{42}", "two boxes"),
    ("42", r"\boxed{42} or 43", "an alternative behind the box"),
    ("42", r"The answer is 41. \boxed{42}", "prose against box"),
    ("42", "The answer is 42? No, that is wrong.", "taken back"),
    ("42", "The answer is 42. Just kidding, it's 43.", "taken back"),
    ("42", r"\boxed{42", "cut off"),
    ("42", "The answer is 4", "cut off in the number"),
    ("42", "41 = 42", "a false equation"),
    ("42", r"\boxed{17 + 25}", "left undone; the question copied"),
    ("42", "The answer is twice 42.", "another number in words"),
    ("42", "The answer is 42 squared.", "another number in words"),
    ("42", "The answer is $42x$", "times an unknown"),
    ("42", "The answer is 42 thousand", "scale"),
    ("42", "The answer is at least 42.", "a bound"),
    ("42", r"\boxed{\pm 42}", "two values"),
    ("42", r"\boxed{[40, 44]}", "an interval"),
    ("42", "42.5", "gold as a prefix"),
    ("42", "142", "gold as a suffix"),
    ("16", "4²", "a power is written, but not as a number"),
    ("42", "4²", "NFKC makes 42 of it"),
    ("42", "\u202e24\u202c", "shown reversed"),
    ("42", "The answer is 41 <!-- 42 -->.", "hidden"),
    ("42", "I don't know. Is it 42?", "asks"),
    ("5 meters", "5 feet", "another unit"),
    ("10", "lO", "letters"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "text", "why"), NUMBERS_RIGHT)
@pytest.mark.parametrize("kind", ["number", "math"])
def test_a_number_asserted_once_and_equal_is_right(kind, gold, text, why):
    assert is_right(text, gold, kind), why


@pytest.mark.parametrize(("gold", "text", "why"), NUMBERS_WRONG)
@pytest.mark.parametrize("kind", ["number", "math"])
def test_anything_else_is_wrong(kind, gold, text, why):
    assert not is_right(text, gold, kind), why


MATH = [
    ("2-2p", r"Thus $x - p = \boxed{-2(p-1)}$.", True, "equal by algebra"),
    ("2-2p", r"\boxed{2-3p}", False, "not equal"),
    (r"5\sqrt{2}", r"\boxed{\sqrt{50}}", True, "equal radicals"),
    (r"\{1,2\}", r"\boxed{\{2,1\}}", True, "sets have no order"),
    ("[0,1)", r"\boxed{[0,1)}", True, "an interval as gold"),
    ("[0,9)", r"\boxed{[0,1)}", False, "another interval"),
    (r"x \geq 3", r"\boxed{x \ge 3}", True, "a bound as gold"),
    (r"\pm 2", r"\boxed{\pm 2}", True, "two values as gold"),
    (r"\pm 2", r"\boxed{2}", False, "one of two values"),
    (r"\text{Evelyn}", r"\boxed{\text{Evelyn}} is our answer.", True, "a word"),
    ("x^2+1", "The answer is $x^2+1$ or $x^2+2$.", False, "two answers"),
    ("x^2+1", "The answer is not $x^2+1$.", False, "denied"),
    ("x^2+1", r"\boxed{1+x^2} \boxed{x^2+2}", False, "two boxes"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "text", "right", "why"), MATH)
def test_expressions_are_compared_by_math_verify_with_gold_first(gold, text, right, why):
    assert is_right(text, gold, "math") is right, why


CHOICES = [
    ("C", "The answer is C.", True, "labelled"),
    ("C", r"\boxed{\textbf{(C)}}", True, "boxed"),
    ("C", "C) 17", True, "with its text"),
    ("C", "C, because 17 is prime.", True, "with a reason"),
    ("C", "A is 9, B is 15. The answer is C.", True, "others discussed"),
    ("(C)", "C", True, "brackets in the gold"),
    ("C", "A) 9 B) 15 C) 17", False, "the question copied"),
    ("C", "A, B, C or D", False, "all of them"),
    ("C", "Not C, so A.", False, "it chooses A"),
    ("A", "A good question.", False, "an article"),
    ("A", "A and C", False, "two"),
    ("C", "C++", False, "a language"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "text", "right", "why"), CHOICES)
def test_a_choice_is_one_letter_asserted(gold, text, right, why):
    assert is_right(text, gold, "choice") is right, why


EXACT = [
    ("Mercury", "The answer is **Mercury**.", True, "markup and a full stop"),
    ("the Netherlands", "netherlands", True, "case and article"),
    ("Mercury", "It is Mercury or Venus", False, "more words"),
    ("Mercury", "not Mercury", False, "denied"),
    ("no", "No.", True, "a gold answer that denies"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "text", "right", "why"), EXACT)
def test_exact_means_the_same_words(gold, text, right, why):
    assert is_right(text, gold, "exact") is right, why


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


def test_a_thought_that_the_prompt_opened_hides_its_answer_until_it_is_closed():
    tokens = rewards.ThinkTokens(151667, 151668, prompt_opens=True)
    reward = answer_reward(tokens=tokens)
    texts, ids = ["The answer is 42.", "x</think>The answer is 42."], [[1, 2], [1, 151668, 2]]
    assert reward(completions=texts, completion_ids=ids, answer=["42"] * 2) == [0.0, 1.0]


def test_a_tokenizer_settles_where_the_answer_begins():
    class Decoder:
        def decode(self, ids, skip_special_tokens):
            return {(2,): "The answer is 42."}.get(tuple(ids), "")

    text, ids = "<think>I end with </think> here. 7</think>The answer is 42.", [151667, 1, 151668, 2]
    assert answer_reward(tokenizer=Decoder())(completions=[text], completion_ids=[ids], answer=["42"]) == [
        1.0
    ]


def test_after_a_tool_call_the_last_message_is_the_answer():
    turns = [
        {"role": "assistant", "content": "<think>a</think>", "tool_calls": []},
        {"role": "tool", "content": "41"},
        {"role": "assistant", "content": "<think>b</think>The answer is 42."},
    ]
    ids = [151667, 1, 151668, 5, 6, 151667, 2, 151668, 3]
    assert answer_reward()(completions=[turns], completion_ids=[ids], answer=["42"]) == [1.0]


def test_no_gold_answer_means_none():
    golds = ["42", None, "", float("nan"), "a word"]
    assert answer_reward()(completions=["42"] * 5, answer=golds) == [1.0, None, None, None, None]


def test_a_gold_solution_stands_for_its_answer():
    golds = ["48 / 2 = 24, 48 + 24 = 72.\n#### 72", r"Therefore \boxed{72}.", 72]
    assert answer_reward()(completions=["72"] * 3, answer=golds) == [1.0, 1.0, 1.0]


def test_column_scores_and_tolerance_are_arguments():
    reward = answer_reward(column="solution", right=2.0, wrong=-1.0, tolerance=0.01)
    assert reward(completions=["3.14", "3"], solution=["3.1416", "3.1416"]) == [2.0, -1.0]
    with pytest.raises(rewards.RewardValueError, match="no column 'solution'"):
        reward(completions=["3"], answer=["3"])
    with pytest.raises(ValueError, match="no kind of answer 'maths'"):
        answer_reward("maths")


def same_length(text, gold):
    return len(text) == len(gold)


def test_a_comparison_of_ones_own_reads_the_text_after_the_thought():
    reward = pickle.loads(pickle.dumps(answer_reward(same_length)))
    texts = ["<think>abc</think>xy", "xyz"]
    assert reward(completions=texts, answer=["ab", "ab"]) == [1.0, 0.0]
    half = answer_reward(lambda text, gold: 0.5)
    assert half(completions=["x"], answer=["y"]) == [0.5]


def test_math_verify_works_off_the_main_thread():
    scores = []

    def work():
        scores.extend(answer_reward("math")(completions=[r"\boxed{\sqrt{50}}"], answer=[r"5\sqrt{2}"]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert scores == [1.0]


EXPLOSIVE = ["9^{9^{9^{9}}}", "9^9^9^9", "99999!", "(9!)!", "2^{99999999}", "x+" * 5000 + "x", "10**10**10"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("expression", EXPLOSIVE, ids=lambda text: text[:20])
def test_an_expression_that_would_stop_the_run_is_wrong_at_once(expression):
    scores = []
    call = {"completions": [rf"\boxed{{{expression}}}"], "answer": ["x^2+1"]}
    thread = threading.Thread(target=lambda: scores.extend(answer_reward("math")(**call)), daemon=True)
    thread.start()
    thread.join(10)
    assert scores == [0.0]


LONG = {
    "one label ten thousand times": "The answer is 42. " * 6000,
    "boxes": r"\boxed{42} " * 9000,
    "boxes within boxes": r"\boxed{" * 14_000,
    "line feeds": "\n" * 100_000,
    "labels without a value": "answer:\n" * 12_000,
    "open comments": "<!--" * 25_000,
    "digits": "7" * 100_000,
    "brackets": "(" * 100_000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_degenerate_completion_of_100000_characters_is_judged_in_seconds(text):
    start = time.perf_counter()
    for kind in ("number", "math", "choice", "exact"):
        answer_reward(kind)(completions=[text], answer=["42"])
    # Quadratic work took minutes here, so the bound is loose on purpose.
    assert time.perf_counter() - start < 20


def test_a_box_with_braces_inside_is_read_whole():
    assert [a.value for a in assertions(r"\boxed{\frac{1}{2}} and \boxed{x}")] == [r"\frac{1}{2}", "x"]


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


@given(st.text(alphabet="0123456789+-*/.,= x^\\{}()%e ", max_size=30))
def test_any_formula_is_a_number_or_none(text):
    number = to_number(text)
    assert number is None or number.value == number.value
