"""Which model fits which GPU: for ``load_policy``, and as the table of docs/cards.md and ``rloo-kit cards``."""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import TYPE_CHECKING

from rloo_kit.memory.hardware import Device, device_of
from rloo_kit.memory.plan import Plan, batch_sizes, first, plan, smaller_batches
from rloo_kit.memory.settings import Settings
from rloo_kit.models import CATALOGUE, FOR_CPU
from rloo_kit.session.output import GIB

if TYPE_CHECKING:
    import trl

SHOWN = {
    "RTX 3060 Ti, 4060": "rtx 4060",
    "RTX 3060 12GB, 4070": "rtx 4070",
    "T4": "t4",
    "RTX 4060 Ti 16GB, 4080": "rtx 4080",
    "RTX 3090, 4090": "rtx 4090",
}

FIT_COMPLETION_TOKENS = 1024
"""What completions have room for by default: shorter ones cut off a thinking model's thought."""

FIRST_RUN: tuple[tuple[str, bool | None], ...] = (("qwen3-4b-instruct", None), ("qwen3-1.7b", False))
"""What ``load_policy()`` takes on a GPU, and whether it thinks: the first that fits, else the last.  A hybrid Qwen3
thinks past :data:`FIT_COMPLETION_TOKENS`, and a truncated completion cannot be right."""


def first_run(card: str | float | Device | None = None, load_in_4bit: bool = True) -> tuple[str, bool | None]:
    """The checkpoint for a first run on a card, and its ``thinking``; see :data:`FIRST_RUN`."""
    for name, thinking in FIRST_RUN[:-1]:
        found = plan(name, card=card, load_in_4bit=load_in_4bit)
        found = found.with_settings(max_completion_length=FIT_COMPLETION_TOKENS)
        if found.fits == "fits" and found.sampled_rows == found.settings.batch_rows:
            return name, thinking
    return FIRST_RUN[-1]


def fit(
    card: str | float | Device | None = None,
    config: trl.RLOOConfig | None = None,
    *,
    prompt_tokens: int | None = None,
    lora_rank: int = Settings.lora_rank,
    load_in_4bit: bool = Settings.four_bit,
) -> Plan:
    """The plan of the largest Qwen3 of the catalogue that fits with the whole batch sampled at once; where none does,
    of the smallest with fewer at once, or else with a smaller generation batch; where nothing fits, of the smallest.

    Arguments as for :func:`plan`; without a config completions have :data:`FIT_COMPLETION_TOKENS`.
    """
    given = {"prompt_tokens": prompt_tokens, "lora_rank": lora_rank, "load_in_4bit": load_in_4bit}
    names, device = [name for name in CATALOGUE if name not in FOR_CPU], device_of(card)
    plans = [plan(name, config, device, **given) for name in names]  # type: ignore[arg-type]
    if config is None:
        plans = [found.with_settings(max_completion_length=FIT_COMPLETION_TOKENS) for found in plans]
    asked, batch = plans[0].settings.generation_rows, plans[0].settings.batch_rows
    at_once = [found for found in reversed(plans) if asked or found.sampled_rows == batch]
    return first([*at_once, plans[0], *smaller_batches(plans[0])], "fits") or plans[0]


def longest_completion(planned: Plan) -> int:
    """The most tokens a completion may have for the plan to fit, in steps of 64, up to 32,768 with the prompt, which
    Qwen3 was trained for; 0 where none does."""
    lengths = range(64, 32768 - planned.settings.prompt_tokens, 64)
    return 64 * bisect_left(
        lengths, True, key=lambda tokens: planned.with_settings(max_completion_length=tokens).fits != "fits"
    )


def table() -> str:
    """A Markdown table of GPUs against models: the peak, and the longest completion that fits."""
    models = [name for name in CATALOGUE if re.fullmatch(r"qwen3-[\d.]+b", name)]
    head = ["card", "usable", "`load_policy()` takes", '`load_policy("largest")`', *models]
    rows, rule_of_table = [head, ["---"] * len(head)], {"generation_rows": 8, **batch_sizes(2, 8, 8)}
    for label, card in SHOWN.items():
        best = fit(card)
        usable, chosen = f"{best.device.usable_bytes / GIB:.1f} GiB", first_run(card)[0]
        rows.append([label, usable, chosen, best.model.checkpoint.name])
        for name in models:
            found = plan(name, card=card).with_settings(
                max_completion_length=FIT_COMPLETION_TOKENS, **rule_of_table
            )
            longest, peak = longest_completion(found), f"{found.peak_bytes / GIB:.1f} GiB"
            rows[-1].append(f"{peak}, {longest:,} tokens" if longest else "does not fit")
    rule = (
        f"Rule: 4 bit, LoRA rank {Settings.lora_rank}, 8 completions at once, 2 per pass, prompts of "
        f"{Settings.prompt_tokens} tokens; the peak is that of completions of {FIT_COMPLETION_TOKENS} tokens."
    )
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", rule])
