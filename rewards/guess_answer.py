"""A guess at the answer of a text that keeps to no form: after a label in English, else in its last sentence.

It refuses in doubt: a denial, an alternative or a condition, labels that differ, a retraction.  Name a form in the
prompt and in the reward, and nothing is guessed.
"""

from __future__ import annotations

import re

SPAN = 400  # characters read after a label
_BARE = 4000  # characters of a text without a label

# Every repeat is bounded: a completion may be a hundred thousand line feeds.
_LABEL = re.compile(
    r"\b(?:answer|result)(?:\s{1,3}\([^)\n]{0,40}\))?(?:\W{0,4}?(?:\b(?:is|equals)\b\s{0,3}:?|[:=])|[*_]{0,3}\s{0,3}$)\W{0,9}?"
    r"(?=[^\s:*])",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE = re.compile(r"(?<=[.!?])(?=[*_)\"'\]]{0,3}(?:\s|$))|\n+")
# What may stand directly before a value: a verb that states it, or nothing.
_STATES = re.compile(
    r"(?:^|[=:]|['’]s\b|\b(?:is|are|was|were|be|has|have|had|gives?|makes?|leaves?|leaving|left with|gets?|got|costs?|"
    r"takes?|needs?|totals?|equals?|earns?|pays?|fills?|sold|weighs?|worth|to|a total of|exactly|choose|pick|"
    r"option)\b)"
    r"(?:[^\w?]|\b(?:only|now|so|thus|hence|therefore|minus|negative|saved|about)\b|\\[a-z]+)*$",
    re.IGNORECASE,
)
_DOUBT = re.compile(
    r"\b(?:not|cannot|never|no|none|neither|nor|or|either|if|unless|between|than|least|most|but|except|wrong|incorrect|"
    r"false|suppose|maybe|perhaps|might|could|would|says?|said|claims?|thinks|thought|guess|score|reward|verdict|"
    r"below|above|nicht|pas|не)\b|n['’]t\b|[?？≠不\"“]",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:wrong|incorrect|mistake|scratch|disregard|ignore|actually|oops|correction|withdr\w+|reject|kidding|"
    r"make (?:that|it)|second thoughts?|not (?:right|correct))\b",
    re.IGNORECASE,
)
_SIGNS = {
    "number": r"\\[dt]?frac.*|-?(?<![\d.,/])\.?\d[\d.,]*",
    "choice": r"\b(?:[B-HJ]\b|[AI]\b(?!['’]|\s[a-z]))",
    "math": r"[\d=$\\]",
    "exact": r"\w",
}


def guessed(text: str, kind: str) -> list[str]:
    """What a text states as its answer, each of which has to be right; empty where it states none, or in doubt.

    >>> guessed("6 * 7 is 42. The answer is 42.", "number"), guessed("So there are 42 of them.", "number")
    (['42.'], ['So there are 42 of them.'])
    >>> guessed("The answer is not 42.", "number"), guessed("41 or 42", "number")
    ([], [])
    """
    found = []
    for label in _LABEL.finditer(text):
        start = max(text.rfind(mark, 0, label.start()) for mark in (". ", "\n", "! ", "? ")) + 1
        value = _SENTENCE.split(text[label.end() : label.end() + SPAN], maxsplit=1)[0]
        if re.search(_SIGNS[kind], value):  # "the answer is simple" states none
            found.append((text[start : label.start()], value, text[label.end() + len(value) :]))
    if not found and len(text) <= _BARE:
        found = _concluded(text, kind)
    sure = all(_states(value, kind) and not _DOUBT.search(before + value) for before, value, _ in found)
    return [value for _, value, _ in found] if found and sure and not _TAKEN_BACK.search(found[-1][2]) else []


def _concluded(text: str, kind: str) -> list[tuple[str, str, str]]:
    # The end of the last sentence with a sign of an answer; none among several bare values.
    sentences = _SENTENCE.split(text)
    stating = [i for i, part in enumerate(sentences) if re.search(_SIGNS[kind], part)]
    bare = [i for i in stating if not re.search("[A-Za-z]{2}", sentences[i])]
    if not stating or (stating[-1] in bare and len(bare) > 1):
        return []
    words = kind in ("exact", "math")
    clause = r"\b(?:is|are|was|at|gives)\s" if words else r"\b(?:so|thus|hence|therefore|which)\b"
    before, _, value = re.sub(clause, "\0", sentences[stating[-1]]).rpartition("\0")
    return [(before, value, "".join(sentences[stating[-1] + 1 :]))]


def _states(value: str, kind: str) -> bool:
    # A number or a letter stands where a sentence states one: after a verb, a colon, or first.
    start = value.rfind("=") + 1
    sign = re.search(_SIGNS[kind], value[start:])
    return kind not in ("number", "choice") or bool(sign and _STATES.search(value[: start + sign.start()]))
