"""Usable memory and speed of a named GPU, or of this machine; what vLLM takes of it."""

from __future__ import annotations

import csv
import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rloo_kit.errors import ConfigError
from rloo_kit.session.import_order import FAST, FUSED_4BIT
from rloo_kit.session.output import GIB, MIB

if TYPE_CHECKING:
    import torch

_ROWS = csv.reader(Path(__file__).with_name("gpus.csv").read_text().splitlines()[1:])
CARDS = {name: (int(mib), float(bandwidth), float(peak)) for name, mib, bandwidth, peak in _ROWS}
"""Name -> memory in MiB as nvidia-smi shows it (a T4's error correction takes a sixteenth), bandwidth in GB/s, and peak
TFLOP/s of dense products in 16 bit that are added up in 32 bit, as torch has them: NVIDIA's whitepapers and sheets."""

RESERVED_BYTES = 512 * MIB
"""Left free on a GPU that is only named: for the driver (a 12 GiB RTX 3060 gives torch 11.75 GiB) and a desktop."""

CUDA_CONTEXT_BYTES = 512 * MIB
"""Of a GPU beside torch's tensors: the CUDA context and libraries' kernels.  An estimate: published out-of-memory
messages show 0.1 to 0.7 GiB between what the driver and what torch count; on an H100 it was 0.82."""

VLLM_SHARE, COLOCATE_SHARE = 0.5, 0.3
"""vLLM's of the GPU where none is asked for: of unsloth's ``from_pretrained``, and of TRL's RLOOConfig."""


@dataclass(frozen=True)
class Device:
    """What a plan is compared with: a GPU or CPU, and how much of its memory a run may take."""

    name: str
    usable_bytes: int
    on_gpu: bool = True
    is_here: bool = False


def device_of(card: str | float | Device | None = None) -> Device:
    """The device of a GPU's name, of a number of bytes, or of this machine (None).

    Raises:
        ConfigError: an unknown or ambiguous name.
    """
    if isinstance(card, Device):
        return card
    if card is None:
        return _this_machine()
    if not isinstance(card, str):
        if card < GIB:
            raise ConfigError(f"a card of {card} bytes", where=f"plan(card={card})", todo=f"write '{card}GB'")
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
    """Bytes and floating-point operations a second at best, by the GPU's name; None where it is not known."""
    cards = [CARDS[name] for name in _cards_called(device.name)]
    if not device.on_gpu or not cards:
        return None
    # torch's name of a card has no size: the smallest of that name that is large enough.
    _, bandwidth, peak = min(cards, key=lambda card: (card[0] * MIB < device.usable_bytes, card[0]))
    return bandwidth * 1e9, peak * 1e12


def _cards_called(name: str) -> list[str]:
    """Cards of this very name; else of this name without a size."""

    def bare(text: str) -> str:
        return re.sub(r"nvidia|geforce|tesla|rtx|[^a-z0-9]", "", text.lower())

    exact = [card for card in CARDS if bare(card) == bare(name)]
    return exact or [card for card in CARDS if bare(re.sub(r" \d+gb$", "", card)) == bare(name)]


def where_computed(model: torch.nn.Module) -> torch.device:
    """The device that a model computes on; its first parameter, the embedding, may lie in the computer's memory
    (unsloth's ``offload_embedding``)."""
    devices = [parameter.device for parameter in model.parameters()]
    return next((device for device in devices if device.type != "cpu"), devices[0])


def cuda_bytes_within_reach() -> int:
    """What torch may still allocate on the current GPU, its cache included, also under
    ``torch.cuda.set_per_process_memory_fraction``."""
    import torch

    free, total = torch.cuda.mem_get_info()
    allowed = int(total * torch.cuda.get_per_process_memory_fraction())
    return min(free + torch.cuda.memory_reserved(), allowed) - torch.cuda.memory_allocated()


def _this_machine() -> Device:
    """This machine's GPU, with what is free and what this process already holds; else its CPU, likewise."""
    import torch

    if not torch.cuda.is_available():
        import psutil

        own = psutil.Process().memory_info().rss
        return Device("this CPU", int(psutil.virtual_memory().available + own), on_gpu=False)
    # Asking creates a CUDA context.  The plan counts it too, so it is added back.
    usable = cuda_bytes_within_reach() + torch.cuda.memory_allocated() + CUDA_CONTEXT_BYTES
    return Device(torch.cuda.get_device_name(), int(usable), is_here=True)


def four_bit_rows(device: Device | None = None) -> int:
    """Up to so many rows are multiplied with 4-bit weights, and not in 16 bit, as :mod:`rloo_kit.session.import_order`
    sets it up: unsloth does so on some GPUs (``_GEMV_ROWS_BY_ARCH``), bitsandbytes where UNSLOTH_BNB_GEMM_4BIT is set
    (``_BNB_GEMM_4BIT_MAX_ROWS``).  None is this machine."""
    bandwidth, _ = (device and speed_of(device)) or (0.0, 0.0)
    fused = os.environ.get(FUSED_4BIT) == "1" if device is None or device.is_here else bandwidth <= FAST
    return 16 if fused else 4


def vllm_bytes(
    usable_bytes: int, weights: int, config: Any, model: Any, fast_inference: bool, share: float | None
) -> int | None:
    """What vLLM takes of the GPU that trains, as read in unsloth and TRL, never measured: its share, and nothing where
    it sleeps while the trainer works; None where it does not sample there.

    Unsloth's (``fast_inference``) holds the trainer's own weights; TRL's (``vllm_mode="colocate"``) a second copy.
    """
    engine, asleep = getattr(model, "vllm_engine", None), getattr(config, "vllm_enable_sleep_mode", False)
    if engine is not None:
        share = vllm_setting(engine, "cache_config.gpu_memory_utilization")
        asleep = vllm_setting(engine, "model_config.enable_sleep_mode")
    elif not fast_inference:
        if not getattr(config, "use_vllm", False) or getattr(config, "vllm_mode", "colocate") != "colocate":
            return None
        share, weights = getattr(config, "vllm_gpu_memory_utilization", COLOCATE_SHARE), 0
    return 0 if asleep else max(0, int((share or VLLM_SHARE) * usable_bytes) - weights)


def vllm_setting(engine: Any, path: str) -> Any:
    for name in ("llm_engine", "vllm_config", *path.split(".")):
        engine = getattr(engine, name, None)
    return engine
