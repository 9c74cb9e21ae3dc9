"""Usable memory and speed of a named GPU, or of this machine."""

from __future__ import annotations

import csv
import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rloo_kit.errors import ConfigError
from rloo_kit.session.import_order import FAST, FUSED_4BIT
from rloo_kit.session.output import GIB, MIB

if TYPE_CHECKING:
    import torch

_ROWS = csv.reader(Path(__file__).with_name("gpus.csv").read_text().splitlines()[1:])
CARDS = {name: (int(mib), float(bandwidth), float(peak)) for name, mib, bandwidth, peak in _ROWS}
"""Name -> memory in MiB as nvidia-smi shows it (error correction takes a sixteenth of a T4's), bandwidth in GB/s, and
peak TFLOP/s of dense 16-bit products accumulated in 32 bit, as in torch; from NVIDIA's whitepapers and data sheets."""

RESERVED_BYTES = 512 * MIB
"""Left free on a GPU given by name or size, for the driver (a 12 GiB RTX 3060 gives torch 11.75 GiB) and a desktop."""

CUDA_CONTEXT_BYTES = 512 * MIB
"""GPU memory besides torch's tensors: the CUDA context and libraries' kernels.  An estimate: in published
out-of-memory messages the driver counts 0.1 to 0.7 GiB more than torch; on an H100 it was 0.82 GiB."""


@dataclass(frozen=True)
class Device:
    """What a plan is compared with: a GPU or CPU, and how much of its memory a run may take."""

    name: str
    usable_bytes: int
    on_gpu: bool = True
    is_here: bool = False


def device_of(card: str | float | Device | None = None) -> Device:
    """Return the device for a GPU's name or a number of bytes.  None means this machine.

    Raises:
        ConfigError: an unknown or ambiguous name, or less than 1 GiB.
    """
    if isinstance(card, Device):
        return card
    if card is None:
        return _this_machine()
    if not isinstance(card, str):
        if card < GIB:
            raise ConfigError(f"no card has {card} bytes", where=f"plan(card={card})", todo=f"write '{card}GB'")
        return Device(f"{card / GIB:.1f} GiB", int(card))
    if size := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*gi?b\s*", card, re.IGNORECASE):
        return Device(f"a card of {size[1]} GiB", int(float(size[1]) * GIB) - RESERVED_BYTES)
    known = _cards_called(card)
    if len(known) == 1:
        return Device(known[0], CARDS[known[0]][0] * MIB - RESERVED_BYTES)
    close = known or difflib.get_close_matches(card.lower(), CARDS, n=3, cutoff=0.3) or ["rtx 4070", "t4"]
    raise ConfigError(
        f"there are several cards called {card!r}" if known else f"no card called {card!r} is known",
        where=f"plan(card={card!r})",
        todo=f"did you mean {' or '.join(close)}? Otherwise give its memory: '12GB', or bytes",
    )


def speed_of(device: Device) -> tuple[float, float] | None:
    """Return the peak bytes and floating-point operations a second by the GPU's name; None if it is not known."""
    cards = [CARDS[name] for name in _cards_called(device.name)]
    if not device.on_gpu or not cards:
        return None
    # torch's name of a card has no memory size: take the smallest card of that name that is large enough.
    _, bandwidth, peak = min(cards, key=lambda card: (card[0] * MIB < device.usable_bytes, card[0]))
    return bandwidth * 1e9, peak * 1e12


def _cards_called(name: str) -> list[str]:
    """Return the cards of exactly this name, else those that have this name before their size."""

    def bare(text: str) -> str:
        return re.sub(r"nvidia|geforce|tesla|rtx|[^a-z0-9]", "", text.lower())

    exact = [card for card in CARDS if bare(card) == bare(name)]
    return exact or [card for card in CARDS if bare(re.sub(r" \d+gb$", "", card)) == bare(name)]


def where_computed(model: torch.nn.Module) -> torch.device:
    """Return the device that a model computes on.  Its first parameter, the embedding, may be in host memory
    (unsloth's ``offload_embedding``)."""
    devices = [parameter.device for parameter in model.parameters()]
    return next((device for device in devices if device.type != "cpu"), devices[0])


def cuda_bytes_within_reach() -> int:
    """Return the bytes that torch may still allocate on the current GPU, including its cache, within the limit of
    ``torch.cuda.set_per_process_memory_fraction``."""
    import torch

    free, total = torch.cuda.mem_get_info()
    allowed = int(total * torch.cuda.get_per_process_memory_fraction())
    return min(free + torch.cuda.memory_reserved(), allowed) - torch.cuda.memory_allocated()


def _this_machine() -> Device:
    """Return this machine's GPU, else its CPU; usable is what is free plus what this process already holds."""
    import torch

    if not torch.cuda.is_available():
        import psutil

        own = psutil.Process().memory_info().rss
        return Device("this CPU", int(psutil.virtual_memory().available + own), on_gpu=False)
    # Asking creates a CUDA context.  The plan counts it too, so it is added back.
    usable = cuda_bytes_within_reach() + torch.cuda.memory_allocated() + CUDA_CONTEXT_BYTES
    return Device(torch.cuda.get_device_name(), int(usable), is_here=True)


def four_bit_rows(device: Device | None = None) -> int:
    """Return up to how many rows are multiplied with 4-bit weights, not 16-bit ones, in the kit's set-up
    (:mod:`rloo_kit.session.import_order`): by unsloth on some GPUs (``_GEMV_ROWS_BY_ARCH``), by bitsandbytes if
    UNSLOTH_BNB_GEMM_4BIT is set (``_BNB_GEMM_4BIT_MAX_ROWS``).  None means this machine."""
    bandwidth, _ = (device and speed_of(device)) or (0.0, 0.0)
    fused = os.environ.get(FUSED_4BIT) == "1" if device is None or device.is_here else bandwidth <= FAST
    return 16 if fused else 4
