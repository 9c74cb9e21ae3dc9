"""How long a step takes on a GPU: a range, from what it moves and computes and from what the GPU can do at best.

For :mod:`.planning`.  Arithmetic on :mod:`.traffic`'s counts: no step has been timed on a consumer card.
"""

from __future__ import annotations

from rloo_kit.memory.traffic import Load, Traffic

BANDWIDTH_SHARE, PEAK_SHARE = 0.5, 0.3
"""Of a GPU's bandwidth and of its peak, in a slow case.  An assumption: large language models were trained at 21 to
46 % of their accelerators' peak (Chowdhery et al. 2022, PaLM, table 3); kernels as small as a token's leave more
unused."""

LAUNCH_SECONDS = 10e-6
"""What a kernel costs the computer that launches it, in a slow case.  An assumption, for one whose processor is busy:
published figures are 5 to 20 microseconds; unsloth's CUDA graphs, which launch most of a token's kernels at once, save
the better part of it."""


def of_step(traffic: Traffic, speed: tuple[float, float]) -> tuple[float, float]:
    """Seconds of a step, at best and in a slow case.

    At best each phase takes as long as its bytes at full bandwidth or its operations at the peak, whichever is more.
    In a slow case bandwidth and peak are used in part, one after the other, or launching the kernels takes longer
    still.

    Args:
        traffic: the counts.
        speed: bytes and floating-point operations a second (:func:`.hardware.speed_of`).
    """
    phases = traffic.phases().values()
    return sum(_at_best(load, *speed) for load in phases), sum(_slow(load, *speed) for load in phases)


def _at_best(load: Load, bandwidth: float, peak: float) -> float:
    return max(load.bytes / bandwidth, load.flops / peak)


def _slow(load: Load, bandwidth: float, peak: float) -> float:
    busy = load.bytes / (BANDWIDTH_SHARE * bandwidth) + load.flops / (PEAK_SHARE * peak)
    return max(busy, LAUNCH_SECONDS * load.kernels)


def shown(seconds: float) -> str:
    """In seconds, minutes or hours."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
