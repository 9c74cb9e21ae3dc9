"""The text of prompts and completions, and rewards of style: length, sentence ends, repetition and overlength."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewards.errors import invalid, shown
from rewards.factory_calls import recorded
from rewards.trl_interface import Judges, Reward


def completion_text(completion: Any, *, thought: bool = False) -> str:
    """Return a completion's text: a str as it is, or the assistant's last message.

    With ``thought``, a thought that a chat parser has moved to ``reasoning_content`` is put back in front.
    """
    if isinstance(completion, str):
        return completion
    message = _last(_messages(completion, "completion"), "assistant")
    text = _content_text(message)
    reasoning = message.get("reasoning_content")
    return f"<think>{reasoning}</think>{text}" if thought and reasoning else text


def prompt_text(prompt: Any, *, system: bool = False) -> str:
    """Return a prompt's whole text: one message as it is, several with their roles in front, "user: 1 + 1?".

    A system message is included only with ``system``, or if there are no others.
    """
    if isinstance(prompt, str):
        return prompt
    messages = _messages(prompt, "prompt")
    others = [message for message in messages if system or message.get("role") != "system"] or messages
    texts = [(message.get("role"), text) for message in others if (text := _content_text(message))]
    return texts[0][1] if len(texts) == 1 else "\n\n".join(f"{role}: {text}" for role, text in texts)


def question(prompt: Any) -> str:
    """Return what a prompt asks last: the user's last message, or the last message if none is the user's."""
    return prompt if isinstance(prompt, str) else _content_text(_last(_messages(prompt, "prompt"), "user"))


def _messages(value: Any, kind: str) -> Sequence[Mapping[str, Any]]:
    messages = [value] if isinstance(value, Mapping) else value
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        where = f"{type(value).__name__}, {shown(value)}"
        what, todo = f"A {kind} must be a str or a list of messages", f"pass TRL's {kind}s as they are"
        raise invalid(what, where, todo, kind=TypeError)
    return messages


def _last(messages: Sequence[Mapping[str, Any]], role: str) -> Mapping[str, Any]:
    of_role = [message for message in messages if message.get("role") == role]
    return (of_role or messages or [{}])[-1]


def _content_text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    # Arrow adds a ``text`` of None to a part of another type, such as an image.
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))


@dataclass
class _OfText:
    judges: Judges
    score: Callable[[str], float]
    __name__: str

    def __call__(self, completions: Sequence[Any], **kwargs: Any) -> list[float]:
        return [self.score(completion_text(completion)) for completion in completions]


@recorded()
def length_reward(words: tuple[int, int] = (10, 50)) -> Reward:
    """Pay for length and a full stop, as in many tutorials: half for ``low <= words <= high``, half for the stop.

    >>> length_reward((2, 4))(completions=["It is 42.", "It is", "x"])
    [1.0, 0.5, 0.0]
    """
    low, high = words
    if not 0 <= low <= high:
        where, todo = f"length_reward(words={words!r})", "pass (fewest, most), such as (10, 50)"
        raise invalid("The fewest words must not exceed the most", where, todo)
    return _OfText("length", functools.partial(_length, low, high), "length_reward")


def _length(low: int, high: int, text: str) -> float:
    return 0.5 * (low <= len(text.split()) <= high) + 0.5 * text.rstrip().endswith(".")


@recorded()
def sentence_reward() -> Reward:
    """Pay 1.0 if the text ends as a sentence does, in any common script; 0.0 if it breaks off.

    >>> sentence_reward()(completions=["It is 4.2.", "It is 4.2", "Is it? Yes.", "好。"])
    [1.0, 0.0, 1.0, 1.0]
    """
    return _OfText("form", _whole_sentences, "sentence_reward")


def _whole_sentences(text: str) -> float:
    return float(re.search(r"[.!?…。！？।؟][\"'”’)\]]*\s*$", text) is not None)


@recorded()
def overlong_reward(max_completion_length: int, soft: int) -> Reward:
    """Return TRL's soft overlong punishment (DAPO, arXiv 2503.14476, equation 13).

    The score falls from 0 to -1 in the last ``soft`` tokens before the trainer's ``max_completion_length``.
    """
    if not 1 <= soft <= max_completion_length:
        where, todo = f"overlong_reward({max_completion_length}, {soft})", "a fifth of the length is usual"
        raise invalid("soft must lie between 1 and max_completion_length", where, todo)
    from trl.rewards import get_soft_overlong_punishment

    punishment = get_soft_overlong_punishment(max_completion_length, soft)
    punishment.judges = "length"
    return punishment


@recorded()
def repetition_reward(ngram: int = 3, max_penalty: float = -1.0) -> Reward:
    """TRL's repetition penalty (arXiv 2502.03373, appendix C.2): ``max_penalty``, at most 0, times the share of
    repeated n-grams."""
    from trl.rewards import get_repetition_penalty_reward

    penalty = get_repetition_penalty_reward(ngram_size=ngram, max_penalty=max_penalty)
    penalty.judges = "form"
    return penalty
