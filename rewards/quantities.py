r"""The number that a text states: digits, LaTeX, fractions, percentages, units, a true equation.

For ``rewards.answers`` and custom comparisons.  Values are exact fractions, so that 0.1 + 0.2 is 0.3.

It does not search a solution for its number: it gets the words that state one, and returns None if they state none,
several or an expression.  It reads neither algebra nor numbers in words, such as "forty".
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

_WRAPPERS = re.compile(
    r"\\(?:boxed|text|textbf|mathrm|mathbf|mathit|mbox|operatorname|textit|emph|textsf|texttt|textrm|mathsf|underline)\s*\{([^{}]*)\}"
)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*([^{}]*?)\s*\}|(\d))\s*(?:\{\s*([^{}]*?)\s*\}|(\d))")
_MIXED = re.compile(r"(?<![\d./,])(-?)(\d{1,99})\s+(\d{1,99})/(\d{1,99})(?![\d./])")
_NOISE = re.compile(
    r"\\left|\\right|\\displaystyle|\\[()\[\]]|\\[,;!: ]|\*\*|__|[`$€£¥₹~]|\\\$|</?answer>"
    r"|(?<=°)\s(?=[CFK]\b)"
)
_GROUPED = re.compile(r"(?<![\d.,])(\d{1,3})((?:(?:,|\{,\}|[ \u00a0\u2009\u202f'’_])\d{3})+)(?![\d,'])")
_UNITS = "mm|cm|dm|km|m|in|ft|yd|mi|mg|kg|g|lbs?|oz|ml|[lLVNJWAKCFHT]|s|sec|min|h|hrs?|km/h|mph|m/s|°C|°F|°|[kM]|c|usd|eur"
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.\\])[-+]?\s?(?:\d+(?:\.\d+)?|\.\d+)"
    r"(?:[eE][-+]?\d+|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+))?"
    rf"(?:\s*/\s*\d+(?:\.\d+)?)?(?:\s?\\?%)?(?=(?:{_UNITS})?(?![A-Za-z0-9]))(?!\.\d)"
)
_UNIT_POWER = re.compile(
    r"(\d\s*(?:[A-Za-zµ°]{2,}|m))(?:\s*/\s*[A-Za-z]+)?(?:\s*\^\s*(?:\{\s*-?[123]\s*\}|-?[123])(?!\d))?(?![A-Za-z])"
)
_SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
# Units by each of their names, without the plural's s: only the same one is the same.
_SAME = (
    "mm millimeter millimetre", "cm centimeter centimetre", "dm decimeter decimetre", "m meter metre",
    "km kilometer kilometre", "in inch inche", "ft foot feet", "yd yard", "mi mile", "mg milligram", "g gram gramme",
    "kg kilogram kilo", "lb pound", "oz ounce", "ml milliliter millilitre", "l liter litre", "s sec second",
    "min minute", "h hr hour", "d day", "wk week", "mo month", "yr year", "c cent ¢", "$ dollar usd buck", "€ euro eur",
    "£ gbp quid", "¥ yen jpy yuan 元", "₹ rupee inr", "° degree deg", "°c celsius", "°f fahrenheit", "°k k kelvin", "km/h kph kmph", "mph", "m/s", "v volt", "n newton",
    "j joule", "w watt", "a amp ampere", "hz hertz", "kw kilowatt", "pa pascal", "t tonne ton", "rad radian",
)  # fmt: skip
_UNIT_OF = {name: names.split()[0] for names in _SAME for name in names.split()}
# Words after a number that make another number of it.
_CHANGES = re.compile(
    r"^\s*-?(?:factorial|squared|cubed|hal(?:f|ves)|thirds?|quarters?|fourths?|fifths?|sixths?|sevenths?|eighths?|ninths?|"
    r"tenths?|hundredths?|thousandths?|percent of|per ?cent of|% of|base|in base|mod(?:ulo)?|to the|point|and a|"
    r"(?:degrees? )?(?:below|above|short of)|more than|less than|fewer|out of|"
    r"times|plus|minus|less|divided|over|gross|radians? of|or|±|in (?:hex|binary|octal)\w*|hex\w*|\(?(?:base|mod|hex))\b",
    re.IGNORECASE,
)
_MINUS = re.compile(r"(\d\s*)?\b(?:negative|minus|menos|moins|минус)\s+(?=[$£€]?\d)", re.IGNORECASE)
_MONEY = re.compile(r"(?:\\\$|(?<!\$)\$(?![^$\n]*\$)|([€£¥₹]))\s?(?=-?[\d.])|(?<=\d)\s?([€£¥₹¢])")
# A decimal comma; before three digits a comma separates thousands.
_COMMA = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+)(?:\{,\}|,)(\d{1,2}|\d{4,9})(?![\d,]|\.\d)")
_OPERATOR = re.compile(
    r"[+*/^=_|{}()\[\]±!<>≠~]|(?<=[\d)])\s*-|\\(?:times|cdot|sqrt|frac|log|ln|sin|cos|tan|pi|pm|mp|[lg]eq?|neq?|[lg]t"
    r"|infty|in|cup|le?ft?floor|l?ceil)(?![a-z])|\d|\b(?:log|ln|sqrt|half|twice|double|triple|root|factorial|hex|0x)\b"
)


def plain(text: str) -> str:
    r"""The text without LaTeX and Markdown that does not change a number's value.

    >>> plain(r"$\boldsymbol{x}$ = **1{,}000**"), plain(r"\dfrac{84}{2}")
    ('\\boldsymbol{x} = 1000', '84/2')
    """
    text = re.sub(r"\s?\^\s*(?:\\circ|\{\s*\\circ\s*\})\s?", "°", text)
    text = _MINUS.sub(lambda m: f"{m[1]} - " if m[1] else "-", text)
    for _ in range(3):  # models nest text in text in a box, and no deeper
        text = _WRAPPERS.sub(r" \1 ", text)
    text = _GROUPED.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), text)
    text = re.sub(r"(?<=\d)\s+(?:equals|is equal to)\s+(?=[-\d])", " = ", text)
    text = _FRACTION.sub(lambda m: " " + _fraction(m[1] or m[2], m[3] or m[4]), text)
    text = _MIXED.sub(lambda m: f"{m[1]}{int(m[2]) * int(m[4]) + int(m[3])}/{m[4]}", text)
    return _NOISE.sub("", text).strip()


def _fraction(above: str, below: str) -> str:
    simple = all(re.fullmatch(r"-?\d+(?:\.\d+)?", part) for part in (above, below))
    return f"{above}/{below}" if simple and not below.startswith("-") else f"({above})/({below})"


def is_unit(word: str) -> bool:
    """Whether a word is the name of a known unit, or of a scale such as "thousand"."""
    return word.removesuffix("s") in _UNIT_OF or word in _UNIT_OF or word.removesuffix("s") in _SCALES


def changes_number(word: str) -> bool:
    """Whether a word after a number makes another number of it, such as "factorial" or "halves"."""
    return _CHANGES.match(word) is not None


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
    below = gold.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    return max(Fraction(tolerance), Fraction(0 if below == 1 else 1, 10**6)) * abs(gold)


def _same_unit(mine: str, gold: str) -> bool:
    """A missing unit matches any; "km" matches "kilometers", and "metres" matches "meters"."""
    if not mine or not gold:
        return True
    short, long = sorted((mine, gold), key=len)
    letters = iter(long)
    if mine in _UNIT_OF and gold in _UNIT_OF:
        return _UNIT_OF[mine] == _UNIT_OF[gold]
    abbreviates = len(short) <= 3 and short[0] == long[0] and all(letter in letters for letter in short)
    return abbreviates or short[:3] == long[:3]


def to_number(text: str, *, decimal_comma: bool = False) -> Number | None:
    r"""The one number that a span of text states, or None if it states none, several, or an expression.

    With ``decimal_comma`` 3,75 is 3.75, as in most of Europe; 3,750 stays a thousand times as much.
    Understands units, currencies, scale words, an unknown's name before "=" and true equations.

    >>> [str(to_number(s).value) for s in ("1,000", "4.2e1 apples", r"x = \frac{84}{4}", "39 + 3 = 42")]
    ['1000', '42', '21', '42']
    >>> [to_number(s) for s in ("41 or 42", "4^2", "41 = 42", "forty", "142 + 1")]
    [None, None, None, None, None]
    """
    text = text.rstrip(" .,;:。，；\n*")
    money = _MONEY.search(text)
    if decimal_comma or r"{,}" in text:
        text = _COMMA.sub(lambda m: m[1].replace(".", "") + "." + m[2], text)
    text = re.sub(r"(?<=\d)\s*(?:per ?cent|percentage points?)\b(?! of)", "%", plain(text)).rstrip(
        " .,;:。，；\n"
    )
    if re.search(r"\d{400}", text):  # a policy that repeats a digit; int() would raise
        return None
    if "=" in text:
        return _equation(text.split("="))
    if power := re.fullmatch(r"\s*(-?)10\s*\^\s*\{?\s*(-?\d{1,2})\s*\}?(?:\s+[A-Za-z]+)*\s*", text):
        return Number(Fraction(10) ** int(power[2]) * (-1 if power[1] else 1))
    text = _UNIT_POWER.sub(r"\1", text)
    found = list(_NUMBER.finditer(text))
    if len(found) != 1:
        return None
    match = found[0]
    before, after = text[: match.start()], text[match.end() :]
    if (
        before.rstrip(" (").endswith("-")
        or _OPERATOR.search(_bare_brackets(before))
        or _OPERATOR.search(_bare_brackets(after))
        or _CHANGES.match(after)
    ):
        return None
    number = _parse(match[0])
    word = re.match(r"\s*([^\W\d]+(?:/[a-z]+)?|°\s?[CFK]?)", after)
    unit = ""
    if number is not None and word is not None:
        unit = word[1].lower().removesuffix("s") if len(word[1]) > 1 else word[1]
        if unit in _SCALES or (unit in "kM" and not after[:1].isspace()):
            scale = _SCALES.get(unit) or {"k": 10**3, "M": 10**6}[unit]
            number, unit = Number(number.value * scale, number.percent), ""
        elif unit.isascii() and len(unit) == 1 and unit not in "mgshlcdtLVNJWACFKHT":
            return None  # an unknown times the number
        elif unit == "per" or (unit == "in" and after.strip().count(" ")):
            unit = ""
    if money is not None and unit not in _UNIT_OF:
        unit = money[1] or money[2] or "$"
    return number._replace(unit=unit) if number is not None else None


def _bare_brackets(text: str) -> str:
    """Brackets around the number alone, as in "(42)", are not operators."""
    return text.strip().strip("()[]{}")


def _parse(text: str) -> Number | None:
    text = re.sub(r"\s+|\\(?=%)", "", text)
    percent = text.endswith("%")
    match = re.fullmatch(
        r"([-+]?(?:\d+(?:\.\d+)?|\.\d+))(?:[eE]([-+]?\d+)|(?:\\times|\\cdot|\*)10\^\{?([-+]?\d+)\}?)?(?:/(\d+(?:\.\d+)?))?",
        text.rstrip("%"),
    )
    if match is None:
        return None
    power = int(match[2] or match[3] or 0)
    below = Fraction(match[4] or 1)
    if abs(power) > 400 or below == 0:
        return None
    return Number(Fraction(match[1]) * Fraction(10) ** power / below, percent)


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
    expression = re.sub(rf"(?<=\d)\s?(?:{_UNITS})(?![A-Za-z0-9])", "", expression)
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
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        for kind, result in _OPERATIONS:
            if isinstance(node.op, kind):
                return result(left, right)
    raise ValueError("not arithmetic")


_OPERATIONS: tuple[tuple[type[ast.operator], Callable[[Fraction, Fraction], Fraction]], ...] = (
    (ast.Add, lambda a, b: a + b),
    (ast.Sub, lambda a, b: a - b),
    (ast.Mult, lambda a, b: a * b),
    (ast.Div, lambda a, b: a / b),
    (ast.Pow, lambda a, b: _power(a, b)),
)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > 99 or abs(base) > 10**6:
        raise ValueError("too large to be worked out for a reward")
    return base ** int(exponent)


# Words that may stand between a verb and its number; any other may change the value.
_LEAD = (
    r"(?:[\s*_$\"'“‘(€£]|\\\$|\\\(|\b(?:exactly|just|simply|only|indeed|clearly|therefore|thus|so|then|now|equal to|equals?|to be|the|"
    r"an?|number|value|integer|total|sum|there|about|altogether|in all|always|also|around|of (?=exactly)|a total of|"
    r"approximately|roughly|still|left with|(?:area|length|width|height|price|cost|speed|average|mean|probability|perimeter|"
    r"volume|distance|age|weight|mass|temperature|chance|value) of)\b)*"
)
_VERB = re.compile(
    r"\b(?:leaves? \w+ with|is|are|was|were|be|equals?|gives?|gave|giving|makes?|made|making|yields?|gets?|got|has|have|had|costs?|takes?|needs?|"
    r"leaves?|leaving|remains?|becomes?|totals?|comes to|amounts? to|results? in|earns?|pays?|adds? up to|sums? to|reach(?:es)?|"
    r"obtain|find|a total of|(?:lands?|arrives?|ends?(?: up)?) (?:at|with|on|in)|left with|turn(?:s|ed)|fills?|lasts?|to|es|est|ist|sind|beträgt|sont|son|vale)\b|['’]s\b|[=:≈是为有共得到はだ等]|就是|равн\w+|это",
    re.IGNORECASE,
)
_SUBJECT = re.compile(
    r"^(?:\W|\b(?:so|therefore|thus|hence|and|then|finally|the (?:value|number)|there (?:are|were|is))\b)*"
    r"(?P<value>-?\s?[$€£]?\d[\d.,/]*(?:\s[^\W\d]+){0,3}?)\s+(?:is|are|was|were|did(?:n['’]t| not)|have|will)\s+"
    r"(?!(?:not|never|wrong|incorrect|false|less|more|smaller|larger|greater|bigger|close|near|almost|too)\b)[^\d]*$",
    re.IGNORECASE,
)
# Words before a number that make it a part of something else: "the square of 42", "page 42", "more than 42".
_GOVERNS = re.compile(
    r"\b(?:of|than|from|by|page|step|under|over|above|below|not|between|near|nearly|almost|until|before|after|since|"
    r"in|on|for|with|per|chapter|section|question|problem|room|case|line|to|and|or|if|beyond|within|plus|minus|times|against|under|up|least|"
    r"most|log|root|half|twice|double|triple|e\.g|example|außer|unter|über|à|que|de|von)[\s.:*$€£(]*(?:(?:the|an?)\s+)?$",
    re.IGNORECASE,
)
_CLAUSES = re.compile(
    r"[;:]\s|,\s(?!\d{3}\b)|\s[—–]\s|\s-\s(?=[a-z])|\b(?:so|which|then|thus|hence|therefore|while)\b|[，；：]"
)


def number_in(sentence: str) -> Number | None:
    """The number that a sentence states: the object or the subject of a verb, in the last clause that has a number.

    >>> [str(number_in(s).value) for s in ("Adding 17 and 25 gives 42.", "42 is the sum of both.", "As 6 > 5, it is **42**.")]
    ['42', '42', '42']
    >>> number_in("From 17 to 25 there are less than 42.") or number_in("It is the square of 42.")
    """
    return _number_of(clause_in(sentence))


def clause_in(sentence: str) -> str:
    """The last clause of a sentence that states a number; the sentence itself if none does, "" for a list of numbers.

    >>> clause_in("It isn't 41, so it has to be 42.")
    'it has to be 42.'
    """
    clauses = [
        clause.strip() for clause in _CLAUSES.split(_without_asides(sentence)) if re.search(r"\d", clause)
    ]
    listed = [clause for clause in clauses if not re.search(r"[^\W\d]{3}", clause)]
    for i, clause in reversed(list(enumerate(clauses))):
        if _number_of(clause) is not None or to_number(clause, decimal_comma=True) is not None:
            others = listed if clause in listed else [c for c in clauses[i + 1 :] if c in listed]
            return "" if any(other != clause for other in others) else clause
    return sentence


def _number_of(clause: str) -> Number | None:
    verbs = list(_VERB.finditer(clause))
    for start in [*(verb.end() for verb in reversed(verbs)), 0]:
        tail = clause[start:]
        lead = re.match(_LEAD, tail, re.IGNORECASE)
        rest = tail[lead.end() :] if lead else tail
        if re.match(r"[-+−]?\s?(?:[$€£\\(]*\.?\d|\\[dt]?frac)", rest) and (
            number := to_number(_signed(tail, rest), decimal_comma=True)
        ):
            return number
    if (subject := _SUBJECT.match(clause)) and (number := to_number(subject["value"], decimal_comma=True)):
        return number
    number = to_number(clause, decimal_comma=True)
    if number is not None and "=" in clause:
        return number
    first = re.search(r"[-+]?\s?[$€£]?\d", clause)
    if number is None or first is None or _GOVERNS.search(clause[: first.start()]):
        return None
    return number


def _signed(tail: str, rest: str) -> str:
    """The number with the currency that stood before it."""
    money = re.search(r"(\\?[$€£])[\s*(]*$", tail[: len(tail) - len(rest)])
    return (money[1] if (money and tail.count("$") == 1) or (money and money[1] != "$") else "") + rest


def _without_asides(sentence: str) -> str:
    """A sentence without what only explains its number: brackets, or "between 10 and 20" after it."""
    sentence = _MINUS.sub(lambda m: f"{m[1]} - " if m[1] else "-", sentence)
    sentence = re.sub(r"\bnot [^.;:]{1,40}?\bbut (?:rather )?", "", sentence)
    sentence = re.sub(r"(?<= is )(\d+) (?:in|out of) (\d+)(?=\W*$)", r"\1/\2", sentence)
    sentence = re.sub(r"(?<![\d.])(\d+(?:\.\d+)?(?: degrees?| °C| °F)?) below zero", r"-\1", sentence)
    sentence = re.sub(
        r"(?<=\d )((?:[^\W\d]+ ){0,4}?)(?:between|from|among) \d+(?:\.\d+)?(?: (?:and|to) \d+(?:\.\d+)?)?(?=\W*$)",
        r"\1",
        sentence,
    )
    return re.sub(r"\s\((?![^()]*\bor\b)[^()]*[^()\d][^()]*\)(?=\W*$)", "", sentence)
