"""Which model fits which GPU: the table of docs/cards.md and of ``rloo-kit cards``, computed and not measured."""

from __future__ import annotations

import dataclasses

from rloo_kit.catalogue import CATALOGUE
from rloo_kit.memory.hardware import device_of
from rloo_kit.memory.planning import Plan, fit, longest_completion
from rloo_kit.memory.reading import model_of
from rloo_kit.session.show import GIB

CARDS = {
    "RTX 3060 Ti, 4060": "rtx 4060",
    "RTX 3060 12GB, 4070": "rtx 4070",
    "T4": "t4",
    "RTX 4060 Ti 16GB, 4080": "rtx 4080",
    "RTX 3090, 4090": "rtx 4090",
}
MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b")
ROWS = 8


def cell(model: str, card: str) -> str:
    """Peak memory at the default lengths, and the longest completion that fits."""
    base = fit(card)
    whole = dataclasses.replace(base.settings, batch_rows=ROWS, generation_rows=ROWS)
    settings = dataclasses.replace(whole, micro_rows=2, accumulation=ROWS // 2)
    found = Plan.of(model_of(CATALOGUE[model], settings.lora_rank, four_bit=True), settings, device_of(card))
    longest = longest_completion(found)
    return f"{found.peak_bytes / GIB:.1f} GiB, {longest:,} tokens" if longest else "does not fit"


def table() -> str:
    """A Markdown table of GPUs against models."""
    lines = [
        f"| card | usable | `load_policy()` takes | {' | '.join(MODELS)} |",
        "|---|---:|---|" + "---|" * len(MODELS),
    ]
    for label, name in CARDS.items():
        usable = device_of(name).usable_bytes / GIB
        cells = " | ".join(cell(model, name) for model in MODELS)
        lines.append(f"| {label} | {usable:.1f} GiB | {fit(name).model.checkpoint.name} | {cells} |")
    return "\n".join(lines)


def rule() -> str:
    """What the table assumes, in a sentence."""
    s = fit("8GB").settings
    return (
        f"Rule: 4 bit, LoRA rank {s.lora_rank}, {ROWS} completions at once, 2 per pass, prompts of {s.prompt_tokens} "
        f"tokens; the peak is that of completions of {s.completion_tokens} tokens."
    )
