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
from rewards.quantities import changes_number, is_unit

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
        end: where it ends.
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
    found = {"boxed": _boxed, "####": _lines, "<answer>": _tags}[form](text)
    return found[-1:] if last and form != "boxed" else found


def _statement(text: str, value: str, start: int, end: int, form: str) -> Statement:
    before = text[max(0, start - SPAN) : start]
    return Statement(value, before, text[end : end + SPAN], form, start, end)


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
    found = (boxes(text) or [])[: MOST + 1]
    ends = [0, *(end for _, end, _ in found)]
    return [
        _statement(
            text, _with_neighbours(text, max(last, start - SPAN), start, end, content), start, end, "boxed"
        )
        for last, (start, end, content) in zip(ends, found, strict=False)
    ]


# What ends the expression that a box belongs to, on either side.
_ENDS = re.compile(
    r"\$+|\\[\[\]()]|\\\\|&|\n|\*\*|:|(?<![!<>])=|≈|→|⇒|\\(?:approx|implies|Rightarrow|Longrightarrow|rightarrow|"
    r"to|iff|therefore|equiv|quad|qquad|left(?!\s*\|)|right|because)(?![a-z])|[.,;?](?=\s)"
)
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf)\s*\{[^{}]*\}|(?<![\\A-Za-z])[^\W\d_]{2,}")
_THIN = re.compile(r"\\[,;:!]\s?")
_SPACES = re.compile(r"\\ |~|\\(?:bf|bm)(?![a-z])|\\begin\s?\{[^{}]*\}(?:\{[^{}]*\})?")
_CURRENCY = re.compile(r"\\\$|[€£¥₹]")
_OPERATOR_LEFT = re.compile(
    r"(?:[-+*/^_!<>≤≥≠¬±∓#%|}]|\\(?:times|cdot|div|pm|mp|neq?|leq?|geq?|lt|gt|log|ln|lg|exp|sin|cos|tan|sum|sqrt|"
    r"approx|sim|in|notin|not|neg|bmod|mod|min|max|pi|int|mid|propto|overline|bar|partial|int|det|gcd)(?![a-z])(?:\s*[_^]\s*(?:\{[^{}]*\}|\w))*\s*)\s*$|[A-Za-z0-9)\]]$|\d\.$"
)
_OPERATOR_RIGHT = re.compile(
    r"\s*(?:[*/^_<>≤≥≠±∓!]|[-+](?=\s*[\d\\(])|[-+](?=\s*[a-zA-Z](?![a-zA-Z]))|:\d|\\(?:times|cdot|div|pm|mp|neq?|leq?|geq?|lt|gt|bmod|"
    r"mod|over|choose|sqrt|[dt]?frac|log|ln|pi|sin|cos|tan|in|sim|cup|cap)(?![a-z]))|[A-Za-z0-9({]|\.\d|,\d"
)
# Braces around a box that leave its value alone.
_FRAMES = re.compile(
    r"\\(?:text\w*|math\w*|bf|bm|boldsymbol|underline|displaystyle|color|textcolor|large|ensuremath|mbox|hbox|"
    r"underbrace|fcolorbox|colorbox)(?:\s*\{[^{}]*\})*\s*$"
)
_DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})|\s?°")
_UNIT = re.compile(
    r"[\s$]*(?:\\[,;: !]|~)*\s*(?:\\(?:text\w*|math\w*|mbox)\s*\{([^{}]*)\}(?:\s*\^\s*\{?-?\d\}?)?|\\?(%))"
)
_WORD = re.compile(r"[\s$)]*([A-Za-zµ¢€]+(?:/[a-z]+)?)(?:\s+(?:of|in base \d+|[a-z]+))?", re.IGNORECASE)
_NO_UNITS = {"in", "a", "d", "c", "t", "s", "mo", "min"}
_SIGN = re.compile(r"(?:^|[\s(])-\s?\$+\s*$|\b(?:minus|negative)\s*\$*\s*(?:\\\()?\s*$", re.IGNORECASE)


def _with_neighbours(text: str, since: int, start: int, end: int, content: str) -> str:
    """The box's value with what is attached to the box; ``since`` is where an earlier box ends."""
    before = _attached_before(text[since:start])
    right = text[end : end + 80].split("\n\n")[0]
    if not before and re.search(r"(?<!\\)\(\s*$", text[:start]):
        right = re.sub(r"^\s*\)", "", right)
    enclosing = _enclosing(text, start)
    if enclosing is not None:
        return f"{enclosing}{content}{right}"
    bare = re.fullmatch(r"[\d.,{}\\! ]+", content) is not None
    right = re.sub(r"^_(?:10|\{10\})(?!\d)", "", right)
    if degrees := _DEGREES.match(right):
        content, right = content + r"^\circ ", right[degrees.end() :]
    if unit := _UNIT.match(right):
        content, right = f"{content} {unit[1] or '%'}", right[unit.end() :]
    elif (word := _WORD.match(right)) and not BOX.match(right.lstrip("$ ")) and _alters(word[1]):
        content, right = content + " " + word[0].strip(" $)"), right[word.end() :]
    attached = re.sub(r"^[})]+", "", right)
    if re.search(r"[A-Za-z0-9.]$", before) or re.match(r"[A-Za-z0-9]|\.\d|,\d", right.lstrip("})")):
        return (
            f"{before} | {content} | {right[:20]}"  # a digit beside a box makes no number that anybody boxed
        )
    operator = None if BOX.match(attached) else _OPERATOR_RIGHT.match(attached)
    attached = operator[0] + _ENDS.split(attached[operator.end() :], maxsplit=1)[0] if operator else ""
    return before + (content if bare or not (before or attached) else f"({content})") + attached


def _alters(word: str) -> bool:
    """Whether a word after a number is a unit, a scale or an operation, and so a part of the value."""
    return (is_unit(word.lower()) and word not in _NO_UNITS) or changes_number(word)


def _attached_before(text: str) -> str:
    """The part of an expression before a box; empty where the box begins it."""
    line = text.rsplit("\n", 1)[-1]
    if re.fullmatch(r"\s*(?:[-*+•>]|\d{1,3}[.)])\s+", line):  # a list's mark
        return ""
    if re.search(r"(?<![\\A-Za-z])[A-Za-z]+$", line):  # a word of which the box is the end
        return re.split(r"[\s$]", line)[-1]
    if _SIGN.search(line) and not re.search(r"\w\s-\s\$+$", line):
        return "-"
    if line.lstrip().startswith("|"):  # a table's cell
        line = line.rsplit("|", 1)[-1]
    text = _CURRENCY.sub(" ", _SPACES.sub(" ", _THIN.sub("", line)))
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
