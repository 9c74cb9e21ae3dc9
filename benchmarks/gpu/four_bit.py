"""Time Unsloth's two ways to use 4-bit weights in sampling on this card, and keep the faster one in .env.

The kit's default follows from a count of bytes (docs/speed.md); it has not been timed on a consumer card.
"""

import os
from pathlib import Path

from dotenv import set_key

from .report import Outcomes
from .runner import Check

VARIABLE = "UNSLOTH_BNB_GEMM_4BIT"
WAYS = {"1": "4-bit/products of 4-bit weights", "0": "4-bit/weights made in 16 bit"}
SECONDS = "generate, s"
LAYERS = 6  # of Qwen3-4B's 36: layers are alike, and six are made and loaded in seconds
SHAPE = f"qwen3-4b-{LAYERS}-layers"
MARGIN = 0.03  # a smaller difference counts as chance


def timed() -> list[Check]:
    """Return checks that make a few layers of Qwen3-4B and sample eight completions of 256 tokens each way, as on a
    card without room for weights in 16 bit."""
    make = Check(f"shape/{SHAPE}", "memory:make", 20, {"shape": "qwen3-4b", "layers": LAYERS})
    run = {"trainer": "kit", "tokens": 256, "shape": SHAPE, "in_16_bit": False}
    return [make, *(Check(WAYS[way], "speed:run", 25, run, (make.name,), {VARIABLE: way}) for way in WAYS)]


def keep_faster(outcomes: Outcomes, folder: Path) -> str:
    """Write the faster way into the .env of a folder, where ``prepare()`` reads it; return a sentence that says so.

    The sentence is empty unless both ways were timed.  Nothing is written if they are equally fast.
    """
    seconds = {
        way: outcomes[name].figures[SECONDS].value
        for way, name in WAYS.items()
        if name in outcomes and SECONDS in outcomes[name].figures
    }
    if len(seconds) < len(WAYS):
        return ""
    best, other = sorted(seconds, key=seconds.__getitem__)
    said = ", ".join(f"{VARIABLE}={way} {seconds[way]:.2f} s" for way in (best, other))
    if seconds[other] < (1 + MARGIN) * seconds[best]:
        return f"Sampling takes {said}: alike, and the kit's default stays."
    file = folder / ".env"
    set_key(file, VARIABLE, best, quote_mode="never")
    said = f"Sampling takes {said}: {VARIABLE}={best} is written into {file}, which prepare() reads."
    return f"{said} Your shell's {VARIABLE} goes first: unset it." if VARIABLE in os.environ else said
