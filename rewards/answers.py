r"""Rewards for right answers: numbers, mathematics, choices, exact words, or a comparison of your own.

For everybody whose dataset has a gold answer.  A parser finds what the completion asserts after its
thought; a comparison then asks whether that is the gold answer.  What asserts nothing, or two things, or
the opposite, is paid nothing: a list of all numbers, two boxes that differ, "not 42".

Symbolic mathematics is math-verify's; this module only decides what is handed to it.  It neither runs code
nor asks a judge: that is ``rewards.judge``.
"""

from __future__ import annotations

import ast
import functools
import logging
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from rewards.compose import Reward, Scores
from rewards.errors import RewardValueError, three_parts
from rewards.text import completion_text
from rewards.thinking import QWEN3, ThinkTokens, decoded_split, split_text, split_thinking

# ------------------------------------------------------------------------- what the text asserts


class Assertion(NamedTuple):
    """A place where a text commits to an answer.

    Attributes:
        value: what it commits to, as written.
        around: the rest of its clause, where a negation or a bound would stand.
        kind: "box", "label" or "bare".
    """

    value: str
    around: str
    kind: str


_INVISIBLE = re.compile(
    r"<!--.{0,500}?-->|</?(?:b|strong|i|em|code|p|br|div|span)\s?/?>|\\(?:h|v)?phantom\{[^{}]{0,200}\}|[\u200b-\u200d\u2060\ufeff]|<\|[a-z_]+\|>",
    re.S,
)
_FENCED = re.compile(r"```.*?```", re.S)
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "－": "-", "×": r"\times ", "·": r"\cdot ", "÷": "/", "⁄": "/", "％": "%", "＝": "="}
)
_SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_SUPER = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")


def readable(text: str) -> str:
    """The text a reader sees, in ASCII digits and signs; without comments, phantoms and code beside prose.

    A superscript becomes a power, because NFKC would make 42 of a 4 squared.  A bidirectional override
    shows digits in another order than they are stored, so nothing of such a text is taken for an answer.

    >>> readable("４２ <!-- 7 -->"), readable("4²"), readable("٤٢")
    ('42 ', '4^{2}', '42')
    """
    if _BIDI.search(text):
        return ""
    text = _INVISIBLE.sub("", text).translate(_SIGNS)
    outside = _FENCED.sub("\n", text)
    text = outside if outside.strip() else text
    text = _SUPERSCRIPTS.sub(lambda m: "^{" + m[0].translate(_SUPER) + "}", text)
    return "".join(str(int(c)) if c.isdecimal() else c for c in text)


_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_NOUNS = (
    "answer|result|solution|respuesta|resultado|resposta|antwort|ergebnis|lösung|réponse|reponse|résultat|"
    "risposta|risultato|antwoord|ответ|результат|відповідь|odpowiedź|cevap|答案|结果|答え|答|정답|답|"
    "उत्तर|الجواب|الإجابة|جواب"
)
# Every repeat is bounded: a completion may be a hundred thousand line feeds.
_LABEL = re.compile(
    rf"(?:\b(?:{_NOUNS})|答案|结果|答え|정답|답)\s{{0,9}}(?:\([^)]{{0,40}}\))?\W{{0,4}}?"
    r"(?:\b(?:is|are|was|equals|equal to|must be|will be|should be|es|ist|est|é|è|lautet|to|jest|dır|هو|هي)\b"
    r"|[:：=]|是|为|為|は|은|는|\*\*?[:：]|[:：]\*\*?)\s{0,9}[:：]?"
    rf"|(?:^|\n)[#*_ ]{{0,9}}(?:final\s{{1,9}})?(?:{_NOUNS})[*_ ]{{0,9}}(?=\n)"
    r"|उत्तर\s{1,9}|^[ \t]{0,9}####|<answer>",
    re.IGNORECASE | re.MULTILINE,
)
# Characters read beside an assertion, and most assertions read: whoever makes more commits to none.
_SPAN, _MOST, _BARE = 400, 20, 4000
# A full stop between digits is a decimal point; one after white space or a lone digit numbers a list.
_SENTENCE = re.compile(
    r"(?<=[.!?。！？।؟])(?=\s|$|[^\s\d.,)\]}*$`\"'”’<])|(?<=[.!?。！？।؟][*)\"'”’$])(?=\s|$)|\n+"
)
_REASON = re.compile(
    r"[,;]?\s*\b(?:because|since|given that|which|where|so that)\b.*|</answer>.*|\s—\s.*"
    r"|\s*(?:です|である|है|हैं|입니다|이다)(?=\W*$)",  # the copula, where a language puts it last
    re.S,
)
_CONCLUDES = re.compile(
    r"^\W*(?:so|therefore|thus|hence|altogether|in total|in all|overall|finally)\b", re.IGNORECASE
)


def boxes(text: str) -> list[tuple[int, int, str]] | None:
    r"""Every outermost ``\boxed{...}`` as (start, end, content), braces balanced; None if one is never closed.

    >>> boxes(r"so \boxed{\frac{1}{2}}")
    [(3, 22, '\\frac{1}{2}')]
    """
    found: list[tuple[int, int, str]] = []
    match = _BOX.search(text)
    while match:
        end = _closing_brace(text, match.end())
        if end is None:
            return None
        found.append((match.start(), end + 1, text[match.end() : end]))
        match = _BOX.search(text, end + 1)
    return found


def _closing_brace(text: str, start: int) -> int | None:
    depth = 1
    for position in range(start, len(text)):
        character = text[position]
        if character in "{}" and text[position - 1] != "\\":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return position
    return None


def assertions(text: str) -> list[Assertion]:
    """Every place where a text commits to an answer; empty where it commits to none.

    Boxes and labels ("the answer is", "####", <answer>, and their like in some other languages) are
    gathered together, so that they can be found to contradict each other.  A text without any is bare: its
    last sentence, if that draws a conclusion, and else the whole.
    """
    text = readable(text)
    found = boxes(text)
    if found is None:
        return []
    asserted = [
        Assertion(value, _clause_before(text, start) + " … " + _clause_after(text[end : end + _SPAN]), "box")
        for start, end, value in found
    ]
    asserted = list(dict.fromkeys([*asserted, *_labelled(text)]))
    if asserted or not text.strip() or len(text) > _BARE:
        return asserted if len(asserted) <= _MOST else []
    sentences = [sentence for sentence in _sentences(text) if sentence.strip()]
    last = sentences[-1]
    if _CONCLUDES.match(last) or len(sentences) == 1:
        return [Assertion(_REASON.sub("", last), "", "bare")]
    return [Assertion(text.strip(), "", "bare")]


def _sentences(text: str) -> list[str]:
    return [part for part in _SENTENCE.split(text) if part]


def _labelled(text: str) -> Iterator[Assertion]:
    for match in _LABEL.finditer(text):
        ahead = text[match.end() : match.end() + _SPAN]
        following = [part for part in _sentences(ahead) if part.strip(" \n*:.$\\[(")]
        span = following[0] if following else ""
        if _BOX.search(span):  # the box is an assertion of its own
            continue
        head = _REASON.sub("", span).lstrip("*_ ")
        if head.strip():
            after = following[1] if len(following) > 1 else ""
            yield Assertion(head, _clause_before(text, match.start()) + " … " + _retraction(after), "label")


def _clause_before(text: str, position: int) -> str:
    return re.split(r"[.,;:!?。，；：！？\n]", text[max(0, position - _SPAN) : position])[-1]


# What stands for a second value right behind a box: "or 43", or a second pair of braces.
_ALTERNATIVE = "<alternative>"
_SECOND = re.compile(r"^[\s$]*(?:\{|(?:\\text\s*\{)?\s*(?:or|oder|ou|или|或)\b)", re.IGNORECASE)


def _clause_after(text: str) -> str:
    if _SECOND.match(text):
        return _ALTERNATIVE
    sentence = re.match(r"[^.,;:\n]*[.,;:\n]?\s*[^.\n]*", text)
    return _retraction(sentence[0]) if sentence else ""


def _retraction(text: str) -> str:
    """The words after an answer, if they take it back; else nothing."""
    begins = re.match(
        r"\W*(?:no|wait|hmm|actually|sorry|but|that|this|it|they|he|she|just|which|is|was|would|cannot|can't|"
        r"isn't|wasn't|correction)\b",
        text,
        re.IGNORECASE,
    )
    takes_back = r"\b(?:wrong|incorrect|mistaken|false|not|isn't|wasn't|kidding|joking|correction)\b"
    return text if begins and re.search(takes_back, text, re.IGNORECASE) else ""


# A clause with one of these does not commit to the value in it: it denies, bounds, offers or asks.
_DENIES = re.compile(
    r"\b(?:not|cannot|never|no|none|neither|nor|without|except|unless|wrong|incorrect|false|untrue|unlike|"
    r"hardly|barely|scarcely|refuse\w*|doubt\w*|claim\w*|pretend\w*|mistaken|joke|kidding|ain['’]t|"
    r"other than|rather than|instead of|far from|(?:any\w*|every\w*|all) but|nicht|kein\w*|pas|não|nao|non|не|"
    r"нет|niet|geen|ikke|inte|nie|nem|değil|bukan|tidak|không|ليس|ليست|لا)\b|n['’]t\b|नहीं|不|没|沒|非|无|無|ない|"
    r"ません|아니|않|\\n(?:e|eq|ot)\b|≠|\\neg\b|¬",
    re.IGNORECASE,
)
# These deny nothing.
_IDIOMS = re.compile(
    r"\bnot (?:hard|difficult|only|surpris\w+)\b|\bno (?:doubt|problem|need|worries)\b|\bwithout (?:a )?doubt\b",
    re.IGNORECASE,
)
_BOUNDS = re.compile(
    r"(?<!\\)\b(?:at least|at most|more than|less than|fewer than|greater than|larger than|smaller than|up to|over|"
    r"under|above|below|between|either|or|oder|ou|или|if|all of|none of|any of|twice|double|triple|half of|"
    r"squared|cubed|near|plus|times|score|reward|grade|verdict)\b"
    r"|或|または|[<>≤≥±∈∞]|\\(?:leq?|geq?|lt|gt|pm|mp|in|infty|sim|text\{\s*or\s*\})(?![a-z])|\?|？|؟",
    re.IGNORECASE,
)


def commits(assertion: Assertion, gold: str = "") -> bool:
    """Whether the assertion's clause asserts its value rather than denying, bounding or asking it.

    A gold answer that is itself a bound or a pair of values allows the same of its assertion.
    """
    if any(sign.search(assertion.value) and not sign.search(gold) for sign in (_DENIES, _BOUNDS)):
        return False
    around = _IDIOMS.sub("", assertion.around).rstrip()
    return not (_DENIES.search(around) or around.endswith(("?", _ALTERNATIVE)))


# ----------------------------------------------------------------------------------- numbers

_WRAPPERS = re.compile(r"\\(?:boxed|text|textbf|mathrm|mathbf|mathit|mbox|operatorname)\s*\{([^{}]*)\}")
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{\s*([^{}]*?)\s*\}|(\d))\s*(?:\{\s*([^{}]*?)\s*\}|(\d))")
_MIXED = re.compile(r"(?<![\d./,])(-?)(\d{1,99})\s+(\d{1,99})/(\d{1,99})(?![\d./])")
_NOISE = re.compile(
    r"\\left|\\right|\\displaystyle|\\[()\[\]]|\\[,;!: ]|\*\*|__|[`$€£¥₹~]|\\\$|</?answer>"
    r"|\^\s*(?:\\circ|\{\s*\\circ\s*\})"
)
_GROUPED = re.compile(r"(?<![\d.,])(\d{1,3})((?:(?:,|\{,\}|[ \u00a0\u2009\u202f'’_])\d{3})+)(?![\d,'])")
_UNITS = "mm|cm|dm|km|m|in|ft|yd|mi|mg|kg|g|lb|oz|ml|l|s|sec|min|h|hr|hrs|km/h|mph|m/s|°C|°F|°|c|usd|eur"
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.\\])[-+]?\s?(?:\d+(?:\.\d+)?|\.\d+)"
    r"(?:[eE][-+]?\d+|\s*(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*[-+]?\d+\s*\}|[-+]?\d+))?"
    rf"(?:\s*/\s*\d+(?:\.\d+)?)?(?:\s?\\?%)?(?=(?:{_UNITS})?(?![A-Za-z0-9]))(?!\.\d)"
)
_UNIT_POWER = re.compile(
    r"(\d\s*(?:[A-Za-zµ°]{2,}|m))(?:\s*/\s*[A-Za-z]+)?(?:\s*\^\s*(?:\{\s*[23]\s*\}|[23])(?!\d))?(?![A-Za-z])"
)
# What may stand between "the answer is" and the number; anything else, such as "twice", may change it.
_LEAD = re.compile(
    r"(?:.*\b(?:is|are|was|has|have|had|equals|makes|gives|gets?|needs?|remains?|costs?|takes|earns|pays|be)\b)?"
    r"(?:[\W_]|\b(?:exactly|just|simply|only|indeed|clearly|therefore|thus|so|then|now|equal|to|the|an?|number|"
    r"value|integer|total|sum|there|about|around|roughly|approximately|[a-z])\b)*",
    re.IGNORECASE | re.DOTALL,
)
_SCALES = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_OPERATOR = re.compile(
    r"[+*/^=_|{}()\[\]±]|(?<=[\d)])\s*-|\\(?:times|cdot|sqrt|frac|log|ln|sin|cos|tan|pi|pm|mp)|\d"
)


def plain(text: str) -> str:
    r"""LaTeX and Markdown that change no value taken off a number.

    >>> plain(r"$\boldsymbol{x}$ = **1{,}000**"), plain(r"\dfrac{84}{2}")
    ('\\boldsymbol{x} = 1000', '84/2')
    """
    for _ in range(3):  # text in text in a box is as deep as models go
        text = _WRAPPERS.sub(r" \1 ", text)
    text = _GROUPED.sub(lambda m: m[1] + re.sub(r"\D", "", m[2]), text)
    text = re.sub(r"(?<=\d)\s+(?:equals|is equal to)\s+(?=[-\d])", " = ", text)
    text = _FRACTION.sub(lambda m: " " + _fraction(m[1] or m[2], m[3] or m[4]), text)
    text = _MIXED.sub(lambda m: f"{m[1]}{int(m[2]) * int(m[4]) + int(m[3])}/{m[4]}", text)
    return _NOISE.sub("", text).strip()


def _fraction(above: str, below: str) -> str:
    simple = all(re.fullmatch(r"-?\d+(?:\.\d+)?", part) for part in (above, below))
    return f"{above}/{below}" if simple and not below.startswith("-") else f"({above})/({below})"


class Number(NamedTuple):
    """A number as written: its exact value, whether a percent sign follows, and which word does."""

    value: Fraction
    percent: bool = False
    unit: str = ""

    def same(self, gold: Number, tolerance: float = 0.0) -> bool:
        """Whether it is the gold answer; 50% is both 50 and one half, as questions mean either."""
        mine = {self.value, self.value / 100} if self.percent else {self.value}
        golds = {gold.value, gold.value / 100} if gold.percent else {gold.value}
        close = any(abs(a - b) <= _slack(b, tolerance) for a in mine for b in golds)
        return close and _same_unit(self.unit, gold.unit)


def _slack(gold: Fraction, tolerance: float) -> Fraction:
    """The allowed error; 1/3 cannot be written as a decimal, so six digits of it will do."""
    below = gold.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    return max(Fraction(tolerance), Fraction(0 if below == 1 else 1, 10**6)) * abs(gold)


def _same_unit(mine: str, gold: str) -> bool:
    """A missing unit contradicts none, and "km" or "metres" stand for "kilometers" and "meters"."""
    if not mine or not gold:
        return True
    short, long = sorted((mine, gold), key=len)
    letters = iter(long)
    abbreviates = len(short) <= 3 and short[0] == long[0] and all(letter in letters for letter in short)
    return abbreviates or short[:3] == long[:3]


def to_number(text: str) -> Number | None:
    r"""The one number that a span of text states, or None if it states none, several, or an expression.

    Units, currencies, scale words, an unknown's name before "=" and a true equation are understood.

    >>> [str(to_number(s).value) for s in ("1,000", "4.2e1 apples", r"x = \frac{84}{4}", "39 + 3 = 42")]
    ['1000', '42', '21', '42']
    >>> [to_number(s) for s in ("41 or 42", "4^2", "41 = 42", "forty", "142 + 1")]
    [None, None, None, None, None]
    """
    text = plain(text).rstrip(" .,;:!。，；！\n")
    if re.search(r"\d{400}", text):  # a policy that repeats a digit; int() refuses to read it
        return None
    if "=" in text:
        return _equation(text.split("="))
    text = _UNIT_POWER.sub(r"\1", text)
    found = list(_NUMBER.finditer(text))
    if len(found) != 1:
        return None
    match = found[0]
    before, after = text[: match.start()], text[match.end() :]
    if _OPERATOR.search(_bare_brackets(before)) or _OPERATOR.search(_bare_brackets(after)):
        return None
    number = _parse(match[0])
    word = re.match(r"\s*([^\W\d]+)", after)
    if number is None or word is None:
        return number
    unit = word[1].lower().removesuffix("s")
    if unit in _SCALES:
        return Number(number.value * _SCALES[unit], number.percent)
    if len(unit) == 1 and unit not in "mgshlcjkvw":  # an unknown times the number
        return None
    return Number(number.value, number.percent, unit)


def _bare_brackets(text: str) -> str:
    """A pair of brackets around the number alone, as in "(42)", is no operator."""
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


def _equation(sides: Sequence[str]) -> Number | None:
    """The last side's number, if every other side is a name or has the same value."""
    last = to_number(sides[-1])
    if last is None:
        return None
    for side in sides[:-1]:
        tail = side.strip().split(":")[-1].split(",")[-1]
        if not re.search(r"\d", tail) or re.fullmatch(r"\s*[A-Za-z]\w*\s*\(.*\)\s*", tail):  # x, or f(4)
            continue
        value = _evaluate(tail)
        if value is None or value != last.value:
            return None
    return last


def _evaluate(expression: str) -> Fraction | None:
    """The value of sums, differences, products and quotients of numbers; None for anything else."""
    source = re.sub(r"\^\s*(?:\{\s*(-?\d+)\s*\}|(-?\d+))", r"**(\1\2)", expression)
    source = re.sub(r"\\(?:times|cdot)", "*", source)
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


# -------------------------------------------------------------------------------- comparisons


def _number_is(assertion: Assertion, gold: str, tolerance: float) -> bool:
    target = to_number(readable(gold))
    found = to_number(assertion.value)
    if target is None or found is None or not _leads_to_number(assertion):
        return False
    return found.same(target, tolerance)


def _leads_to_number(assertion: Assertion) -> bool:
    """Whether nothing stands before the number, or after it as its subject's verb, that may change it."""
    text = plain(assertion.value)
    if assertion.kind == "bare":
        return not re.search(r"\d\s+(?:is|was)\s+(?!(?:the|our|my|correct|right|it)\b)", text)
    return assertion.kind == "box" or _LEAD.fullmatch(re.split(r"[\d.+-]", text, maxsplit=1)[0]) is not None


def _math_is(assertion: Assertion, gold: str, tolerance: float) -> bool:
    if to_number(readable(gold)) is not None:
        # Algebra would pay "17 + 25" for 42, and with it a copy of the question.
        return _number_is(assertion, gold, tolerance)
    if folded(assertion.value) == folded(gold):
        return True
    return _tractable(assertion.value) and _math_verify(gold, assertion.value.strip().rstrip("."))


# Off the main thread nothing would end the evaluation of 9^{9^{9^9}}, and one completion can stop a run.
_EXPLODES = re.compile(r"\d\s*\}*\s*\^\s*\{?\s*(?:\d+\s*\^|\d{4})|\d{3}\s*\)?\s*!|!\s*\)?\s*!|\*\*")


def _tractable(expression: str) -> bool:
    """Whether algebra may be let loose on it: short, and without towers of powers or large factorials."""
    return len(expression) <= _SPAN and not _EXPLODES.search(expression)


@functools.lru_cache(maxsize=4096)
def _math_verify(gold: str, answer: str) -> bool:
    from math_verify import parse, verify

    # math-verify's timeouts use signal.alarm, which only the main thread may set.
    main = threading.current_thread() is threading.main_thread()
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)
    target, found = (
        parse(r"\boxed{" + s.strip().strip("$") + "}", parsing_timeout=5 if main else None)
        for s in (gold, answer)
    )
    return bool(target and found and verify(target, found, timeout_seconds=5 if main else None))


# A lone capital is a choice, unless it is the article or the pronoun at the head of a clause.
_CHOICE = re.compile(r"(?<![A-Za-z0-9'’])(?:([B-HJ])|([AI])(?!\s+(?!and\b|or\b)[a-z]))(?![A-Za-z0-9'’+#])")
_LETTER_HEAD = re.compile(
    r"^\W*(?:(?:option|choice|letter|answer)\W+)?\(?([A-J])\)?(?:[).:,]|\s*$|\s+\()", re.I
)


def _choice_is(assertion: Assertion, gold: str, tolerance: float) -> bool:
    wanted = re.sub(r"\W", "", gold).upper()
    text = plain(assertion.value).strip()
    head = _LETTER_HEAD.match(text)
    letters = {match[1] or match[2] for match in _CHOICE.finditer(text)} | (
        {head[1]} if head and head[1].isupper() else set()
    )
    return letters == {wanted}


def _exact_is(assertion: Assertion, gold: str, tolerance: float) -> bool:
    return folded(assertion.value) == folded(gold)


def folded(text: str) -> str:
    r"""Text compared as words: markup, case, outer punctuation, articles and spacing taken off.

    >>> folded(r"**The Netherlands.**") == folded(r"\text{netherlands}")
    True
    """
    text = re.sub(r"\s+", " ", plain(readable(text))).strip(" .,;:!?\"'“”‘’()[]*。，！।").casefold()
    return re.sub(r"^(?:the|a|an)\s+", "", text)


_KINDS: dict[str, Callable[[Assertion, str, float], bool]] = {
    "number": _number_is,
    "math": _math_is,
    "choice": _choice_is,
    "exact": _exact_is,
}


def gold_text(gold: str) -> str:
    r"""The answer of a gold column that holds a whole solution: what follows "####", or the last box.

    >>> gold_text("48 / 2 = 24, so 48 + 24 = 72.\n#### 72"), gold_text(r"Thus $\boxed{7}$.")
    ('72', '7')
    """
    if "####" in gold:
        return gold.rsplit("####", 1)[1].strip()
    found = boxes(gold)
    return found[-1][2] if found else gold.strip()


def readable_gold(gold: str, kind: str) -> bool:
    """Whether a gold answer is of the kind at all; where it is not, no completion can be judged."""
    if kind == "number":
        return to_number(readable(gold)) is not None
    return kind != "choice" or re.fullmatch(r"\W*[A-Ja-j]\W*", gold) is not None


def is_right(answer: str, gold: str, kind: str = "number", tolerance: float = 0.0) -> bool:
    r"""Whether the text after a thought asserts exactly one answer, and that is the gold answer.

    >>> is_right("The answer is 1,000.", "1000"), is_right(r"\boxed{\frac{2000}{2}}", "1000.0")
    (True, True)
    >>> is_right("The answer is not 42.", "42"), is_right("41 or 42", "42")
    (False, False)
    """
    asserted = assertions(answer)
    if kind == "exact":
        return bool(asserted) and all(
            _exact_is(a, gold, 0.0) and not _DENIES.search(a.around) for a in asserted
        )
    same = _KINDS[kind]
    made = [a for a in asserted if a.kind != "label" or _says_something(a, kind)]
    return bool(made) and all(commits(a, gold) and same(a, gold, tolerance) for a in made)


def _says_something(assertion: Assertion, kind: str) -> bool:
    """A label before words alone, as in "the answer is simple", asserts nothing yet."""
    if kind == "choice":
        return bool(_CHOICE.search(plain(assertion.value)) or _DENIES.search(assertion.value))
    return bool(re.search(r"[\d\\^]", assertion.value) or kind == "math" or _DENIES.search(assertion.value))


# -------------------------------------------------------------------------------------- reward


class _AnswerReward:
    aim = "answer"

    def __init__(
        self,
        kind: str | Callable[[str, Any], Any],
        column: str,
        tokens: ThinkTokens,
        tokenizer: Any,
        tolerance: float,
        right: float,
        wrong: float,
    ) -> None:
        self.kind, self.column, self.tokens, self.tokenizer = kind, column, tokens, tokenizer
        self.tolerance, self.right, self.wrong = tolerance, right, wrong
        self.__name__ = "answer_reward"

    def __call__(self, completions: Sequence[Any], completion_ids: Any = None, **kwargs: Any) -> Scores:
        if self.column not in kwargs:
            columns = sorted(set(kwargs) - {"prompts", "trainer_state", "log_extra", "log_metric"})
            raise RewardValueError(
                f"The dataset has no column '{self.column}' with the gold answers",
                reward_name=self.__name__,
                todo=f"add the column, or name another: answer_reward(column=...); there are {columns}",
            )
        ids = completion_ids if completion_ids is not None else [None] * len(completions)
        return [self._one(*row) for row in zip(completions, ids, kwargs[self.column], strict=True)]

    def _one(self, completion: Any, ids: Any, gold: Any) -> float | None:
        if gold is None or gold != gold or str(gold).strip() == "":
            return None
        if callable(self.kind):
            return min(self._custom(text, gold) for text in self.answers_of(completion, ids))
        gold = gold_text(str(gold))
        if not readable_gold(gold, self.kind):
            return None
        texts = self.answers_of(completion, ids)
        right = all(is_right(text, gold, self.kind, self.tolerance) for text in texts)
        return self.right if right else self.wrong

    def _custom(self, text: str, gold: Any) -> float:
        assert callable(self.kind)
        verdict = self.kind(text, gold)
        return (self.right if verdict else self.wrong) if isinstance(verdict, bool) else float(verdict)

    def answers_of(self, completion: Any, ids: Any) -> list[str]:
        """The text after the thought; several where the decoded text leaves open where that begins."""
        thought = None if ids is None else split_thinking(ids, self.tokens)
        # After a tool call the ids span several turns, and only the last message is the answer.
        turns = 1 if isinstance(completion, str) else sum(m.get("role") == "assistant" for m in completion)
        if thought is not None and self.tokenizer is not None and turns <= 1:
            return [decoded_split(thought, self.tokenizer)[1]]
        text = completion_text(completion)
        return [answer for _, answer in split_text(text, thought if turns <= 1 else None, self.tokens)]


def answer_reward(
    kind: str | Callable[[str, Any], Any] = "number",
    *,
    column: str = "answer",
    tokens: ThinkTokens = QWEN3,
    tokenizer: Any = None,
    tolerance: float = 0.0,
    right: float = 1.0,
    wrong: float = 0.0,
) -> Reward:
    r"""1.0 for a completion that asserts exactly one answer after its thought, and the right one; else 0.0.

    None, 'does not apply', where the row has no gold answer, or none of this kind (a word, say, under
    ``"number"``).  A gold solution that ends in "#### 72" or ``\boxed{72}`` stands for its answer.

    The kinds:

    - ``"number"``: equal values; 1,000 and 1000.0 and \frac{2000}{2} are one number.
    - ``"math"``: that; and where the gold is no number, equal by math-verify, ``verify(gold, answer)``.
    - ``"choice"``: one letter, A to J.
    - ``"exact"``: the same words, but for case, markup, articles and outer punctuation.
    - a callable ``(answer_text, gold) -> bool or float``, given the text after the thought.

    Args:
        kind: see above.
        column: the dataset's column of gold answers.
        tokens: the markers; with ``prompt_opens`` a completion that never closes its thought has no answer.
        tokenizer: to decode the answer from its ids.  Without it, where the text holds </think> more often
            than the ids do, every place where the answer may begin must give the right answer.
        tolerance: relative, for numbers.
        right: paid for the right answer.
        wrong: paid for every other.

    Returns:
        A picklable TRL reward (with a callable kind, as picklable as that).

    Raises:
        ValueError: an unknown kind; at a call, RewardValueError if the dataset lacks the column.

    >>> reward = answer_reward()
    >>> reward(completions=["<think>6 * 7</think>It is 42.", "41 or 42", "7"], answer=["42", "42", None])
    [1.0, 0.0, None]
    """
    if not callable(kind) and kind not in _KINDS:
        raise ValueError(
            three_parts(
                f"There is no kind of answer '{kind}'",
                f"answer_reward(kind={kind!r})",
                f"choose one of {', '.join(_KINDS)}, or pass a callable (answer_text, gold) -> bool",
            )
        )
    return _AnswerReward(kind, column, tokens, tokenizer, tolerance, float(right), float(wrong))
