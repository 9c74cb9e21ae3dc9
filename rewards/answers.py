r"""Rewards for right answers: numbers, mathematics, choices, exact words, or a comparison of your own.

A reward first reads the form: the content of the box, line or tag that the prompt asks for, without other words.  Then
it compares the value by ``rewards.numbers`` or ``rewards.math_equivalence``.  Without a form, it guesses from prose.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from rewards.errors import check_choice, invalid
from rewards.factory_calls import recorded
from rewards.math_equivalence import Pair, equal, equal_sides, equals, pair
from rewards.numbers import conversion, plain, readable, to_number
from rewards.text import completion_text
from rewards.thinking import QWEN3, ThinkTokens, split_text, split_thinking, visible
from rewards.trl_interface import Judges, Reward, Scores, as_score, column_in

Form = Literal["auto", "boxed", "####", "<answer>", "whole", "prose"]
FORMS: tuple[str, ...] = get_args(Form)
"""Where ``answer_reward`` looks for an answer."""

_INSTRUCTIONS = {
    "boxed": r"Please reason step by step, and put your final answer within \boxed{}.",
    "####": "Write your final answer alone on the last line, after ####.",
    "<answer>": "Write your final answer between <answer> and </answer>.",
    "whole": "Reply with the answer alone.",
}


def instruction(form: str) -> str:
    r"""Return the sentence that asks for a form in a prompt; empty for "auto" and "prose".

    Qwen's model cards recommend the "boxed" sentence for mathematics.

    >>> instruction("####")
    'Write your final answer alone on the last line, after ####.'
    """
    check_choice(form, FORMS, "form", "instruction")
    return _INSTRUCTIONS.get(form, "")


LONGEST = 20_000  # characters read, from the end of the text
MOST = 20  # a text with more distinct boxes states no answer
_BOX, _BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{"), re.compile(r"(?<!\\)(?:\\\\)*[{}]")
_WITHOUT_BRACES = re.compile(r"\\boxed\s+(-?\d[\d.,/]*)(?<![.,/])")
_LINE = re.compile(r"(?<!#)####(?!#)[ \t*]*\n?([^\n]*)")
_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)


def stated(text: str, form: str = "auto", kind: str = "number") -> list[str]:
    r"""Return the answers that a text states in a form, all of which must be right; empty if it uses another form.

    >>> stated(r"It is not 41, but \boxed{42}.", "boxed"), stated("<answer>41</answer><answer>42</answer>", "<answer>")
    (['42'], ['42'])
    """
    text = readable(text[-LONGEST:])
    if form == "whole":
        return [text.strip()] if text.strip() else []
    free = form in ("auto", "prose")
    in_text = boxes(text) if free or form == "boxed" else []
    if form == "boxed" or in_text != []:
        values = list(dict.fromkeys(_boxed(text, in_text or [])))
        return values if len(values) <= MOST else []
    lines = list(_LINE.finditer(text)) if free or form == "####" else []
    tags = _TAG.findall(text)[-1:] if free or form == "<answer>" else []
    if lines and (form == "####" or not text[lines[-1].end() :].strip()):
        return [lines[-1][1].strip(), *map(str.strip, tags)]
    if tags:
        return [tags[0].strip()]
    return guessed(text, kind) if free else []


def boxes(text: str) -> list[tuple[int, int, str]] | None:
    r"""Return each outermost ``\boxed{...}`` as (start, end, content), braces balanced; None if one is never closed."""
    in_text: list[tuple[int, int, str]] = []
    match = _BOX.search(text)
    while match:
        depth = 1
        for brace in _BRACE.finditer(text, match.end()):
            depth += 1 if brace[0].endswith("{") else -1
            if depth == 0:
                break
        else:
            return None
        in_text.append((match.start(), brace.end(), text[match.end() : brace.end() - 1]))
        match = _BOX.search(text, brace.end())
    return in_text


def _boxed(text: str, in_text: list[tuple[int, int, str]]) -> list[str]:
    # Account for what touches a box and changes its number: a sign, digits or a power.
    values = []
    for start, end, content in in_text:
        left, right = text[max(0, start - 9) : start], text[end : end + 9]
        power = re.match(r"\^\s*\{?\s*-?\d\s*\}?(?!\s*\\)", right)
        if re.search(r"\d\.?\Z", left) or re.match(r"\{?(?:\d|[.,]\}?\d)", right):
            content = "?"  # half a number
        elif re.search(r"(?<![\w)}\]\\])-\Z", left):
            content = f"-{content}"
        if re.search(r"[^\s.…]", content):  # not an empty "\boxed{}" copied from the prompt
            values.append(content + (power[0] if power else ""))
    return values


_SPAN = 400  # characters read after a label
_BARE = 4000  # most characters of a text without a label

# Every repetition is bounded: a completion may be a hundred thousand line feeds.
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
    r"below|above)\b|n['’]t\b|[?？≠不\"“]",
    re.IGNORECASE,
)
_TAKEN_BACK = re.compile(
    r"\b(?:wrong|incorrect|mistake|scratch|disregard|ignore|actually|oops|correction|withdr\w+|reject|kidding|"
    r"make (?:that|it)|second thoughts?|not (?:right|correct))\b"
    r"|(?:^|[.!?\n])\W{0,3}(?:no|wait|hmm+|sorry|or|rather)\b[^\n]{0,40}?\d",
    re.IGNORECASE,
)
_SIGNS = {
    "number": r"\\[dt]?frac.*|-?(?<![\d.,/])\.?\d[\d.,]*",
    "choice": r"\b(?:[B-HJ]\b|[AI]\b(?!['’]|\s[a-z]))",
    "math": r"[\d=$\\]",
    "exact": r"\w",
}


def guessed(text: str, kind: str) -> list[str]:
    """Return the answers that a text states in prose, all of which must be right; empty if none is stated beyond doubt.

    An answer is what follows an English label such as "the answer is", else what the last sentence states.
    """
    stated = []  # before, value, after
    for label in _LABEL.finditer(text):
        start = max(text.rfind(mark, 0, label.start()) for mark in (". ", "\n", "! ", "? ")) + 1
        value = _SENTENCE.split(text[label.end() : label.end() + _SPAN], maxsplit=1)[0]
        if re.search(_SIGNS[kind], value):  # "the answer is simple" states none
            stated.append((text[start : label.start()], value, text[label.end() + len(value) :]))
    if not stated and len(text) <= _BARE:
        stated = _concluded(text, kind)
    sure = all(_states(value, kind) and not _DOUBT.search(before + value) for before, value, _ in stated)
    return [value for _, value, _ in stated] if stated and sure and not _TAKEN_BACK.search(stated[-1][2]) else []


def _concluded(text: str, kind: str) -> list[tuple[str, str, str]]:
    # Take the end of the last sentence that shows a value; nothing if that is one of several bare values.
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
    # Whether a number or a letter stands where a sentence states it: after a verb, a colon or "=", or first.
    start = value.rfind("=") + 1
    sign = re.search(_SIGNS[kind], value[start:])
    return kind not in ("number", "choice") or bool(sign and _STATES.search(value[: start + sign.start()]))


KINDS = ("number", "math", "choice", "exact")
_OUTER = r"[ .,;:!?\"'“”«»「」()\[\]*_。，！।]"


def folded(text: str) -> str:
    """Return text to compare as words, without markup, case, outer punctuation, a leading article and extra spaces."""
    text = re.sub(r"\\([%&#_$])", r"\1", unicodedata.normalize("NFC", readable(text)))
    text = re.sub(r"\s+", " ", plain(text).replace("$", ""))
    text = re.sub("[‘’]", "'", text.strip()).casefold()
    text = re.sub(rf"^(?:(?!\.\d){_OUTER})+|{_OUTER}+$", "", text) or text
    return re.sub(r"^(?:the|an?)\s+", "", text)


# Gold answers in words: inside \text, or outside it if they are neither a function nor a product such as xyz.
_IN_TEXT = re.compile(r"\$?\\(?:text(?:bf|it|rm)?|mathrm|mbox)\s*\{[^{}]*[^\W\d_][^{}]*\}\$?")
_WORDS = re.compile(r"(?!(?:sin|cos|tan|log|exp)\b)[^\W\d_]{3,}(?:,? [^\W\d_]+)*")
_PRODUCT = re.compile(r"(?!.*(.).*\1)[a-df-hj-np-tv-z]{3,4}")


def _pairs(value: str, gold: str) -> list[Pair]:
    """Return the pairs that math-verify must find equal, one per side of an equation; empty if they cannot be."""
    gold = readable(gold).strip(" .")
    if (its := _clock(gold)) and its[2]:
        mine = _clock(value)
        return [(gold, gold)] if mine and mine[:2] == its[:2] and mine[2] in ("", its[2]) else []
    if _IN_TEXT.fullmatch(gold) or (_WORDS.fullmatch(folded(gold)) and not _PRODUCT.fullmatch(gold)):
        same = re.sub(r"\s*,\s*", ",", folded(value)) == re.sub(r"\s*,\s*", ",", folded(gold))
        return [(gold, gold)] if same else []
    sides = [pair(side, gold) for side in (value, *equal_sides(value, gold))]
    return [side for side in sides if side] if all(sides) else []


def _clock(text: str) -> tuple[int, int, str] | None:
    # 4:30 PM as hour, minute and half of the day, if that is named.
    time = re.fullmatch(r"(?i)(\d{1,2})(?::(\d\d))?(?:\s*([ap])\.?\s?m)?", plain(text).replace("{:}", ":").strip(" $."))
    return (int(time[1]), int(time[2] or 0), (time[3] or "").lower()) if time else None


_NAMED = re.compile(r"(.*?)\b([^\W\d_]{2,})[^\w:=]{0,3}\d", re.DOTALL)  # June 20, Figure 2
_UNNAMED = ("Answer", "Total", "Result", "About", "Approximately", "Around", "Roughly", "Exactly", "Only")


def _other_name(value: str, gold: str) -> bool:
    # Whether the answer and the gold answer each name what the other does not: y = 2 for x = 2, July 20 for June 20.
    its, mine = (_NAMED.match(plain(text)) for text in (gold, value[:_SPAN]))
    if its and mine and its[2].istitle() and its[2] not in _UNNAMED:
        return its[2].lower() != mine[2].lower() or bool(_DOUBT.search(mine[1]))
    texts = [re.sub(r"\\[A-Za-z]+", "", text) for text in (value, gold)]
    of_value, of_gold = (re.match(r"[\s$]*([A-Za-z])\s*=", text) for text in texts)
    return bool(of_value and of_gold and of_value[1] not in texts[1] and of_gold[1] not in texts[0])


# What does not make an expression of a side: a subscript, an inverse, a function's argument, a command such as \\angle.
_NO_OPERATION = re.compile(
    r"_(?:\{[^{}]*\}|\w)|(?<=[A-Za-z])(?:\^\s*\{?-1\}?)?\s?\([^()]*\)|\\(?!sqrt|cdot|times)[A-Za-z]+"
)
_UNKNOWN = re.compile(r"(?<![A-Za-z\\])(?:[A-Za-z]|[xyz]{2,3})(?![A-Za-z]|-[A-Za-z]{2})")


def _is_equation(gold: str) -> bool:
    # 2x + 3y = 6 and x = 2, y = 3 are equations; in f(3) = 5 and 2^6 = 64 only the value is asked for.
    first, *others = _NO_OPERATION.sub("", plain(readable(gold))).split("=")[:-1] or [""]
    several = any(_UNKNOWN.search(side) and re.search(r"[,;]|\b(?:or|and)\b", side) for side in others)
    return several or bool(_UNKNOWN.search(first) and re.search(r"[-+*/^\d]|\\", first))


def _numeric(gold: str) -> bool:
    return to_number(readable(gold)) is not None and not _is_equation(gold)


# Letters right after a number, outside \\text, that are no usual unit: 6xy, 2k; with a blank, 5 m has a unit.
_MONOMIAL = re.compile(
    r"[\d}]\s*(?!(?:cm|mm|km|kg|ml|mL|ft|in|yd|mi|hr|min|sec|mph|lbs?|oz|am|pm|USD|st|nd|rd|th)\b)[A-Za-z]{1,3}(?![A-Za-z/])"
)


def _is_algebra(gold: str) -> bool:
    # Whether kind "math" leaves the gold answer to math-verify.
    unit = r"(?<=[\d}])\s+[mgshlLNJWVKCF]\.?$"
    formula = re.sub(rf"\\(?:text|mathrm|mbox|rm)\s*\{{[^{{}}]*\}}|\\[A-Za-z]+|{unit}", "", gold)
    return not _numeric(gold) or bool(_MONOMIAL.search(formula.rpartition("=")[2]))


# A lone capital letter is a choice, unless it is the article or the pronoun that begins a clause.
_CHOICE = re.compile(r"(?<![A-Za-z0-9'’])(?:([B-HJ])|([AI])(?!\s+(?!and\b|or\b)[a-z]))(?![A-Za-z0-9'’+#])")
# An option whose text names others: "D) Both A and B".
_OF_OTHERS = re.compile(
    r"\(?([A-J])\s*[).:\]]\s*(?:(?:both|all|none|neither|either|only)\s+(?:of\s+)?)?"
    r"[A-J](?:(?:\s*,\s*|\s+)(?:(?:and|or|nor)\s+)?[A-J])+\.?",
    re.IGNORECASE,
)
_CHOICE_LABEL = re.compile(r"^(?:(?:option|choice|answer)\b|答案[是为]?|选)", re.IGNORECASE)
_DENIED = re.compile(
    r"(?:(?i:\b(?:not|but|than|except))|\\n\w+|¬|!)\W*[A-J]\b|\b[A-J]\W+(?:is|was)(?:n['’]t|\s+(?:not|wrong|incorrect|false))\b"
)
# A marked letter and the option's text, whose capitals are not choices: "B. vitamin C".
_MARKED = re.compile(r"\W*([A-J])\W*(?:(?<=\W)-|[).:\]])\W*(.*)", re.DOTALL)
_ANOTHER = re.compile(
    r"[A-J](?:\W*$|\s*[,/;]|\s+(?:and|or)\s+[A-J]\b)|(?:.*\W)?(?:[A-J]\s*[):\]]|[A-J]\.\s+\S)|(?:.*\W)?(?:or|also|maybe|perhaps|(?i:no|wait|actually|rather))\W+[A-J]\b",
    re.DOTALL,
)


def _letters(value: str, alone: bool) -> set[str]:
    text = _CHOICE_LABEL.sub("", plain(value).strip(" $"))
    if one := re.fullmatch(r"[^\w+#¬!]*([A-Ja-j])[^\w+#]*", text) or _OF_OTHERS.fullmatch(text):
        return {one[1].upper()}
    denied = _DENIED.search(text)
    if (one := _MARKED.match(text)) and not denied and not _ANOTHER.match(one[2]):
        return {one[1]}
    if denied or (alone and not re.match(r"\W*[A-J](?:\s*[).:\]]|\s-\s)", text)):
        return set()
    return {match[1] or match[2] for match in _CHOICE.finditer(text)}


def gold_text(gold: str) -> str:
    """Return the answer in a gold solution: the text after "####", or the last box, else all of it."""
    if "####" in gold:
        return gold.rsplit("####", 1)[1].strip()
    in_text = boxes(_WITHOUT_BRACES.sub(r"\\boxed{\1}", gold))
    return in_text[-1][2] if in_text else gold.strip()


def accepted(gold: Any) -> list[Any]:
    """Return the answers that each count as right: all of a list of texts or numbers, such as aliases; else one."""
    several = isinstance(gold, (list, tuple)) and all(isinstance(one, (str, int, float)) for one in gold)
    return list(gold) if several else [gold]


def is_right(
    answer: str,
    gold: str,
    kind: str = "number",
    tolerance: float = 0.0,
    form: Form = "auto",
    equal: Callable[[str, str], bool] = equal,
) -> bool:
    r"""Whether the text after a thought states the gold answer in this form, and no other.

    >>> is_right("The answer is 1,000.", "1000"), is_right("41 or 42", "42"), is_right("42", "42", form="boxed")
    (True, False, False)
    """
    # Algebra would accept "17 + 25" for 42, and so pay for a copy of the question.
    kind = "number" if kind == "math" and not _is_algebra(gold) else kind
    alone = form == "whole"

    def same(value: str) -> bool:
        if kind in ("number", "math") and _other_name(value, gold):
            return False
        if kind == "math":
            asked = _pairs(value, gold)
            return bool(asked) and all(equal(*one) for one in asked)
        if kind == "choice":
            return _letters(value, alone) == {re.sub(r"\W", "", gold).upper()}
        if kind == "exact":
            return folded(value) == folded(gold)
        target, said = to_number(readable(gold)), to_number(value, decimal_comma=True, alone=alone)
        found = [one for one in (said, *conversion(value)) if one is not None]
        return target is not None and any(one.same(target, tolerance) for one in found)

    values = stated(answer, form, kind)
    return bool(values) and all(map(same, values))


@dataclass
class _AnswerReward:
    kind: str | Callable[[str, Any], Any]
    form: Form
    column: str
    tokens: ThinkTokens
    tokenizer: Any
    tolerance: float
    right: float
    wrong: float

    aim: ClassVar[str] = "answer"
    judges: ClassVar[Judges] = "answer"
    __name__ = "answer_reward"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def __call__(self, completions: Sequence[Any], completion_ids: Any = None, **kwargs: Any) -> Scores:
        golds = column_in(kwargs, self.column, self.__name__)
        ids = [None] * len(completions) if completion_ids is None else completion_ids
        said = map(self.answers_of, completions, ids)
        rows = [(texts, self._accepted(gold)) for texts, gold in zip(said, golds, strict=True)]
        equal_pairs: dict[Pair, bool] = {}
        if self.kind == "math":  # the whole batch's algebra at once, in parallel
            asked = [(texts, gold) for texts, golds in rows for gold in golds if _is_algebra(gold)]
            each = ((v, g) for texts, g in asked for t in texts for v in stated(t, self.form, "math"))
            equal_pairs = equals([pair for one in each for pair in _pairs(*one)])
        return [self._one(i, *row, equal_pairs) if row[1] else None for i, row in enumerate(rows)]

    def _accepted(self, gold: Any) -> list[Any]:
        given = [gold] if callable(self.kind) else accepted(gold)
        known = [one for one in given if one is not None and one == one and str(one).strip()]
        if callable(self.kind):
            return known
        texts = [gold_text(str(one)) for one in known]
        choice = re.compile(r"\W*[A-Ja-j]\W*").fullmatch
        fits: Any = {"number": _numeric, "choice": choice}.get(self.kind, str)
        return [text for text in texts if fits(text)]  # answers of another kind do not count

    def _one(
        self, sample: int, texts: Sequence[str], golds: list[Any], equal_pairs: Mapping[Pair, bool]
    ) -> float | None:
        if not callable(self.kind):
            how = (self.kind, self.tolerance, self.form, lambda *pair: equal_pairs[pair])
            found = any(all(is_right(text, gold, *how) for text in texts) for gold in golds)
            return self.right if found else self.wrong
        if self.form in ("boxed", "####", "<answer>"):
            texts = [value for text in texts for value in stated(text, self.form) or [""]]
            if "" in texts:
                return self.wrong
        given = [self.kind(text, golds[0]) for text in texts]
        paid = [[self.wrong, self.right][v] if isinstance(v, bool) else v for v in given]
        scores = [as_score(value, sample, self.__name__) for value in paid]
        return None if None in scores else min(score for score in scores if score is not None)

    def answers_of(self, completion: Any, ids: Any) -> list[str]:
        """Return the text after the thought; several candidates if the decoded text is ambiguous."""
        thought = None if ids is None else split_thinking(ids, self.tokens)
        # After a tool call the ids span several turns; the answer is in the last message.
        turns = 1 if isinstance(completion, str) else sum(m.get("role") == "assistant" for m in completion)
        text = completion_text(completion, thought=True)
        if thought is not None and self.tokenizer is not None and turns <= 1:
            text = str(self.tokenizer.decode(visible(thought, self.tokens), skip_special_tokens=True))
            if thought.opened or thought.closed or self.tokens.prompt_opens:
                return [text]
        return [answer for _, answer in split_text(text, thought if turns <= 1 else None, self.tokens)]


@recorded()
def answer_reward(
    kind: str | Callable[[str, Any], Any] = "number",
    *,
    form: Form = "auto",
    column: str = "answer",
    tokens: ThinkTokens = QWEN3,
    tokenizer: Any = None,
    tolerance: float = 0.0,
    right: float = 1.0,
    wrong: float = 0.0,
) -> Reward:
    r"""Pay 1.0 if a completion states exactly one answer after its thought and it is right, else 0.0.

    The score is None ("does not apply") if the row has no gold answer of this kind.  A gold solution may end in
    "#### 72" or ``\boxed{72}``; each entry of a list of texts or numbers is right.  The kinds:

    - ``"number"``: equal values; 1,000 and 1000.0 and \frac{2000}{2} are one number.
    - ``"math"``: numbers compare as above, so 2^6 earns nothing for 64; math-verify compares other gold answers.
    - ``"choice"``: one letter, A to J.
    - ``"exact"``: the same words, ignoring case, markup, articles and outer punctuation.
    - a callable ``(answer_text, gold) -> bool or float``, given the text after the thought or the content of the form.

    Args:
        form: where to read the answer; ask for it in the prompt with ``rewards.instruction(form)``.  ``"boxed"``:
            ``\boxed{}``; boxes that differ earn nothing.  ``"####"``, ``"<answer>"``: the last line or tag.
            ``"whole"``: all text after the thought, a value with its unit.  ``"auto"``, ``"prose"``: the box, else the
            line and the tag, else a guess from English prose, which refuses if in doubt.
        column: the dataset's column of gold answers.
        tokens: the thought's markers; with ``prompt_opens``, a completion that never closes its thought has no answer.
        tokenizer: decodes the answer from its ids.  Without it, if the text has </think> more often than the ids, the
            answer must be right from every place where it may begin.
        tolerance: relative, for numbers; 0.01 is one percent.
        right, wrong: scores of the right answer, and of any other.

    >>> reward = answer_reward()
    >>> reward(completions=["<think>6 * 7</think>It is 42.", "41 or 42", "7"], answer=["42", "42", None])
    [1.0, 0.0, None]
    """
    if not callable(kind):
        check_choice(kind, KINDS, "kind", "answer_reward", ", or pass a callable (answer_text, gold) -> bool")
    check_choice(form, FORMS, "form", "answer_reward")
    if not isinstance(tolerance, (int, float)) or not 0 <= tolerance < float("inf"):
        where = f"answer_reward(tolerance={tolerance!r})"
        raise invalid("tolerance must be a number from 0", where, "pass 0.01 for one percent")
    return _AnswerReward(kind, form, column, tokens, tokenizer, tolerance, float(right), float(wrong))
