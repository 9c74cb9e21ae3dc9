"""Checkpoints of the real Qwen3 shapes with random weights, for machines without a hub.

Weights change neither what memory a step takes nor how long it takes, so a shape with random weights measures as the
checkpoint would, as long as completions run to their full length.  A shape is made matrix by matrix on the device,
quantised as bitsandbytes does it (NF4, double quantisation, all seven projections of every layer), saved, and loaded
by ``rloo_kit.load_policy`` like any other folder.  Unsloth's own 4-bit repositories keep some projections in 16 bit;
these do not.
"""

from __future__ import annotations

import functools
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checks import Check, Found, Place, add, at_most, holds, seen

if TYPE_CHECKING:
    from rloo_kit.catalogue import Checkpoint as Card

NAMES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b")
DEVIATION = 0.02
"""Of the random weights, as transformers initialises Qwen3."""


def config_of(card: Card) -> Any:
    """The transformers configuration of a catalogue entry."""
    import torch
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=card.vocabulary,
        hidden_size=card.hidden_size,
        intermediate_size=card.ffn_size,
        num_hidden_layers=card.layers,
        num_attention_heads=card.heads,
        num_key_value_heads=card.kv_heads,
        head_dim=card.head_dim,
        tie_word_embeddings=card.tied,
        max_position_embeddings=40960,
        architectures=["Qwen3ForCausalLM"],
        dtype=torch.bfloat16,
    )


def skeleton(card: Card) -> Any:
    """The model on the meta device: every shape, no memory."""
    import torch
    from transformers import Qwen3ForCausalLM

    with torch.device("meta"):
        return Qwen3ForCausalLM(config_of(card)).to(torch.bfloat16)


def tensors(card: Card, four_bit: bool, device: str) -> dict[str, Any]:
    """The checkpoint's tensors by name: random, projections quantised where asked for; on the CPU when done.

    Never more than one matrix in 16 bit lies on the device.
    """
    import torch

    found: dict[str, Any] = {}
    for name, parameter in skeleton(card).named_parameters():
        weight = torch.ones(parameter.shape, dtype=torch.bfloat16, device=device)
        if weight.dim() == 2:
            weight.normal_(std=DEVIATION)
        if four_bit and "_proj." in name:
            found |= {key: part.cpu() for key, part in quantised(name, weight).items()}
        else:
            found[name] = weight.cpu()
    return found


def quantised(name: str, weight: Any) -> dict[str, Any]:
    """A matrix in NF4 with what bitsandbytes saves beside it."""
    from bitsandbytes.nn import Params4bit

    packed = Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4").to(
        weight.device
    )
    state = packed.quant_state.as_dict(packed=True)
    return {name: packed.data, **{f"{name}.{key}": value for key, value in state.items()}}


def save(card: Card, folder: Path, four_bit: bool = True, device: str = "cpu") -> Path:
    """Write a checkpoint of random weights with the tiny policy's tokenizer; the folder appears whole or not at all."""
    from safetensors.torch import save_file

    from rloo_kit.policy import tiny

    scratch = folder.with_name(folder.name + ".part")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(
        tiny.checkpoint(),
        scratch,
        ignore=shutil.ignore_patterns("*.safetensors", "config.json", "*manifest*"),
    )
    config = config_of(card)
    if four_bit:
        config.quantization_config = quantization().to_dict()
    config.save_pretrained(scratch)
    save_file(tensors(card, four_bit, device), scratch / "model.safetensors", metadata={"format": "pt"})
    scratch.replace(folder)
    return folder


def quantization() -> Any:
    """How unsloth loads in 4 bit."""
    import torch
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


# --- for the checks ---------------------------------------------------------------------------------------


def card_of(name: str, place: Place) -> Card:
    """The catalogue's entry; the tiny one's in a rehearsal."""
    from rloo_kit.catalogue import CATALOGUE

    return CATALOGUE["tiny" if place.is_rehearsal else name]


def folder_of(name: str, place: Place) -> Path:
    """Where a shape's checkpoint is."""
    return place.scratch / "shapes" / name


_kept: dict[str, Any] = {}


def loaded(name: str, place: Place) -> Any:
    """The policy of a shape, kept until another is asked for; its LoRA stays fresh while the learning rate is 0."""
    import rloo_kit

    if name not in _kept:
        forget()  # before, not after: the card may have no room for both
        _kept[name] = rloo_kit.load_policy(folder_of(name, place), seed=0)
    return _kept[name]


def forget() -> None:
    """Let go of the policy that is kept."""
    import gc

    _kept.clear()
    gc.collect()


def make(name: str, place: Place) -> Found:
    """Make one shape, load it as a user would, and compare it with the catalogue."""
    import torch

    from rloo_kit.memory import reading

    forget()
    card = card_of(name, place)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder_of(name, place).parent.mkdir(exist_ok=True)
    started = time.monotonic()
    folder = save(card, folder_of(name, place), device=device)
    saved = time.monotonic()
    policy = loaded(name, place)
    took = time.monotonic() - saved
    linear, rest = reading.weight_bytes(policy.model)
    dtype = policy.model.get_input_embeddings().weight.element_size()
    trained = sum(p.numel() for p in policy.model.parameters() if p.requires_grad)
    forget()
    return Found(
        [
            at_most("bytes of projections less the catalogue's", abs(linear - card.linear_bytes()), 0, "B"),
            at_most(
                "bytes of the rest less the catalogue's", abs(rest - dtype * card.rest_parameters), 0, "B"
            ),
            holds("every projection is in 4 bit", _four_bit_matrices(policy.model) == 7 * card.layers),
            seen("made and saved in", saved - started, "s"),
            seen("loaded in", took, "s"),
        ],
        {
            "disk_bytes": sum(file.stat().st_size for file in folder.iterdir()),
            "linear_bytes": linear,
            "rest_bytes": rest,
            "trained": trained,
            "embedding_device": policy.model.get_input_embeddings().weight.device.type,
        },
    )


def _four_bit_matrices(model: Any) -> int:
    return sum(getattr(p, "quant_state", None) is not None for p in model.parameters())


CARD_GIB = {"qwen3-0.6b": 3, "qwen3-1.7b": 4, "qwen3-4b": 6, "qwen3-8b": 9}
"""The smallest card that trains a shape at all."""

for _name in NAMES:
    add(
        Check(
            f"shape/{_name}",
            functools.partial(make, _name),
            seconds=120,
            takes=20,
            rank=90,  # earlier where another check needs it
            card_gib=CARD_GIB[_name],
        )
    )
