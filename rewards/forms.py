r"""The form of an answer: where in a completion it stands, and what belongs to it.

For ``rewards.answers``.  With a form that the prompt asks for there is nothing to guess: the answer is what stands in
the box, on the line or between the tags.  What is attached to a box makes another expression and is read with it:
``-\boxed{42}`` is -42, and ``\boxed{42}^2`` is a square.  Prose is left to ``rewards.prose``.

It does not compare: ``rewards.answers`` does.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

from rewards.errors import invalid
from rewards.notation import NEUTRAL, closing_brace, readable
from rewards.quantities import alters

Form = Literal["auto", "boxed", "####", "<answer>", "whole", "prose"]
FORMS: tuple[str, ...] = get_args(Form)

_INSTRUCTIONS = {
    "boxed": r"Please reason step by step, and put your final answer within \boxed{}.",
    "####": "Write your final answer alone on the last line, after ####.",
    "<answer>": "Write your final answer between <answer> and </answer>.",
    "whole": "Reply with the answer alone.",
}


def instruction(form: str) -> str:
    r"""The sentence for a prompt that asks for a form; empty for "auto" and "prose".

    The box's is the one that Qwen's model cards recommend for mathematics.

    Raises:
        ValueError: an unknown form.

    >>> instruction("####")
    'Write your final answer alone on the last line, after ####.'
    """
    check_form(form, "instruction")
    return _INSTRUCTIONS.get(form, "")


def check_form(form: str, where: str) -> None:
    """Raise ValueError if there is no such form."""
    if form not in FORMS:
        named = ", ".join(f'"{name}"' for name in FORMS)
        raise invalid(f"There is no form {form!r}", f"{where}(form={form!r})", f"choose one of {named}")


class Statement(NamedTuple):
    """What a text states from ``start`` to ``end``, as written, with all that is attached to it.

    ``before`` and ``after`` are the texts on its sides, at most ``SPAN`` characters each.  The form is "boxed", "####",
    "<answer>", "whole", or in prose "label" or "conclusion".
    """

    value: str
    before: str
    after: str
    form: str
    start: int
    end: int


SPAN = 400  # characters read on either side of a statement
LONGEST = 20_000  # characters read: the last ones of a longer text
MOST = 20  # a text with more statements commits to none


def seen(text: str) -> str:
    """The last characters of a text, as its reader sees them."""
    return readable(text[-LONGEST:])


def explicit(text: str, form: str, *, last: bool = True) -> list[Statement]:
    """What a text, as :func:`seen`, states in one form; empty where it keeps to another.

    Of several boxes each counts, and they have to agree; of several lines or tags the last one counts, unless
    ``last`` is False.
    """
    if form == "whole":
        value = text.strip()
        return [Statement(value, "", "", form, 0, len(text))] if value else []
    if form == "boxed":
        return _boxed(text)
    pattern = _LINE if form == "####" else _TAG
    found = [statement(text, m[1].strip(), m.start(), m.end(), form) for m in pattern.finditer(text)]
    return found[-1:] if last else found[: MOST + 1]


def statement(text: str, value: str, start: int, end: int, form: str) -> Statement:
    """What a text states from ``start`` to ``end``, with the text around it."""
    return Statement(value, text[max(0, start - SPAN) : start], text[end : end + SPAN], form, start, end)


_LINE = re.compile(r"^[ \t]{0,9}####(?!#)[ \t]*([^\n]*)", re.MULTILINE)
_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)

BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")


def boxes(text: str) -> list[tuple[int, int, str]] | None:
    r"""Every outermost ``\boxed{...}`` as (start, end, content), braces balanced; None if one is never closed.

    >>> boxes(r"so \boxed{\frac{1}{2}}")
    [(3, 22, '\\frac{1}{2}')]
    """
    found: list[tuple[int, int, str]] = []
    match = BOX.search(text)
    while match:
        end = closing_brace(text, match.end())
        if end is None:
            return None
        found.append((match.start(), end + 1, text[match.end() : end]))
        match = BOX.search(text, end + 1)
    return found


def _boxed(text: str) -> list[Statement]:
    found, last = [], 0
    for start, end, content in (boxes(text) or [])[: MOST + 1]:
        value = _with_neighbours(text, max(last, start - SPAN), start, end, content)
        found.append(statement(text, value, start, end, "boxed"))
        last = end
    return found


# What ends the expression that a box belongs to, on either side.
_ENDS = re.compile(
    rf"{NEUTRAL}|\$+|\\[\[\]()\\]|\\(?:begin|end)\s?\{{[^{{}}]*\}}|[&\n:≈→⇒]|\\in(?![a-z])|</?\w+>|\*\*|(?<![!<>])=|[.,;?](?=\s)"
)
# Words, and space of other kinds.
_WORDS = re.compile(
    r"\\text\w{0,2}\s*\{[^{}]*\}|(?<![\\A-Za-z])[^\W\d_]{2,}|\\\$|[€£¥₹~]|\\(?: |(?:bf|bm)(?![a-z]))"
)
_THIN = re.compile(r"\\[,;:!]\s?")
_OPERATOR_LEFT = re.compile(
    r"(?:[-+*/^_!<>≤≥≠¬±∓#%|}]|\\[A-Za-z]+(?:\s*[_^]\s*(?:\{[^{}]*\}|\w))*)\s*$|[A-Za-z0-9)\]]$|\d\.$"
)
_OPERATOR_RIGHT = re.compile(
    rf"\s*(?:[*/^_<>≤≥≠±∓!]|[-+](?=\s*(?:[\d\\(]|[a-zA-Z](?![a-zA-Z])))|:\d|(?!{NEUTRAL})\\[A-Za-z]+)"
    r"|[A-Za-z0-9({]|[.,]\d"
)
_UNIT = re.compile(
    r"[\s$]*(?:\\[,;: !]|~)*\s*(?:\\(?:text\w*|math\w*|mbox)\s*\{([^{}]*)\}(?:\s*\^\s*\{?-?\d\}?)?|\\?(%)|"
    r"(\^\s*\{?\s*\\circ\s*\}?|°))"
)
_WORD = re.compile(r"[\s$)]*([A-Za-zµ¢€]+(?:/[a-z]+)?)(?:\s+(?:of|in base \d+|[a-z]+))?", re.IGNORECASE)
_SIGN = re.compile(r"(?:^|[\s(])-\s?\$+\s*$|\b(?:minus|negative)\s*\$*\s*(?:\\\()?\s*$", re.IGNORECASE)
_LIST_MARK = re.compile(r"\s*(?:[-*+•>]|\d{1,3}[.)])\s+")


# Braces around a box that leave its value alone.
_FRAME = re.compile(
    r"(?:\\(?:text|math|b[fm]|boldsymbol|under(?:line|brace)|color|ensuremath|[mh]box|fcolorbox|colorbox)[a-z]*"
    r"(?:\s*\{[^{}]*\})*\s*)$"
)


def _with_neighbours(text: str, since: int, start: int, end: int, content: str) -> str:
    """The box's value with what is attached to the box; ``since`` is where an earlier box ends."""
    before = _attached_before(text[since:start].rsplit("\n", 1)[-1])
    right = text[end : end + 80].split("\n\n")[0]
    bare = re.fullmatch(r"[\d.,{}\\! ]+", content) is not None
    right = re.sub(r"^_(?:10|\{10\})(?!\d)", "", right)
    if unit := _UNIT.match(right):
        content, right = f"{content} {unit[1] or unit[2] or '°'}", right[unit.end() :]
    elif (word := _WORD.match(right)) and not BOX.match(right.lstrip("$ ")) and alters(word[1]):
        content, right = content + " " + word[0].strip(" $)"), right[word.end() :]
    right = re.sub(r"^[})]+", "", right)
    if re.search(r"[A-Za-z0-9.]$", before) or re.match(r"[A-Za-z0-9]|[.,]\d", right):
        return f"{before} | {content} | {right[:20]}"  # with a digit beside it the box holds half a number
    operator = None if BOX.match(right.lstrip("$ ")) else _OPERATOR_RIGHT.match(right)
    after = operator[0] + _ENDS.split(right[operator.end() :], maxsplit=1)[0] if operator else ""
    return before + (content if bare or not (before or after) else f"({content})") + after


def _attached_before(line: str) -> str:
    """The part of an expression before a box in its line; empty where the box begins it."""
    if _LIST_MARK.fullmatch(line) or re.search(r"\w\s*[-–—]\s+\$*$", line):  # a dash between words
        return ""
    if glued := re.search(r"(?<![\\A-Za-z])[A-Za-z]+$", line):  # a word of which the box is the end
        return glued[0]
    if _SIGN.search(line):
        return "-"
    if line.lstrip().startswith("|"):  # a table's cell
        line = line.rsplit("|", 1)[-1]
    text = _WORDS.split(_ENDS.split(_THIN.sub("", line))[-1])[-1]
    text = _FRAME.sub("", re.sub(r"[({\[]+\s*$", "", text))
    return text.strip() if _OPERATOR_LEFT.search(text) else ""
