r"""The form of an answer: where in a completion it stands, and what belongs to it.

For ``rewards.answers``.  With a form that the prompt asks for there is nothing to guess: the answer is what stands in
the box, on the line or between the tags.  What is attached to a box makes another expression and is read with it:
``-\boxed{42}`` is -42, and ``\boxed{42}^2`` is a square.  Prose is left to ``rewards.prose``.

It does not compare: ``rewards.answers`` does.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, get_args

from rewards.notation import closing_brace, readable

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
    from rewards.errors import three_parts

    if form not in FORMS:
        named = ", ".join(f'"{name}"' for name in FORMS)
        raise ValueError(
            three_parts(f"There is no form {form!r}", f"{where}(form={form!r})", f"choose one of {named}")
        )


class Statement(NamedTuple):
    """A place where a text states an answer.

    Attributes:
        value: what it states, as written, with all that is attached to it.
        before: the text before it, at most ``SPAN`` characters.
        after: the text after it, at most ``SPAN`` characters.
        form: "boxed", "####", "<answer>", "whole", or "label" or "conclusion" in prose.
        start: where the value begins in the text.
    """

    value: str
    before: str
    after: str
    form: str
    start: int


SPAN = 400  # characters read on either side of a statement
LONGEST = 20_000  # characters read: the last ones of a longer text
MOST = 20  # a text with more statements commits to none


def seen(text: str) -> str:
    """The last characters of a text, as its reader sees them."""
    return readable(text[-LONGEST:])


def explicit(text: str, form: str) -> list[Statement]:
    """What a text, as :func:`seen`, states in one form; empty where it keeps to another.

    Of several boxes each counts, and they have to agree; of several lines or tags the last one counts.
    """
    if form == "whole":
        value = text.strip()
        return [Statement(value, "", "", form, 0)] if value else []
    found = {"boxed": _boxed, "####": _lines, "<answer>": _tags}[form](text)
    return found if form == "boxed" else found[-1:]


def _statement(text: str, value: str, start: int, end: int, form: str) -> Statement:
    before = text[max(0, start - SPAN) : start]
    return Statement(value, before, text[end : end + SPAN], form, start)


_LINE = re.compile(r"^[ \t]{0,9}####(?!#)[ \t]*([^\n]*)", re.MULTILINE)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


def _lines(text: str) -> list[Statement]:
    return [_statement(text, m[1].strip(), m.start(), m.end(), "####") for m in _LINE.finditer(text)]


def _tags(text: str) -> list[Statement]:
    return [_statement(text, m[1].strip(), m.start(), m.end(), "<answer>") for m in _TAG.finditer(text)]


# ------------------------------------------------------------------------------------- boxes

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
    found = boxes(text) or []
    return [
        _statement(text, _with_neighbours(text, start, end, content), start, end, "boxed")
        for start, end, content in found[: MOST + 1]
    ]


# What ends the expression that a box belongs to, on either side.
_ENDS = re.compile(
    r"\$+|\\[\[\]()]|\\\\|&|\n|\*\*|:|(?<![!<>])=|≈|→|⇒|\\(?:approx|implies|Rightarrow|Longrightarrow|rightarrow|"
    r"to|iff|therefore|quad|qquad|left|right|displaystyle|because)(?![a-z])|[.,;?](?=\s|$)"
)
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf)\s*\{[^{}]*\}|(?<![\\A-Za-z])[^\W\d_]{2,}")
_SPACES = re.compile(r"\\[,;:! ]|~|\\(?:Large|large|huge|bf|bm|color\{\w*\}|textcolor\{\w*\})(?![a-z])")
_CURRENCY = re.compile(r"\\\$|[€£¥₹]")
_OPERATOR_LEFT = re.compile(
    r"(?:[-+*/^_!<>≤≥≠¬±∓#%]|\\(?:times|cdot|div|pm|mp|neq?|leq?|geq?|lt|gt|log|ln|lg|exp|sin|cos|tan|sum|sqrt|"
    r"approx|sim|in|notin|not|neg|bmod|mod|min|max|pi|int|mid|propto|overline|bar)(?![a-z])\s*)\s*$|[A-Za-z0-9)\]]$|\d\.$"
)
_OPERATOR_RIGHT = re.compile(
    r"\s*(?:[*/^_<>≤≥≠±∓!]|[-+](?=\s*[\d\\(a-zA-Z]\b|\s*\\)|\\(?:times|cdot|div|pm|mp|neq?|leq?|geq?|lt|gt|bmod|"
    r"p?mod|over|choose|sqrt|frac|log|ln|pi|sin|cos|tan|in|sim|cup|cap)(?![a-z]))|[A-Za-z0-9({]|\.\d|,\d"
)
# Braces around a box that leave its value alone.
_FRAMES = re.compile(
    r"\\(?:text\w*|math\w*|bf|bm|boldsymbol|underline|displaystyle|color|textcolor|large|ensuremath|mbox|hbox|"
    r"underbrace|fcolorbox|colorbox)(?:\s*\{[^{}]*\})*\s*$"
)
_DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})")
_UNIT = re.compile(r"\s*(?:\\[,;: !]|~)*\s*(?:\\(?:text\w*|math\w*|mbox)\s*\{([^{}]*)\}|\\?(%))")
_CHANGING_WORD = re.compile(
    r"\s*((?:%|percent|per cent|factorial|squared|cubed|halves|thirds|quarters|fifths|tenths|hundredths|thousandths|"
    r"dozens?|hundreds?|thousands?|millions?|billions?|trillions?|mod(?:ulo)?|times|plus|minus|divided|over|to the|"
    r"in base|base|point|mm|cm|dm|km|mg|kg|ml|cents?|and a (?:half|quarter))\b[^.,;$\n]{0,20})",
    re.IGNORECASE,
)


def _with_neighbours(text: str, start: int, end: int, content: str) -> str:
    """The box's value with what is attached to the box."""
    before = _attached_before(text[max(0, start - SPAN) : start])
    right = text[end : end + 80]
    right = re.sub(r"^[\s]*(?:\)|\\right\s*\))", "", right) if before == "" and _opens(text[:start]) else right
    enclosing = _enclosing(text, start)
    if enclosing is not None:
        return f"{enclosing}{content}{right}"
    if degrees := _DEGREES.match(right):
        content, right = content + r"^\circ", right[degrees.end() :]
    if unit := _UNIT.match(right):
        content, right = f"{content} {unit[1] or '%'}", right[unit.end() :]
    elif word := _CHANGING_WORD.match(right):
        content, right = f"{content} {word[1]}", right[word.end() :]
    attached = re.sub(r"^\}+", "", right)
    if BOX.match(attached) or not _OPERATOR_RIGHT.match(attached):
        attached = ""
    return before + content + _ENDS.split(attached, maxsplit=1)[0]


def _opens(before: str) -> bool:
    return re.search(r"[(]\s*$", before) is not None and not before.rstrip().endswith(("\\(", "\\left("))


def _attached_before(text: str) -> str:
    """The part of an expression before a box; empty where the box begins it."""
    line = text.rsplit("\n", 1)[-1]
    if re.fullmatch(r"\s*(?:[-*+•>]|\d{1,3}[.)])\s+", line):  # a list's mark
        return ""
    text = _CURRENCY.sub(" ", _SPACES.sub(" ", line))
    text = _WORDS.split(_ENDS.split(text)[-1])[-1]
    text = re.sub(r"[({\[]+\s*$", "", text)
    if re.fullmatch(r"\s*[-–—]\s+", text) and re.search(r"[^\W\d]\s*[-–—]\s+$", line):  # a dash between words
        return ""
    return text.strip() if _OPERATOR_LEFT.search(text) else ""


def _enclosing(text: str, position: int) -> str | None:
    """The command whose argument a box is, as in a fraction, with the text up to the box; None outside of any."""
    first = max(text.rfind("\n\n", 0, position), position - SPAN, 0)
    depth = 0
    for place in range(position - 1, first - 1, -1):
        if text[place] in "{}" and text[place - 1 : place] != "\\":
            depth += 1 if text[place] == "}" else -1
            if depth < 0:
                head = text[first:place]
                command = re.search(r"[\\^_][A-Za-z]*(?:\s*\{[^{}]*\})*\s*$", head)
                if command is None or _FRAMES.search(head):
                    depth = 0
                    continue
                return text[first + command.start() : position]
    return None
