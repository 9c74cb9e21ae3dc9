"""A pretended GPU: Unsloth's GPU path, run on a machine that has none.

:func:`start` makes torch answer as if a card were there.  Unsloth then takes its GPU path: its generated trainer, its
fused LoRA, its 4-bit kernels and its fast decoding.  Tensors stay in the computer's memory, or have no memory at all
("meta"), and Triton's interpreter runs the kernels.

What it cannot show: speed, real memory, streams, compiled kernels, CUDA graphs, the numerics of fused attention, and
a tensor on the wrong device, since "cuda" is the CPU here.  Nothing that users import uses this package.

    RLOO_KIT_PRETENDED_CARD=t4 PYTHONPATH=benchmarks/pretended/child:.:.triton python FILE

pretends the card in a process and its children.  :func:`variables` returns both, for notebook kernels and checks.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from .cards import CARDS, Card
from .start import start

__all__ = ["CARDS", "Card", "is_possible", "start", "variables"]

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "RLOO_KIT_PRETENDED_CARD"
"""Names the card that :file:`child/sitecustomize.py` pretends if it is on PYTHONPATH; "" means none."""


def is_possible() -> bool:
    return (ROOT / ".triton" / "triton").is_dir() or find_spec("triton") is not None


def variables(card: str) -> dict[str, str]:
    """Return the variables of a process that pretends the card, as do its children; they hide a real GPU."""
    paths = [ROOT / "benchmarks/pretended/child", ROOT, ROOT / ".triton", os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(map(str, filter(None, paths))), VARIABLE: card, "CUDA_VISIBLE_DEVICES": ""}
