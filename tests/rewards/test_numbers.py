"""What number a text means."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.numbers import Number, to_number

VALUES = [
    ("1,000", "1000"),
    ("1 000 000", "1000000"),
    (r"1{,}234.5", "1234.5"),
    ("3,75 €", "3.75"),
    (".5", "1/2"),
    ("2 1/2", "5/2"),
    (r"2\frac{1}{2}", "5/2"),
    ("1.5e2", "150"),
    (r"1.5 \times 10^{2}", "150"),
    ("10^6", "1000000"),
    ("2 million", "2000000"),
    ("- 5", "-5"),
    ("minus 5", "-5"),
    (r"90^\circ", "90"),
    (r"36\text{ cm}^2", "36"),
    (r"x = \frac{84}{2} = 42", "42"),
    (r"\text{about } 42", "42"),
    (r"\color{blue}{8}", "8"),
    ("4^2", None),
    ("42x", None),
    ("2-i", None),
    ("3 - x", None),
    ("x-3", None),
    ("42-year-old", "42"),
    ("3 T-shirts", "3"),
    ("17 + 25", None),
    ("41 = 42", None),
    ("41, 42", None),
    ("1/0", None),
    ("x > 42", None),
    ("half of 42", None),
    ("42 squared", None),
    ("42 bn", "42e9"),
    ("42 mn", "42e6"),
    ("42 lakh", "42e5"),
    ("42 crores", "42e7"),
    ("42万", "42e4"),
    ("42万元", "42e4"),
    ("42 млн", "42e6"),
    ("42 Millionen", "42e6"),
    ("42 millones", "42e6"),
    ("42 and a half", None),
    ("42 and one third", None),
    ("42 degrees below zero", None),
    ("42 below zero", None),
    (r"60\,\frac{\text{km}}{\text{h}}", "60"),
    (r"60\,\frac{\mathrm{m}}{\mathrm{s}^2}", "60"),
    (r"60\frac{a}{b}", None),
    (r"60\,\mathrm{m\,s^{-1}}", "60"),
    (r"60\text{ km}\cdot\text{h}^{-1}", "60"),
    (r"60\;\text{N}\cdot\text{m}", "60"),
    (r"60\cdot n", None),
    (r"60\text{ (km/h)}", "60"),
    (r"60\degree", "60"),
    (r"60\ \Omega", "60"),
    (r"60\ \mu\text{m}", "60"),
    (r"60\mu", None),
    (r"\approx 60", "60"),
    (r"\bf 60", "60"),
    (r"{1 \over 8}", "1/8"),
    (r"\sfrac{1}{8}", "1/8"),
    (r"60.\overline{0}", "60"),
    ("60_{10}", "60"),
    ("60_8", None),
    ("72 = 48 + 24", "72"),
    ("72 = 48 + 25", None),
    ("15 kilomètres", "15"),
]


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_a_text_states_one_number_or_none(text, value):
    found = to_number(text, decimal_comma=True)
    assert (found and found.value) == (value and Fraction(value))


SAME = [
    ("50%", "0.5", True),
    ("50", "50%", True),
    ("0.5", "50%", True),
    ("25%", "25 dollars", False),
    ("150%", "1.5", True),
    ("0.333333", "1/3", True),
    ("0.333", "1/3", False),
    ("65 km/h", "65 kilometers per hour", True),
    ("36 cm^2", "36 square cm", True),
    ("24 m^2", "24 m", False),
    ("3 minutes", "3 hours", False),
    ("£30", "30 €", False),
    ("5", "$5", True),
]


@pytest.mark.parametrize(("text", "gold", "same"), SAME)
def test_percent_and_units_count_where_both_have_them(text, gold, same):
    assert to_number(text).same(to_number(gold)) is same


@given(st.text(alphabet="0123456789+-*/.,= x^\\{}()%e ", max_size=30))
def test_any_formula_is_a_number_or_none(text):
    number = to_number(text)
    assert number is None or isinstance(number, Number)
