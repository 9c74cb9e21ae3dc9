"""Pretend a card: the one entry point, which does everything in order before Unsloth is imported."""

from __future__ import annotations

import os
import sys
import warnings

from .cards import CARDS

SWITCHES = {
    "TRITON_INTERPRET": "1",
    "UNSLOTH_COMPILE_DISABLE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_DEACTIVATE_ASYNC_LOAD": "1",  # the device mode holds only in the thread that entered it
    "HF_HUB_OFFLINE": "1",
}


ARTEFACTS = ("'pin_memory' argument is set as true", "Unsloth: narrow-row RMSNorm kernels disabled")
"""Warnings that come from pretending: memory is not pinned, and numpy sums several rows in another order than one."""


def start(card: str = "rtx 3090", target: str = "cpu") -> None:
    """Pretend the card in this process, for good.

    Args:
        card: one of :data:`~.cards.CARDS`.
        target: "cpu", where Triton's interpreter computes; "meta", where tensors have a shape and no values, and
            kernels are left out.

    Raises:
        RuntimeError: torch or Unsloth was imported too early, or Triton is missing.
    """
    if "unsloth" in sys.modules or "triton" in sys.modules:
        raise RuntimeError("the card is pretended before unsloth and triton are imported")
    os.environ.update(SWITCHES | ({"TRITON_INTERPRET": "0"} if target == "meta" else {}))
    import bitsandbytes  # noqa: F401 - its CPU library, chosen before there is a card
    import torch._dynamo.trace_rules

    # Makes Dynamo's table of torch's functions before they are replaced.
    torch._dynamo.trace_rules.get_torch_obj_rule_map()
    from . import cuda, devices

    for pattern in ARTEFACTS:
        warnings.filterwarnings("ignore", pattern)
    cuda.pretend(CARDS[card], is_counted=target == "cpu")
    devices.pretend(target)
    from . import kernels

    kernels.pretend(CARDS[card])
    if target == "meta":
        kernels.leave_out()
