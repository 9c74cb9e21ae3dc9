"""Read the one number that an answer states: digits, LaTeX, fractions, percentages, money, units, a true equation.

Values are exact fractions, so that 0.1 + 0.2 is 0.3.  A text with no number, several numbers or an expression has no
value.  Algebra and numbers in words, such as "forty", are not read.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

LONGEST = 400  # most characters of a text that states a number
LARGEST_POWER = 400  # of ten, in a number in scientific notation

_HIDDEN = re.compile(
    r"<!--.{0,500}?-->|~~(?=\S).{1,500}?~~|<(s|del|strike)\s?>.{0,500}?</\1\s?>|<\|[a-z_]+\|>|</s>\s*\Z"
    r"|</?(?:b|strong|i|em|u|mark|code|p|br|div|span|center)\s?/?>|\\!|[\u00ad\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff]",
    re.DOTALL,
)
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SPELLINGS = str.maketrans(
    {chr(0xFF01 + n): chr(0x21 + n) for n in range(94)}
    | dict.fromkeys("−‐‑‒–﹣", "-")
    | dict(zip("÷⁄∕٪٫٬", "///%.,", strict=True))
    | {"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "≤": r"\le ", "≥": r"\ge "}
    | {"π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∅": r"\emptyset "}
)


def readable(text: str) -> str:
    """Return the text as a reader sees it, in ASCII digits and signs, without hidden or struck-out parts.

    A superscript becomes a power; a text with a bidirectional override, whose digits are shown in another order than
    they are stored, becomes empty.

    >>> readable("４２ <!-- 7 -->"), readable("4²"), readable("٤٢"), readable("~~41~~ 42"), readable("1½")
    ('42 ', '4^{2}', '42', ' 42', '1 1/2')
    """
    if _BIDI.search(text):
        return ""
    text = unicodedata.normalize("NFC", _HIDDEN.sub("", text))
    text = re.sub("[¼½¾⅐-⅞]", lambda m: " " + unicodedata.normalize("NFKC", m[0]), text)
    text = re.sub(r"√\s?(\d+|[A-Za-z]|\([^()]{0,80}\))", r"\\sqrt{\1}", text)
    text = re.sub("[⁰¹²³⁴-⁹⁻]+", lambda m: "^{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = re.sub("[₀-₉]+", lambda m: "_{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    return "".join(str(int(c)) if c.isdecimal() else c for c in text.translate(_SPELLINGS))


_WRAPPER = re.compile(
    r"\\(?:boxed|fbox|text(?:bf|it|rm|sf|tt)?|math(?:bf|it|rm|sf)|mbox|operatorname|emph|underline|(?:text)?color\s*\{\w*\})\s*\{([^{}]*)\}"
)
_SPACE = re.compile(r"\\[,;: ]|\\q?quad(?![a-z])|~")
_MARKUP = re.compile(r"\\left|\\right|\\(?:display|text)style|\\bf(?![a-z])|\\[()\[\]]|\*\*|__|`")
# Notation without effect: a repeating decimal of zeros, and base ten.
_REDUNDANT = re.compile(r"(?<=[.\d])\\(?:overline|bar|dot)\s*\{0+\}|(?<=\d)_\s*(?:\{10\}|10\b)")
_ROMAN = r"\\(?:text|mathrm)\s*\{\s*([A-Za-zµ]+)\s*\}(\s*\^\s*\{?-?[1-3]\}?)?"
# A unit's quotient and product, its powers within \mathrm, its signs; and a fraction with \over.
_UNITS = (
    (re.compile(rf"\\[dt]?frac\s*\{{\s*{_ROMAN}\s*\}}\s*\{{\s*{_ROMAN}\s*\}}"), r" \\text{\1\2/\3}\4"),
    (re.compile(r"(?<=\})\s*\\cdot\s*(?=\\(?:text|mathrm)\s*\{\s*[A-Za-z])"), " "),
    (re.compile(r"(?<=[A-Za-z])\^\{(-?[1-3])\}"), r"^\1"),
    (re.compile(r"\\mu\s*(?=\\(?:text|mathrm)\b)"), "µ"),
    (re.compile(r"\\Omega\b"), "Ω"),
    (re.compile(r"\{\s*([^{}]+?)\s*\\over(?![a-z])\s*([^{}]+?)\s*\}"), r"\\frac{\1}{\2}"),
)
_FRACTION = re.compile(r"\\[dtcs]?frac\s*(?:\{\s*([^{}]*?)\s*\}|(\d))\s*(?:\{\s*([^{}]*?)\s*\}|(\d))")


def plain(text: str) -> str:
    r"""Return the text without the LaTeX and Markdown that do not change a value.

    >>> plain(r"\dfrac{84}{2}"), plain(r"**$x$ = 1{,}000**"), plain(r"90^\circ")
    ('84/2', '$x$ = 1,000', '90°')
    """
    text = re.sub(r"\s?\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![a-z])", "°", text).replace("{,}", ",")
    text = _REDUNDANT.sub("", text)
    for unit, usual in _UNITS:
        text = unit.sub(usual, text)
    for _ in range(3):  # models nest at most text in text in a box
        text = _WRAPPER.sub(r" \1 ", _SPACE.sub(" ", text))
    text = _FRACTION.sub(lambda m: f" {_over(m[1] or m[2])}/{_over(m[3] or m[4])}", text)
    return _MARKUP.sub("", text).strip()


def _over(part: str) -> str:
    return part if re.fullmatch(r"-?\d+(?:\.\d+)?", part) else f"({part})"


class Number(NamedTuple):
    """A number as written: its exact value, whether a percent sign follows, and its unit."""

    value: Fraction
    percent: bool = False
    unit: str = ""

    def same(self, gold: Number, tolerance: float = 0.0) -> bool:
        """Whether it equals the gold answer: 50% is both 50 and one half; units must match if both have one."""
        if self.percent != gold.percent and (gold.unit if self.percent else self.unit):
            return False  # 25 % is not 25 dollars
        mine, golds = {self.value}, {gold.value}
        if gold.percent and not self.percent:
            golds = {gold.value, gold.value / 100}
        elif self.percent and not gold.percent:
            mine = {self.value / 100} if abs(gold.value) < 1 else {self.value, self.value / 100}
        close = any(abs(a - b) <= _slack(b, tolerance) for a in mine for b in golds)
        return close and _same_unit(self.unit, gold.unit)


def _slack(gold: Fraction, tolerance: float) -> Fraction:
    # 1/3 has no exact decimal, so six digits of it suffice; a denominator of twos and fives has one.
    exact = pow(10, LARGEST_POWER, gold.denominator) == 0
    return max(Fraction(tolerance), Fraction(0 if exact else 1, 10**6)) * abs(gold)


# Abbreviations whose letters also stand in order in other words: m in miles, km in kilograms per minute.
_FIRST_LETTERS = {"m": "m(?:[eè]t|in)", "cm": "centi", "km": "kil[oó]m", "mm": "milli", "g": "gram", "kg": "kilog"}


def _same_unit(mine: str, gold: str) -> bool:
    # A missing unit matches any; an abbreviation matches its word: "kilometer" has the letters of "km" in order.
    short, long = sorted((mine, gold), key=len)
    if not short or short == long:
        return True
    start = _FIRST_LETTERS.get(short.rstrip("123"), "")
    in_order = re.match(".*".join(map(re.escape, short)), long)
    return len(long) > 3 and bool(in_order and re.match(start, long))


_SCALES = {
    "dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
    "k": 10**3, "M": 10**6, "mn": 10**6, "bn": 10**9, "lakh": 10**5, "crore": 10**7,
    "millionen": 10**6, "millones": 10**6, "milliarden": 10**9, "тыс": 10**3, "млн": 10**6, "млрд": 10**9,
    "千": 10**3, "万": 10**4, "萬": 10**4, "만": 10**4, "亿": 10**8, "億": 10**8, "억": 10**8,
}  # fmt: skip
_KILO = re.compile("千[米克瓦卡赫伏]")
_MONEY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "₹": "rupee", "¢": "cent"}
_IN_FULL = {"usd": "dollar", "eur": "euro", "mph": "milehour", "kph": "kilometerhour"}
_MULTIPLES = (7, 10, 12, 24, 60, 100, 1000, 1440, 3600)
_LETTERS = "mgshlcdtLVNJWACFKHTM"  # units of one letter; any other letter is an unknown

_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[, \u00a0\u2009\u202f'’_]\d{3})+(?![\d,'])")
# A decimal comma; before three digits a comma separates thousands.
_COMMA = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+),(\d{1,2}|\d{4,9})(?![\d,]|\.\d)")
_MIXED = re.compile(r"(?<![\d./,])(\d{1,99})\s+(\d{1,99})/(\d{1,99})(?![\d./])")
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.\\])(?P<sign>[-+]\s?)?(?P<digits>\d+(?:\.\d+)?|\.\d+)"
    r"(?:[eE](?P<e>[-+]?\d+)|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*(?P<braced>[-+]?\d+)\s*\}|(?P<power>[-+]?\d+)))?"
    r"(?:\s*/\s*(?P<below>-?\d+(?:\.\d+)?))?(?P<percent>\s*\\?%|\s*per ?cent\b)?"
)
_WORDS = (
    r"(?:minus|negative|hundred|thousand|million|billion|and|one|two|three|four|five|six|seven|eight|nine|ten|eleven"
    r"|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)\b"
)
# Directly before a number, these words change it or deny it: "more than 42", "half of 42".
_BEFORE = re.compile(
    r"\b(?:not|no|never|but|except|than|least|most|over|under|above|below|between|either|or|twice|double|triple|half|almost"
    r"|nearly|root|sqrt|ln|log|sin|cos|tan|squared?|minus|moins|menos|минус|plus|times|up to|if|step|part|problem"
    r"|question|(?:third|quarter|fourth|(?:fif|six|seven|eigh|nin|ten|hundred|thousand)th)s? of)"
    r"\s*(?:of\s*)?(?:the\s*|an?\s*|\W)*$|n['’]t\s*$",
    re.IGNORECASE,
)
# The same after a number.
_AFTER = re.compile(
    r"\band (?:half|(?:an?|one|two|three) (?:half|thirds?|quarters?|fourths?|fifths?))\b|\b(?:below|under) zero\b"
    rf"|^(?:\s+[^\W\d_]+)?\s+(?:(?:minus|plus|times|(?:divided|multiplied) by) {_WORDS}|(?:doubled|tripled|halved)\b)"
    r"|^[\s-]+(?:four|fif|six|seven|eigh|nin|hundred|thousand)ths\b"
    # Compared or denied; "3. Add the numbers" is a heading.
    r"|\b(?:or|nor|not|wrong|incorrect|false|less|least|most|negative)\b|^\s?[.)]\s+[^\W\d_]{2}",
    re.IGNORECASE,
)
# Text before the number that is a number in words, which may contradict it.
_IN_WORDS = re.compile(rf"(?:\W*{_WORDS})+\W*", re.IGNORECASE)
_WORD_AFTER = re.compile(
    r"\s*\(\s*(?!(?:not?|wrong|incorrect|false)\b)([^\W\d_]{2,}|[^\W\d_]+\s*/\s*[^\W\d_]+)\s*\)$", re.IGNORECASE
)
_CHANGED = "squared|cubed|factorial|halves|thirds|tenths|pi"  # after a number, which is then another one
_OPERATOR = re.compile(
    r"[+*/^_=|{}()\[\]±!<>≠~\d:?]|\\(?![$%])[A-Za-z]*|[;&‰]|-\s*[A-Za-z](?![\w-])" rf"|\b(?:or|{_CHANGED})\b"
)
_UNIT = re.compile(
    rf"\s*(?:(?P<degree>°\s?[CFK]?)|(?!(?:is|are|was|were|has|have|had|will|{_CHANGED})\b)"
    r"(?P<unit>[^\W\d_]+)(?P<rest>(?:\s*/\s*|\s+per\s+|\s+)(?:[^\W\d_]+)(?:(?:\s+per)?\s+[^\W\d_]+)?)?"
    r"(?:\s*\^\s*\{?\s*(?P<power>-?[1-3])\s*\}?)?)"
)


def to_number(text: str, *, decimal_comma: bool = False, alone: bool = False) -> Number | None:
    r"""Return the one number that a text states, or None if it states none, several, a bound or an expression.

    With ``decimal_comma``, 3,75 is 3.75, as in most of Europe, but 3,750 stays 3750.  With ``alone``, the text must be
    the number, with no words but a unit after it.

    >>> [str(to_number(s).value) for s in ("1,000", "4.2e1 apples", r"x = \frac{84}{4}", "39 + 3 = 42", "- 5")]
    ['1000', '42', '21', '42', '-5']
    >>> [to_number(s) for s in ("41 or 42", "4^2", "41 = 42", "forty", "at least 42")]
    [None, None, None, None, None]
    """
    if len(text) > LONGEST:
        return None
    text = plain(text).rstrip(" \n*.,;。，।").lstrip(" \n*,;")
    text = re.sub(r"(?i)^(?:(?:negative|minus|moins|menos|минус)\s+|[负負]\s?|マイナス)(?=\$?\d)", "-", text)
    text = re.sub(r"^\\approx\b|\bUS(?=\s?\\?\$)", "", _WORD_AFTER.sub(r" \1", text)).lstrip()
    if decimal_comma:
        text = _COMMA.sub(lambda m: m[1].replace(".", "") + "." + m[2], text)
    text = _GROUPED.sub(lambda m: re.sub(r"\D", "", m[0]), text)
    text = _MIXED.sub(lambda m: f"{int(m[1]) * int(m[3]) + int(m[2])}/{m[3]}", text)
    signs = re.findall(r"[€£¥₹¢]", text) or ["$"] * (r"\$" in text or text.count("$") == 1)
    text = re.sub(r"^\{([^{}]*)\}$", r"\1", text)
    *sides, text = re.sub(r"\\?[$€£¥₹¢]", "", text).split("=")
    unit = _MONEY[signs[0]] if signs else ""
    found = _single(text.strip(" *"), alone, unit)
    if found is None and len(sides) == 1 and _sum(text) is not None:  # 72 = 48 + 24
        sides, found = [text], _single(sides[0].strip(" *"), alone, unit)
    false = found is not None and any(_sum(side) not in (None, found.value) for side in sides)
    return None if false else found


def conversion(text: str) -> list[Number]:
    """Return both sides of 60 minutes = 1 hour or the like, if one unit is a usual multiple of the other."""
    sides = [to_number(side, decimal_comma=True) for side in plain(text).split("=")]
    found = [side for side in sides if side is not None and side.unit and side.value > 0]
    if len(sides) != 2 or len(found) != 2 or _same_unit(found[0].unit, found[1].unit):
        return []
    return found if max(a.value / b.value for a in found for b in found) in _MULTIPLES else []


def _single(text: str, alone: bool, currency: str) -> Number | None:
    text = re.sub(r"^(-?)10\s*\^\s*\{?\s*(-?\d{1,2})\s*\}?(?=\s+[A-Za-z]|$)", r"\g<1>1e\2", text.strip())
    # A unit's power is not a second number, and brackets around a lone number are not an operator.
    without_powers = re.sub(r"(?<=[A-Za-zµ])\s*\^\s*\{?\s*-?[1-3]\s*\}?", lambda m: " " * len(m[0]), text)
    found = list(_NUMBER.finditer(without_powers))
    if len(found) != 1:
        return None
    match = found[0]
    before, after = text[: match.start()].rstrip(": "), text[match.end() :]
    if bracketed := before.endswith("(") and after.lstrip().startswith(")"):
        before, after = before[:-1], after.lstrip()[1:]
        if re.search(r"(?<![A-Za-z])[A-Za-z]\Z", before):
            return None  # f(2)
    unit = _UNIT.match(after)
    rest = after[unit.end() :] if unit else after
    value = _value(match)
    stated = not (_BEFORE.search(before) or _AFTER.search(after) or before.endswith("-"))
    in_words = _IN_WORDS.fullmatch(before) and not bracketed
    expression = any(_OPERATOR.search(side) for side in (before, rest))
    beside = alone and re.search(r"\w", re.sub("^[Aa]nswer$", "", before) + rest)
    if value is None or not stated or in_words or expression or beside:
        return None
    return _with_unit(value, match["percent"] is not None, unit, currency)


def _value(match: re.Match[str]) -> Fraction | None:
    power, below = int(match["e"] or match["braced"] or match["power"] or 0), Fraction(match["below"] or 1)
    if abs(power) > LARGEST_POWER or below == 0:
        return None
    sign = -1 if (match["sign"] or "").startswith("-") else 1
    return sign * Fraction(match["digits"]) * Fraction(10) ** power / below


def _with_unit(value: Fraction, percent: bool, unit: re.Match[str] | None, currency: str) -> Number | None:
    if unit is None or percent:
        return Number(value, percent, currency)
    if unit["degree"]:
        return Number(value, unit="degree" + unit["degree"][1:].strip().lower())
    word, rest = unit["unit"], unit["rest"] or ""
    low, sign = word.lower(), "" if word[0].isascii() or _KILO.match(word) else word[0]  # 42万元 has the scale 万
    kelvin_or_molar = word in ("K", "M") and unit[0][0].isspace() and not (currency or rest)
    for name in () if kelvin_or_molar else (word, low, low.removesuffix("s"), sign):
        if name in _SCALES:
            return None if _IN_WORDS.fullmatch(rest) else Number(value * _SCALES[name], unit=currency)
    if word.isascii() and len(word) == 1 and word not in _LETTERS:
        return None  # an unknown, as in 3 x
    return Number(value, unit=currency or _unit_name(word, rest, unit["power"] or ""))


def _unit_name(word: str, rest: str, power: str) -> str:
    # "square meters" and "m^2" share their letters and their power.
    words = [_IN_FULL.get(one, one) for one in re.findall(r"[^\W\d_]+", f"{word}{rest}".lower())]
    dimension = {"square": "2", "sq": "2", "cubic": "3"}.get(words[0], "")
    if dimension and len(words) > 1:
        words, power = words[1:], dimension
    kept = words if words[1:2] == ["per"] or "/" in rest else words[:1]
    return "".join(one.removesuffix("s") for one in kept if one != "per") + power


def _sum(side: str) -> Fraction | None:
    side = re.sub(r"\\(?:times|cdot)|(?<=\d)\s*[xX]\s*(?=\d)", "*", side).strip()
    if len(side) > 200 or "**" in side or not re.fullmatch(r"[\d.+\-*/()\s]*\d[\d.+\-*/()\s]*", side):
        return None
    try:
        # Safe: the text has only digits, brackets and four operators.
        found = eval(re.sub(r"\d+\.?\d*|\.\d+", r"F('\g<0>')", side), {"__builtins__": {}, "F": Fraction})
    except (SyntaxError, TypeError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None
    return Fraction(found)
