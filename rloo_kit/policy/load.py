"""Load a Qwen3 policy: a 4-bit base, LoRA on the seven projections, a tokenizer with a pad and every eos id.

For every notebook: ``policy = load_policy()``, by a catalogue name, a hub id, or a folder (of a checkpoint
or of an adapter that ``Policy.save`` wrote).  Always through unsloth's ``FastLanguageModel``, the only loader that
works with and without a GPU.  It does not train; :mod:`rloo_kit.memory` plans the memory it needs.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewards.made import Call, recorded
from rloo_kit import catalogue
from rloo_kit.catalogue import CATALOGUE, Checkpoint
from rloo_kit.errors import ConfigError, OutOfMemoryError, PolicyNotFoundError
from rloo_kit.memory.oom import is_out_of_memory, let_go
from rloo_kit.policy import options, resolve, tokenizer
from rloo_kit.policy.options import DEFAULT_LENGTH, Asked, Lora
from rloo_kit.policy.policy import Policy
from rloo_kit.policy.resolve import ADAPTER_CONFIG, ANEW, PICKLED, WEIGHTS, Source, weights_of
from rloo_kit.session import prepare, processes
from rloo_kit.session.import_order import import_unsloth
from rloo_kit.session.output import quiet, without_bars

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# From unsloth's and transformers' errors where a device map would move 4-bit weights to the CPU.
SPILLED = ("does not fit in GPU memory", "dispatched on the CPU or the disk")


def _remember(policy: Policy, call: Call) -> None:
    """The model remembers it too: the trainer may be given that alone.  What was chosen for the machine has a name."""
    given = dict(call.arguments)
    named = given.pop("model_name", None) or given.get("name") or policy.checkpoint.name
    policy.model.made_by = Call(call.function, {**given, "name": named})


@recorded(without=("token",), files=("name", "model_name"), also=_remember)
def load_policy(
    name: str | os.PathLike[str] | None = None,
    *,
    max_seq_length: int = DEFAULT_LENGTH,
    load_in_4bit: bool | None = None,
    full_finetuning: bool = False,
    lora_rank: int = 16,
    lora_alpha: float | None = None,
    target_modules: str | Sequence[str] | None = None,
    use_rslora: bool = False,
    gradient_checkpointing: bool | str = "unsloth",
    seed: int = 0,
    **kwargs: Any,
) -> Policy:
    """Load a policy to train: a base in 4 bit with a fresh LoRA, a saved adapter on its base, or all weights.

    Args:
        name: a catalogue name ("qwen3-4b-thinking"), a hub id, or a folder.  None takes the bundled tiny
            Qwen3 on a CPU, and on a GPU the largest catalogue entry that fits.  "smollm2-135m" is a real language
            model that a CPU can train, of an optional package (:mod:`rloo_kit.policy.bundled`).
        max_seq_length: longest prompt + completion, in tokens; capped at what the checkpoint was trained for.
        load_in_4bit: NF4 weights; False keeps 16 bit (float32 on a CPU).  None takes 4 bit, and 16 for a checkpoint
            that is too small for 4 (``checkpoint.four_bit``).
        full_finetuning: train every weight, without a LoRA and not in 4 bit.  With beta > 0 the trainer keeps a second
            copy of the model as the reference; ``plan`` counts it.
        lora_rank, lora_alpha: of the LoRA; alpha defaults to the rank, dropout is 0 (dropout would make the on-policy
            ratio differ from 1).  A saved adapter keeps its own.
        target_modules: which of the seven projections get a LoRA; None or "all-linear" takes all.
        use_rslora: scale the LoRA by alpha / sqrt(rank) in place of alpha / rank (arXiv 2312.03732).
        gradient_checkpointing: "unsloth", True or False; passed on to unsloth.
        seed: for the LoRA's initial values.
        kwargs: unsloth's names for these (model_name, r, random_state, use_gradient_checkpointing, load_in_16bit), and
            further arguments of ``FastLanguageModel.from_pretrained`` (token, revision, fast_inference, ...).
            ``dtype`` defaults to what ``prepare()`` shows as "compute"; on a CPU ``torch.bfloat16`` is slower at the
            tiny policy's size even where the CPU has it, and float16 becomes float32, with a notice.

    Raises:
        PolicyNotFoundError: no such name, folder or repository, or the hub cannot be reached.
        OutOfMemoryError: the weights do not fit; the message has the bytes and the smaller checkpoints.
        ConfigError: a setting out of range, or a tokenizer without what training needs.
        ArgumentError: an argument that load_policy does not take, with what to do instead.
    """
    given = dict(locals())
    asked = options.settled({**given.pop("kwargs"), **given})
    import_unsloth()
    place = {name: asked.further[name] for name in ("revision", "cache_dir") if name in asked.further}
    found = resolve.resolve(asked.name, asked.four_bit, asked.further.get("token"), **place)
    four_bit = asked.lora is not None and _in_four_bit(asked.four_bit, found.checkpoint)
    if found.is_adapter:
        _check_adapter(found, asked)
    with (
        resolve.portable(found.path) as path,
        _out_of_memory_explained(found.checkpoint, found.path, four_bit),
        quiet(),
        without_bars(),
        _uncut(),
    ):
        with resolve.explained(found.of_hub, "load_policy"):
            longest = _longest(resolve.trained_length(path, found.is_adapter, asked.further), asked)
            with _matching(found.path) if found.is_adapter else contextlib.nullcontext():
                model, of_text = _load(path, longest, four_bit, asked)
        if found.is_adapter:
            _check_loaded(model, Path(found.path))
        checkpoint = found.checkpoint or catalogue.checkpoint_from_config(
            str(asked.name), model.config, of_text.chat_template
        )
        tokenizer.complete(model, of_text)
        if not found.is_adapter and asked.lora is not None:
            model = _with_lora(model, asked.lora, asked.checkpointing, asked.seed)
        tokenizer.without_dropout(model)
    return Policy(model, of_text, checkpoint)


def _longest(trained: int | None, asked: Asked) -> int:
    """Tokens that a prompt and its completion may have."""
    longest = min(asked.max_seq_length, trained or asked.max_seq_length)
    if longest < asked.max_seq_length and asked.max_seq_length != DEFAULT_LENGTH:
        processes.warn(
            f"max_seq_length is {longest}, not {asked.max_seq_length}: the checkpoint was trained for no more tokens.",
        )
    return longest


def _check_adapter(found: Source, asked: Asked) -> None:
    """That a saved adapter is not asked to be another one: refused, or said to have no effect."""
    if asked.lora is None:
        raise ConfigError(
            "an adapter is a LoRA, and full_finetuning trains the weights below it",
            where=f"load_policy({os.fspath(asked.name or '')!r}, full_finetuning=True)",
            todo="load_policy(that folder).save_merged('out/merged'), and train out/merged",
        )
    config = resolve.read(Path(found.path) / ADAPTER_CONFIG)
    named = {"lora_rank": "r", "lora_alpha": "lora_alpha", "use_rslora": "use_rslora"}
    own = {name: config[of_peft] for name, of_peft in named.items() if of_peft in config}
    lora = asked.lora
    wanted = {"lora_rank": lora.rank, "lora_alpha": lora.alpha, "use_rslora": lora.rank_stabilised}
    unasked = options.DEFAULTS | {"lora_alpha": lora.rank}
    if idle := {name: value for name, value in own.items() if wanted[name] not in (value, unasked[name])}:
        kept = ", ".join(f"{name}={value}" for name, value in idle.items())
        processes.warn(
            f"{' and '.join(idle)} of load_policy: no effect, since the saved adapter keeps its own: {kept}.",
        )


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


@contextlib.contextmanager
def _uncut() -> Iterator[None]:
    """Load a model whole, also where an ``RLOOConfig(deepspeed=...)`` was made before.

    A configuration of ZeRO-3 sets a global of transformers, which then refuses the ``device_map`` that unsloth gives
    (modeling_utils.py, "DeepSpeed Zero-3 is not compatible with passing a `device_map`").  DeepSpeed cuts the weights
    when the training begins.
    """
    from transformers.integrations import deepspeed

    configured = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = configured


def _load(
    path: str, longest: int, four_bit: bool, asked: Asked
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch
    from unsloth import FastLanguageModel

    further = asked.further
    if not torch.cuda.is_available() and "dtype" not in further:
        # Where unsloth was imported before the kit it would take bfloat16 on a CPU that has it.
        further = {**further, "dtype": getattr(torch, prepare.compute_dtype())}
    model, tokenizer = FastLanguageModel.from_pretrained(
        model_name=path,
        max_seq_length=longest,
        load_in_4bit=four_bit,
        use_gradient_checkpointing=asked.checkpointing,
        random_state=asked.seed,
        **further,
    )
    if "device_map" not in further:
        _check_on_gpu(model)
    return model, tokenizer


def _check_on_gpu(model: PreTrainedModel) -> None:
    """Works around: transformers puts layers that do not fit on the GPU into the computer's memory; only the loader
    of a quantised model refuses that."""
    import torch

    places = {str(place) for place in getattr(model, "hf_device_map", {}).values()}
    if torch.cuda.is_available() and places & {"cpu", "disk"}:
        raise torch.OutOfMemoryError("some of the model's layers do not fit on the GPU")


def _with_lora(model: PreTrainedModel, lora: Lora, checkpointing: bool | str, seed: int) -> PeftModel:
    from unsloth import FastLanguageModel

    return FastLanguageModel.get_peft_model(
        model,
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=list(lora.modules),
        use_rslora=lora.rank_stabilised,
        use_gradient_checkpointing=checkpointing,
        random_state=seed,
    )


@contextlib.contextmanager
def _matching(folder: str) -> Iterator[None]:
    """While inside, an adapter's weights that do not fit the base, or would run code, are an error that names it."""
    where = f"load_policy({folder!r})"
    try:
        yield
    except pickle.UnpicklingError as error:
        raise PolicyNotFoundError(
            f"{PICKLED} is damaged, or holds more than weights, which could run code when it is loaded",
            where=where,
            todo=f"take one with {WEIGHTS}, or {ANEW}",
        ) from error
    except RuntimeError as error:
        if "size mismatch" not in str(error):
            raise
        raise PolicyNotFoundError(
            "the adapter's weights are not of its base: their shapes differ",
            where=f"{where}, base_model_name_or_path in {ADAPTER_CONFIG}",
            todo="write the base that it was trained on into that file",
        ) from error


def _check_loaded(model: PeftModel, folder: Path) -> None:
    """Refuse a policy that got only some of the adapter's weights: PEFT warns of the missing, and drops the others.

    Raises:
        PolicyNotFoundError: with how many, and the first of them.
    """
    if not (folder / WEIGHTS).is_file():
        return
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    wanted = {name for name in state if "lora_" in name}
    saved = {name for name, _ in weights_of(folder) if "lora_" in name}
    missing, unused = sorted(wanted - saved), sorted(saved - wanted)
    if missing or unused or not wanted:
        first = [*missing, *unused, "its type is not LoRA"][0]
        raise PolicyNotFoundError(
            f"the adapter's weights are not those of its configuration: {len(missing)} are missing, and "
            f"{len(unused)} would be dropped",
            where=f"load_policy({str(folder)!r}), first {first}",
            todo=f"{ANEW}: the two files are of different adapters, or one was edited",
        )


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
        free, total = prepare.device_memory()
        need = checkpoint.weight_bytes(four_bit) if checkpoint else None
        smaller = [c.name for c in CATALOGUE.values() if need and c.weight_bytes(four_bit) < need]
        raise OutOfMemoryError(
            f"the weights do not fit into the memory of the {'GPU' if torch.cuda.is_available() else 'computer'}",
            where=f"load_policy, {path}: needs {need or 'an unknown number of'} bytes for the weights alone, "
            f"and {free} of {total} are free",
            todo=f"load a smaller one ({', '.join(reversed(smaller)) or 'see rloo_kit.CATALOGUE'}), keep "
            "load_in_4bit=True, or free the GPU: call rloo_kit.release() and end other programs that use it",
        ) from error
