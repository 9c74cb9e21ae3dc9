"""What speed.py times: three trainers, and the kit's run with one public switch of the stack turned at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PROMPT_TOKENS, LONG_PROMPT_TOKENS = 128, 1024


@dataclass(frozen=True)
class Variant:
    """A trainer, and what is set in it.

    Attributes:
        trainer: "plain" (no unsloth), "stock" (TRL under unsloth) or "kit".
        config: arguments of the config, over those that all share.
        load: arguments of ``load_policy``.
        variables: of its process.
        groups: prompts sampled at once.
        half_dead: pay every other group alike.
        prompt_tokens: of each prompt, about.
        prefill_once: sample as ``prefill.prefilled_once`` does.
        gain: what it is tried for, in words.
    """

    trainer: str = "kit"
    config: dict[str, Any] = field(default_factory=dict)
    load: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    groups: int = 1
    half_dead: bool = False
    prompt_tokens: int = PROMPT_TOKENS
    prefill_once: bool = False
    gain: str = ""


TRAINERS = {
    "TRL, PEFT, bitsandbytes": Variant("plain"),
    "TRL under unsloth": Variant("stock"),
    "kit": Variant("kit"),
}

CANDIDATES = {
    "fused 4-bit rows": Variant(
        variables={"UNSLOTH_GEMV_MAX_ROWS": "8"},
        gain="decoding 8 rows reads 0.5 byte a weight, where dequantising them first moves 4.5",
    ),
    "fused 4-bit GEMM": Variant(
        variables={"UNSLOTH_BNB_GEMM_4BIT": "1"}, gain="the same, with bitsandbytes' kernel, up to 16 rows"
    ),
    "16-bit weights": Variant(
        load={"load_in_4bit": False}, gain="nothing to dequantise, for four times the bytes"
    ),
    "2 prompts at once": Variant(groups=2, gain="the weights are read once for 16 rows"),
    "4 prompts at once": Variant(groups=4, gain="and for 32"),
    "no decode graphs": Variant(
        variables={"UNSLOTH_DECODE_CUDA_GRAPHS": "0"}, gain="none: what unsloth's graphs, on by default, give"
    ),
    "decode buffers whole": Variant(
        variables={"UNSLOTH_DECODE_GRAPH_PREALLOC": "1"}, gain="graphs are captured once, not at each growth"
    ),
    "long prompts, prefilled once": Variant(
        config={"fast_sampling": False},
        prompt_tokens=LONG_PROMPT_TOKENS,
        prefill_once=True,
        gain="a prompt of 1024 tokens goes forward once, not eight times",
    ),
    "long prompts": Variant(prompt_tokens=LONG_PROMPT_TOKENS, gain="none: the pair of the above"),
    "continuous batching": Variant(
        config={"use_transformers_continuous_batching": True},
        gain="shared prompt prefill, in transformers' own engine",
    ),
    "layers not compiled": Variant(
        variables={"UNSLOTH_BLOCK_COMPILE": "0"}, gain="a first step without compiling; none in the long run"
    ),
    "two passes": Variant(config={"single_pass": False}, gain="none: what the single pass gives"),
    "checkpointing True": Variant(
        load={"gradient_checkpointing": True}, gain="no copies to the computer's memory"
    ),
    "no checkpointing": Variant(load={"gradient_checkpointing": False}, gain="no second forward pass"),
    "half dead, skipped": Variant(
        config={"beta": 0.0}, groups=2, half_dead=True, gain="half of the training pass"
    ),
    "static cache": Variant(
        config={"cache_implementation": "static"}, gain="none: unsloth puts a dynamic cache in its place"
    ),
    "half dead, trained on": Variant(
        config={"beta": 0.0, "skip_dead_groups": False},
        groups=2,
        half_dead=True,
        gain="none: the pair of the above",
    ),
}
"""In the order of the gain that is predicted."""
