r"""The number that a text states: digits, LaTeX, fractions, percentages, units, a true equation.

For ``rewards.answers`` and custom comparisons.  Values are exact fractions, so that 0.1 + 0.2 is 0.3.

It does not search a solution for its number: it gets the words that state one, and returns None if they state none,
several or an expression.  It reads neither algebra nor numbers in words, such as "forty".
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from rewards.notation import NEUTRAL

_STOPS = " .,;:。，；\n*"
LONGEST = 400  # characters of a text that states a number
# Units by each of their names, without the plural's s: only the same one is the same.
_SAME = (
    "mm millimeter millimetre", "cm centimeter centimetre", "dm decimeter decimetre", "m meter metre",
    "km kilometer kilometre", "in inch inche", "ft foot feet", "yd yard", "mi mile", "mg milligram", "g gram gramme",
    "kg kilogram kilo", "lb pound", "oz ounce", "ml milliliter millilitre", "l liter litre", "s sec second",
    "min minute", "h hr hour", "d day", "wk week", "mo month", "yr year", "c cent ¢", "$ dollar usd buck", "€ euro eur",
    "£ gbp quid", "¥ yen jpy yuan 元", "₹ rupee inr", "° degree deg", "°c celsius", "°f fahrenheit", "°k k kelvin",
    "km/h kph kmph", "mph", "m/s", "v volt", "n newton", "j joule", "w watt", "a amp ampere", "hz hertz",
    "kw kilowatt", "pa pascal", "t tonne ton", "rad radian",
)  # fmt: skip
_UNIT_OF = {name: names.split()[0] for names in _SAME for name in names.split()}
_SCALES = {
    "dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "k": 10**3, "M": 10**6,
}  # fmt: skip
_LETTERS = "mgshlcdtLVNJWACFKHT"  # units of one letter; any other is an unknown
_NO_UNITS = {"in", "a", "d", "c", "t", "s", "mo", "min"}  # as a word in a sentence
# Units that may follow their number without a space.
_ATTACHED = "|".join(
    [*(name for name in _UNIT_OF if len(name) > 1), "lbs", "hrs", r"°[CF]?", "[mgshlcLVNJWAKCFHTkM]"]
)

_WRAPPERS = re.compile(
    r"\\(?:boxed|text(?:bf|it|rm|sf|tt)?|math(?:bf|it|rm|sf)|mbox|operatorname|emph|underline)\s*\{([^{}]*)\}"
)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*([^{}]*?)\s*\}|(\d))\s*(?:\{\s*([^{}]*?)\s*\}|(\d))")
_MIXED = re.compile(r"(?<![\d./,])(-?)(\d{1,99})\s+(\d{1,99})/(\d{1,99})(?![\d./])")
_NOISE = re.compile(
    r"\\left|\\right|\\displaystyle|\\[()\[\]]|\\[,;!: ]|\*\*|__|[`$€£¥₹~]|\\\$|</?answer>|(?<=°)\s(?=[CFK]\b)"
)
_GROUPED = re.compile(r"(?<![\d.,])(\d{1,3})((?:(?:,|\{,\}|[ \u00a0\u2009\u202f'’_])\d{3})+)(?![\d,'])")
# A decimal comma; before three digits a comma separates thousands.
_COMMA = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+)(?:\{,\}|,)(\d{1,2}|\d{4,9})(?![\d,]|\.\d)")
_MINUS = re.compile(r"(\d\s*)?\b(?:negative|minus|menos|moins|минус)\s+(?=[$£€]?\d)", re.IGNORECASE)
_MONEY = re.compile(r"(?:\\\$|(?<!\$)\$(?![^$\n]*\$)|([€£¥₹]))\s?(?=-?[\d.])|(?<=\d)\s?([€£¥₹¢])")
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.\\])(?P<digits>[-+]?\s?(?:\d+(?:\.\d+)?|\.\d+))"
    r"(?:[eE](?P<e>[-+]?\d+)|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*(?P<braced>[-+]?\d+)\s*\}|(?P<power>[-+]?\d+)))?"
    rf"(?:\s*/\s*(?P<below>\d+(?:\.\d+)?))?(?P<percent>\s?\\?%)?(?=(?:{_ATTACHED})?(?![A-Za-z0-9]))(?!\.\d)"
)
_UNIT_POWER = re.compile(
    r"(\d\s*(?:[A-Za-zµ°]{2,}|m))(?:\s*/\s*[A-Za-z]+)?(?:\s*\^\s*(?:\{\s*-?[123]\s*\}|-?[123])(?!\d))?(?![A-Za-z])"
)
# Words after a number that make another number of it.
_CHANGES = re.compile(
    r"^\s*-?(?:factorial|squared|cubed|hal(?:f|ves)|(?:third|quarter|(?:four|fif|six|seven|eigh|nin|ten|hundred|"
    r"thousand)th)s?|per ?cent of|% of|\(?(?:in )?(?:base|mod(?:ulo)?|hex\w*|binary|octal)|to the|point|and a|"
    r"(?:degrees? )?(?:below|above|short of)|(?:more|less) than|fewer|out of|times|plus|minus|less|divided|over|gross|"
    r"radians? of|or)\b|^\s*±",
    re.IGNORECASE,
)
_OPERATOR = re.compile(
    rf"[+*/^=_|{{}}()\[\]±!<>≠~\d]|(?!{NEUTRAL}|\\circ)\\[A-Za-z]|\b(?:log|ln|sqrt|half|twice|double|triple|root|factorial|hex)\b"
)


def plain(text: str) -> str:
    r"""The text without LaTeX and Markdown that does not change a number's value.

    >>> plain(r"$\boldsymbol{x}$ = **1{,}000**"), plain(r"\dfrac{84}{2}")
    ('\\boldsymbol{x} = 1000', '84/2')
    """
    text = re.sub(r"\s?\^\s*(?:\\circ|\{\s*\\circ\s*\})\s?", "°", text)
    text = signed(text)
    for _ in range(3):  # models nest text in text in a box, and no deeper
        text = _WRAPPERS.sub(r" \1 ", text)
    text = _GROUPED.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), text)
    text = _FRACTION.sub(lambda m: " " + _fraction(m[1] or m[2], m[3] or m[4]), text)
    text = _MIXED.sub(lambda m: f"{m[1]}{int(m[2]) * int(m[4]) + int(m[3])}/{m[4]}", text)
    return _NOISE.sub("", text).strip()


def _fraction(above: str, below: str) -> str:
    simple = all(re.fullmatch(r"-?\d+(?:\.\d+)?", part) for part in (above, below))
    return f"{above}/{below}" if simple and not below.startswith("-") else f"({above})/({below})"


def signed(text: str) -> str:
    """The text with a sign for the word "minus" before a number."""
    return _MINUS.sub(lambda m: f"{m[1]} - " if m[1] else "-", text)


def alters(word: str) -> bool:
    """Whether a word after a number is a unit, a scale or an operation, such as "halves", and so part of the value."""
    names = (word.lower(), word.lower().removesuffix("s"))
    known = any(name in _UNIT_OF or name in _SCALES for name in names) and word not in _NO_UNITS
    return known or _CHANGES.match(word) is not None


class Number(NamedTuple):
    """A number as written: its exact value, whether a percent sign follows, and the word after it."""

    value: Fraction
    percent: bool = False
    unit: str = ""

    def same(self, gold: Number, tolerance: float = 0.0) -> bool:
        """Whether it equals the gold answer; 50% is both 50 and one half, since questions use either."""
        mine = {self.value, self.value / 100} if self.percent else {self.value}
        if self.percent != gold.percent and (gold.unit if self.percent else self.unit):
            return False  # 25 % of something, and 25 dollars
        if self.percent and not gold.percent and abs(gold.value) < 1:
            mine = {self.value / 100}
        golds = {gold.value, gold.value / 100} if gold.percent else {gold.value}
        close = any(abs(a - b) <= _slack(b, tolerance) for a in mine for b in golds)
        return close and _same_unit(self.unit, gold.unit)


def _slack(gold: Fraction, tolerance: float) -> Fraction:
    """The allowed error; 1/3 has no exact decimal, so six digits of it suffice."""
    exact = pow(10, LONGEST, gold.denominator) == 0
    return max(Fraction(tolerance), Fraction(0 if exact else 1, 10**6)) * abs(gold)


def _same_unit(mine: str, gold: str) -> bool:
    """A missing unit matches any, "km" matches "kilometers", and "boxes" matches "box"."""
    if not mine or not gold:
        return True
    (mine, _, power), (gold, _, wanted) = mine.partition("^"), gold.partition("^")
    if mine in _UNIT_OF and gold in _UNIT_OF:
        return (_UNIT_OF[mine], power) == (_UNIT_OF[gold], wanted)
    return mine[:3] == gold[:3]


def to_number(text: str, *, decimal_comma: bool = False) -> Number | None:
    r"""The one number that a span of text states, or None if it states none, several, or an expression.

    With ``decimal_comma`` 3,75 is 3.75, as in most of Europe; 3,750 stays a thousand times as much.
    Understands units, currencies, scale words, an unknown's name before "=" and true equations.

    >>> [str(to_number(s).value) for s in ("1,000", "4.2e1 apples", r"x = \frac{84}{4}", "39 + 3 = 42")]
    ['1000', '42', '21', '42']
    >>> [to_number(s) for s in ("41 or 42", "4^2", "41 = 42", "forty", "142 + 1")]
    [None, None, None, None, None]
    """
    if len(text) > LONGEST:
        return None
    text = text.rstrip(_STOPS)
    money = _MONEY.search(text)
    if decimal_comma or r"{,}" in text:
        text = _COMMA.sub(lambda m: m[1].replace(".", "") + "." + m[2], text)
    text = re.sub(r"(?<=\d)\s*per ?cent\b(?! of)", "%", plain(text)).rstrip(_STOPS)
    if "=" in text:
        return _equation(text.split("="))
    if power := re.fullmatch(r"\s*(-?)10\s*\^\s*\{?\s*(-?\d{1,2})\s*\}?(?:\s+[A-Za-z]+)*\s*", text):
        return Number(Fraction(10) ** int(power[2]) * (-1 if power[1] else 1))
    power = re.search(r"(?:[A-Za-z]\s*\^\s*\{?\s*)([23])", text)
    found = list(_NUMBER.finditer(text := _UNIT_POWER.sub(r"\1", text)))
    if len(found) != 1:
        return None
    before, after = text[: found[0].start()], text[found[0].end() :]
    # Brackets around the number alone, as in "(42)", are not operators.
    beside = any(_OPERATOR.search(side.strip().strip("()[]{}")) for side in (before, after))
    if beside or before.rstrip(" (").endswith("-") or _CHANGES.match(after):
        return None
    number, unit = _parsed(found[0]), _unit(after)
    if number is None or unit is None:
        return None
    if unit in _SCALES:
        return number._replace(value=number.value * _SCALES[unit], unit=_currency(money))
    if unit in _UNIT_OF:
        return number._replace(unit=f"{unit}^{power[1]}" if power else unit)
    return number._replace(unit=_currency(money) or unit)


def _unit(after: str) -> str | None:
    """The unit or the scale that follows a number, without a plural's s; None for an unknown, as in 3 x."""
    word = re.match(r"\s*(?!(?:is|are|was|were|has|have)\b)([^\W\d]+(?:/[a-z]+)?|°\s?[CFK]?)", after)
    if word is None:
        return ""
    unit = word[1] if len(word[1]) == 1 else word[1].lower().removesuffix("s")
    if unit == "per" or (unit == "in" and after.strip().count(" ")):
        return ""
    known = _LETTERS if after[:1].isspace() else _LETTERS + "kM"
    return unit if len(word[1]) > 1 or unit in known or not unit.isascii() else None


def _currency(money: re.Match[str] | None) -> str:
    return "" if money is None else money[1] or money[2] or "$"


def _parsed(number: re.Match[str]) -> Number | None:
    power = int(number["e"] or number["braced"] or number["power"] or 0)
    below = Fraction(number["below"] or 1)
    if abs(power) > LONGEST or below == 0:
        return None
    above = Fraction(re.sub(r"\s", "", number["digits"]))
    return Number(above * Fraction(10) ** power / below, number["percent"] is not None)


_FUNCTION = re.compile(r"[^\d\\]*\\?[A-Za-z]\w*\s*(?:\(.*\)|\{.*\})\s*", re.DOTALL)


def _equation(sides: Sequence[str]) -> Number | None:
    """The last side's number, if every other side is a name or has the same value."""
    last = to_number(sides[-1])
    if last is None:
        return None
    for side in sides[:-1]:
        tail = side.strip().split(":")[-1].split(",")[-1]
        if not re.search(r"\d", tail) or _FUNCTION.fullmatch(side):  # x, or f(4)
            continue
        value = _evaluate(tail)
        if value is None or value != last.value:
            return None
    return last


def _evaluate(expression: str) -> Fraction | None:
    """The value of sums, differences, products and quotients of numbers; None for anything else."""
    expression = re.sub(rf"(?<=\d)\s?(?:{_ATTACHED})(?![A-Za-z0-9])", "", expression)
    source = re.sub(r"\^\s*(?:\{\s*(-?\d+)\s*\}|(-?\d+))", r"**(\1\2)", expression)
    source = re.sub(r"\\(?:times|cdot)|(?<=\d)\s*[xX]\s*(?=\d)", "*", source)
    source = re.sub(r"\b(\d{1,2})!", lambda m: str(math.factorial(int(m[1]))), source)
    source = re.sub(r"^[^\d(.+-]*|[^\d).]*$", "", source)
    if len(source) > 200:
        return None
    try:
        return _value(ast.parse(source.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return _value(node.operand) * (-1 if isinstance(node.op, ast.USub) else 1)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
    raise ValueError("not arithmetic")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > 99 or abs(base) > 10**6:
        raise ValueError("too large to be worked out for a reward")
    return base ** int(exponent)


_OPERATIONS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}
