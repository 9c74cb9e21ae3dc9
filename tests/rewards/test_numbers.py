"""Which number a text states."""

from fractions import Fraction

import pytest

from rewards.numbers import to_number

# A value, and texts that state it; "-" for texts that state none, several or an expression.
VALUES = r"""
1000 @ 1,000 @ 1000.0
1000000 @ 1 000 000 @ 10^6
1234.5 @ 1{,}234.5
3.75 @ 3,75 €
1/2 @ .5
5/2 @ 2 1/2 @ 2\frac{1}{2}
150 @ 1.5e2 @ 1.5 \times 10^{2}
2000000 @ 2 million
-5 @ - 5 @ minus 5
90 @ 90^\circ
36 @ 36\text{ cm}^2
42 @ x = \frac{84}{2} = 42 @ \text{about } 42 @ 42-year-old
8 @ \color{blue}{8}
3 @ 3 T-shirts
- @ 4^2 @ 42x @ 2-i @ 3 - x @ x-3 @ 17 + 25 @ 41 = 42 @ 41, 42 @ 1/0 @ x > 42 @ half of 42 @ 42 squared
- @ 42 and a half @ 42 and one third @ 42 degrees below zero @ 42 below zero @ 60\frac{a}{b} @ 60\cdot n @ 60\mu @ 60_8
60 @ 60\,\frac{\text{km}}{\text{h}} @ 60\,\frac{\mathrm{m}}{\mathrm{s}^2} @ 60\,\mathrm{m\,s^{-1}} @ 60\text{ (km/h)}
60 @ 60\text{ km}\cdot\text{h}^{-1} @ 60\;\text{N}\cdot\text{m} @ 60\degree @ 60\ \Omega @ 60\ \mu\text{m} @ 60_{10}
60 @ \approx 60 @ \bf 60 @ 60.\overline{0}
1/8 @ {1 \over 8} @ \sfrac{1}{8}
72 @ 72 = 48 + 24
- @ 72 = 48 + 25
15 @ 15 kilomètres
""".strip().splitlines()


@pytest.mark.parametrize("line", VALUES)
def test_a_text_states_one_number_or_none(line):
    value, *texts = line.split(" @ ")
    for text in texts:
        found = to_number(text, decimal_comma=True)
        assert (found and found.value) == (None if value == "-" else Fraction(value)), text


# A text, the gold answer, and whether the text is right.
PAIRS = """
50% @ 0.5 @ True
50 @ 50% @ True
0.5 @ 50% @ True
150% @ 1.5 @ True
25% @ 25 dollars @ False
0.333333 @ 1/3 @ True
0.333 @ 1/3 @ False
5 @ $5 @ True
£30 @ 30 € @ False
36 cm^2 @ 36 square cm @ True
24 m^2 @ 24 m @ False
65 km/h @ 65 kilometers per hour @ True
3 minutes @ 3 hours @ False
""".strip().splitlines()


@pytest.mark.parametrize("line", PAIRS)
def test_percent_and_units_count_where_both_have_them(line):
    text, gold, right = line.split(" @ ")
    assert str(to_number(text).same(to_number(gold))) == right
