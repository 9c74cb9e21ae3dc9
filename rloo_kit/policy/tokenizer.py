"""Prompts as token ids, and what a model needs beside its weights: a pad, every eos id, and no dropout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rloo_kit.errors import ConfigError
from rloo_kit.models import END_OF_TEXT, END_OF_TURN, PADS
from rloo_kit.session import processes

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rloo_kit.policy.policy import Prompt

RENDERING = ("conversation", "tokenize", "add_generation_prompt", "return_dict", "padding")
"""Arguments of a chat template that sampling and training set."""


def of_prompts(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], template: Mapping[str, object]
) -> list[list[int]]:
    """Token ids of each prompt; a conversation goes through the chat template, with the generation prompt.

    Raises:
        ConfigError: a conversation, and the tokenizer has no chat template; or ``template`` sets what is set here.
    """
    check_template(template, "Policy.generate")
    if not tokenizer.chat_template and not all(isinstance(prompt, str) for prompt in prompts):
        raise ConfigError(
            "the prompts are conversations and the tokenizer has no chat template",
            where=type(tokenizer).__name__,
            todo="use an instruct or chat checkpoint, or give plain strings as prompts",
        )
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, **template}
    rows = []
    for prompt in prompts:
        of_text = isinstance(prompt, str)
        row = tokenizer(prompt) if of_text else tokenizer.apply_chat_template(prompt, **how)
        rows.append(list(row["input_ids"]))
    return rows


def check_template(names: Iterable[str], where: str) -> None:
    """Refuse arguments of the chat template that the kit sets, with a ConfigError."""
    if taken := [name for name in names if name in RENDERING]:
        raise ConfigError(
            f"chat_template_kwargs cannot set {taken[0]}: it is set already",
            where=f"{where}(chat_template_kwargs={{{taken[0]!r}: ...}})",
            todo=f"remove {taken[0]}; enable_thinking=False is Qwen3's own",
        )


def complete(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer a pad token that is not an eos token, and the model every eos id.

    With pad = eos a padded row looks finished, and TRL counts a truncated completion as terminated.

    Raises:
        ConfigError: the tokenizer has no eos token, or no token that could serve as a pad.
    """
    vocabulary, where = tokenizer.get_vocab(), f"load_policy, {type(tokenizer).__name__}"
    declared = model.generation_config.eos_token_id
    eos = declared if isinstance(declared, list) else [declared]
    eos = [*eos, tokenizer.eos_token_id, *(vocabulary.get(token) for token in (END_OF_TURN, END_OF_TEXT))]
    eos = list(dict.fromkeys(token for token in eos if token is not None))
    if not eos:
        what = "the tokenizer has no end-of-sequence token, so no completion would end"
        raise ConfigError(what, where=where, todo="set tokenizer.eos_token and save the checkpoint again")
    model.generation_config.eos_token_id = eos
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        pad = next((token for token in PADS if token in vocabulary and token != tokenizer.eos_token), None)
        if pad is None:
            what, todo = (
                "the tokenizer has no pad token apart from its eos token",
                "add one and save it again",
            )
            raise ConfigError(what, where=where, todo=todo)
        tokenizer.pad_token = pad
    # Otherwise transformers' Trainer aligns these itself, with a warning, when training begins.
    for config in (model.config, model.generation_config):
        config.pad_token_id, config.bos_token_id = tokenizer.pad_token_id, tokenizer.bos_token_id
    model.config.eos_token_id = tokenizer.eos_token_id


def without_dropout(model: torch.nn.Module) -> None:
    """Switch the LoRA's dropout off, with a warning: no two forward passes drop the same."""
    import torch

    dropped = 0.0
    for name, module in model.named_modules():
        if "lora_dropout" in name and isinstance(module, torch.nn.Dropout) and module.p:
            dropped, module.p = module.p, 0.0
    for config in getattr(model, "peft_config", {}).values():
        if getattr(config, "lora_dropout", 0.0):
            config.lora_dropout = 0.0
    if dropped:
        processes.warn(
            f"the LoRA's dropout of {dropped:g} is switched off: with it the on-policy ratio would differ from 1.",
        )
