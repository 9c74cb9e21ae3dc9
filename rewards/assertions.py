r"""Where a text states its answer: boxes, labels, a last sentence, and whether the clause means it.

For ``rewards.answers`` and custom comparisons.  A text is normalised to what its reader sees, then searched for every
statement of an answer; :func:`commits` tells whether the clause around it commits to it or denies, bounds or doubts it.

It does not judge what is stated: ``rewards.quantities`` reads the number and ``rewards.answers`` compares it with the
gold answer.  It knows nothing of thoughts: it gets the text after one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


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

    A superscript becomes a power, because NFKC would turn a 4 squared into 42.  A text with a bidirectional override
    becomes empty, since its digits are shown in another order than they are stored.

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
# Characters read beside an assertion, and most assertions read: a text with more commits to none.
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

    Boxes and labels ("the answer is", "####", <answer>, and equivalents in some other languages) are collected
    together, so that contradictions between them show.  A text without either is bare: its last sentence counts if that
    draws a conclusion, else the whole text.
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


# A second value right after a box: "or 43", or a second pair of braces.
_ALTERNATIVE = "<alternative>"
_SECOND = re.compile(r"^[\s$]*(?:\{|(?:\\text\s*\{)?\s*(?:or|oder|ou|или|或)\b)", re.IGNORECASE)


def _clause_after(text: str) -> str:
    if _SECOND.match(text):
        return _ALTERNATIVE
    sentence = re.match(r"[^.,;:\n]*[.,;:\n]?\s*[^.\n]*", text)
    return _retraction(sentence[0]) if sentence else ""


def _retraction(text: str) -> str:
    """The words after an answer if they retract it, else an empty string."""
    begins = re.match(
        r"\W*(?:no|wait|hmm|actually|sorry|but|that|this|it|they|he|she|just|which|is|was|would|cannot|can't|"
        r"isn't|wasn't|correction)\b",
        text,
        re.IGNORECASE,
    )
    takes_back = r"\b(?:wrong|incorrect|mistaken|false|not|isn't|wasn't|kidding|joking|correction)\b"
    return text if begins and re.search(takes_back, text, re.IGNORECASE) else ""


# A clause with one of these does not commit to its value: it denies, bounds, offers or asks.
_DENIES = re.compile(
    r"\b(?:not|cannot|never|no|none|neither|nor|without|except|unless|wrong|incorrect|false|untrue|unlike|"
    r"hardly|barely|scarcely|refuse\w*|doubt\w*|claim\w*|pretend\w*|mistaken|joke|kidding|ain['’]t|"
    r"other than|rather than|instead of|far from|(?:any\w*|every\w*|all) but|nicht|kein\w*|pas|não|nao|non|не|"
    r"нет|niet|geen|ikke|inte|nie|nem|değil|bukan|tidak|không|ليس|ليست|لا)\b|n['’]t\b|नहीं|不|没|沒|非|无|無|ない|"
    r"ません|아니|않|\\n(?:e|eq|ot)\b|≠|\\neg\b|¬",
    re.IGNORECASE,
)
# Idioms that deny nothing.
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


def denies(text: str) -> bool:
    """Whether the text contains a denial or a doubt, in English or some other languages.

    >>> denies("it is not 42"), denies("nicht 42"), denies("it is 42")
    (True, True, False)
    """
    return _DENIES.search(text) is not None


def commits(assertion: Assertion, gold: str = "") -> bool:
    """Whether the assertion's clause asserts its value rather than denying, bounding or questioning it.

    If the gold answer is itself a bound or a pair of values, the assertion may be one too.
    """
    if any(sign.search(assertion.value) and not sign.search(gold) for sign in (_DENIES, _BOUNDS)):
        return False
    around = _IDIOMS.sub("", assertion.around).rstrip()
    return not (denies(around) or around.endswith(("?", _ALTERNATIVE)))
