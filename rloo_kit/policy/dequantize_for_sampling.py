"""Hold 4-bit weights in 16 bit while completions are sampled, on a GPU with room for it.

Works around: for each token of more than a few rows, unsloth converts every 4-bit matrix to 16 bit to multiply with it
(kernels/utils.py, ``fast_linear_forward``), which moves nine times the bytes of the 4-bit matrix.  Converted once per
batch, the values are the same, and a token moves four times the bytes of the 4-bit matrix.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def bytes_in_16_bit(model: torch.nn.Module) -> int:
    states = [weight.quant_state for _, weight in _in_4_bit(model)]
    return sum(state.dtype.itemsize * state.shape.numel() for state in states)


@contextmanager
def in_16_bit(model: torch.nn.Module) -> Iterator[None]:
    """Replace each 4-bit weight, inside the block, by the 16-bit matrix that unsloth would make of it."""
    in_4_bit = _in_4_bit(model)
    try:
        for layer, weight in in_4_bit:
            from unsloth.kernels.utils import fast_dequantize  # not importable on a CPU

            with torch.no_grad():
                matrix = fast_dequantize(weight.data, weight.quant_state)
            layer._parameters["weight"] = torch.nn.Parameter(matrix, requires_grad=False)
        yield
    finally:
        for layer, weight in in_4_bit:
            layer._parameters["weight"] = weight


def _in_4_bit(model: torch.nn.Module) -> list[tuple[torch.nn.Module, Any]]:
    weights: list[tuple[torch.nn.Module, Any]] = [(m, m._parameters.get("weight")) for m in model.modules()]
    return [(m, w) for m, w in weights if getattr(w, "quant_state", None) is not None and w.device.type == "cuda"]
