"""Print which model fits which GPU, as README.md shows it: computed, not measured.

python scripts/cards.py                 the table
python scripts/cards.py --libraries     what a process on a CPU holds beside tensors, measured here
"""

from __future__ import annotations

import argparse
import dataclasses

from rloo_kit.catalogue import CATALOGUE
from rloo_kit.memory.hardware import device_of
from rloo_kit.memory.planning import Plan, fit, longest_completion, plan
from rloo_kit.memory.reading import bytes_of, model_of, standing_tensors
from rloo_kit.session.show import GIB, MIB

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


def libraries_mib() -> float:
    """Resident memory with the tiny policy loaded, less the policy's own tensors."""
    import psutil

    from rloo_kit import load_policy

    own = bytes_of(standing_tensors(load_policy("tiny").model))
    return float(psutil.Process().memory_info().rss - own) / MIB


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--libraries", action="store_true")
    parser.add_argument("--plan", nargs=2, metavar=("MODEL", "CARD"), help="print one plan")
    arguments = parser.parse_args()
    if arguments.libraries:
        print(f"{libraries_mib():.0f} MiB")
    elif arguments.plan:
        print(plan(arguments.plan[0], card=arguments.plan[1]))
    else:
        print(f"{table()}\n\n{rule()}")
