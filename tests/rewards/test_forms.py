"""Forms: where an answer has to stand, and what is attached to a box."""

import pytest

import rewards
from rewards.answers import is_right
from rewards.forms import FORMS, instruction

# gold, text, whether it is right in the box's form, why.
BOXES = [
    ("42", r"17 + 25 = \boxed{42}", True, "an equals sign begins the box's expression"),
    ("42", r"So he has \boxed{42} apples.", True, "words around it"),
    ("42", r"- \boxed{42}", True, "a list's mark"),
    ("42", r"$$\large\boxed{42}$$", True, "its size"),
    ("42", r"\boxed{42}. The check: 42 - 25 = 17.", True, "a check after it"),
    ("42", r"The answer is \boxed{42}, not 43.", True, "what it is not"),
    ("42", r"It is not 43 but \boxed{42}.", True, "a denial of another value"),
    ("-42", r"-\boxed{42}", True, "a sign belongs to it"),
    ("42", r"-\boxed{42}", False, "a sign belongs to it"),
    ("42", r"minus \boxed{42}", False, "a sign in words"),
    ("42", "\u2011$\\boxed{42}$", False, "a hyphen that does not break"),
    ("42", r"1\boxed{42}", False, "a digit before it"),
    ("42", r"\boxed{42}0", False, "a digit after it"),
    ("42", r"\boxed{42}.5", False, "decimals after it"),
    ("42", r"\frac{\boxed{42}}{2}", False, "a fraction's numerator"),
    ("42", r"\boxed{42}^2", False, "a power"),
    ("42", r"\sqrt{\boxed{42}}", False, "under a root"),
    ("42", r"\log \boxed{42}", False, "a function of it"),
    ("42", r"\boxed{42}!", False, "a factorial"),
    ("42", r"\boxed{42}_{16}", False, "another base"),
    ("42", r"x > \boxed{42}", False, "a bound"),
    ("42", r"\boxed{42} halves", False, "halves of it"),
    ("42", r"\cancel{\boxed{42}}", False, "struck out"),
    ("42", r"~~\boxed{42}~~", False, "struck out"),
    ("42", r"\boxed{42} or 43", False, "an alternative"),
    ("42", r"\boxed{42} \boxed{43}", False, "boxes that differ"),
    ("42", r"\boxed{42}. Scratch that, it is 43.", False, "taken back"),
    ("42", r"\boxed{42}. On second thought, 43 is correct.", False, "taken back"),
    ("42", r"\boxed{42}. The answer is 43.", False, "a later label with another value"),
    ("42", r"Bob says \boxed{42}", False, "another's answer"),
    ("42", r"Suppose it were \boxed{42}", False, "a supposition"),
    ("42", r"The answer differs from \boxed{42}", False, "a denial in other words"),
    ("42", "The answer is 42.", False, "no box"),
    ("12 m", r"\boxed{12}\text{ mm}", False, "another unit"),
    ("12 m", r"\boxed{12\text{ metres}}", True, "the unit by its other name"),
    ("$5", r"\boxed{5} cents", False, "cents for dollars"),
]


@pytest.mark.parametrize(("gold", "text", "right", "why"), BOXES)
def test_a_box_is_read_with_what_is_attached_to_it(gold, text, right, why):
    assert is_right(text, gold, form="boxed") is right, why


OTHERS = [
    ("####", "6 * 7 = 42\n#### 42", True, "the last line"),
    ("####", "#### Step 1\n6 * 7 = 42\n#### 42", True, "a heading before it"),
    ("####", "#### 41\nOops.\n#### 42", True, "of several lines the last one"),
    ("####", "#### 42 or 43", False, "an alternative"),
    ("####", "#### definitely not 42", False, "denied"),
    ("####", "The answer is 42.", False, "no line"),
    ("<answer>", "<answer>42</answer>", True, "the tag"),
    ("<answer>", "<answer>17 + 25 = 42</answer>", True, "a true equation"),
    ("<answer>", "<answer>17 + 25</answer>", False, "left undone"),
    ("<answer>", "<answer>42", False, "never closed"),
    ("whole", "**42**", True, "Markdown"),
    ("whole", "17 + 25 = 42.", True, "the tiny policy's form"),
    ("whole", "17 + 26 = 42.", False, "a false equation"),
    ("whole", "41, 42", False, "two values"),
    ("whole", r"\boxed{42", False, "cut off"),
    ("auto", "#### 41\n\\boxed{42}", False, "forms that contradict each other"),
    ("auto", "The sum of 17 and 25 is **42**.", True, "prose"),
    ("auto", "Adding 17 and 25 gives 42.", True, "prose"),
    ("auto", "42 is the answer.", True, "prose"),
    ("auto", "He had 17 and got 25, so he has 42 apples.", True, "prose after other numbers"),
    ("auto", "The answer is 42 (17 + 25).", True, "a calculation in brackets"),
    ("auto", "答案是42元。", True, "a unit of another script"),
    ("auto", "| sum | 42 |", True, "a table's last cell"),
    ("auto", "3! * 7 = 42", True, "a factorial on the left"),
]


@pytest.mark.parametrize(("form", "text", "right", "why"), OTHERS)
def test_every_other_form_is_read_where_it_stands(form, text, right, why):
    assert is_right(text, "42", form=form) is right, why


MATH = [
    ("x>5", "x<5", False, "another direction"),
    ("x>5", "5", False, "a bound is no number"),
    ("5!", "120", True, "a factorial's value"),
    ("5!", "5", False, "a factorial is no number"),
    ("[-2,7]", "(-2,7)", False, "an interval's brackets"),
    ("[-2,7]", r"\left[-2,\ 7\right]", True, "an interval's spelling"),
    (r"\{1,2\}", "[1,2]", False, "an interval for a set"),
    ("(2,3)", "(3,2)", False, "a point's order"),
    ("(2,3)", "x = 2, y = 3", True, "a point by its coordinates"),
    (r"\{2,3\}", r"x = 3 \text{ or } x = 2", True, "roots joined by or"),
    (r"x=\pm 3", r"x = 3 \text{ or } x = -3", True, "both signs written out"),
    (r"a^2+2ab+b^2", "a^2 + b^2 + 2ab", True, "math-verify would take the last letters for a unit"),
    ("2\\pi", "2", False, "a factor is missing"),
]


@pytest.mark.parametrize(("gold", "value", "right", "why"), MATH)
def test_mathematics_in_a_box(gold, value, right, why):
    assert is_right(rf"\boxed{{{value}}}", gold, "math", form="boxed") is right, why


def test_a_form_has_a_sentence_for_the_prompt_and_an_unknown_one_is_named():
    assert [form for form in FORMS if instruction(form)] == ["boxed", "####", "<answer>", "whole"]
    assert r"\boxed{}" in instruction("boxed")
    for call in (instruction, lambda form: rewards.answer_reward(form=form)):
        with pytest.raises(ValueError, match=r"There is no form 'box'\.\n.*form='box'[\s\S]*\"boxed\""):
            call("box")
