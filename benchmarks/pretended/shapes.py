"""The real Qwen3 shapes as policies on meta tensors: every tensor has its shape and no memory.

They serve to count bytes.  :func:`load` runs ``load_policy`` and Unsloth's own code; only the reading of weights is
replaced.  Call ``start(card, target="meta")`` first; :mod:`.meta` makes passes run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rloo_kit  # isort: skip - Unsloth first
import bitsandbytes
import torch
import unsloth.models.llama
from transformers import GenerationConfig, PreTrainedModel, Qwen3ForCausalLM

from benchmarks.gpu.memory import config_of, quantization, write_without_weights
from rewards.thinking import QWEN3
from rloo_kit.models import PROJECTIONS, Checkpoint

if TYPE_CHECKING:
    from rloo_kit import Policy

BLOCK, SCALES = 64, 256
"""Weights per scale, and scales per scale of scales, in bitsandbytes' NF4."""


DTYPE = torch.bfloat16


def load(checkpoint: Checkpoint, **kwargs: Any) -> Policy:
    """Load the policy of a checkpoint in 4 bit; ``kwargs`` are those of ``load_policy``."""
    loader = unsloth.models.llama.AutoModelForCausalLM
    read = loader.from_pretrained
    loader.from_pretrained = staticmethod(lambda *args, **more: skeleton(checkpoint))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / checkpoint.name
            write_without_weights(checkpoint, folder)
            (folder / "model.safetensors").write_bytes(b"")
            policy = rloo_kit.load_policy(folder, dtype=DTYPE, **kwargs)
    finally:
        loader.from_pretrained = read
    if not checkpoint.tied:
        # Unsloth ties weights with equal addresses again (unsloth_zoo/patching_utils.py); here all addresses are 0.
        head = policy.model.get_output_embeddings()
        head.weight.data = torch.empty_like(head.weight)
    return policy


def skeleton(checkpoint: Checkpoint) -> PreTrainedModel:
    config = config_of(checkpoint)
    config._attn_implementation = "sdpa"
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config).to(DTYPE)
    for block in model.modules():
        for name, linear in list(block.named_children()):
            if name in PROJECTIONS:
                setattr(block, name, _in_four_bit(linear))
    model.config.quantization_config = quantization()
    model.is_loaded_in_4bit = model.is_quantized = True
    model.quantization_method = "bitsandbytes"
    model.hf_device_map = {"": 0}
    model.generation_config = GenerationConfig(eos_token_id=list(QWEN3.eos_ids), pad_token_id=QWEN3.eos_ids[1])
    return model


def _in_four_bit(linear: torch.nn.Linear) -> torch.nn.Module:
    """Return the layer as ``quantize_4bit`` leaves it, with compressed statistics."""
    empty = lambda *shape, kind: torch.empty(*shape, dtype=kind, device="meta")  # noqa: E731
    weights = linear.in_features * linear.out_features
    scales = -(-weights // BLOCK)
    common = {"compress_statistics": True, "quant_type": "nf4"}
    state = bitsandbytes.functional.QuantState(
        absmax=empty(scales, kind=torch.uint8),
        shape=linear.weight.shape,
        code=empty(16, kind=torch.float32),
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=DTYPE,
        offset=empty((), kind=torch.float32),
        state2=bitsandbytes.functional.QuantState(
            absmax=empty(-(-scales // SCALES), kind=torch.float32),
            blocksize=SCALES,
            code=empty(256, kind=torch.float32),
            dtype=torch.float32,
        ),
    )
    with torch.device("meta"):
        found = bitsandbytes.nn.Linear4bit(
            linear.in_features, linear.out_features, bias=False, compute_dtype=DTYPE, **common
        )
    found.weight = bitsandbytes.nn.Params4bit.__new__(
        bitsandbytes.nn.Params4bit,
        empty(-(-weights // 2), 1, kind=torch.uint8),
        requires_grad=False,
        quant_state=state,
        bnb_quantized=True,
        blocksize=BLOCK,
        module=found,
        **common,
    )
    found.quant_state, found.quant_type = state, "nf4"
    return found
