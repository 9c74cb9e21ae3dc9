"""The boundary between thought and answer, by token id, and rewards for the form of a thought.

The boundary is a token, so it is searched for among the completion's ids: the same letters typed in ordinary tokens do
not end a thought.  Whether the answer is right is for ``rewards.answers``.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rewards.compose import gated
from rewards.errors import invalid
from rewards.made import recorded
from rewards.signature import Judges, Reward, reward_name
from rewards.text import completion_text, prompt_text, rows_of

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class ThinkTokens:
    """The ids that open and close a thought, and how completions of this model begin and end.

    Args:
        open_id: id of <think>.
        close_id: id of </think>.
        eos_ids: ids that end a completion; empty if unknown.
        prompt_opens: whether the chat template puts the opening token into the prompt, as that of
            Qwen3-Thinking-2507 does.  Then a completion without </think> is unfinished; else it is an answer.

    Two are equal if they name the same two tokens.
    """

    open_id: int
    close_id: int
    eos_ids: tuple[int, ...] = field(default=(), compare=False)
    prompt_opens: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        ids = (self.open_id, self.close_id)
        if self.open_id == self.close_id or not all(isinstance(i, numbers.Integral) for i in ids):
            what = "A thought needs the ids of two different tokens, to open and to close"
            todo = "pass the ids of <think> and </think>, or use ThinkTokens.from_tokenizer"
            raise invalid(what, f"ThinkTokens({self.open_id!r}, {self.close_id!r})", todo)

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, **template: Any) -> ThinkTokens:
        """Read the markers, the end-of-sequence ids and the chat template's behaviour off a tokenizer.

        Args:
            tokenizer: of transformers (or a processor that has one), or of the tokenizers library.
            **template: passed to the chat template, such as ``enable_thinking=False``.

        Raises:
            ValueError: a marker is not exactly one token of this tokenizer.
        """
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        open_id, close_id = (_one_token(tokenizer, marker) for marker in (OPEN, CLOSE))
        eos = getattr(tokenizer, "eos_token_id", None)
        # Qwen3 generates until one of two tokens, and the tokenizer names only one of them.
        eos_ids = QWEN3.eos_ids if eos in QWEN3.eos_ids else () if eos is None else (int(eos),)
        return cls(open_id, close_id, eos_ids, prompt_opens(tokenizer, **template))


#: Qwen3's tokens.  For Thinking-2507, whose template opens the thought, use ``from_tokenizer`` or
#: ``dataclasses.replace(QWEN3, prompt_opens=True)``.
QWEN3 = ThinkTokens(151667, 151668, eos_ids=(151645, 151643))


def check_tokens(tokens: object, where: str) -> None:
    """Raise TypeError for what is no ThinkTokens."""
    if not isinstance(tokens, ThinkTokens):
        todo = "pass rewards.QWEN3, or rewards.ThinkTokens.from_tokenizer(tokenizer)"
        raise invalid("tokens must be ThinkTokens", f"{where}(tokens={tokens!r})", todo, kind=TypeError)


def encode(tokenizer: Any, text: str) -> list[int]:
    """The text's ids without added special tokens, from a tokenizer of transformers or of tokenizers."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    return list(getattr(ids, "ids", ids))


def _one_token(tokenizer: Any, marker: str) -> int:
    ids = encode(tokenizer, marker)
    if len(ids) == 1 and tokenizer.decode(ids, skip_special_tokens=False).strip() == marker:
        return int(ids[0])
    which = f"{ids[0]}, which does not decode to it" if len(ids) == 1 else f"{ids[:8]}"
    where = f"{type(tokenizer).__name__} encodes it as {len(ids)} tokens, {which}"
    todo = "use a Qwen3 tokenizer, or add both with tokenizer.add_tokens([...]) and resize the model's embeddings"
    raise invalid(f"'{marker}' is not exactly one token of this tokenizer", where, todo)


def prompt_opens(tokenizer: Any, **template: Any) -> bool:
    """Whether the tokenizer's chat template ends a prompt within a thought."""
    if not getattr(tokenizer, "chat_template", None):
        return False
    message = [{"role": "user", "content": "?"}]
    prompt = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True, **template)
    return bool(prompt.count(OPEN) > prompt.count(CLOSE))


@dataclass(frozen=True)
class Thought:
    """A completion split at its boundary, and whether and how often it contains the opening and the closing token.

    Attributes:
        thinking: ids before the boundary, without the markers; all ids if the thought never ends.
        answer: ids after the boundary, unchanged; all ids if there is no marker.
    """

    thinking: list[int]
    answer: list[int]
    opened: bool
    closed: bool
    n_open: int
    n_close: int


def split_thinking(completion_ids: Any, tokens: ThinkTokens = QWEN3) -> Thought:
    """Split one completion at its first closing token, in linear time.

    Without a closing token there is no answer, unless neither the completion nor the prompt
    (``tokens.prompt_opens``) opened a thought: then all of it is.  ``completion_ids``: one completion's, a list,
    tuple, numpy array or tensor of shape (T,).

    Raises:
        TypeError: the ids are not one flat sequence.

    >>> split_thinking([151667, 5, 6, 151668, 7])
    Thought(thinking=[5, 6], answer=[7], opened=True, closed=True, n_open=1, n_close=1)
    """
    ids = _flat(completion_ids)
    n_open, n_close = ids.count(tokens.open_id), ids.count(tokens.close_id)
    if n_close:
        boundary = ids.index(tokens.close_id)
        thinking, answer = ids[:boundary], ids[boundary + 1 :]
    elif n_open or tokens.prompt_opens:
        thinking, answer = ids, []
    else:
        thinking, answer = [], ids
    if n_open:
        thinking = [i for i in thinking if i != tokens.open_id]
    return Thought(thinking, answer, n_open > 0, n_close > 0, n_open, n_close)


def _flat(ids: Any) -> list[int]:
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    flat = list(values) if isinstance(values, Iterable) and not isinstance(values, (str, bytes)) else None
    if flat is None or (flat and isinstance(flat[0], (list, tuple))):
        what, where = (
            "A completion's ids must be one flat sequence of ints",
            f"split_thinking, {type(ids).__name__}",
        )
        todo = "pass completion_ids[i], one completion's; not the text, nor the batch"
        raise invalid(what, where, todo, kind=TypeError)
    return flat


def split_text(text: str, thought: Thought | None, tokens: ThinkTokens = QWEN3) -> list[tuple[str, str]]:
    """Split the text into thought and answer: one pair, or several if the text is ambiguous.

    In decoded text a closing token looks like the same letters typed.  The ids give the number of tokens; if the text
    contains more, each place is a candidate, in order, and a careful reward pays only what every candidate earns.  So
    it is with ids that have no marker while the text has: they may be another tokenizer's.  ``thought`` is the split by
    ids; None if they are unknown.
    """
    typed = text.count(CLOSE)
    closed = typed > 0 if thought is None else thought.closed
    if not closed:
        unfinished = tokens.prompt_opens or (OPEN in text if thought is None else thought.opened)
        if unfinished:
            return [(text.replace(OPEN, ""), "")]
        marked = thought is not None and (typed or OPEN in text)
        return [("", text), *(split_text(text, None, tokens) if marked else [])]
    if not typed:  # a chat parser has taken the thought out of the text
        return [("", text)]
    n_close = typed if thought is None else thought.n_close
    parts = text.split(CLOSE)
    candidates = range(1, max(1, typed - n_close + 1) + 1)
    pairs = [(CLOSE.join(parts[:k]).replace(OPEN, ""), CLOSE.join(parts[k:])) for k in candidates]
    again = thought is None or tokens.open_id in thought.answer
    return [(first, _LATER.sub("", answer) if again else answer) for first, answer in pairs]


# From a later thought's first marker to the last one: a marker within it may be typed.
_LATER = re.compile(rf"{OPEN}(?:.*{CLOSE}|.*)", re.DOTALL)


def visible(thought: Thought, tokens: ThinkTokens = QWEN3) -> list[int]:
    """The answer's ids without later thoughts."""
    kept, inside = [], False
    for i in thought.answer:
        inside = inside or i == tokens.open_id
        if not inside:
            kept.append(i)
        inside = inside and i != tokens.close_id
    return kept


@dataclass
class _ThinkingReward:
    tokens: ThinkTokens
    bands: Sequence[tuple[int, float]]
    missing: float
    bonuses: Mapping[str, float]

    __name__ = "thinking_reward"
    aim: ClassVar[str] = "thought"
    judges: ClassVar[Judges] = "form"

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Any], **kwargs: Any
    ) -> list[float]:
        return [self._one(text, ids) for text, ids in rows_of(self.__name__, completions, completion_ids)]

    def _one(self, completion: Any, ids: Any) -> float:
        thought = split_thinking(ids, self.tokens)
        if not thought.closed:
            return self.missing
        band = max(k for k, (start, _) in enumerate(self.bands) if len(thought.thinking) >= start)
        text = split_text(completion_text(completion, thought=True), thought, self.tokens)[0][0]
        bonus = sum(amount for mark, amount in self.bonuses.items() if mark in text)
        return self.bands[band][1] + (bonus if band > 0 else 0.0)


@recorded()
def thinking_reward(
    tokens: ThinkTokens = QWEN3,
    *,
    bands: Sequence[tuple[int, float]] = ((0, 0.3), (10, 0.7), (30, 1.0)),
    missing: float = -1.0,
    bonuses: Mapping[str, float] | None = None,
) -> Reward:
    """The rule for the length of a thought that Qwen3 notebooks copy from each other, with its numbers as defaults.

    It is here for comparison and audits: it pays its maximum for filler without an answer, and
    ``thought_then_answer`` does not.

    Args:
        bands: (fewest thinking tokens, score), the first from 0, ascending.
        missing: score if the thought is never closed.
        bonuses: text in the thought to what it adds, from the second band on; ``{"?": 0.1}`` by default.

    Raises:
        ValueError: bands that do not start at 0 or do not ascend.

    >>> reward = thinking_reward()
    >>> filler = [151667] + [7] * 30 + [151668]
    >>> reward(completions=["<think>hmm?</think>"], completion_ids=[filler])
    [1.1]
    """
    check_tokens(tokens, "thinking_reward")
    starts = [start for start, _ in bands]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        where, todo = (
            f"thinking_reward(bands={bands!r})",
            "pass pairs such as ((0, 0.3), (10, 0.7), (30, 1.0))",
        )
        raise invalid("Bands must start at 0 tokens and ascend", where, todo)
    return _ThinkingReward(tokens, tuple(bands), missing, {"?": 0.1} if bonuses is None else dict(bonuses))


LEAST = 5  # thinking tokens of a real thought
MAX_REPETITION = 0.5  # share of repeated, or copied, trigrams above which a thought is filler


@dataclass
class _ThoughtThenAnswer:
    tokens: ThinkTokens
    full_at: int
    failed: float

    __name__ = "thought_then_answer"
    aim: ClassVar[str] = "thought"
    judges: ClassVar[Judges] = "form"

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Any], prompts: Any = None, **kwargs: Any
    ) -> list[float]:
        rows = rows_of(self.__name__, completions, completion_ids)
        asked = prompts if prompts is not None else [""] * len(rows)
        return [self._one(*row, prompt) for row, prompt in zip(rows, asked, strict=True)]

    def _one(self, completion: Any, ids: Any, prompt: Any) -> float:
        thought = split_thinking(ids, self.tokens)
        length = len(thought.thinking)
        if length < LEAST or not self._well_formed(thought):
            return self.failed
        thinking, answer = split_text(completion_text(completion, thought=True), thought, self.tokens)[-1]
        copied = copied_share(thinking.split(), prompt_text(prompt, system=True).split())
        filler = max(repetition(thought.thinking), copied) > MAX_REPETITION
        return self.failed if filler or not answer.strip() else min(1.0, length / self.full_at)

    def _well_formed(self, thought: Thought) -> bool:
        """One boundary, at most one opening token before it, an answer, and an end-of-sequence token."""
        tokens, answer = self.tokens, thought.answer
        if thought.n_close != 1 or thought.n_open > 1 or tokens.open_id in answer:
            return False
        return len(answer) > 1 and answer[-1] in tokens.eos_ids


def repetition(ids: Sequence[Any], n: int = 3, window: int = 1024) -> float:
    """Share of n-grams that repeat an earlier one of the same window, in [0, 1); 0 for under n ids.

    Honest phrases recur in a long thought, but only a loop repeats within a window.  Source: arXiv 2502.03373, C.2.

    >>> repetition([1, 2, 3, 4]), repetition([7] * 12)
    (0.0, 0.9)
    """
    grams = _grams(ids, n)
    distinct = sum(len(set(grams[start : start + window])) for start in range(0, len(grams), window))
    return 1 - distinct / len(grams) if grams else 0.0


def copied_share(words: Sequence[str], source: Sequence[str], n: int = 3) -> float:
    """Share of the words' n-grams that occur in the source, in [0, 1]; 0 for under n words."""
    grams, known = _grams(words, n), set(_grams(source, n))
    return sum(gram in known for gram in grams) / len(grams) if grams else 0.0


def _grams(items: Sequence[Any], n: int) -> list[tuple[Any, ...]]:
    return list(zip(*(items[k:] for k in range(n)), strict=False))


@recorded()
def thought_then_answer(
    tokens: ThinkTokens = QWEN3, *, full_at: int = 30, correct: Reward | None = None, failed: float = 0.0
) -> Reward:
    """A reward for the form "a real thought, closed once, then an answer", which filler does not earn.

    ``min(1, thinking tokens / full_at)`` if all of these hold, else ``failed``:

    - exactly one closing token, and at most one opening token, before it;
    - at least ``LEAST`` thinking tokens;
    - more than white space after the boundary, or after the last one that is typed in ordinary tokens;
    - the completion ended by itself, with one of ``tokens.eos_ids``;
    - the thought is not filler: at most half of its token trigrams repeat an earlier one, and at most half of
      its word trigrams occur in the prompt, in any of its messages;
    - with ``correct``, that reward pays more than 0.

    No rule of form can tell unrepeated nonsense from thought: pass ``correct=answer_reward()``.

    Args:
        full_at: thinking tokens that earn the whole reward.
        correct: a reward of right answers that must also pay (:func:`rewards.gated`), or None.
        failed: the score of a completion that does not qualify.

    Raises:
        ValueError: ``tokens`` name no end-of-sequence ids, or ``full_at`` is not positive.

    >>> reward = thought_then_answer()
    >>> thought, eos = list(range(30)), 151645
    >>> ids = [[151667, *thought, 151668, 42, eos], [151667] + [7] * 30 + [151668, eos]]
    >>> reward(completions=["<think>...</think>42", "<think>hmm hmm</think>"], completion_ids=ids)
    [1.0, 0.0]
    """
    check_tokens(tokens, "thought_then_answer")
    if not tokens.eos_ids:
        todo = "use ThinkTokens.from_tokenizer, or ThinkTokens(..., eos_ids=(tokenizer.eos_token_id,))"
        what = "The tokens do not say which ids end a completion"
        raise invalid(what, f"thought_then_answer({tokens})", todo)
    if full_at < 1:
        where = f"thought_then_answer(full_at={full_at})"
        raise invalid("full_at must be at least 1", where, "leave it at 30")
    form = _ThoughtThenAnswer(tokens, full_at, failed)
    if correct is None:
        return form
    name = f"{form.__name__}({reward_name(correct)})"
    return gated(by=correct, reward=form, otherwise=failed, name=name)
