r"""Rewards for right answers: numbers, mathematics, choices, exact words, or a comparison of your own.

For datasets with gold answers.  ``rewards.assertions`` finds the answer that a completion asserts after its thought; a
comparison then checks it against the gold answer, for numbers with ``rewards.quantities``.  A completion that asserts
nothing, two answers or the opposite scores nothing: a list of all numbers, two boxes that differ, "not 42".

Symbolic mathematics is math-verify's; this module only decides what it gets to see.  It neither runs code nor asks a
judge: that is ``rewards.judge``.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rewards.assertions import Assertion, assertions, boxes, commits, denies, readable
from rewards.compose import TRL_KEYWORDS, Judges, Reward, Scores
from rewards.errors import RewardValueError, three_parts
from rewards.quantities import plain, to_number
from rewards.text import completion_text
from rewards.thinking import QWEN3, ThinkTokens, decoded_split, split_text, split_thinking

# -------------------------------------------------------------------------------- comparisons


def _number_is(assertion: Assertion, gold: str, tolerance: float) -> bool:
    target = to_number(readable(gold))
    found = to_number(assertion.value)
    if target is None or found is None or not _leads_to_number(assertion):
        return False
    return found.same(target, tolerance)


# Allowed between "the answer is" and the number; any other word, such as "twice", may change the value.
_LEAD = re.compile(
    r"(?:.*\b(?:is|are|was|has|have|had|equals|makes|gives|gets?|needs?|remains?|costs?|takes|earns|pays|be)\b)?"
    r"(?:[\W_]|\b(?:exactly|just|simply|only|indeed|clearly|therefore|thus|so|then|now|equal|to|the|an?|number|"
    r"value|integer|total|sum|there|about|around|roughly|approximately|[a-z])\b)*",
    re.IGNORECASE | re.DOTALL,
)


def _leads_to_number(assertion: Assertion) -> bool:
    """Whether no word before the number, nor a verb after it, may change its value."""
    text = plain(assertion.value)
    if assertion.kind == "bare":
        return not re.search(r"\d\s+(?:is|was)\s+(?!(?:the|our|my|correct|right|it)\b)", text)
    return assertion.kind == "box" or _LEAD.fullmatch(re.split(r"[\d.+-]", text, maxsplit=1)[0]) is not None


def _math_is(assertion: Assertion, gold: str, tolerance: float) -> bool:
    if to_number(readable(gold)) is not None:
        # Algebra would accept "17 + 25" for 42, and so a copy of the question.
        return _number_is(assertion, gold, tolerance)
    if folded(assertion.value) == folded(gold):
        return True
    return _tractable(assertion.value) and _math_verify(gold, assertion.value.strip().rstrip("."))


_LONGEST = 400  # characters of an expression
# Off the main thread nothing would interrupt the evaluation of 9^{9^{9^9}}: one completion could stop a run.
_EXPLODES = re.compile(r"\d\s*\}*\s*\^\s*\{?\s*(?:\d+\s*\^|\d{4})|\d{3}\s*\)?\s*!|!\s*\)?\s*!|\*\*")


def _tractable(expression: str) -> bool:
    """Whether it is safe to evaluate: short, and without towers of powers or large factorials."""
    return len(expression) <= _LONGEST and not _EXPLODES.search(expression)


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


# A lone capital letter is a choice, unless it is the article or the pronoun that begins a clause.
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
    r"""Text for comparison as words, without markup, case, outer punctuation, articles and extra spaces.

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
    r"""The answer within a gold solution: what follows "####", or the last box; else the text itself.

    >>> gold_text("48 / 2 = 24, so 48 + 24 = 72.\n#### 72"), gold_text(r"Thus $\boxed{7}$.")
    ('72', '7')
    """
    if "####" in gold:
        return gold.rsplit("####", 1)[1].strip()
    found = boxes(gold)
    return found[-1][2] if found else gold.strip()


def readable_gold(gold: str, kind: str) -> bool:
    """Whether a gold answer is of this kind; if not, completions of its row cannot be judged."""
    if kind == "number":
        return to_number(readable(gold)) is not None
    return kind != "choice" or re.fullmatch(r"\W*[A-Ja-j]\W*", gold) is not None


def is_right(answer: str, gold: str, kind: str = "number", tolerance: float = 0.0) -> bool:
    r"""Whether the text after a thought asserts exactly one answer, equal to the gold answer.

    >>> is_right("The answer is 1,000.", "1000"), is_right(r"\boxed{\frac{2000}{2}}", "1000.0")
    (True, True)
    >>> is_right("The answer is not 42.", "42"), is_right("41 or 42", "42")
    (False, False)
    """
    asserted = assertions(answer)
    if kind == "exact":
        return bool(asserted) and all(_exact_is(a, gold, 0.0) and not denies(a.around) for a in asserted)
    same = _KINDS[kind]
    made = [a for a in asserted if a.kind != "label" or _says_something(a, kind)]
    return bool(made) and all(commits(a, gold) and same(a, gold, tolerance) for a in made)


def _says_something(assertion: Assertion, kind: str) -> bool:
    """A label before words alone, as in "the answer is simple", does not assert an answer."""
    if kind == "choice":
        return bool(_CHOICE.search(plain(assertion.value)) or denies(assertion.value))
    return bool(re.search(r"[\d\\^]", assertion.value) or kind == "math" or denies(assertion.value))


# -------------------------------------------------------------------------------------- reward


class _AnswerReward:
    aim = "answer"
    judges: Judges = "answer"

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
            columns = sorted(set(kwargs) - set(TRL_KEYWORDS))
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
        """The text after the thought; several candidates where the decoded text is ambiguous."""
        thought = None if ids is None else split_thinking(ids, self.tokens)
        # After a tool call the ids span several turns; the answer is in the last message.
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
    r"""1.0 for a completion that asserts exactly one answer after its thought, the right one; else 0.0.

    None ("does not apply") where the row has no gold answer, or one of another kind, such as a word under
    ``"number"``.  A gold solution that ends in "#### 72" or ``\boxed{72}`` counts as its answer.

    The kinds:

    - ``"number"``: equal values; 1,000 and 1000.0 and \frac{2000}{2} are one number.
    - ``"math"``: the same for numbers; other gold answers by math-verify, ``verify(gold, answer)``.
    - ``"choice"``: one letter, A to J.
    - ``"exact"``: the same words, ignoring case, markup, articles and outer punctuation.
    - a callable ``(answer_text, gold) -> bool or float``, given the text after the thought.

    Args:
        kind: see above.
        column: the dataset's column of gold answers.
        tokens: the markers; with ``prompt_opens`` a completion that never closes its thought has no answer.
        tokenizer: decodes the answer from its ids.  Without it, if the text contains </think> more often than the
            ids do, the answer must be right from every place where it may begin.
        tolerance: relative, for numbers.
        right: score of the right answer.
        wrong: score of any other.

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
