"""Which model fits which GPU: for ``load_policy``, and as the table of docs/cards.md and ``rloo-kit cards``."""

import os
import re
from bisect import bisect_left
from typing import Any

from rloo_kit.memory.hardware import Device, device_of
from rloo_kit.memory.plan import Plan, batch_sizes, first, plan, smaller_batches
from rloo_kit.memory.plan_settings import Settings
from rloo_kit.models import CATALOGUE, FOR_CPU
from rloo_kit.session.output import GIB

SHOWN = {
    "RTX 3060 Ti, 4060": "rtx 4060",
    "RTX 3060 12GB, 4070": "rtx 4070",
    "T4": "t4",
    "RTX 4060 Ti 16GB, 4080": "rtx 4080",
    "RTX 3090, 4090": "rtx 4090",
}

FIT_COMPLETION_TOKENS = 1024
"""Default limit of a completion; a shorter one cuts off a thinking model's thought."""


def chosen(
    name: str | os.PathLike[str] | None, four_bit: bool | None, thinking: Any = None, card: str | Device | None = None
) -> tuple[str | os.PathLike[str], Any]:
    """Return the name that None (a first run) or "largest" means on a device, and the ``thinking`` to load it with:
    the given one, or for a first run its own."""
    if name is not None and name != "largest":
        return name, thinking
    device = device_of(card)
    if not device.on_gpu:
        return "tiny", thinking
    if name is not None:
        return fit(device, load_in_4bit=four_bit is not False).model.checkpoint.name, thinking
    first_name, thinks = first_run(device, four_bit is not False)
    return first_name, thinks if thinking is None else thinking


def first_run(card: str | float | Device | None = None, load_in_4bit: bool = True) -> tuple[str, bool | None]:
    """Return the checkpoint for a first run on a card, and its ``thinking``: an instruct model if it fits, else a
    smaller hybrid Qwen3 with thinking off, since its completions would otherwise be truncated before the answer."""
    planned = plan("qwen3-4b-instruct", card=card, load_in_4bit=load_in_4bit)
    planned = planned.with_settings(max_completion_length=FIT_COMPLETION_TOKENS)
    is_whole = planned.sampled_rows == planned.settings.batch_rows
    return ("qwen3-4b-instruct", None) if planned.fits == "fits" and is_whole else ("qwen3-1.7b", False)


def fit(card: str | float | Device | None = None, *, load_in_4bit: bool = Settings.four_bit) -> Plan:
    """Plan the largest Qwen3 of the catalogue that fits with the whole batch sampled at once.  If none does, plan the
    smallest with fewer at once, or else with a smaller generation batch; if nothing fits, the smallest as it is.

    Arguments as for :func:`plan`; completions have :data:`FIT_COMPLETION_TOKENS`.
    """
    device = device_of(card)
    named = [plan(name, card=device, load_in_4bit=load_in_4bit) for name in CATALOGUE if name not in FOR_CPU]
    plans = [planned.with_settings(max_completion_length=FIT_COMPLETION_TOKENS) for planned in named]
    at_once = [planned for planned in reversed(plans) if planned.sampled_rows == planned.settings.batch_rows]
    return first([*at_once, plans[0], *smaller_batches(plans[0])], "fits") or plans[0]


def longest_completion(planned: Plan) -> int:
    """Return the most tokens per completion with which the plan fits, in steps of 64, up to 32,768 with the prompt
    (Qwen3's training length); 0 if no length fits."""

    def is_too_long(tokens: int) -> bool:
        return planned.with_settings(max_completion_length=tokens).fits != "fits"

    return 64 * bisect_left(range(64, 32768 - planned.settings.prompt_tokens, 64), True, key=is_too_long)


def table() -> str:
    """A Markdown table of GPUs against models: the peak, and the longest completion that fits."""
    models = [name for name in CATALOGUE if re.fullmatch(r"qwen3-[\d.]+b", name)]
    head = ["card", "usable", "`load_policy()` takes", '`load_policy("largest")`', *models]
    rows = [head, ["---"] * len(head)]
    rule: dict[str, Any] = {"max_completion_length": FIT_COMPLETION_TOKENS, "generation_rows": 8}
    for label, card in SHOWN.items():
        largest = fit(card)
        usable = f"{largest.device.usable_bytes / GIB:.1f} GiB"
        rows.append([label, usable, first_run(card)[0], largest.model.checkpoint.name])
        for name in models:
            planned = plan(name, card=card).with_settings(**rule, **batch_sizes(2, 8, 8))
            longest = longest_completion(planned)
            fits = f"{planned.peak_bytes / GIB:.1f} GiB, {longest:,} tokens"
            rows[-1].append(fits if longest else "does not fit")
    caption = (
        f"Rule: 4 bit, LoRA rank {Settings.lora_rank}, 8 completions at once, 2 per pass, prompts of "
        f"{Settings.prompt_tokens} tokens; the peak is that of completions of {FIT_COMPLETION_TOKENS} tokens."
    )
    return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", caption])
