"""On a GPU with room for it: 4-bit matrices are held in 16 bit while completions are sampled.

Works around: for each token of more than a few rows unsloth makes every 4-bit matrix in 16 bit first and multiplies
with that (kernels/utils.py, ``fast_linear_forward``), which moves nine times the bytes of the 4-bit matrix.  Made once
a batch they have the same values, and a token moves four times those bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rloo_kit.memory.duration import FUSED_ROWS
from rloo_kit.session.import_order import FUSED_4BIT

GEMV_ROWS = 4
"""Up to so many rows unsloth multiplies with 4-bit weights on some GPUs (``_GEMV_ROWS_BY_ARCH``)."""


def is_worth_it(rows: int) -> bool:
    """Whether unsloth would make 16-bit matrices for each token of so many rows: it multiplies few rows with 4-bit
    weights, and with UNSLOTH_BNB_GEMM_4BIT=1 up to 16."""
    return rows > (FUSED_ROWS if os.environ.get(FUSED_4BIT) == "1" else GEMV_ROWS)


def _quantised(model: torch.nn.Module) -> list[tuple[torch.nn.Module, Any]]:
    """Layers with a 4-bit weight on a GPU, and that weight."""
    weights = [(module, module._parameters.get("weight")) for module in model.modules()]
    return [
        (module, weight)
        for module, weight in weights
        if weight is not None and weight.device.type == "cuda" and getattr(weight, "quant_state", None) is not None
    ]


def bytes_in_16_bit(model: torch.nn.Module) -> int:
    return sum(2 * weight.quant_state.shape.numel() for _, weight in _quantised(model))


@contextmanager
def in_16_bit(model: torch.nn.Module) -> Iterator[None]:
    """While inside, layers with a 4-bit weight have it as unsloth would make it for each token."""
    from unsloth.kernels.utils import fast_dequantize

    quantised = _quantised(model)
    try:
        for module, weight in quantised:
            with torch.no_grad():
                whole = fast_dequantize(weight.data, weight.quant_state)
            module._parameters["weight"] = torch.nn.Parameter(whole, requires_grad=False)
        yield
    finally:
        for module, weight in quantised:
            module._parameters["weight"] = weight
