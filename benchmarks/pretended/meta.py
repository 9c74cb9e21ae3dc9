"""Let passes run on meta tensors: answer what Unsloth's GPU path asks of values, and use kernels with meta functions.

:func:`make_passes_run` is for a process that began with ``start(card, target="meta")``.  Nothing is computed; each call
gives tensors of the right shape, so that :class:`~.gauge.TensorGauge` can count them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .devices import enter

META = torch.device("meta")
FLASH_EFFICIENT_MATH = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
aten = torch.ops.aten


def on_meta(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().device.type == "meta"


class Answers(TorchFunctionMode):
    """Answers calls that read a tensor's values, which meta tensors do not have.

    Attributes:
        selected: how many rows a boolean mask selects.
        is_padded: whether a mask has zeros, so that ``mask.all()`` is false.
    """

    selected = 0
    is_padded = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        answer = _ANSWERS.get(func)
        if answer and all(map(on_meta, (x for x in args[:1] if isinstance(x, torch.Tensor)))):
            given = answer(self, *args)
            if given is not NotImplemented:
                return given
        if func is torch.Tensor.copy_ and on_meta(args[1]) != on_meta(args[0]):
            return args[0]
        found = func(*args, **(kwargs or {}))
        if func in (torch.all, torch.Tensor.all) and on_meta(found):
            found.is_of_all = True
        return found


def _by_mask(mode: Answers, x: torch.Tensor, index: Any) -> Any:
    if not (isinstance(index, torch.Tensor) and index.dtype == torch.bool):
        return NotImplemented
    rows = torch.empty(mode.selected, dtype=torch.long, device=META)
    return x.reshape(-1, *x.shape[index.dim() :]).index_select(0, rows)


def _as_bool(mode: Answers, x: torch.Tensor) -> bool:
    return getattr(x, "is_of_all", False) and not mode.is_padded


_ANSWERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__getitem__: _by_mask,
    torch.Tensor.__bool__: _as_bool,
    torch.Tensor.item: lambda mode, x: 0,
    torch.Tensor.__int__: lambda mode, x: 0,
    torch.Tensor.tolist: lambda mode, x: [0] * x.numel(),
}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute ``scaled_dot_product_attention`` as on a GPU (torch, aten/native/transformers/attention.cpp): by the
    flash kernel, or with a mask by the memory-efficient one, whose mask is additive and padded to multiples of 16."""
    if attn_mask is None and torch.cuda.get_device_capability()[0] >= 8:
        return aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]
    keeps = torch.is_grad_enabled() and q.requires_grad
    if attn_mask is None:
        return aten._scaled_dot_product_efficient_attention(q, k, v, None, keeps, dropout_p, is_causal)[0]
    bias = attn_mask
    if bias.dtype == torch.bool:
        bias = torch.zeros_like(bias, dtype=q.dtype).masked_fill_(bias.logical_not(), float("-inf"))
    tokens = bias.shape[-1]
    if tokens % 16:
        bias = torch.nn.functional.pad(bias, (0, 16 - tokens % 16))[..., :tokens]
    bias = bias.expand(*q.shape[:3], k.shape[2])
    return aten._scaled_dot_product_efficient_attention(q, k, v, bias, keeps, dropout_p, is_causal)[0]


class Head(torch.autograd.Function):
    """Unsloth's head (unsloth_zoo/fused_losses/fused_linear.py) by its own functions, without the custom operator
    around them: the gauge sees nothing inside an operator."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> Any:
        needs, (needs_head, want_gradient) = any(args[15:18]), (args[16], args[14])
        given = OPERATORS["lp_impl"](*args[:15], args[18], needs and not want_gradient, needs_head)
        ctx.dtype, is_lazy = args[0].dtype, args[14] and args[19] and args[10]
        kept = (*args[:2], args[3], *given[8:10], given[6], given[1], given[10]) if is_lazy else ()
        ctx.save_for_backward(given[5], *kept)
        ctx.mark_non_differentiable(*given[2:])
        ctx.set_materialize_grads(False)
        return given

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *others: Any) -> Any:
        return OPERATORS["scale_rows_impl"](ctx.saved_tensors[0], gradient, ctx.dtype), *[None] * 19


class Graph:
    """Stands for a CUDA graph: the captured code runs once, for its memory."""

    def _nothing(self, **kwargs: object) -> None:
        pass

    capture_begin = capture_end = replay = _nothing


OPERATORS: dict[str, Any] = {}


def _open_the_head() -> None:
    import unsloth_zoo.fused_losses.fused_linear as head

    patched: Any = torch
    OPERATORS.update(patched._unsloth_fused_linear_ops)
    head._LP_OP = "counted"
    patched.ops.unsloth_zoo.counted = Head.apply
    # The answers that these find on a GPU: torch.mm has out_dtype, Triton compiles, and no token is masked.
    head._fp32_out_ok = lambda *args: True
    head._use_triton = lambda device: True
    head._mm_fp32 = lambda a, b, out=None: (
        torch.empty(a.shape[0], b.shape[1], dtype=torch.float32, device=META) if out is None else out
    )
    head._addmm_fp32 = lambda acc, a, b: None
    head._keep_index = lambda targets, *args: (torch.empty_like(targets), targets.shape[0])


def make_passes_run() -> Answers:
    """Enter the mode for good, and return it.  Set its ``selected`` to the scored tokens of a pass."""
    import unsloth.kernels.rms_layernorm as norm
    import unsloth.utils.attention_dispatch as dispatch
    from torch.nn.attention import SDPBackend

    patched: Any = torch
    patched.nn.functional.scaled_dot_product_attention = attention
    # The kernels that torch chooses on a GPU, with grouped keys and with keys expanded to all heads.
    flash, efficient, math = (getattr(SDPBackend, name).value for name in FLASH_EFFICIENT_MATH)
    has_flash = torch.cuda.get_device_capability()[0] >= 8
    dispatch._sdpa_gqa_choices = lambda *args, **kwargs: (
        (flash, flash) if has_flash and not args[6] else (math, efficient)
    )
    dispatch._CUDNN_LENGTH_BUCKET = 0
    patched.cuda.CUDAGraph, patched.cuda.graph_pool_handle = Graph, lambda: (0, 0)
    norm._multirow_self_check = lambda *args: True  # it compares values
    _open_the_head()
    mode = Answers()
    enter(mode)
    return mode
