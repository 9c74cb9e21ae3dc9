"""A pretended GPU: Unsloth's GPU path, run on a machine that has none.

:func:`start` makes torch answer as if a card were there.  Unsloth then takes its GPU path: its generated trainer, its
fused LoRA, its 4-bit kernels and its fast decoding.  Tensors stay in the computer's memory, or have no memory at all
("meta"), and Triton's interpreter runs the kernels.

What it cannot show: speed, real memory, streams, compiled kernels, CUDA graphs, the numerics of fused attention, and
a tensor on the wrong device, since "cuda" is the CPU here.  Nothing that users import comes here.

    RLOO_KIT_PRETENDED_CARD=t4 PYTHONPATH=benchmarks/pretended/child:.:.triton python FILE

pretends in a process and in its children; :func:`variables` are these two: for kernels of notebooks, and checks.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from .cards import CARDS, Card
from .start import start

__all__ = ["CARDS", "Card", "is_possible", "start", "variables"]

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "RLOO_KIT_PRETENDED_CARD"
"""Names the card where :file:`child/sitecustomize.py` is on PYTHONPATH; empty, there is none."""


def is_possible() -> bool:
    return (ROOT / ".triton" / "triton").is_dir() or find_spec("triton") is not None


def variables(card: str) -> dict[str, str]:
    """Of a process that pretends the card, and whose children do; a GPU that is there is hidden."""
    paths = [ROOT / "benchmarks/pretended/child", ROOT, ROOT / ".triton", os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(map(str, filter(None, paths))), VARIABLE: card, "CUDA_VISIBLE_DEVICES": ""}
