"""Memory on a card made smaller: what the plan says fits runs, and what it says does not ends in the kit's own error.

torch's allocator is held to what a card of 8, 12, 16 or 24 GB would leave it.  After the error the same process goes on
with something smaller.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from typing import Any

from . import device, memory, shapes
from .checks import Check, Found, Place, add, holds, seen
from .workload import every_other

CAPS = {8: "qwen3-4b", 12: "qwen3-8b", 16: "qwen3-8b", 24: "qwen3-8b"}
"""GiB of the card to imitate -> the shape to put on it."""

CAP_TOKENS = 128

SMALL_CARD = {"UNSLOTH_FUSED_LINEAR_FLASH_MIN_ROWS": "0"}
"""The route to log-probabilities that unsloth takes on cards of up to 24.5 GiB, whatever this one has
(unsloth_zoo/fused_losses/fused_linear.py): the plan for a smaller card counts its tiles."""


def on_a_smaller_card(gigabytes: int, place: Place) -> Found:
    """The most rows that the plan says fit run; rows that clearly do not end in our error; then a small run goes on."""
    from rloo_kit.memory.footprint import CUDA_CONTEXT_BYTES
    from rloo_kit.memory.hardware import device_of

    shapes.forget()
    card = device_of(f"{gigabytes}GB")
    with tempfile.TemporaryDirectory() as folder, _cap(card.usable_bytes - CUDA_CONTEXT_BYTES, place):
        # Inside: where room is short, unsloth moves an embedding of its own to the computer's memory.
        policy = shapes.loaded(CAPS[gigabytes], place)
        on_card = policy.device.type
        fitting, failing = _rows(policy, card, place, folder)
        fits = _attempt(policy, fitting, card, place, folder)
        fails = _attempt(policy, failing, card, place, folder, must_fail=True)
        after = _attempt(policy, 4, card, place, folder)
    embedding = policy.model.get_input_embeddings().weight.device.type
    return Found(
        [
            holds("what the plan says fits runs", fits == ""),
            holds("what it says does not, does not", fails != ""),
            holds("and ends in rloo_kit's error, with phase and change", _is_explained(fails, place)),
            holds("the same process then trains a smaller run", after == ""),
            holds("the policy says where it is", on_card == ("cpu" if place.is_rehearsal else "cuda")),
            seen("completions that fit", fitting),
            seen("completions that do not", failing),
        ],
        {
            "fits": fits,
            "fails": fails,
            "after": after,
            "usable_bytes": card.usable_bytes,
            "embedding": embedding,
        },
    )


def _cap(allowed: int, place: Place) -> Any:
    return contextlib.nullcontext() if place.is_rehearsal else device.capped(allowed)


def _rows(policy: Any, card: Any, place: Place, folder: str) -> tuple[int, int]:
    """Completions at once: the most, by doubling, that the plan says fit, and the fewest that take half as much again
    as the card has, so that the failure is no near miss."""
    import rloo_kit

    if place.is_rehearsal:
        return 4, 8
    plans = {}
    for rows in (4 * 2**power for power in range(12)):
        config = memory.config_of(_case(rows), place, folder)
        plans[rows] = rloo_kit.plan(policy, config, card, prompt_tokens=memory.PROMPT_TOKENS)
    fitting = [rows for rows, plan in plans.items() if plan.fits == "fits"]
    failing = [rows for rows, plan in plans.items() if plan.peak_bytes > 1.5 * card.usable_bytes]
    return max(fitting), min(failing)


def _case(rows: int) -> memory.Case:
    return memory.Case("", 4, CAP_TOKENS, rows, groups=rows // 4)


def _attempt(policy: Any, rows: int, card: Any, place: Place, folder: str, must_fail: bool = False) -> str:
    """Train; the error, or nothing."""
    from rloo_kit.errors import OutOfMemoryError

    config = memory.config_of(_case(rows), place, folder)
    data = memory.prompts(place, max(64, rows // 4))
    reward = greedy if must_fail and place.is_rehearsal else every_other
    try:
        memory.train(policy, config, data, card, reward)
    except OutOfMemoryError as error:
        return str(error)
    return ""


def greedy(completions: Any, **kwargs: Any) -> list[float]:
    """In a rehearsal a reward that asks the CPU's allocator for 64 TiB, which it refuses as a GPU would."""
    import torch

    torch.empty(2**46, dtype=torch.uint8)
    return []


def _is_explained(error: str, place: Place) -> bool:
    """Whether an error names the phase and the first change; in a rehearsal the plan knows none, since it fits."""
    change = "What to do: by the plan it should have fitted" if place.is_rehearsal else "What to do: first "
    return "memory ran out in the phase" in error and change in error


for _gigabytes, _shape in CAPS.items():
    add(
        Check(
            f"memory/a card of {_gigabytes} GB",
            functools.partial(on_a_smaller_card, _gigabytes),
            seconds=180,
            takes=40,
            rank=40,
            home="capped",
            variables=SMALL_CARD,
            card_gib=_gigabytes + 0.5,
            needs=(f"shape/{_shape}",),
        )
    )
