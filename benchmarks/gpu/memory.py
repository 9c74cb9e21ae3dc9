"""Compare the memory plan with what a step takes, on checkpoints of the real Qwen3 shapes with random weights.

A run must fit its plan: torch may allocate the plan's peak less the CUDA context, and no more.  Without that limit
torch keeps blocks that it does not need, so what it holds on a large GPU says little.
Weights change neither the memory nor the time of a step, as long as completions run to their full length.  Like
Unsloth's own 4-bit repositories, these keep some projections in 16 bit; which ones Unsloth keeps is not known here.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import rloo_kit  # isort: skip - Unsloth first
import torch
from bitsandbytes.nn import Params4bit
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedConfig

from rloo_kit.memory.formulas import LORA, OPTIMIZER, REST, WEIGHTS
from rloo_kit.memory.hardware import CUDA_CONTEXT_BYTES
from rloo_kit.memory.policy_tensors import bytes_of, weight_bytes
from rloo_kit.models import Checkpoint, nf4_bytes
from rloo_kit.policy.bundled import TINY

from . import peaks, work
from .runner import Figure, Place


def config_of(checkpoint: Checkpoint) -> PreTrainedConfig:
    return AutoConfig.for_model(
        checkpoint.family,
        vocab_size=checkpoint.vocabulary,
        hidden_size=checkpoint.hidden_size,
        intermediate_size=checkpoint.ffn_size,
        num_hidden_layers=checkpoint.layers,
        num_attention_heads=checkpoint.heads,
        num_key_value_heads=checkpoint.kv_heads,
        head_dim=checkpoint.head_dim,
        tie_word_embeddings=checkpoint.tied,
        max_position_embeddings=checkpoint.positions,
        architectures=[{"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}[checkpoint.family]],
        dtype=torch.bfloat16,
    )


KEPT_EVERY = 12
"""One in so many layers keeps its MLP in 16 bit, which makes a checkpoint about a tenth larger."""


def quantization(kept: Sequence[str] = ()) -> BitsAndBytesConfig:
    nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    skipped = {"llm_int8_skip_modules": ["lm_head", *kept]}
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **nf4, **skipped)


def write_without_weights(checkpoint: Checkpoint, folder: Path, kept: Sequence[str] = ()) -> None:
    not_shared = shutil.ignore_patterns("*.safetensors", "config.json", "*manifest*")
    shutil.copytree(TINY.checkpoint(), folder, ignore=not_shared)
    config = config_of(checkpoint)
    config.quantization_config = quantization(kept).to_dict()
    config.save_pretrained(folder)


def make(place: Place, shape: str, layers: int = 0) -> dict[str, Figure]:
    """Write random NF4 weights of a shape, or of some ``layers`` of it, with the tiny policy's tokenizer, matrix by
    matrix.  Load them as a user would, and compare their bytes with the catalogue's."""
    checkpoint = rloo_kit.CATALOGUE["tiny" if place.is_rehearsal else shape]
    folder = place.scratch / (f"{shape}-{layers}-layers" if layers else shape)
    if layers and not place.is_rehearsal:
        checkpoint = dataclasses.replace(checkpoint, layers=layers)
    kept = [f"model.layers.{layer}.mlp" for layer in range(0, checkpoint.layers, KEPT_EVERY)]
    write_without_weights(checkpoint, folder, kept)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(config_of(checkpoint)).to(torch.bfloat16)
    found: dict[str, torch.Tensor] = {}
    for name, parameter in skeleton.named_parameters():
        weight = torch.ones(parameter.shape, dtype=torch.bfloat16, device="cuda")
        if weight.dim() == 2:
            weight.normal_(std=0.02)  # as transformers initialises Qwen3
        if "_proj." in name and not name.startswith(tuple(f"{module}." for module in kept)):
            fresh = Params4bit(weight, requires_grad=False, compress_statistics=True, quant_type="nf4")
            weight = fresh.to(weight.device)
            state = weight.quant_state.as_dict(packed=True)
            found |= {f"{name}.{key}": part.cpu() for key, part in state.items()}
        found[name] = weight.data.cpu()
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    model = rloo_kit.load_policy(folder).model
    linear, rest = weight_bytes(model)
    bytes_each = model.get_input_embeddings().weight.element_size()
    projections = [rows * columns for rows, columns in checkpoint.projections.values()]
    mlp = projections[-3:]
    expected = checkpoint.linear_bytes() + len(kept) * (bytes_each * sum(mlp) - sum(map(nf4_bytes, mlp)))
    off = abs(linear - expected) + abs(rest - bytes_each * checkpoint.rest_parameters)
    return {"projections and other weights, off the catalogue by, bytes": Figure(off, high=0)}


def limit_torch(size: int) -> None:
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(size / torch.cuda.mem_get_info()[1])
    torch.cuda.reset_accumulated_memory_stats()


def held(trainer: rloo_kit.RLOOTrainer) -> dict[str, int]:
    linear, rest = weight_bytes(trainer.model)
    states = [entry for state in trainer.optimizer.state.values() for entry in state.values()]
    return {
        WEIGHTS: linear,
        REST: rest,
        LORA: bytes_of(p for name, p in trainer.model.named_parameters() if "lora_" in name),
        OPTIMIZER: bytes_of(entry for entry in states if torch.is_tensor(entry)),
    }


def case(place: Place, shape: str, k: int, groups: int, tokens: int, micro: int) -> dict[str, Figure]:
    """Train two steps in the planned bytes, the second at full length; compare measured with planned memory."""
    tokens, prompt = (work.REHEARSAL_TOKENS, 32) if place.is_rehearsal else (tokens, 256)
    policy, data = rloo_kit.load_policy(place.scratch / shape), work.dataset(prompt)
    config = rloo_kit.RLOOConfig(**work.settings(str(place.scratch / "run"), k, groups, micro, tokens))
    longest = max(len(ids) for ids in policy.tokenize(data["prompt"]))
    plan = rloo_kit.plan(policy, config, prompt_tokens=longest)
    if plan.fits == "does not fit":
        return {"does not fit by the plan, which needs, GiB": Figure(plan.peak_bytes / 2**30)}
    if not place.is_rehearsal:
        limit_torch(plan.peak_bytes - CUDA_CONTEXT_BYTES)
    trainer = rloo_kit.RLOOTrainer(policy, work.every_other, config, data)
    work.at_full_length(trainer, tokens)
    with peaks.measured() as measured:
        trainer.train()
    planned = peaks.planned(trainer.memory_plan)
    sampled = max(entry.get("completions/max_length", 0.0) for entry in trainer.state.log_history)
    found = {
        "every phase was measured": Figure(planned.keys() <= measured.keys()),
        "longest completion, of its limit": Figure(sampled / tokens, low=1.0),
    }
    if not place.is_rehearsal:
        counted = torch.cuda.memory_stats()
        found["within the plan's peak torch ran out, times"] = Figure(counted["num_ooms"], high=0)
        found["and emptied its cache, times"] = Figure(counted["num_alloc_retries"])
        free, total = torch.cuda.mem_get_info()
        beside = total - free - torch.cuda.memory_reserved()
        found["context, GiB"] = Figure(beside / 2**30)
        found["context, measured / planned"] = Figure(beside / CUDA_CONTEXT_BYTES)
        for name, peak in measured.items():
            found[f"reserved in {name}, GiB"] = Figure(peak.reserved_bytes / 2**30)
    sizes = {part: (plan.phases["optimizer"][part], size) for part, size in held(trainer).items()}
    seen_in = {name: measured[name].allocated_bytes for name in planned if name in measured}
    sizes |= {f"peak in {name}": (planned[name], seen) for name, seen in seen_in.items()}
    for name, (size, seen) in sizes.items():
        found[f"{name}, measured / planned"] = Figure(seen / size)
        found[f"{name}, off by, MiB"] = Figure((seen - size) / 2**20)
    return found
