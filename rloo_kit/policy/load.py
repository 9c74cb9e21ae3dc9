"""Load a Qwen3 policy: a 4-bit base, LoRA on the seven projections, a tokenizer with a pad and every eos id.

For every notebook: ``policy = load_policy()``, by a catalogue name, a hub id, or a folder (of a checkpoint
or of an adapter that ``Policy.save`` wrote).  Always through unsloth's ``FastLanguageModel``, the only loader that
works with and without a GPU.  It does not train; :mod:`rloo_kit.memory` plans the memory it needs.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Gt

from rloo_kit import catalogue, values
from rloo_kit.catalogue import CATALOGUE, END_OF_TEXT, END_OF_TURN, PADS, PROJECTIONS, Checkpoint
from rloo_kit.errors import ArgumentError, ConfigError, OutOfMemoryError
from rloo_kit.memory.shortage import is_out_of_memory, let_go
from rloo_kit.policy import folder, source
from rloo_kit.policy.policy import Policy
from rloo_kit.session import environment, processes
from rloo_kit.session.imports import import_unsloth
from rloo_kit.session.quiet import quiet
from rloo_kit.values import Count, Seed

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DEFAULT_LENGTH = 4096  # tokens
# From unsloth's and transformers' errors where a device map would move 4-bit weights to the CPU.
SPILLED = ("does not fit in GPU memory", "dispatched on the CPU or the disk")

HINTS = {
    "max_seq_length": Count,
    "load_in_4bit": bool | None,
    "lora_rank": Count,
    "lora_alpha": Annotated[float, Gt(0)] | None,
    "gradient_checkpointing": Literal["unsloth"] | bool,
    "seed": Seed,
}
ADVICE = {"max_seq_length": "4096 is the default", "lora_rank": "16 is the default"}

INSTEAD = {
    "full_finetuning": "remove it: load_policy trains a LoRA; the whole of a model is trained with trl.RLOOTrainer",
    "lora_dropout": "remove it: dropout makes the on-policy ratio differ from 1",
    "target_modules": "remove it: the LoRA is on the seven projections",
    "use_gradient_checkpointing": "use gradient_checkpointing",
    "random_state": "use seed",
    "max_length": "use max_seq_length",
    "load_in_8bit": "remove it: use load_in_4bit=True, or False for 16 bit",
    "r": "use lora_rank",
    "rank": "use lora_rank",
    "alpha": "use lora_alpha",
    "model_name": "give it first: load_policy(name)",
}
"""What ``load_policy`` does not take, though unsloth's functions do, and what to do instead."""


def load_policy(
    name: str | os.PathLike[str] | None = None,
    *,
    max_seq_length: int = DEFAULT_LENGTH,
    load_in_4bit: bool | None = None,
    lora_rank: int = 16,
    lora_alpha: int | None = None,
    gradient_checkpointing: bool | str = "unsloth",
    seed: int = 0,
    **kwargs: Any,
) -> Policy:
    """Load a policy to train: a base in 4 bit with a fresh LoRA, or a saved adapter on its base.

    Args:
        name: a catalogue name ("qwen3-4b-thinking"), a hub id, or a folder.  None takes the bundled tiny
            Qwen3 on a CPU, and on a GPU the largest catalogue entry that fits.  "smollm2-135m" is a real language
            model that a CPU can train, of an optional package (:mod:`rloo_kit.policy.smollm2`).
        max_seq_length: longest prompt + completion, in tokens; capped at what the checkpoint was trained for.
        load_in_4bit: NF4 weights; False keeps 16 bit (float32 on a CPU).  None takes 4 bit, and 16 for a checkpoint
            that is too small for 4 (``checkpoint.four_bit``).
        lora_rank, lora_alpha: of the LoRA on the seven projections; alpha defaults to the rank, dropout is 0
            (dropout would make the on-policy ratio differ from 1).  A saved adapter keeps its own.
        gradient_checkpointing: "unsloth", True or False; passed on to unsloth.
        seed: for the LoRA's initial values.
        kwargs: further arguments of ``FastLanguageModel.from_pretrained`` (token, revision, ...).  ``dtype``
            defaults to what ``prepare()`` shows as "compute"; on a CPU ``torch.bfloat16`` is slower at the
            tiny policy's size even where the CPU has it, and float16 becomes float32, with a notice.

    Raises:
        PolicyNotFoundError: no such name, folder or repository, or the hub cannot be reached.
        OutOfMemoryError: the weights do not fit; the message has the bytes and the smaller checkpoints.
        ConfigError: a setting out of range, or a tokenizer without what training needs.
        ArgumentError: an argument that load_policy does not take, with what to do instead.
    """
    given: dict[str, Any] = {
        "max_seq_length": max_seq_length,
        "load_in_4bit": load_in_4bit,
        "lora_rank": lora_rank,
    }
    given |= {"lora_alpha": lora_alpha, "gradient_checkpointing": gradient_checkpointing, "seed": seed}
    values.check(given, HINTS, "load_policy", ADVICE)
    _check_further(kwargs)
    import_unsloth()
    found = source.resolve(name, load_in_4bit, kwargs.get("token"))
    four_bit = _in_four_bit(load_in_4bit, found.checkpoint)
    with (
        source.portable(found.path) as path,
        _out_of_memory_explained(found.checkpoint, found.path, four_bit),
        _without_progress_bar(),
    ):
        trained = source.trained_length(path, found.is_adapter, kwargs)
        longest = min(max_seq_length, trained or max_seq_length)
        if longest < max_seq_length != DEFAULT_LENGTH:
            processes.warn(
                f"max_seq_length is {longest}, not {max_seq_length}: the checkpoint was trained for no more tokens.",
                stacklevel=2,
            )
        with folder.matching(found.path, found.is_adapter):
            model, tokenizer = _load(path, longest, four_bit, gradient_checkpointing, seed, kwargs)
        if found.is_adapter:
            folder.check_loaded(model, found.path)
        template = tokenizer.chat_template
        checkpoint = found.checkpoint or catalogue.checkpoint_from_config(str(name), model.config, template)
        _complete_tokens(model, tokenizer)
        if not found.is_adapter:
            model = _with_lora(model, lora_rank, lora_alpha or lora_rank, gradient_checkpointing, seed)
    return Policy(model, tokenizer, checkpoint)


def _in_four_bit(asked: bool | None, checkpoint: Checkpoint | None) -> bool:
    """Whether to load in 4 bit.

    Raises:
        ConfigError: it was asked for, and the checkpoint is of no use in it.
    """
    of_use = checkpoint is None or checkpoint.four_bit
    if asked and checkpoint is not None and not of_use:
        raise ConfigError(
            f"{checkpoint.name} is too small for 4 bit: it then says nothing of use",
            where="load_policy(load_in_4bit=True)",
            todo="leave load_in_4bit out, and it is loaded in 16 bit",
        )
    return of_use if asked is None else asked


def _check_further(kwargs: dict[str, Any]) -> None:
    """That no argument is a misspelt one of ``load_policy``, or one that it settles itself."""
    ours = set(HINTS) | {"name", "token", "revision", "dtype", "device_map"}
    for name, value in kwargs.items():
        near = difflib.get_close_matches(name, ours - {name}, n=1, cutoff=0.8) if name not in ours else []
        todo = INSTEAD.get(name) or (f"did you mean {near[0]}?" if near else None)
        if todo and value is not False:
            raise ArgumentError(
                f"load_policy takes no {name}",
                where=f"load_policy({name}={values.shown(name, value)})",
                todo=todo,
            )


def _load(
    path: str, longest: int, four_bit: bool, checkpointing: bool | str, seed: int, kwargs: dict[str, Any]
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch
    from unsloth import FastLanguageModel

    if not torch.cuda.is_available() and {"dtype", "torch_dtype"}.isdisjoint(kwargs):
        # Where unsloth was imported before the kit it would take bfloat16 on a CPU that has it.
        kwargs = {**kwargs, "dtype": getattr(torch, environment.compute_dtype())}
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=path,
        max_seq_length=longest,
        load_in_4bit=four_bit,
        use_gradient_checkpointing=checkpointing,
        random_state=seed,
        **kwargs,
    )
    if "device_map" not in kwargs:
        _check_on_gpu(model)
    return model, tokenizer


def _check_on_gpu(model: PreTrainedModel) -> None:
    """Works around: transformers puts layers that do not fit on the GPU into the computer's memory; only the loader
    of a quantised model refuses that."""
    import torch

    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if torch.cuda.is_available() and places & {"cpu", "disk"}:
        raise torch.OutOfMemoryError("some of the model's layers do not fit on the GPU")


def _with_lora(
    model: PreTrainedModel, rank: int, alpha: int, checkpointing: bool | str, seed: int
) -> PeftModel:
    from unsloth import FastLanguageModel

    return FastLanguageModel.get_peft_model(
        model,
        r=rank,
        lora_alpha=alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(PROJECTIONS),
        use_gradient_checkpointing=checkpointing,
        random_state=seed,
    )


def _complete_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
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


@contextlib.contextmanager
def _without_progress_bar() -> Iterator[None]:
    """Hide the progress bar of weight loading, and start-up lines; a download's progress stays."""
    with quiet():
        from transformers.utils import logging

        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            if shown:
                logging.enable_progress_bar()


@contextlib.contextmanager
def _out_of_memory_explained(checkpoint: Checkpoint | None, path: str, four_bit: bool) -> Iterator[None]:
    """Turn the device's out-of-memory error into one with bytes and smaller checkpoints."""
    import torch

    try:
        yield
    except (RuntimeError, MemoryError, ValueError) as error:
        if not is_out_of_memory(error) and not any(text in str(error) for text in SPILLED):
            raise
        let_go(error)
        free, total = environment.device_memory()
        need = checkpoint.weight_bytes(four_bit) if checkpoint else None
        smaller = [c.name for c in CATALOGUE.values() if need and c.weight_bytes(four_bit) < need]
        raise OutOfMemoryError(
            f"the weights do not fit into the memory of the {'GPU' if torch.cuda.is_available() else 'computer'}",
            where=f"load_policy, {path}: needs {need or 'an unknown number of'} bytes for the weights alone, "
            f"and {free} of {total} are free",
            todo=f"load a smaller one ({', '.join(reversed(smaller)) or 'see rloo_kit.CATALOGUE'}), keep "
            "load_in_4bit=True, or free the GPU: call rloo_kit.release() and end other programs that use it",
        ) from error
