"""A trained reward model, or a rubric scored by any judge, as a reward.

For tasks without answers that can be compared.  torch and transformers are imported at a reward model's first call.

It does not train reward models: TRL's RewardTrainer does, and ``reward_model`` reads its folders.  A policy can exploit
a learned reward like any other: audit it, clip it, and keep a KL term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rewards.compose import log_mean
from rewards.errors import RewardValueError, invalid
from rewards.made import recorded
from rewards.signature import Reward, Scores, is_async
from rewards.text import completion_text, prompt_text
from rewards.thinking import QWEN3, ThinkTokens, split_text

Judge = Callable[[str, str, str], Any]


@dataclass
class _RewardModel:
    source: Any
    tokenizer: Any
    batch_size: int
    max_length: int
    device: str | None
    with_thought: bool
    tokens: ThinkTokens

    aim: ClassVar[str] = "answer"

    def __post_init__(self) -> None:
        self.__name__ = _named(self.source).rstrip("/").split("/")[-1] or "reward_model"
        self._loaded: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_loaded": None}  # a worker process loads its own copy

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any) -> list[float]:
        if self._loaded is None:
            self._loaded = _load(self.source, self.tokenizer, self.device)
        model, tokenizer = self._loaded
        texts = [self._text(tokenizer, *pair) for pair in zip(prompts, completions, strict=True)]
        # Batches of similar length waste least on padding.
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        scores: dict[int, float] = {}
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            values = _scored(model, tokenizer, [texts[i] for i in batch], self.max_length)
            scores |= zip(batch, values, strict=True)
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


@recorded()
def reward_model(
    model: Any,
    *,
    tokenizer: Any = None,
    batch_size: int = 8,
    max_length: int = 4096,
    device: str | None = None,
    with_thought: bool = True,
    tokens: ThinkTokens = QWEN3,
) -> Reward:
    """The score of a trained sequence-classification reward model, such as one made by TRL's RewardTrainer.

    Loaded at the first call, in evaluation mode, and called in batches without gradients.  It reads prompt
    and completion through its own tokenizer and chat template, not the policy's.

    TRL also takes such a model directly, as a module in ``reward_funcs``.  This reward can in addition be composed,
    cached, kept on the CPU, and given the answer without the thought.  It is named after the model, and picklable where
    ``model`` is a name: each process then loads its own copy.

    Args:
        model: a hub id, a folder, or a loaded model with one output, such as one in 4-bit.
        tokenizer: its tokenizer; by default that of ``model``.
        batch_size: completions in a forward pass.
        max_length: tokens of prompt and completion; longer texts are cut on the left, which keeps the answer.
        device: "cpu", "cuda", "cuda:1"; by default a GPU if there is one.
        with_thought: False to judge only the text after the thought, as most reward models were trained.
        tokens: the policy's markers, for ``with_thought=False``.

    Raises:
        ValueError: a batch size or length below 1, a model with another number of outputs than one, or no tokenizer.
    """
    if batch_size < 1 or max_length < 1:
        raise invalid(
            "batch_size and max_length must be at least 1",
            f"reward_model(batch_size={batch_size}, max_length={max_length})",
            "leave them at 8 and 4096",
        )
    if tokenizer is None and not _named(model):
        raise invalid(
            "A loaded model needs its tokenizer",
            f"reward_model({type(model).__name__})",
            "pass tokenizer=AutoTokenizer.from_pretrained(...) of the reward model, not of the policy",
        )
    return _RewardModel(model, tokenizer, batch_size, max_length, device, with_thought, tokens)


def _named(model: Any) -> str:
    return model if isinstance(model, str) else str(getattr(model.config, "_name_or_path", ""))


def _load(source: Any, tokenizer: Any, device: str | None) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = source
    if isinstance(source, str):
        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        model = AutoModelForSequenceClassification.from_pretrained(
            source, dtype="auto", device_map={"": where}
        )
    outputs = model.config.num_labels
    if outputs != 1:
        raise invalid(
            f"A reward model has one output, and this one has {outputs}",
            f"reward_model({source if isinstance(source, str) else type(source).__name__})",
            "train it with num_labels=1 (TRL's RewardTrainer does), or turn its outputs into one number "
            "in a reward function of your own",
        )
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(_named(model))
    tokenizer.truncation_side, tokenizer.padding_side = "left", "right"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if model.config.pad_token_id is None:  # transformers needs it for batches of more than one
        model.config.pad_token_id = tokenizer.pad_token_id
    return model.eval(), tokenizer


def _scored(model: Any, tokenizer: Any, texts: list[str], max_length: int) -> list[float]:
    import torch

    form = {"padding": True, "truncation": True, "max_length": max_length, "add_special_tokens": False}
    batch = tokenizer(texts, return_tensors="pt", **form).to(model.device)
    with torch.inference_mode():
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return [float(value) for value in logits[:, 0].float().cpu()]


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
    __name__: str

    aim: ClassVar[str] = "answer"

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], log_metric: Any = None, **kwargs: Any
    ) -> Scores:
        marks = [self.judge(*question) for question in self._questions(prompts, completions)]
        return self._total(marks, len(completions), log_metric)

    def _questions(self, prompts: Sequence[Any], completions: Sequence[Any]) -> list[tuple[str, str, str]]:
        return [
            (prompt_text(prompt), completion_text(completion), criterion.description)
            for prompt, completion in zip(prompts, completions, strict=True)
            for criterion in self.criteria
        ]

    def _total(self, marks: Sequence[Any], count: int, log_metric: Any) -> Scores:
        width = len(self.criteria)
        table = [[self._mark(marks[i * width + k], i, k) for k in range(width)] for i in range(count)]
        if log_metric is not None:
            for k, criterion in enumerate(self.criteria):
                log_mean(log_metric, f"{self.__name__}/{criterion.name}", [row[k] for row in table])
        return [self._mean(row) for row in table]

    def _mark(self, mark: Any, sample: int, k: int) -> float | None:
        if mark is None:
            return None
        number = float(mark) if isinstance(mark, (int, float)) or hasattr(mark, "item") else math.nan
        if not 0.0 <= number <= 1.0:
            raise RewardValueError(
                f"The judge's mark for '{self.criteria[k].name}' is not a number from 0 to 1",
                reward_name=self.__name__,
                sample=sample,
                value=mark,
                todo="scale the judge's answer to [0, 1], or return None where it has no opinion",
            )
        return number

    def _mean(self, marks: Sequence[float | None]) -> float | None:
        known = [(c.weight, mark) for c, mark in zip(self.criteria, marks, strict=True) if mark is not None]
        total = math.fsum(weight for weight, _ in known)
        return math.fsum(weight * mark for weight, mark in known) / total if total else None


class _AsyncRubric(_Rubric):
    async def __call__(  # type: ignore[override]
        self, prompts: Sequence[Any], completions: Sequence[Any], log_metric: Any = None, **kwargs: Any
    ) -> Scores:
        import asyncio

        questions = self._questions(prompts, completions)
        asked = [asyncio.ensure_future(self.judge(*question)) for question in questions]
        try:
            marks = await asyncio.gather(*asked)
        finally:  # once one fails, the others would still be asked, and paid for
            for one in asked:
                one.cancel()
        return self._total(marks, len(completions), log_metric)


@recorded()
def rubric_reward(
    criteria: Mapping[str, str] | Iterable[Criterion], judge: Judge, *, name: str = "rubric_reward"
) -> Reward:
    """The weighted mean of a judge's marks, continuous in [0, 1], each criterion's mean logged.

    ``sum_c weight_c * mark_c / sum_c weight_c`` over the criteria that the judge marked; None if it marked
    none.  Source: rubrics as rewards (arXiv 2507.17746), explicit aggregation.

    Args:
        criteria: name to description, with equal weights; or :class:`Criterion` objects.
        judge: ``judge(prompt, completion, description) -> float in [0, 1], or None``; another model, an API,
            a function.  The prompt is the user's message, or of several turns all of them, each after its role and
            without the system's.  An ``async`` judge gets all questions at once, and makes the reward ``async``.
        name: the metric's name.

    Raises:
        ValueError: no criteria, a repeated name, or a weight that is not positive; at a call, RewardValueError
            for a mark outside [0, 1].

    >>> short = lambda prompt, completion, description: 1 / len(completion.split())
    >>> rubric_reward({"brief": "The answer is brief."}, short)(prompts=["?"], completions=["forty two"])
    [0.5]
    """
    given = (Criterion(*item) for item in criteria.items()) if isinstance(criteria, Mapping) else criteria
    lines = tuple(given)
    names = [line.name for line in lines]
    if not lines or len(set(names)) != len(names) or not all(0 < line.weight < math.inf for line in lines):
        raise invalid(
            "A rubric needs criteria of different names and positive weights",
            f"rubric_reward({names}, weights {[line.weight for line in lines]})",
            "pass {'clear': 'The answer is clear.'} or Criterion('clear', 'The answer is clear.', 2.0)",
        )
    return (_AsyncRubric if is_async(judge) else _Rubric)(lines, judge, name)
