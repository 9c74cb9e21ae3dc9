"""Speed up frozen float32 linear layers on a CPU with AVX-512 through oneDNN.

Works around: torch hands these products to MKL, which on one AMD EPYC takes twice as long as oneDNN, on an Intel Xeon
1.04 times (benchmarks/results/step_real*.md).  oneDNN sums in another order, so results differ by rounding.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import once_differentiable


class FrozenLinear(torch.nn.Linear):
    """A ``torch.nn.Linear`` that multiplies by oneDNN while its weights are frozen."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Map (..., in) to (..., out), as ``torch.nn.Linear`` does."""
        given = (input, self.weight) if self.bias is None else (input, self.weight, self.bias)
        trained = any(tensor.requires_grad for tensor in given[1:]) and torch.is_grad_enabled()
        fits = not torch.is_autocast_enabled("cpu") and input.size(-1) == self.in_features
        if trained or not fits or not by_onednn(*given):
            return super().forward(input)
        return _Product.apply(input, self.weight, self.bias)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(weight)
        return _onednn(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return _onednn(gradient, ctx.saved_tensors[0].t()), None, None


def use(model: Any) -> None:
    """Turn the model's frozen linear layers into :class:`FrozenLinear`, where that is faster.  The head keeps its
    class, which unsloth checks before it computes a loss in chunks; see :func:`in_use` for the head."""
    head = model.get_output_embeddings()
    for module in model.modules():
        if module is not head and _takes(module):
            module.__class__ = FrozenLinear


@contextmanager
def in_use(layer: torch.nn.Module) -> Iterator[None]:
    """Make one layer a :class:`FrozenLinear` inside the block, where that is faster."""
    taken, before = _takes(layer), layer.__class__
    try:
        layer.__class__ = FrozenLinear if taken else before
        yield
    finally:
        layer.__class__ = before


def _takes(module: Any) -> bool:
    return type(module) is torch.nn.Linear and by_onednn(module.weight) and not module.weight.requires_grad


def product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply rows (n, in) by weight^T (in, out), without a gradient."""
    return _onednn(rows, weight) if by_onednn(rows, weight) else rows @ weight.t()


def by_onednn(*tensors: torch.Tensor) -> bool:
    """Whether oneDNN can multiply these tensors, on a processor where it is not slower."""
    return (
        torch.backends.mkldnn.is_available()
        and bool(torch.backends.mkldnn.enabled)
        and "AVX512" in torch.backends.cpu.get_cpu_capability()
        and all(x.device.type == "cpu" and x.dtype == torch.float32 and x.numel() for x in tensors)
    )


def _onednn(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    # The operator that torch's own compiler calls; tests/policy/test_onednn_linear.py pins it.
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, weight, bias, "none", [], "")
    return result
