"""Print what fits which card, as README.md shows it: computed from shapes, not measured.

python scripts/cards.py
"""

from __future__ import annotations

from rloo_kit.catalogue import CATALOGUE, TRAINING_ROOM_BYTES, largest_that_fits

CARDS = {
    "RTX 3060 Ti, 4060, 5060": 8,
    "RTX 3060 12GB, 4070": 12,
    "RTX 4060 Ti 16GB, 4080, T4": 16,
    "RTX 3090, 4090": 24,
}


def table() -> str:
    """A Markdown table: card, memory, the policy that load_policy() takes, its weights, what is left."""
    lines = [
        "| card | memory | `load_policy()` takes | its weights | left to train in |",
        "|---|---:|---|---:|---:|",
    ]
    for name, gib in CARDS.items():
        card = largest_that_fits(gib * 2**30)
        weights = card.weight_bytes() / 2**30
        lines.append(f"| {name} | {gib} GiB | {card.name} | {weights:.1f} GiB | {gib - weights:.1f} GiB |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
    print(
        f"\nRule: 4-bit weights + {TRAINING_ROOM_BYTES / 2**30:.0f} GiB; {len(CATALOGUE) - 1} policies to choose from"
    )
