"""Print what fits which card, as README.md shows it: computed from shapes, not measured.

python scripts/cards.py
"""

from __future__ import annotations

from rloo_kit.catalogue import ROLLOUT_ROWS, ROLLOUT_TOKENS, STEP_BYTES, largest_that_fits, training_bytes

CARDS = {
    "RTX 3060 Ti, 4060, 5060": 8,
    "RTX 3060 12GB, 4070": 12,
    "RTX 4060 Ti 16GB, 4080, T4": 16,
    "RTX 3090, 4090": 24,
}


def table() -> str:
    """A Markdown table: card, memory, the policy that load_policy() takes, its weights, and with all the rest."""
    lines = [
        "| card | memory | `load_policy()` takes | its weights | in training |",
        "|---|---:|---|---:|---:|",
    ]
    for name, gib in CARDS.items():
        card = largest_that_fits(gib * 2**30)
        weights, training = card.weight_bytes() / 2**30, training_bytes(card) / 2**30
        lines.append(f"| {name} | {gib} GiB | {card.name} | {weights:.1f} GiB | {training:.1f} GiB |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
    cache = f"the key-value cache of {ROLLOUT_ROWS} completions of {ROLLOUT_TOKENS} tokens"
    print(f"\nRule: weights in 4 bit, {cache}, and {STEP_BYTES / 2**30:.0f} GiB for the step")
