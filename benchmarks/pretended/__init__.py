"""A pretended GPU: Unsloth's GPU path, run on a machine that has none.

:func:`start` makes torch answer as if a card were there.  Unsloth then takes its GPU path: its generated trainer, its
fused LoRA, its 4-bit kernels and its fast decoding.  Tensors stay in the computer's memory, or have no memory at all
("meta"), and Triton's interpreter runs the kernels.

What it cannot show: speed, real memory, streams, compiled kernels, CUDA graphs, the numerics of fused attention, and
a tensor on the wrong device, since "cuda" is the CPU here.  Nothing that users import comes here.

    PYTHONPATH=.:.triton python -m benchmarks.pretended [--card "t4"] (-m MODULE | FILE) [ARGUMENTS]
"""

from .cards import CARDS, Card
from .start import start

__all__ = ["CARDS", "Card", "start"]
