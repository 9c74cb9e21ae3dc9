"""answer_reward: what a text asserts, and whether that is the gold answer."""

import operator
import pickle
import types

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import rewards
from rewards import answer_reward, answers
from rewards.answers import is_right
from rewards.forms import FORMS, seen

# gold, text after the thought, whether it is right, why.  More: test_answer_sets.py, and the corpus of the audit.
NUMBERS = [
    ("42", "The answer is:\n\n$$\n\\boxed{42}\n$$", True, "over several lines"),
    ("42", "Step 1: 7 + 5 = 12. Step 2: 30 + 12 = 42. The answer is 42.", True, "steps are not answers"),
    ("42", "```python\nresult = 6 * 9\n```\nThe answer is 42.", True, "code beside prose is not an answer"),
    ("42", "It takes 42 km/h.", True, "a compound unit"),
    ("1000", "10^3 = 1000", True, "an equation whose left side is not evaluated"),
    ("2000000", "2 million", True, "a scale word"),
    ("1/3", "0.333333", True, "six digits stand for a fraction without an exact decimal"),
    ("50%", "0.5", True, "percent in the gold answer"),
    ("50", "50%", True, "percent in the answer"),
    ("5 meters", "5 m", True, "the unit abbreviated"),
    ("5 meters", "5 feet", False, "another unit"),
    ("90", r"90^\circ", True, "degrees"),
    ("16", "4²", False, "a power is written, but not as a number"),
    ("42", "41 = 42", False, "a false equation"),
]
MATH = [
    ("2-2p", r"Thus $x - p = \boxed{-2(p-1)}$.", True, "equal by algebra"),
    ("2-2p", r"\boxed{2-3p}", False, "not equal"),
    (r"5\sqrt{2}", r"\boxed{\sqrt{50}}", True, "equal radicals"),
    (r"\{1,2\}", r"\boxed{\{2,1\}}", True, "sets have no order"),
    ("[0,1)", r"\boxed{[0,1)}", True, "an interval as gold"),
    (r"x \geq 3", r"\boxed{x \ge 3}", True, "a bound as gold"),
    (r"\pm 2", r"\boxed{\pm 2}", True, "two values as gold"),
    (r"\pm 2", r"\boxed{2}", False, "one of two values"),
    (r"\text{Evelyn}", r"\boxed{\text{Evelyn}} is our answer.", True, "a word"),
    ("x^2+1", "The answer is $x^2+1$ or $x^2+2$.", False, "two answers"),
    ("x^2+1", "The answer is not $x^2+1$.", False, "denied"),
    ("x^2+1", r"\boxed{1+x^2} \boxed{x^2+2}", False, "two boxes"),
]
CHOICES = [("(C)", "C", True, "brackets in the gold answer"), ("A", "A and C", False, "two")]
EXACT = [
    ("Mercury", "The answer is **Mercury**.", True, "markup and a full stop"),
    ("the Netherlands", "netherlands", True, "case and article"),
    ("Mercury", "not Mercury", False, "denied"),
    ("no", "No.", True, "a gold answer that denies"),
]
KINDS = {"number": NUMBERS, "math": NUMBERS + MATH, "choice": CHOICES, "exact": EXACT}


@pytest.mark.parametrize(
    ("kind", "gold", "text", "right", "why"), [(kind, *row) for kind, rows in KINDS.items() for row in rows]
)
def test_one_asserted_answer_that_equals_the_gold_one_is_right(kind, gold, text, right, why):
    assert is_right(text, gold, kind) is right, why


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
    with pytest.raises(ValueError, match="no kind of answer 'maths'"):
        answer_reward("maths")


def test_a_comparison_of_ones_own_reads_the_text_after_the_thought():
    reward = pickle.loads(pickle.dumps(answer_reward(operator.eq)))
    assert reward(completions=["<think>abc</think>xy", "xyz"], answer=["xy", "xy"]) == [1.0, 0.0]
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
    assert len(seen(text)) <= 20_000
    for form in FORMS:
        assert len(answers.statements(text, form)) <= 2 * 21
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
