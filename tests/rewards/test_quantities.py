"""What number a text means."""

from hypothesis import given
from hypothesis import strategies as st

from rewards.quantities import Number, to_number


@given(st.text(alphabet="0123456789+-*/.,= x^\\{}()%e ", max_size=30))
def test_any_formula_is_a_number_or_none(text):
    number = to_number(text)
    assert number is None or isinstance(number, Number)
