"""A trained reward model, or a rubric scored by any judge, as a reward, for tasks without answers to compare.

A policy can exploit a learned reward like any other: audit it, clip it, and keep a KL term.  Retries, time-outs and
rate limits are the judge's own: the clients of openai and httpx have them.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from rewards.compose import log_mean
from rewards.errors import RewardValueError, check_choice, invalid, shown
from rewards.provenance import recorded
from rewards.text import completion_text, prompt_text
from rewards.thinking import CLOSE, QWEN3, ThinkTokens, split_text, split_thinking
from rewards.trl_interface import Aim, Reward, Scores, is_async

Judge = Callable[[str, str, str], Any]
LONGEST = 4096  # tokens of prompt and completion that a reward model is given: the last ones


@recorded()
def reward_model(
    model: Any,
    tokenizer: Any = None,
    *,
    batch_size: int = 8,
    device: str | None = None,
    with_thought: bool = True,
    tokens: ThinkTokens = QWEN3,
) -> Reward:
    """The score of a trained sequence-classification reward model, such as one made by TRL's RewardTrainer.

    Loaded at the first call, and called in batches through its own tokenizer and chat template; of a text of more than
    4096 tokens, or the model's own limit, it reads the end.  Unlike a module in TRL's ``reward_funcs`` it can be
    composed, cached, kept on the CPU, and given the answer without the thought.  It is named after the model, and
    picklable where ``model`` is a name.

    Args:
        model: a hub id, a folder, or a loaded model with one output, such as one in 4-bit.
        tokenizer: by default that of ``model``.
        device: "cpu", "cuda", "cuda:1"; by default a GPU if there is one.
        with_thought: False to judge only the text after the thought, as most reward models were trained.
        tokens: the policy's markers, for ``with_thought=False``.
    """
    name = model if isinstance(model, str) else getattr(getattr(model, "config", None), "_name_or_path", None)
    if name is None or (tokenizer is None and not name):
        what = "This is not a reward model" if name is None else "A loaded model needs its tokenizer"
        todo = "pass a hub id, a folder as a str, or a loaded model and its own tokenizer, not the policy's"
        raise invalid(what, f"reward_model({type(model).__name__})", todo)
    return _RewardModel(str(name), model, tokenizer, batch_size, device, with_thought, tokens)


@dataclass
class _RewardModel:
    name: str
    source: Any
    tokenizer: Any
    batch_size: int
    device: str | None
    with_thought: bool
    tokens: ThinkTokens

    aim: ClassVar[str] = "answer"

    def __post_init__(self) -> None:
        self.__name__ = self.name.rstrip("/").split("/")[-1] or "reward_model"
        self._loaded: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_loaded": None}  # a worker process loads its own copy

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any) -> list[float]:
        import torch

        self._loaded = self._loaded or self._load()
        model, tokenizer = self._loaded
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None) or LONGEST
        length = min(LONGEST, context, tokenizer.model_max_length)
        form = {"padding": True, "truncation": True, "max_length": length, "add_special_tokens": False}
        texts = [self._text(tokenizer, *pair) for pair in zip(prompts, completions, strict=True)]
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # least padding
        scores: dict[int, float] = {}
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            batch = tokenizer([texts[i] for i in rows], return_tensors="pt", **form).to(model.device)
            with torch.inference_mode():
                logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            scores |= zip(rows, logits[:, 0].float().tolist(), strict=True)
        return [scores[i] for i in range(len(texts))]

    def _text(self, tokenizer: Any, prompt: Any, completion: Any) -> str:
        if not self.with_thought:
            text = completion_text(completion, thought=True)
            answer = split_text(text, None, self.tokens)[0][1].lstrip()
            completion = answer if isinstance(completion, str) else [{"role": "assistant", "content": answer}]
        if isinstance(prompt, str):
            return prompt + completion_text(completion)
        said = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
        if getattr(tokenizer, "chat_template", None):
            return str(tokenizer.apply_chat_template([*prompt, *said], tokenize=False))
        return "\n\n".join(completion_text([message]) for message in (*prompt, *said))

    def _load(self) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        model, where = self.source, f"reward_model({self.name or type(self.source).__name__})"
        if isinstance(model, str):
            place = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
            how: Any = {"dtype": "auto", "device_map": {"": place}}
            model = AutoModelForSequenceClassification.from_pretrained(model, **how)
        if (outputs := model.config.num_labels) != 1:
            todo = "train it with num_labels=1, as TRL's RewardTrainer does, or make one number in a reward of yours"
            raise invalid(f"A reward model has one output, and this one has {outputs}", where, todo)
        tokenizer = self.tokenizer or AutoTokenizer.from_pretrained(self.name)
        # Of a folder without a tokenizer's files transformers makes one that knows its special tokens alone.
        if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            todo = "save it there with tokenizer.save_pretrained(folder), or pass tokenizer="
            raise invalid("The tokenizer has no words: its files are not beside the model", where, todo)
        tokenizer.truncation_side, tokenizer.padding_side = "left", "right"
        config = model.config.get_text_config()
        if tokenizer.pad_token_id is None:
            known = tokenizer.eos_token_id if config.pad_token_id is None else config.pad_token_id
            tokenizer.pad_token = None if known is None else tokenizer.convert_ids_to_tokens(known)
        config.pad_token_id = tokenizer.pad_token_id  # the score is read at the last token that is another
        return model.eval(), tokenizer


@dataclass(frozen=True)
class Criterion:
    """One line of a rubric: a short name for the metric, what the judge checks, and a relative weight in the score."""

    name: str
    description: str
    weight: float = 1.0


@dataclass
class _Rubric:
    criteria: tuple[Criterion, ...]
    judge: Judge
    aim: Aim
    tokens: ThinkTokens
    __name__: str

    def __call__(self, **given: Any) -> Scores:
        texts = self._shown(**given)
        return self._total(given, texts, [self.judge(*one) for one in self._questions(given, texts)])

    def _questions(self, given: Mapping[str, Any], texts: Sequence[str]) -> list[tuple[str, str, str]]:
        asked = [(prompt_text(p), text) for p, text in zip(given["prompts"], texts, strict=True) if text]
        return [(*one, criterion.description) for one in asked for criterion in self.criteria]

    def _shown(self, completions: Sequence[Any], completion_ids: Any = None, **_: Any) -> list[str]:
        ids = [None] * len(completions) if completion_ids is None else completion_ids
        return list(map(self._part, completions, ids))

    def _part(self, completion: Any, ids: Any) -> str:
        """What the judge is shown of a completion; empty where there is nothing to show."""
        text = completion_text(completion, thought=True)
        if self.aim == "both":
            return text
        thought = None if ids is None else split_thinking(ids, self.tokens)
        parts = split_text(text, thought, self.tokens)
        if self.aim == "answer":
            return parts[-1][1].strip()
        closed = CLOSE in text if thought is None else thought.closed
        return parts[0][0].strip() if closed else ""

    def _total(self, given: Mapping[str, Any], texts: Sequence[str], marks: Iterable[Any]) -> Scores:
        left, width = iter(marks), range(len(self.criteria))
        table = [[self._mark(next(left), i, k) if t else 0.0 for k in width] for i, t in enumerate(texts)]
        for k, criterion in enumerate(self.criteria):
            log_mean(given.get("log_metric"), f"{self.__name__}/{criterion.name}", [row[k] for row in table])
        return [self._mean(row) for row in table]

    def _mark(self, mark: Any, sample: int, k: int) -> float | None:
        number = mark.item() if hasattr(mark, "item") else mark  # of numpy or torch
        if number is None or (isinstance(number, numbers.Real) and 0.0 <= float(number) <= 1.0):
            return None if number is None else float(number)
        what = f"The judge's mark for '{self.criteria[k].name}' is not a number from 0 to 1"
        todo = "scale the judge's answer to [0, 1], or return None where it has no opinion"
        raise RewardValueError(what, reward_name=self.__name__, sample=sample, value=mark, todo=todo)

    def _mean(self, marks: Sequence[float | None]) -> float | None:
        rows = zip(self.criteria, marks, strict=True)
        known = [(criterion.weight, mark) for criterion, mark in rows if mark is not None]
        total = math.fsum(weight for weight, _ in known)
        return math.fsum(weight * mark for weight, mark in known) / total if total else None


class _AsyncRubric(_Rubric):
    async def __call__(self, **given: Any) -> Scores:  # type: ignore[override]
        import asyncio

        texts = self._shown(**given)
        marks = [asyncio.ensure_future(self.judge(*one)) for one in self._questions(given, texts)]
        try:
            return self._total(given, texts, await asyncio.gather(*marks))
        finally:  # once one fails, the others would still be asked, and paid for
            for mark in marks:
                mark.cancel()


@recorded()
def rubric_reward(
    criteria: Mapping[str, str] | Iterable[Criterion],
    judge: Judge,
    *,
    aim: Aim = "both",
    tokens: ThinkTokens = QWEN3,
    name: str = "rubric_reward",
) -> Reward:
    """The weighted mean of a judge's marks, continuous in [0, 1], each criterion's mean logged.

    ``sum_c weight_c * mark_c / sum_c weight_c`` over the criteria that the judge marked; None if it marked none; 0,
    without asking, for an empty answer or no closed thought.  Source: rubrics as rewards (arXiv 2507.17746).

    Args:
        criteria: name to description, with equal weights; or :class:`Criterion` objects.
        judge: ``judge(prompt, text, description) -> float in [0, 1], or None``; another model, an API, a function.  It
            gets the user's message, or of several turns all, each after its role, without the system's.  An ``async``
            one gets all questions at once, and makes the reward ``async``.
        aim: what the judge is shown of a completion: the "thought", the "answer" after it, or "both".

    >>> short = lambda prompt, text, description: 1 / len(text.split())
    >>> said = {"prompts": ["?"], "completions": ["<think>6 * 7 it is</think>forty two"]}
    >>> both = [rubric_reward({"brief": "Is it brief?"}, short, aim=aim)(**said)[0] for aim in ("thought", "answer")]
    >>> both
    [0.2, 0.5]
    """
    lines = [Criterion(*item) for item in criteria.items()] if isinstance(criteria, Mapping) else list(criteria)
    weighed = lines and all(isinstance(line, Criterion) and 0 < line.weight < math.inf for line in lines)
    if not weighed or len({line.name for line in lines}) != len(lines):
        todo = "pass {'clear': 'The answer is clear.'}, or a list of Criterion"
        what = "A rubric needs criteria of different names and positive weights"
        raise invalid(what, f"rubric_reward({shown(criteria)})", todo)
    check_choice(aim, get_args(Aim), "aim", "rubric_reward")
    return (_AsyncRubric if is_async(judge) else _Rubric)(tuple(lines), judge, aim, tokens, name)
