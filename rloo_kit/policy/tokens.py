"""What a model needs beside its weights to be sampled and trained: a pad, every eos id, and no dropout.

For :mod:`.load`, and for :class:`~rloo_kit.Policy` where a model was made by hand.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from rloo_kit.catalogue import END_OF_TEXT, END_OF_TURN, PADS
from rloo_kit.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def complete(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer a pad token that is not an eos token, and the model every eos id.

    With pad = eos a padded row looks finished, and TRL counts a truncated completion as terminated.

    Raises:
        ConfigError: the tokenizer has no eos token, or no token that could serve as a pad.
    """
    vocabulary = tokenizer.get_vocab()
    declared = model.generation_config.eos_token_id
    eos = declared if isinstance(declared, list) else [declared]
    eos = [*eos, tokenizer.eos_token_id, *(vocabulary.get(token) for token in (END_OF_TURN, END_OF_TEXT))]
    eos = list(dict.fromkeys(token for token in eos if token is not None))
    if not eos:
        raise ConfigError(
            "the tokenizer has no end-of-sequence token, so no completion would end",
            where=f"load_policy, {type(tokenizer).__name__}",
            todo="set tokenizer.eos_token and save the checkpoint again",
        )
    model.generation_config.eos_token_id = eos
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        pad = next((token for token in PADS if token in vocabulary and token != tokenizer.eos_token), None)
        if pad is None:
            raise ConfigError(
                "the tokenizer has no pad token apart from its eos token",
                where=f"load_policy, {type(tokenizer).__name__}",
                todo="add one, tokenizer.pad_token = '<|pad|>', and save the checkpoint again",
            )
        tokenizer.pad_token = pad
    # Otherwise transformers' Trainer aligns these itself, with a warning, when training begins.
    for config in (model.config, model.generation_config):
        config.pad_token_id, config.bos_token_id = tokenizer.pad_token_id, tokenizer.bos_token_id
    model.config.eos_token_id = tokenizer.eos_token_id


def without_dropout(model: torch.nn.Module) -> None:
    """Switch the LoRA's dropout off, with a warning: a recipe's 0.05, or that of an adapter of supervised fine-tuning.

    With it the ratio of an on-policy step differs from 1, since no two forward passes drop the same.
    """
    import torch

    dropped = 0.0
    for name, module in model.named_modules():
        if "lora_dropout" in name and isinstance(module, torch.nn.Dropout) and module.p:
            dropped, module.p = module.p, 0.0
    for config in getattr(model, "peft_config", {}).values():
        if getattr(config, "lora_dropout", 0.0):
            config.lora_dropout = 0.0
    if dropped:
        warnings.warn(
            f"the LoRA's dropout of {dropped:g} is switched off: with it the on-policy ratio would differ from 1.",
            stacklevel=3,
        )
