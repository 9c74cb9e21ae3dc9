"""Complete a model and its tokenizer: a pad token, every eos id, and no dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rloo_kit.errors import ConfigError
from rloo_kit.models import END_OF_TEXT, END_OF_TURN, PADS
from rloo_kit.session import output

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
    # Works around: unsloth_zoo sets it on a GPU, and every call then warns that max_new_tokens overrules it.
    model.generation_config.max_length = None


def without_dropout(model: torch.nn.Module) -> None:
    """Switch the LoRA's dropout off, with a warning: no two forward passes drop the same."""
    for config in getattr(model, "peft_config", {}).values():
        if rate := getattr(config, "lora_dropout", 0):
            why = "with it the on-policy ratio would differ from 1"
            output.warn(f"the LoRA's dropout of {rate:g} is switched off: {why}.")
            config.lora_dropout = 0.0
    for name, module in model.named_modules():
        if "lora_dropout" in name and hasattr(module, "p"):
            module.p = 0.0
