"""Count what a piece of code asks of a GPU: bytes read and written, floating-point operations, kernels.

Inside :class:`Counter` every aten or bitsandbytes operator that launches a kernel is counted by its arguments and
results, and every Triton kernel by :data:`.launched.LAUNCHED`.  Tensors may have values or none ("meta").  The bytes
are those that pass between the GPU's memory and its processors if nothing stays in its caches from one kernel to the
next; a kernel's own temporaries are not seen.  An operator counts as one kernel, although a few launch two or three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from .launched import LAUNCHED
from .work import Work, size, total

aten = torch.ops.aten

FREE = {
    *(
        aten.empty,
        aten.empty_like,
        aten.empty_strided,
        aten.empty_permuted,
        aten.new_empty,
        aten.new_empty_strided,
    ),
    *(aten.resize_, aten.set_, aten.detach, aten.detach_, aten.lift_fresh, aten._unsafe_view, aten.alias),
    *(aten._local_scalar_dense, aten._reshape_alias, aten.equal),
}
"""Operators that launch no kernel; views do not either."""

READS_NOTHING = {
    *(aten.fill_, aten.zero_, aten.zeros_like, aten.ones_like, aten.full_like, aten.new_zeros, aten.new_ones),
    *(aten.new_full, aten.uniform_, aten.normal_, aten.random_, aten.exponential_),
}
READS_WHAT_IT_RETURNS = {aten.embedding, aten.index_select, aten.index, aten.gather}
WRITES_WHAT_IS_GIVEN = {aten.index_copy_, aten.index_put_, aten.scatter_}
PRODUCTS_IN_PLACE = {aten.mv: 0, aten.dot: 0, aten.addmv: 1, aten.addmv_: 1, aten.addmm_: 1, aten.baddbmm_: 1}
"""Products that torch's registry of formulas leaves out -> the place of their first factor."""
FORWARD = {aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_efficient_attention}
BACKWARD = {
    aten._scaled_dot_product_flash_attention_backward,
    aten._scaled_dot_product_efficient_attention_backward,
}


def _whole_heads(q: Any, k: Any, v: Any) -> list[tuple[int, ...]]:
    """Shapes as if each head had keys and values of its own, which torch's formulas ask for."""
    return [(t.shape[0], q.shape[1], *t.shape[2:]) for t in (q, k, v)]


def _flops(packet: Any, args: Any, kwargs: Any, out: Any) -> int:
    """By torch's formulas, for which a causal mask halves nothing; elsewhere one for each element of the result."""
    if packet in FORWARD:
        return int(sdpa_flop_count(*_whole_heads(*args[:3])))
    if packet in BACKWARD:
        return int(sdpa_backward_flop_count(args[0].shape, *_whole_heads(*args[1:4])))
    if packet in PRODUCTS_IN_PLACE:
        a, b = args[PRODUCTS_IN_PLACE[packet] :][:2]
        return 2 * int(a.numel()) * (b.shape[-1] if b.dim() > 1 else 1)
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    return sum(t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.is_floating_point())


def _changed(func: Any, args: Any, kwargs: Any) -> tuple[list[Any], list[Any]]:
    """Arguments that are changed, and of them those that are only written (``out=``)."""
    changed, only = [], []
    for place, argument in enumerate(func._schema.arguments):
        positional = place < len(args) and not argument.kwarg_only
        value = args[place] if positional else kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and value is not None:
            changed.append(value)
            only += [value] if argument.is_out else []
    return changed, only


def _read_again(packet: Any, args: Any, cache_bytes: float) -> int:
    """Bytes of a batched product's factor that all of the batch share, beyond the first reading: the product is a
    matrix-vector product for each of the batch, so what does not fit into the cache is read by each."""
    if packet is not aten.bmm:
        return 0
    shared = [size(t) for t in args[:2] if t.shape[0] > 1 and t.stride(0) == 0]
    return sum((args[0].shape[0] - 1) * found for found in shared if found > cache_bytes)


def work_of(func: Any, args: Any, kwargs: Any, out: Any, cache_bytes: float) -> Work:
    """What one call of an operator does."""
    packet = func._overloadpacket
    if packet is torch.ops.bitsandbytes.gemm_4bit:
        return _four_bit_product(args, kwargs, out)
    changed, only = _changed(func, args, kwargs)
    read = size((args, {name: v for name, v in kwargs.items() if not any(v is w for w in only)}))
    written = size(changed or out)
    if packet in READS_NOTHING:
        read = 0
    elif packet in READS_WHAT_IT_RETURNS:
        read = size(out) + size(args[1:])
    elif packet is aten.copy_:
        read = size(args[1])
    elif packet in WRITES_WHAT_IS_GIVEN:
        read, written = size(args[1:]), size(args[-1])
    return Work(read + _read_again(packet, args, cache_bytes), written, _flops(packet, args, kwargs, out), 1)


def _four_bit_product(args: Any, kwargs: Any, out: Any) -> Work:
    """bitsandbytes' fused product, where its own table for the card takes it (backends/cuda/ops.py); elsewhere it makes
    the scales, then the matrix, then the product."""
    from bitsandbytes.backends.cuda.ops import _gemm_4bit_use_custom_cuda

    x, (n, k) = args[0], args[2]
    m, once = x.numel() // k, size((args, kwargs))
    product = 2 * m * n * k
    if _gemm_4bit_use_custom_cuda(0, x.dtype, m, n, k):
        return Work(once, size(out), product, 1)
    scales, matrix = 4 * n * k // args[4], x.element_size() * n * k
    return Work(once + 3 * scales + matrix, size(out) + 2 * scales + matrix, product + 2 * n * k, 4)


def launch_of(kernel: Any, args: Any, kwargs: Any) -> tuple[str, Work]:
    """A Triton kernel's name, and what this launch of it does.

    Raises:
        KeyError: a kernel that :data:`LAUNCHED` does not name.
    """
    while hasattr(kernel, "configs"):  # Autotuner and Heuristics hold the kernel
        kernel = kernel.fn
    name = kernel.__name__
    return name, LAUNCHED[name](dict(zip(kernel.arg_names, args, strict=False)) | kwargs)


class Counter(TorchDispatchMode):
    """Counts what has a tensor on ``target``, while it is entered.

    Attributes:
        kernels: kernel or operator -> what its launches did.
        cache_bytes: the GPU's second-level cache.
    """

    def __init__(self, target: str = "meta", cache_bytes: float = 0) -> None:
        super().__init__()
        self.target, self.cache_bytes = target, cache_bytes
        self.kernels: dict[str, Work] = {}

    def taken(self) -> dict[str, Work]:
        """What was counted since the last call, by kernel."""
        found, self.kernels = self.kernels, {}
        return found

    @property
    def work(self) -> Work:
        """All that was counted."""
        return total(self.kernels.values())

    def add(self, name: str, work: Work) -> None:
        """Count something."""
        self.kernels[name] = self.kernels.get(name, Work()) + work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry and func is not torch.ops.prim.device.default:
            with self:
                given = func.decompose(*args, **kwargs)
            if given is not NotImplemented:
                return given
        out = func(*args, **kwargs)
        launches = func._overloadpacket not in FREE and not func.is_view
        if launches and self._is_here((args, kwargs, out)):
            self.add(str(func._overloadpacket), work_of(func, args, kwargs, out, self.cache_bytes))
        return out

    def _is_here(self, value: Any) -> bool:
        tensors = (t for t in tree_leaves(value) if isinstance(t, torch.Tensor))
        return any(t.untyped_storage().device.type == self.target for t in tensors)

    def count_launches(self) -> None:
        """Count Triton's kernels too, for good, instead of launching them: for tensors on "meta"."""
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        def run(kernel: Any) -> Callable[..., None]:
            return lambda *args, **kwargs: self._launch(kernel, args, kwargs)

        for kind in (JITFunction, Autotuner):
            kind.run = property(run)

    def _launch(self, kernel: Any, args: Any, kwargs: Any) -> None:
        self.add(*launch_of(kernel, args, kwargs))
