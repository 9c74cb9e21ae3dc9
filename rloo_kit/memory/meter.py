"""Measure the peak memory of each phase of a run.

For ``Plan.compare``.  On a GPU it reads CUDA's allocator and the driver, in microseconds; on a CPU, where torch keeps
no count, tensors are counted only when asked for.  It plans nothing and changes nothing.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rloo_kit.memory.hardware import cuda_process_bytes, where_computed
from rloo_kit.memory.reading import standing_tensors


@dataclass(frozen=True)
class Peak:
    """The high-water mark of one phase.

    Attributes:
        allocated_bytes: live tensors.
        reserved_bytes: what CUDA's allocator held for them, unused blocks included; 0 on a CPU.
        process_bytes: what the driver counted for this process when the phase ended, with the CUDA context; 0 on a CPU.
    """

    allocated_bytes: int
    reserved_bytes: int = 0
    process_bytes: int = 0


class Gauge(Protocol):
    """What a :class:`Meter` reads."""

    def restart(self) -> None:
        """Forget the peak so far."""

    def read(self) -> Peak:
        """The peak since :meth:`restart`."""


class CudaGauge:
    """CUDA's allocator (``torch.cuda``) and, for the whole process, NVML."""

    def restart(self) -> None:
        """Set the allocator's peaks to what is held now."""
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> Peak:
        """The allocator's peaks, and the driver's count as it is now."""
        return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), cuda_process_bytes())


class TensorGauge(TorchDispatchMode):
    """Live bytes of tensors, counted at every operation inside ``with gauge:``, for a CPU: now, at most since
    :meth:`restart`, and of the largest single storage since then.

    Counts each storage once, at its present size, from the operation that returns it until it is freed; not what a
    kernel allocates internally.  Costs some microseconds per operation.
    """

    def __init__(self, standing: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live_bytes = self.peak_bytes = self.largest_bytes = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sizes: dict[int, int] = {}
        for tensor in standing:
            self._count(tensor)
        self.restart()

    def restart(self) -> None:
        """Set the peak to what is live now."""
        self.peak_bytes, self.largest_bytes = self.live_bytes, 0

    def read(self) -> Peak:
        """The peak since :meth:`restart`."""
        return Peak(self.peak_bytes)

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if self._sizes.get(key, 0) == size:
            return

        def freed(_: object) -> None:
            if self._known.pop(key, None) is not None:
                self.live_bytes -= self._sizes.pop(key)

        if key not in self._known:
            self._known[key] = weakref.ref(storage, freed)
        self.live_bytes += size - (before := self._sizes.get(key, 0))
        self._sizes[key] = size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + before)  # resize_ copies
        self.largest_bytes = max(self.largest_bytes, size)


class Meter:
    """Peaks by phase.  Phases may be nested; a moment counts for the innermost one.

    Args:
        gauge: what to read; None keeps no peaks.
    """

    def __init__(self, gauge: Gauge | None = None) -> None:
        self.gauge = gauge
        self.peaks: dict[str, Peak] = {}
        self._open: list[str] = []

    @classmethod
    def for_model(cls, model: torch.nn.Module, count_tensors: bool = False) -> Meter:
        """A run's meter: of CUDA's allocator on a GPU; on a CPU of tensors with ``count_tensors``, else of nothing."""
        if where_computed(model).type == "cuda":
            return cls(CudaGauge())
        return cls(TensorGauge(standing_tensors(model)) if count_tensors else None)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as ``name``; the largest peak of all visits is kept."""
        if self.gauge is None:
            yield
            return
        self._settle()
        self._open.append(name)
        counting = self.gauge if isinstance(self.gauge, TensorGauge) and len(self._open) == 1 else None
        try:
            with counting or contextlib.nullcontext():
                yield
        finally:
            self._settle()
            self._open.pop()

    def _settle(self) -> None:
        """Record the peak so far for the open phase, and restart."""
        assert self.gauge is not None
        if self._open:
            name, peak = self._open[-1], self.gauge.read()
            self.peaks[name] = Peak(*map(max, astuple(peak), astuple(self.peaks.get(name, peak))))
        self.gauge.restart()
