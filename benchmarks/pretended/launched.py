"""What each Triton kernel of Unsloth reads and writes in one launch, of its arguments by name.

A kernel is given more than it touches: pointers that stand for nothing, tables of which it reads a few rows, tiles of a
larger buffer.  So the arguments that are read and written are named here, from the kernels' sources (unsloth/kernels
and unsloth_zoo/fused_losses/fused_linear.py).  A kernel that is not named stops the count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .work import Work, size

Arguments = dict[str, Any]


def _of(reads: str, writes: str, flops: float, per: str) -> Callable[[Arguments], Work]:
    """Reads and writes whole arguments; ``flops`` for each element of ``per``."""

    def work(given: Arguments) -> Work:
        read, written = (sum(size(given[name]) for name in names.split()) for names in (reads, writes))
        return Work(read, written, flops * given[per].numel(), 1)

    return work


def _gemv(given: Arguments) -> Work:
    """Every row decodes the weights anew, in registers; they pass from memory once."""
    read = sum(size(given[name]) for name in ("X", "W", "ABSMAX", "CODE2", "ABSMAX2", "LUT"))
    return Work(read, size(given["OUT"]), 2 * given["N"] * given["K"] * given["M"], 1)


def _add_norm(given: Arguments) -> Work:
    x, residual = size(given["X"]), size(given["R"])
    read = x + size(given["W"]) + residual * bool(given["HAS_RESIDUAL"])
    return Work(read, x + residual, 5 * given["X"].numel(), 1)


def _positions(given: Arguments, rows: int) -> int:
    """Cosines and sines of so many positions."""
    return sum(
        min(size(given[name]), rows * given[name].shape[-1] * given[name].itemsize) for name in ("cos", "sin")
    )


def _norm_and_rotate(reads: str, writes: str, flops: float) -> Callable[[Arguments], Work]:
    def work(given: Arguments) -> Work:
        rows = given["rope_indices"].numel() if given["HAS_ROPE_INDICES"] else given["seqlen"]
        read, written = (sum(size(given[name]) for name in names.split()) for names in (reads, writes))
        elements = given["Q"].numel() + given["K"].numel()
        return Work(read + _positions(given, rows), written, flops * elements, 1)

    return work


def _rotate(given: Arguments) -> Work:
    both = ("Q", "K") if isinstance(given["K"], torch.Tensor) else ("Q",)
    read = sum(size(given[name]) for name in both) + _positions(given, given["seqlen"])
    written = sum(size(given[f"{name}_out"]) for name in both)
    return Work(read, written, 3 * sum(given[name].numel() for name in both), 1)


def _tile(given: Arguments) -> tuple[int, int]:
    """Logits of a tile of the head, and its rows."""
    return given["n_rows"] * given["n_cols"], given["n_rows"]


def _tile_statistics(given: Arguments) -> Work:
    logits, rows = _tile(given)
    return Work(4 * logits + 8 * rows, 4 * 4 * rows, 6 * logits, 1)


def _tile_probabilities(given: Arguments) -> Work:
    """Without the accumulator, which is read and written only where a row's maximum has grown."""
    logits, rows = _tile(given)
    return Work(4 * logits + 16 * rows, given["p_ptr"].itemsize * logits + 4 * rows, 5 * logits, 1)


def _head_gradient(given: Arguments) -> Work:
    elements = given["n_rows"] * given["H"]
    per_element = given["acc_ptr"].itemsize + given["w_ptr"].itemsize
    return Work(per_element * elements, given["u_ptr"].itemsize * elements, 4 * elements, 1)


LAUNCHED: dict[str, Callable[[Arguments], Work]] = {
    "_nf4_dequant_kernel": _of("W_ptr absmax_ptr code2_ptr absmax2_ptr lut_ptr", "out_ptr", 2, "out_ptr"),
    "_gemv_nf4_kernel": _gemv,
    "_add_rms_layernorm_inference": _add_norm,
    "_rms_layernorm_forward": _of("X W", "Y r", 4, "X"),
    "_rms_layernorm_forward_rows": _of("X W", "Y r", 4, "X"),
    "_rms_layernorm_backward": _of("dY X W r", "dX", 8, "X"),
    "_rms_layernorm_backward_rows": _of("dY X W r", "dX", 8, "X"),
    "_qk_norm_rope_forward": _norm_and_rotate("Q K Wq Wk", "Qo Ko rq rk", 7),
    "_qk_norm_rope_backward": _norm_and_rotate("dQo dKo Q K Wq Wk rq rk", "dQ dK", 11),
    "_rope_embedding_QK": _rotate,
    "_fg_kernel": _of("e g", "h", 5, "h"),
    "_DWf_DW_dfg_kernel": _of("DW e g", "DW e g", 10, "DW"),
    "_fl_partial_kernel": _tile_statistics,
    "_fl_flash_p_kernel": _tile_probabilities,
    "_fl_combine_kernel": _of("part_ptr tgt_ptr", "logp_ptr lse_ptr ent_ptr", 4, "part_ptr"),
    "_fl_flash_u_kernel": _head_gradient,
    "_fl_scale_kernel": _of("x_ptr g_ptr", "out_ptr", 1, "x_ptr"),
}
"""Kernel -> what a launch does."""
