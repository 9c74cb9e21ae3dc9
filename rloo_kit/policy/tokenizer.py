"""Prompts as token ids, and what a model needs beside its weights: a pad, every eos id, and no dropout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rloo_kit.errors import ConfigError
from rloo_kit.models import END_OF_TEXT, END_OF_TURN, PADS
from rloo_kit.policy.thinking import check_thinking
from rloo_kit.session import output

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rloo_kit.policy.policy import Prompt

RENDERING = ("conversation", "tokenize", "add_generation_prompt", "return_dict", "padding")
"""Arguments of a chat template that sampling and training set."""


def of_prompts(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], template: Mapping[str, object]
) -> list[list[int]]:
    """Token ids of each prompt; a conversation goes through the chat template, with the generation prompt."""
    check_template(template, "Policy.generate")
    check_thinking(tokenizer, template)
    if not tokenizer.chat_template and not all(isinstance(prompt, str) for prompt in prompts):
        what = "the prompts are conversations and the tokenizer has no chat template"
        todo = "use an instruct or chat checkpoint, or give plain strings as prompts"
        raise ConfigError(what, where=type(tokenizer).__name__, todo=todo)
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, **template}
    rows = (tokenizer(p) if isinstance(p, str) else tokenizer.apply_chat_template(p, **how) for p in prompts)
    return [list(row["input_ids"]) for row in rows]


def check_template(names: Iterable[str], where: str) -> None:
    """Refuse arguments of the chat template that the kit sets, with a ConfigError."""
    if taken := [name for name in names if name in RENDERING]:
        raise ConfigError(
            f"chat_template_kwargs cannot set {taken[0]}: it is set already",
            where=f"{where}(chat_template_kwargs={{{taken[0]!r}: ...}})",
            todo=f"remove {taken[0]}; enable_thinking=False is Qwen3's own",
        )


def complete(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer a pad token that is not an eos token, and the model every eos id; else a ConfigError.

    With pad = eos a padded row looks finished, and TRL counts a truncated completion as terminated.
    """
    vocabulary, declared = tokenizer.get_vocab(), model.generation_config.eos_token_id
    eos = [*declared] if isinstance(declared, list) else [declared]
    eos += [tokenizer.eos_token_id, vocabulary.get(END_OF_TURN), vocabulary.get(END_OF_TEXT)]
    eos = list(dict.fromkeys(token for token in eos if token is not None))
    pad = tokenizer.pad_token
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        pad = next((token for token in PADS if token in vocabulary and token != tokenizer.eos_token), None)
    if not eos or pad is None:
        raise ConfigError(
            "the tokenizer has no end-of-sequence token, or no pad token apart from it",
            where=f"load_policy, {type(tokenizer).__name__}",
            todo="set tokenizer.eos_token, add a pad token, and save the checkpoint again",
        )
    tokenizer.pad_token, model.generation_config.eos_token_id = pad, eos
    # Otherwise transformers' Trainer aligns these itself, with a warning, when training begins.
    for config in (model.config, model.generation_config):
        config.pad_token_id, config.bos_token_id = tokenizer.pad_token_id, tokenizer.bos_token_id
    model.config.eos_token_id = tokenizer.eos_token_id


def without_dropout(model: torch.nn.Module) -> None:
    """Switch the LoRA's dropout off, with a warning: no two forward passes drop the same."""
    configs = [one for one in getattr(model, "peft_config", {}).values() if getattr(one, "lora_dropout", 0)]
    if not configs:
        return
    dropped = f"the LoRA's dropout of {configs[0].lora_dropout:g} is switched off"
    output.warn(f"{dropped}: with it the on-policy ratio would differ from 1.")
    for name, module in model.named_modules():
        if "lora_dropout" in name and hasattr(module, "p"):
            module.p = 0.0
    for config in configs:
        config.lora_dropout = 0.0
