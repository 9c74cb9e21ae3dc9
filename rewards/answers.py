r"""Rewards for right answers: numbers, mathematics, choices, exact words, or a comparison of your own.

For datasets with gold answers.  ``rewards.forms`` finds the answer where the prompt asks for it, ``rewards.prose``
where it asks for nothing; a comparison then checks it against the gold answer, with ``rewards.quantities`` or
``rewards.algebra``.  A completion that states nothing, two answers or the opposite scores nothing: a list of all
numbers, two boxes that differ, "not 42".

It neither runs code nor asks a judge: that is ``rewards.judge``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from rewards import algebra, prose
from rewards.errors import invalid
from rewards.forms import Form, Statement, boxes, check_form, explicit, seen
from rewards.made import recorded
from rewards.notation import readable
from rewards.quantities import Number, plain, to_number
from rewards.signature import Judges, Reward, Scores, column_in
from rewards.text import completion_text
from rewards.thinking import QWEN3, ThinkTokens, split_text, split_thinking

# ----------------------------------------------------------------------------------- reading


def statements(text: str, form: str = "auto", kind: str = "number") -> list[Statement]:
    """Every statement of an answer that counts; empty where a text keeps to another form, or states none.

    With "auto" and "prose" boxes, lines and tags count, and none may differ; without any of them, prose does.  Labels
    in prose ("the answer is 41") count beside any form, as far as they name a value; with "prose" also denied ones.
    """
    text = seen(text)
    if boxes(text) is None:  # cut off within one
        return []
    labels = [_narrowed(label, kind) for label in prose.labelled(text)]
    labels = [label for label in labels if _names_a_value(label, kind)]
    free = form in ("auto", "prose")
    forms = ("boxed", "####", "<answer>") if free else (form,)
    found = [s for name in forms for s in explicit(text, name, last=not free)]
    if free:
        found = [s for s in found if s.form != "####" or not _heads(s, kind)]
    found = [s for s in found if s.form != "boxed" or not any(o.start < s.start < o.end for o in found)]
    if found:
        return _kept([*found, *(labels if form == "prose" else filter(prose.stands, labels))])
    if not free:
        return []
    return _kept(labels) or [_narrowed(s, kind) for s in prose.concluded(text, kind)]


def _in_prose(statement: Statement) -> bool:
    return statement.form in ("label", "conclusion")


def _narrowed(statement: Statement, kind: str) -> Statement:
    """A statement in prose with its last clause alone, so that what an earlier one denies does not count."""
    value = statement.value
    if kind not in ("number", "choice") or prose.ascribes(value):
        return statement
    if kind == "choice":  # a clause at a time: "B, since A is not" chooses B
        letters = [] if re.search("[?？]", value) else sorted(_letters(value))
        return statement._replace(value=" ".join(letters) or value)
    clause = prose.clause_in(prose.without_contrast(value))
    rest = value.rpartition(clause)[2] if clause else ""
    return statement._replace(value=clause, after=f"{rest} {statement.after}")


def _kept(found: list[Statement]) -> list[Statement]:
    """The statements in their order, without those taken back before a later one."""
    found = sorted(found, key=lambda statement: statement.start)
    kept = found[-1:]
    for this, following in pairwise(found):
        between = this.after[: max(0, following.start - this.end)]
        if not prose.superseded(this, between):
            kept.append(this._replace(after=between))
    return kept


def _heads(line: Statement, kind: str) -> bool:
    """Whether a line after #### is a heading rather than an answer, where the prompt asked for no such line."""
    heading = re.match(r"(?:step|part|case|solution|method|final|answer)\b", line.value, re.IGNORECASE)
    return heading is not None or not _names_a_value(line, kind)


def _names_a_value(statement: Statement, kind: str) -> bool:
    """A label before words alone, as in "the answer is simple", states no answer."""
    value = statement.value
    if kind == "number":
        return _number(statement) is not None
    if kind == "choice":
        return bool(_letters(value))
    return kind == "exact" or re.search(r"[\d\\^$]", value) is not None or value.count(" ") < 3


# -------------------------------------------------------------------------------- comparisons

Equal = Callable[[str, str], bool]  # of a gold formula and an answer's

# What stands before the answer in a sentence.
_COPULA = re.compile(
    r"\b(?:is|are|was|were|called|named|as|at|point|interval|equals|gives|set|solutions?|to|by|in|with|get|have|be|que|es|"
    r"est|ist|also)\b|['’]s\b|[:：为是]"
)


def _number(statement: Statement) -> Number | None:
    if _in_prose(statement):
        return prose.number_in(prose.without_contrast(statement.value))
    return to_number(statement.value, decimal_comma=True)


def _number_is(statement: Statement, gold: str, tolerance: float, equal: Equal) -> bool:
    target, found = to_number(readable(gold)), _number(statement)
    return target is not None and found is not None and found.same(target, tolerance)


def _exact_is(statement: Statement, gold: str, tolerance: float, equal: Equal) -> bool:
    wanted, value = folded(gold), statement.value
    if not _in_prose(statement) or folded(value) == wanted:
        return folded(value) == wanted
    parts = _COPULA.split(prose.without_contrast(value))
    return len(parts) > 1 and wanted in (folded(parts[0]), folded(parts[-1]))


# A lone capital letter is a choice, unless it is the article or the pronoun that begins a clause.
_CHOICE = re.compile(r"(?<![A-Za-z0-9'’])(?:([B-HJ])|([AI])(?!\s+(?!and\b|or\b)[a-z]))(?![A-Za-z0-9'’+#])")


def _letters(value: str) -> set[str]:
    """The choices that a value names in clauses that deny nothing."""
    text = plain(value).strip()
    if alone := re.fullmatch(r"[^\w+#]*([A-Ja-j])[^\w+#]*", text):
        return {alone[1].upper()}
    clauses = [c for c in re.split(r"[,;.](?:\s+|(?=[^\x00-\x7f]))|\s+[—–-]\s+", text) if not prose.denies(c)]
    return {match[1] or match[2] for clause in clauses for match in _CHOICE.finditer(clause)}


def _choice_is(statement: Statement, gold: str, tolerance: float, equal: Equal) -> bool:
    return _letters(statement.value) == {re.sub(r"\W", "", gold).upper()}


def folded(text: str) -> str:
    r"""Text for comparison as words, without markup, case, outer punctuation, articles and extra spaces.

    >>> folded(r"**The Netherlands.**") == folded(r"\text{netherlands}")
    True
    """
    text = re.sub(r"\s+", " ", plain(readable(text))).strip(" .,;:!?\"'“”‘’()[]*。，！।").casefold()
    return re.sub(r"^(?:the|an?|der|die|das|el|la|le|il)\s+", "", text)


def _numeric(gold: str) -> bool:
    return to_number(readable(gold)) is not None


def _math_is(statement: Statement, gold: str, tolerance: float, equal: Equal) -> bool:
    if _numeric(gold):
        # Algebra would accept "17 + 25" for 42, and so a copy of the question.
        return _number_is(statement, gold, tolerance, equal)
    return any(g == value or equal(g, value) for g, value in _pairs(statement, gold))


def _pairs(statement: Statement, gold: str) -> list[algebra.Pair]:
    """What algebra has to compare, gold answer and answer; two equal texts where they are the same as written."""
    pairs = (_pair(value, gold) for value in _formulas(statement))
    return [pair for pair in pairs if pair is not None and all(map(algebra.tractable, pair))]


_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_TAIL = re.compile(
    r"(?:(?:\\?[A-Za-z]{1,2}(?![A-Za-z])|\\[A-Za-z]+|[\d+\-*/^_=<>()\[\]{},.|'!·…&\s]|\b(?:and|or)\b(?=\s+[-\dx])))+$"
)


def _formulas(statement: Statement) -> list[str]:
    """The formulas that a statement may end in; in prose the last one in dollars, or what follows the verb."""
    value = statement.value
    if not _in_prose(statement):
        return [value]
    value = re.sub(
        r"\s\((?:about|approximately|≈)[^()]*\)$", "", prose.without_contrast(value).rstrip(" .!*。")
    )
    value = re.sub(r"\s(?:(?:cubic|square) \w+|units?)$|, which\b.*$", "", value)
    formulas = list(_FORMULA.finditer(value))
    if formulas and len(re.findall(r"\w+", value[formulas[-1].end() :])) <= 3:
        last = next(filter(None, formulas[-1].groups()))
        found = [last, value[formulas[-2].start() :] if len(formulas) > 1 else ""]
    else:
        found = [value, _COPULA.split(value)[-1]]
        if ";" in value:
            found += _formulas(statement._replace(value=value.split(";")[0]))
        elif tail := _TAIL.search(value):
            found.append(re.split(r"(?<![<>!])=", tail[0])[-1])
    return list(dict.fromkeys(part for part in found if part.strip()))


_DOTS_OR_BASE = re.compile(r"\\emptyset|\\[lc]?dots|…|\.\.\.|[0-9A-F]_\{?\d")


def _pair(value: str, gold: str) -> algebra.Pair | None:
    gold, value = _bare_formula(readable(gold)), _bare_formula(value)
    value = _in_the_golds_shape(value, gold)
    ends = {_ends(value), _ends(gold)}
    same_ends = len(ends) == 1 or ends == {"set", ""} or ("" in ends and "," not in value)
    if not same_ends or (_DOTS_OR_BASE.search(value) and not _DOTS_OR_BASE.search(gold)):
        return None
    return gold, value


def _bare_formula(text: str) -> str:
    """A formula without layout and without a unit in text after it."""
    text = re.sub(r"\\(?:left|right|displaystyle|,|;|!|:|quad)(?![a-z])|\$", " ", text).strip(" .*\n`।。")
    text = re.sub(r"^\\(?:text|boxed)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}$", r"\1", text)
    text = re.sub(r"^\\[\[(]|\\[\])]$", "", text).strip(" .*\n`।。")
    text = re.sub(
        r"(?<=[\w})])\s*\\(?:text|mathrm)\s*\{(?!\s*(?:or|and)\b)[^{}]*\}(?:\s*\^\s*\{?\d\}?)?$", "", text
    )
    for other, usual in ((r"\varnothing", r"\emptyset"), (r"\{\}", r"\emptyset"), (r"\ge ", r"\geq ")):
        text = text.replace(other, usual)
    return re.sub(r"\s+", " ", text)


_NAME = re.compile(
    r"^(?:\\?[A-Za-z]{2,}|[A-Za-z])\s*(?:\([^()=]*\))?\s*=\s*(?=[^=]*$)|^[a-z]\s*\\in(?![a-z])\s*"
)


def _in_the_golds_shape(value: str, gold: str) -> str:
    """An answer without the names that the gold answer leaves out: "x = 2, y = 3" is (2, 3) where that is gold."""
    if "=" not in gold:
        value = _NAME.sub("", value)
    if "," in gold and not _ends(gold):
        value = re.sub(r"\s(?:and|or)\s", ", ", value)
    parts = [re.fullmatch(r"\s*([a-z])\s*=(.*)", part) for part in value.split(",")]
    names = [part[1] for part in parts if part]
    if _ends(gold) == "()" and len(parts) == len(names) and names == sorted(set(names)):
        return f"({', '.join(part[2].strip() for part in parts if part)})"
    return value


def _ends(text: str) -> str:
    """The brackets around a pair, an interval or a tuple, whose kind matters; "set" for braces, "" for none."""
    match = re.match(r"([(\[]|\\\{|\\langle).*([)\]]|\\\}|\\rangle)$", text, re.DOTALL)
    if match is None or "," not in text:
        return ""
    return "set" if match[1] == "\\{" else match[1] + match[2]


_KINDS: dict[str, Callable[[Statement, str, float, Equal], bool]] = {
    "number": _number_is,
    "math": _math_is,
    "choice": _choice_is,
    "exact": _exact_is,
}


def gold_text(gold: str) -> str:
    r"""The answer within a gold solution: what follows "####", or the last box; else the text itself.

    >>> gold_text("48 / 2 = 24, so 48 + 24 = 72.\n#### 72"), gold_text(r"Thus $\boxed{7}$.")
    ('72', '7')
    """
    if "####" in gold:
        return gold.rsplit("####", 1)[1].strip()
    found = boxes(gold)
    return found[-1][2] if found else gold.strip()


def accepted(gold: Any) -> list[Any]:
    """The answers of which each is right: of a list of texts, such as a name and its aliases, all; else the one.

    >>> accepted(["Paris", "Paris, France"]), accepted("Rome"), accepted([1, 2])
    (['Paris', 'Paris, France'], ['Rome'], [[1, 2]])
    """
    several = isinstance(gold, (list, tuple)) and all(isinstance(one, str) for one in gold)
    return list(gold) if several else [gold]


def is_right(
    answer: str,
    gold: str,
    kind: str = "number",
    tolerance: float = 0.0,
    form: Form = "auto",
    equal: Equal = algebra.equal,
) -> bool:
    r"""Whether the text after a thought states exactly one answer in this form, equal to the gold answer.

    >>> is_right("The answer is 1,000.", "1000"), is_right(r"\boxed{\frac{2000}{2}}", "1000.0", form="boxed")
    (True, True)
    >>> is_right("The answer is not 42.", "42"), is_right("41 or 42", "42"), is_right("42", "42", form="boxed")
    (False, False, False)
    """
    same = _KINDS[kind]
    made = statements(answer, form, kind)
    several = r" or \in" if kind == "math" and re.search(r"[,()\[\]{}]|\\pm", gold) else ""
    words = gold + several if kind in ("exact", "math") else ""
    return bool(made) and all(prose.stands(s, words) and same(s, gold, tolerance, equal) for s in made)


# -------------------------------------------------------------------------------------- reward


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
    timeout: float

    aim: ClassVar[str] = "answer"
    judges: ClassVar[Judges] = "answer"
    __name__ = "answer_reward"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def __call__(self, completions: Sequence[Any], completion_ids: Any = None, **kwargs: Any) -> Scores:
        golds = column_in(kwargs, self.column, self.__name__)
        ids = completion_ids if completion_ids is not None else [None] * len(completions)
        rows = [
            (self.answers_of(completion, row_ids), self._accepted(gold))
            for completion, row_ids, gold in zip(completions, ids, golds, strict=True)
        ]
        verdicts: dict[algebra.Pair, bool] = {}
        if self.kind == "math":  # the whole batch's algebra at once, in parallel
            asked = [(texts, gold) for texts, golds in rows for gold in golds if not _numeric(gold)]
            stated = ((s, g) for texts, g in asked for t in texts for s in statements(t, self.form, "math"))
            verdicts = algebra.equals([pair for s, gold in stated for pair in _pairs(s, gold)], self.timeout)
        return [self._one(texts, golds, verdicts) if golds else None for texts, golds in rows]

    def _accepted(self, gold: Any) -> list[Any]:
        """The row's gold answers of this kind: one, none, or of a list of texts each."""
        given = [gold] if callable(self.kind) else accepted(gold)
        return [found for one in given if (found := self._gold(one)) is not None]

    def _gold(self, gold: Any) -> Any:
        """A gold answer as it is compared; None where there is none of this kind."""
        if gold is None or gold != gold or str(gold).strip() == "":
            return None
        if callable(self.kind):
            return gold
        gold = gold_text(str(gold))
        choice = re.fullmatch(r"\W*[A-Ja-j]\W*", gold) is not None
        return gold if {"number": _numeric(gold), "choice": choice}.get(self.kind, True) else None

    def _one(self, texts: Sequence[str], golds: list[Any], verdicts: Mapping[algebra.Pair, bool]) -> float:
        if callable(self.kind):
            given = (self.kind(text, golds[0]) for text in texts)
            scores = {True: self.right, False: self.wrong}
            return min(scores[v] if isinstance(v, bool) else float(v) for v in given)

        def equal(gold: str, answer: str) -> bool:
            return verdicts[gold, answer]

        how = (self.kind, self.tolerance, self.form, equal)
        found = any(all(is_right(text, gold, *how) for text in texts) for gold in golds)
        return self.right if found else self.wrong

    def answers_of(self, completion: Any, ids: Any) -> list[str]:
        """The text after the thought; several candidates where the decoded text is ambiguous."""
        thought = None if ids is None else split_thinking(ids, self.tokens)
        # After a tool call the ids span several turns; the answer is in the last message.
        turns = 1 if isinstance(completion, str) else sum(m.get("role") == "assistant" for m in completion)
        if thought is not None and self.tokenizer is not None and turns <= 1:
            return [str(self.tokenizer.decode(thought.answer, skip_special_tokens=True))]
        text = completion_text(completion, thought=True)
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
    timeout: float = 1.0,
) -> Reward:
    r"""1.0 for a completion that states exactly one answer after its thought, the right one; else 0.0.

    None ("does not apply") where the row has no gold answer, or one of another kind, such as a word under
    ``"number"``.  A gold solution that ends in "#### 72" or ``\boxed{72}`` counts as its answer; of a
    list of texts each is right.

    The kinds:

    - ``"number"``: equal values; 1,000 and 1000.0 and \frac{2000}{2} are one number.
    - ``"math"``: the same for numbers; other gold answers by math-verify.
    - ``"choice"``: one letter, A to J.
    - ``"exact"``: the same words, ignoring case, markup, articles and outer punctuation.
    - a callable ``(answer_text, gold) -> bool or float``, given the text after the thought.

    The forms, of which ``rewards.instruction(form)`` gives the sentence for the prompt:

    - ``"boxed"``: what stands in ``\boxed{}``; boxes that differ earn nothing.
    - ``"####"`` and ``"<answer>"``: the last line or tag of that kind.
    - ``"whole"``: all that follows the thought.
    - ``"prose"``: a heuristic, for completions that were asked for no form.
    - ``"auto"``: the box if there is one, else the line, else the tag, else prose.

    Args:
        kind: see above.
        form: see above.  Ask for one in the prompt, and name it here: then nothing is guessed.
        column: the dataset's column of gold answers.
        tokens: the markers; with ``prompt_opens`` a completion that never closes its thought has no answer.
        tokenizer: decodes the answer from its ids.  Without it, if the text contains </think> more often than the
            ids do, the answer must be right from every place where it may begin.
        tolerance: relative, for numbers.
        right, wrong: scores of the right answer, and of any other.
        timeout: seconds on a core for one answer's algebra, after which it is not equal.

    Raises:
        ValueError: an unknown kind or form; at a call, RewardValueError if the dataset lacks the column.

    >>> reward = answer_reward()
    >>> reward(completions=["<think>6 * 7</think>It is 42.", "41 or 42", "7"], answer=["42", "42", None])
    [1.0, 0.0, None]
    """
    if not callable(kind) and kind not in _KINDS:
        raise invalid(
            f"There is no kind of answer '{kind}'",
            f"answer_reward(kind={kind!r})",
            f"choose one of {', '.join(_KINDS)}, or pass a callable (answer_text, gold) -> bool",
        )
    check_form(form, "answer_reward")
    scores = map(float, (right, wrong, timeout))
    return _AnswerReward(kind, form, column, tokens, tokenizer, tolerance, *scores)
