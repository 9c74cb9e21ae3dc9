"""The boundary between thought and answer, and rewards for the form of a thought.

The boundary is a token, searched for among the completion's ids: the same letters typed in ordinary tokens do not end a
thought.
"""

from __future__ import annotations

import functools
import numbers
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rewards.compose import gated
from rewards.errors import invalid
from rewards.factory_calls import recorded
from rewards.text import completion_text, prompt_text
from rewards.trl_interface import Judges, Reward, reward_name

OPEN, CLOSE = "<think>", "</think>"
Pairs = list[tuple[str, str]]  # thought and answer
Bands = Sequence[tuple[int, float]]


@dataclass(frozen=True)
class ThinkTokens:
    """The ids of <think> and </think>, and how completions of this model begin and end.

    Args:
        eos_ids: ids that end a completion; empty if unknown.
        prompt_opens: whether the chat template puts <think> into the prompt, as Qwen3-Thinking-2507's does.  Then a
            completion without </think> is unfinished; else it is an answer.
    """

    open_id: int
    close_id: int
    eos_ids: tuple[int, ...] = field(default=(), compare=False)
    prompt_opens: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        integers = isinstance(self.open_id, numbers.Integral) and isinstance(self.close_id, numbers.Integral)
        if self.open_id == self.close_id or not integers:
            what = "A thought needs the ids of two different tokens, to open and to close"
            todo = "pass the ids of <think> and </think>, or use ThinkTokens.from_tokenizer"
            raise invalid(what, f"ThinkTokens({self.open_id!r}, {self.close_id!r})", todo)

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, **template: Any) -> ThinkTokens:
        """Read the ids from a tokenizer (or a processor's), of transformers or of the tokenizers library.

        ``template`` goes to the chat template, such as ``enable_thinking=False``.  Raises ValueError if a marker is
        not exactly one token.
        """
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        open_id, close_id = (_one_token(tokenizer, marker) for marker in (OPEN, CLOSE))
        eos = getattr(tokenizer, "eos_token_id", None)
        # Qwen3 stops at either of two tokens, and the tokenizer names only one of them.
        eos_ids = QWEN3.eos_ids if eos in QWEN3.eos_ids else () if eos is None else (int(eos),)
        return cls(open_id, close_id, eos_ids, prompt_opens(tokenizer, **template))


#: Qwen3's tokens.  For Thinking-2507, whose template opens the thought, use ``from_tokenizer`` or
#: ``dataclasses.replace(QWEN3, prompt_opens=True)``.
QWEN3 = ThinkTokens(151667, 151668, eos_ids=(151645, 151643))


def encode(tokenizer: Any, text: str) -> list[int]:
    ids = tokenizer.encode(text, add_special_tokens=False)
    return list(getattr(ids, "ids", ids))


def _one_token(tokenizer: Any, marker: str) -> int:
    ids = encode(tokenizer, marker)
    if len(ids) == 1 and tokenizer.decode(ids, skip_special_tokens=False).strip() == marker:
        return int(ids[0])
    how = f"encodes it as {len(ids)} tokens, {ids[:8]}, or decodes them differently"
    todo = "use a Qwen3 tokenizer, or add both with tokenizer.add_tokens([...]) and resize the model's embeddings"
    what = f"'{marker}' is not exactly one token of this tokenizer"
    raise invalid(what, f"{type(tokenizer).__name__} {how}", todo)


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
    """Split one completion's ids, a list, tuple, numpy array or tensor of shape (T,), at its first closing token.

    Without a closing token, a completion is all answer if neither it nor the prompt (``tokens.prompt_opens``) opened a
    thought, else all thought.  Raises TypeError if the ids are not one flat sequence.

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
    flat = list(values) if isinstance(values, Iterable) else [[]]
    if flat and not isinstance(flat[0], numbers.Number):
        where, todo = f"split_thinking, {type(ids).__name__}", "pass completion_ids[i], one completion's"
        raise invalid("A completion's ids must be one flat sequence of ints", where, todo, kind=TypeError)
    return flat


def split_text(text: str, thought: Thought | None, tokens: ThinkTokens = QWEN3) -> Pairs:
    """Split the text into thought and answer: one pair, or several if the text is ambiguous.

    In decoded text, a closing token looks like the same letters typed.  ``thought``, the split by ids (None if
    unknown), tells the number of tokens; if the text has more, each place is a candidate, in order, and a reward pays
    only what all of them earn.  The same goes for ids without markers, which may be another tokenizer's.
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


# A later thought, from its first marker to the last one: a marker in between may be typed.
_LATER = re.compile(rf"{OPEN}(?:.*{CLOSE}|.*)", re.DOTALL)


def visible(thought: Thought, tokens: ThinkTokens = QWEN3) -> list[int]:
    """Return the answer's ids without later thoughts."""
    kept, inside = [], False
    for token in thought.answer:
        inside = inside or token == tokens.open_id
        if not inside:
            kept.append(token)
        inside = inside and token != tokens.close_id
    return kept


@dataclass
class _OfThought:
    tokens: ThinkTokens
    score: Callable[[Thought, Pairs, Any, ThinkTokens], float]
    __name__: str

    aim: ClassVar[str] = "thought"
    judges: ClassVar[Judges] = "form"

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Any], prompts: Any = None, **kwargs: Any
    ) -> list[float]:
        scores = []
        prompts = prompts if prompts is not None else [""] * len(completions)
        for completion, ids, prompt in zip(completions, completion_ids, prompts, strict=True):
            thought = split_thinking(ids, self.tokens)
            pairs = split_text(completion_text(completion, thought=True), thought, self.tokens)
            scores.append(self.score(thought, pairs, prompt, self.tokens))
        return scores


@recorded()
def thinking_reward(tokens: ThinkTokens = QWEN3, *, bands: Bands = ((0, 0.3), (10, 0.7), (30, 1.0))) -> Reward:
    """Pay for the length of a thought, as in many Qwen3 notebooks, with their numbers.

    The score is -1 if the thought is never closed, else its band's score, plus 0.1 for a "?" from the second band on.
    For comparison only: it pays its maximum for filler without an answer; ``thought_then_answer`` does not.
    ``bands``: (fewest thinking tokens, score), ascending from 0.

    >>> reward = thinking_reward()
    >>> filler = [151667] + [7] * 30 + [151668]
    >>> reward(completions=["<think>hmm?</think>"], completion_ids=[filler])
    [1.1]
    """
    starts = [start for start, _ in bands]
    if not starts or starts[0] != 0 or starts != sorted(set(starts)):
        todo = "pass pairs such as ((0, 0.3), (10, 0.7), (30, 1.0))"
        raise invalid("Bands must start at 0 tokens and ascend", f"thinking_reward(bands={bands!r})", todo)
    return _OfThought(tokens, functools.partial(_by_length, tuple(bands)), "thinking_reward")


def _by_length(bands: Bands, thought: Thought, pairs: Pairs, *_: Any) -> float:
    if not thought.closed:
        return -1.0
    band = max(k for k, (start, _) in enumerate(bands) if len(thought.thinking) >= start)
    return bands[band][1] + (0.1 if band > 0 and "?" in pairs[0][0] else 0.0)


LEAST = 5  # fewest thinking tokens of a real thought
MAX_REPETITION = 0.5  # share of repeated, or copied, trigrams above which a thought is filler


def repetition(ids: Sequence[Any], n: int = 3, window: int = 1024) -> float:
    """Share of n-grams that repeat an earlier one of the same window, in [0, 1) (arXiv 2502.03373, C.2).

    Honest phrases recur in a long thought, but only a loop repeats within a window.
    """
    grams = _grams(ids, n)
    distinct = sum(len(set(grams[start : start + window])) for start in range(0, len(grams), window))
    return 1 - distinct / len(grams) if grams else 0.0


def _grams(items: Sequence[Any], n: int) -> list[tuple[Any, ...]]:
    return list(zip(*(items[k:] for k in range(n)), strict=False))


@recorded()
def thought_then_answer(tokens: ThinkTokens = QWEN3, *, full_at: int = 30, correct: Reward | None = None) -> Reward:
    """Pay for the form "a real thought, closed once, then an answer", which filler does not have.

    ``min(1, thinking tokens / full_at)`` if all of these hold, else 0:

    - one closing token, at most one opening token before it, and at least ``LEAST`` thinking tokens;
    - more than white space after the boundary, or after the last </think> typed in ordinary tokens;
    - the completion ended by itself, with one of ``tokens.eos_ids``;
    - at most half of the thought's token trigrams repeat an earlier one, and at most half of its word trigrams
      occur in the prompt, in any of its messages;
    - ``correct``, a reward for right answers, if given, pays more than 0 (:func:`rewards.gated`).

    No rule of form can tell unrepeated nonsense from thought: pass ``correct=answer_reward()``.

    >>> reward = thought_then_answer()
    >>> thought, eos = list(range(30)), 151645
    >>> ids = [[151667, *thought, 151668, 42, eos], [151667] + [7] * 30 + [151668, eos]]
    >>> reward(completions=["<think>...</think>42", "<think>hmm hmm</think>"], completion_ids=ids)
    [1.0, 0.0]
    """
    where = f"thought_then_answer(tokens={tokens}, full_at={full_at})"
    if not tokens.eos_ids:
        todo = "use ThinkTokens.from_tokenizer, or ThinkTokens(..., eos_ids=(tokenizer.eos_token_id,))"
        raise invalid("The tokens do not say which ids end a completion", where, todo)
    if full_at < 1:
        raise invalid("full_at must be at least 1", where, "leave it at 30")
    form = _OfThought(tokens, functools.partial(_by_form, full_at), "thought_then_answer")
    if correct is None:
        return form
    return gated(correct, form, name=f"{form.__name__}({reward_name(correct)})")


def _by_form(full_at: int, thought: Thought, pairs: Pairs, prompt: Any, tokens: ThinkTokens) -> float:
    length, answer = len(thought.thinking), thought.answer
    closed_once = thought.n_close == 1 and thought.n_open <= 1 and tokens.open_id not in answer
    ended = len(answer) > 1 and answer[-1] in tokens.eos_ids
    if not closed_once or length < LEAST or not ended:
        return 0.0
    thinking, answer_text = pairs[-1]
    grams, of_prompt = _grams(thinking.split(), 3), set(_grams(prompt_text(prompt, system=True).split(), 3))
    copied = sum(gram in of_prompt for gram in grams) / max(1, len(grams))
    filler = max(repetition(thought.thinking), copied) > MAX_REPETITION
    return 0.0 if filler or not answer_text.strip() else min(1.0, length / full_at)
