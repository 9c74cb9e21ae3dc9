"""A trained reward model as a reward, for tasks without answers to compare.

A policy can exploit a learned reward like any other: audit it, clip it, and keep a KL term.  For a judge behind a
server, write an ``async def`` reward with the retries and time-outs of its client.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rewards.errors import invalid
from rewards.factory_calls import recorded
from rewards.text import completion_text
from rewards.thinking import QWEN3, ThinkTokens, split_text
from rewards.trl_interface import Reward

LONGEST = 4096  # most tokens of prompt and completion that a reward model reads, from the end


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
    """Score with a trained sequence-classification reward model, such as one made by TRL's RewardTrainer.

    The model is loaded at the first call, and reads batches through its own tokenizer and chat template: of a text
    longer than 4096 tokens, or its own limit, only the end.  Unlike a module in TRL's ``reward_funcs``, the reward can
    be composed, cached, kept on the CPU, and given the answer without the thought.  It is named after the model, and
    picklable if ``model`` is a name.

    Args:
        model: a hub id, a folder, or a loaded model with one output, such as one in 4-bit.
        tokenizer: the model's own by default.
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
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # by length, for the least padding
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
            todo = "train it with num_labels=1, as TRL's RewardTrainer does, or combine them in your own reward"
            raise invalid(f"A reward model has one output, and this one has {outputs}", where, todo)
        tokenizer = self.tokenizer or AutoTokenizer.from_pretrained(self.name)
        # For a folder without tokenizer files, transformers makes a tokenizer that knows only its special tokens.
        if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            todo = "save it there with tokenizer.save_pretrained(folder), or pass tokenizer="
            raise invalid("The tokenizer has no words: its files are not beside the model", where, todo)
        tokenizer.truncation_side, tokenizer.padding_side = "left", "right"
        config = model.config.get_text_config()
        if tokenizer.pad_token_id is None:
            known = tokenizer.eos_token_id if config.pad_token_id is None else config.pad_token_id
            tokenizer.pad_token = None if known is None else tokenizer.convert_ids_to_tokens(known)
        config.pad_token_id = tokenizer.pad_token_id  # the score is read at the last token that is not padding
        return model.eval(), tokenizer
