"""Run Triton kernels without a GPU by Triton's interpreter, as numpy on the CPU, or leave them out ("meta")."""

from __future__ import annotations

import ctypes
import dataclasses
from types import SimpleNamespace
from typing import Any

import bitsandbytes
import numpy as np
import torch
import triton
import triton.backends.nvidia.driver
from triton.runtime import interpreter

from . import lanes
from .cards import Card

LOOKED_UP = (
    *("cdequantize_blockwise_fp32", "cdequantize_blockwise_fp16_nf4", "cdequantize_blockwise_bf16_nf4"),
    *("cdequantize_blockwise_fp32_nf4", "cgemm_4bit_inference_naive_fp16", "cgemm_4bit_inference_naive_bf16"),
)
"""bitsandbytes' CUDA functions that Unsloth looks up at import (its kernels/utils.py) but does not call here: on this
path it calls its own Triton kernels."""


def pretend(card: Card) -> None:
    triton.backends.nvidia.driver.libcuda_dirs = lambda: []
    triton.runtime.driver.set_active(_driver(card))
    lanes.install()
    _without_repeated_work()
    _compute_bfloat16_in_float32()
    prototype = ctypes.CFUNCTYPE(None)
    for name in LOOKED_UP:
        setattr(bitsandbytes.functional.lib, name, prototype(_never))


def leave_out() -> None:
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    for kind in (JITFunction, Autotuner):
        kind.run = lambda self, *args, **kwargs: None


def _never(*args: object) -> None:
    raise AssertionError("a CUDA function of bitsandbytes was called")


def _driver(card: Card) -> Any:
    major, minor = card.capability
    limits = {
        "max_shared_mem": card.shared_bytes,
        "multiprocessor_count": card.processors,
        "max_num_regs": 65536,
        "warpSize": 32,
    }
    target = triton.backends.compiler.GPUTarget("cuda", 10 * major + minor, 32)
    return SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device=0: 0,
        get_device_interface=lambda: torch.cuda,
        get_active_torch_device=lambda: torch.device("cuda:0"),
        get_current_target=lambda: target,
        utils=SimpleNamespace(get_device_properties=lambda device: limits),
    )


def _without_repeated_work() -> None:
    """Skip the interpreter's checks of integer overflow, and its table of types made anew for every operation."""
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    of, known = interpreter._get_np_dtype, dict[str, Any]()

    def numpys(dtype: Any) -> Any:
        if (name := str(dtype)) not in known:
            known[name] = of(dtype)
        return known[name]

    interpreter._get_np_dtype = numpys


def _compute_bfloat16_in_float32() -> None:
    """Have the interpreter compute bfloat16 in float32 and round to nearest even.  By itself it holds bfloat16 as
    uint16, computes on the bits, and truncates where a GPU rounds."""
    builder, bfloat16 = interpreter.InterpreterBuilder, triton.language.bfloat16
    binary, unary, cast, fma = builder.binary_op, builder.unary_op, builder.cast_impl, builder.create_fma
    bitwise = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)

    def is_bfloat16(handle: Any) -> bool:
        return bool(handle.data.dtype == np.uint16 and handle.dtype.scalar == bfloat16)

    def widened(handle: Any) -> Any:
        return (handle.data.astype(np.uint32) << 16).view(np.float32)

    def rounded(values: Any) -> Any:
        if values.dtype == np.bool_:
            return interpreter.TensorHandle(values, bfloat16)
        values = np.ascontiguousarray(values, dtype=np.float32)
        bits = values.view(np.uint32)
        nearest = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return interpreter.TensorHandle(np.where(np.isnan(values), np.uint16(0x7FC0), nearest), bfloat16)

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if not is_bfloat16(left) or op in bitwise:
            return binary(self, left, right, op)
        return rounded(op(widened(left), widened(right)))

    def unary_op(self: Any, value: Any, op: Any) -> Any:
        return rounded(op(widened(value))) if is_bfloat16(value) else unary(self, value, op)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        return rounded(widened(x) * widened(y) + widened(z)) if is_bfloat16(z) else fma(self, x, y, z)

    def cast_impl(self: Any, value: Any, to: Any) -> Any:
        if is_bfloat16(value):
            value = interpreter.TensorHandle(widened(value), triton.language.float32)
        return rounded(value.data.astype(np.float32)) if to.scalar == bfloat16 else cast(self, value, to)

    builder.binary_op, builder.unary_op, builder.create_fma = binary_op, unary_op, create_fma
    builder.cast_impl = cast_impl
    builder.create_fp_to_fp = lambda self, value, to, rounding_mode: cast_impl(self, value, to)
