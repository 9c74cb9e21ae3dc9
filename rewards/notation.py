r"""The text that a reader sees: one spelling for digits, signs and dashes, without what is hidden or struck out.

For ``rewards.forms`` and ``rewards.quantities``, before they look for an answer.  It changes spelling, never meaning: a
superscript becomes a power, a subscript stays one.
"""

from __future__ import annotations

import re
import unicodedata

_HIDDEN = re.compile(
    r"<!--.{0,500}?-->|</?(?:b|strong|i|em|u|mark|code|p|br|div|span|center)\s?/?>|<\|[a-z_]+\|>|^[ \t]{0,9}%[^\n]*"
    r"|\\(?:tiny|small|[lL]arge|LARGE|[hH]uge|displaystyle|(?:text)?color\s?\{\w*\})(?![a-z])"
    r"|[\u00ad\u180e\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff]",
    re.DOTALL | re.MULTILINE,
)
_STRUCK = re.compile(r"~~(?=\S).{1,500}?~~|<(s|del|strike)\s?>.{0,500}?</\1\s?>|.[\u0335-\u0338]", re.DOTALL)
_BRACED = r"\{(?:[^{}]|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\})*+\}"
# Commands whose argument a reader does not see, or sees crossed out.
_WITHOUT = re.compile(r"\\(?:[hv]?phantom|[xb]?cancel|sout|xout)\s*" + _BRACED)
_FENCED = re.compile(r"```.*?```", re.DOTALL)
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")
_SPELLINGS = str.maketrans(
    {chr(0xFF01 + n): chr(0x21 + n) for n in range(94)}
    | dict.fromkeys("−‐‑‒–﹣", "-")
    | dict(zip("÷⁄∕٪٫٬", "///%.,", strict=True))
    | {"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "≤": r"\le ", "≥": r"\ge "}
    | {"π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∅": r"\emptyset "}
)
_RAISED, _LOWERED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻₀₁₂₃₄₅₆₇₈₉", "0123456789-0123456789")
_ROOT = re.compile(r"√\s?(\d+|[A-Za-z]|\([^()]{0,80}\))")
_VULGAR = re.compile("(?<=[0-9])? ?[¼½¾⅐-⅞]")

# Commands that leave the value beside them alone: what stands on their two sides is separate.
NEUTRAL = (
    r"\\(?:approx|implies|[a-zA-Z]*arrow|to|iff|therefore|because|equiv|colon|qquad|quad|pmod|[hv]space|hfill|newline|"
    r"left(?!\s*\|)|right|item|noindent|centering|par|end|hline|tag|notag|nonumber|label|qed|[lcd]?dots|checkmark|star|"
    r"bullet|square|black[a-z]+|triangle[a-z]*)(?![a-z])"
)


def readable(text: str) -> str:
    """The text a reader sees, in ASCII digits and signs; without comments, struck text and code beside prose.

    A superscript becomes a power, because NFKC would turn a 4 squared into 42.  A text with a bidirectional override
    becomes empty, since its digits are shown in another order than they are stored.

    >>> readable("４２ <!-- 7 -->"), readable("4²"), readable("٤٢"), readable("~~41~~ 42"), readable("1½")
    ('42 ', '4^{2}', '42', ' 42', '1 1/2')
    """
    if _BIDI.search(text):
        return ""
    text = _WITHOUT.sub("", _STRUCK.sub("", _HIDDEN.sub("", text)))
    outside = _FENCED.sub("\n", text)
    text = outside if outside.strip() else text
    text = _VULGAR.sub(lambda m: " " + unicodedata.normalize("NFKC", m[0].strip()), text, count=99)
    text = _ROOT.sub(r"\\sqrt{\1}", text)
    text = _RAISED.sub(lambda m: "^{" + m[0].translate(_DIGITS) + "}", text)
    text = _LOWERED.sub(lambda m: "_{" + m[0].translate(_DIGITS) + "}", text).translate(_SPELLINGS)
    return "".join(str(int(c)) if c.isdecimal() else c for c in text)


def closing_brace(text: str, start: int) -> int | None:
    """Where the brace that was opened before ``start`` is closed; None if it never is."""
    depth = 1
    for position in range(start, len(text)):
        character = text[position]
        if character in "{}" and text[position - 1] != "\\":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return position
    return None
