"""Measure the peak memory of each phase of a run, and set a plan beside it.

On a GPU it reads CUDA's allocator and the driver, in microseconds; on a CPU, where torch keeps no count, tensors are
counted only when asked for.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rloo_kit.memory import formulas
from rloo_kit.memory.hardware import cuda_process_bytes, where_computed
from rloo_kit.memory.specs import bytes_of, is_lora, standing_tensors, weight_bytes
from rloo_kit.session.output import MIB, html_table, text_table

if TYPE_CHECKING:
    from rloo_kit import RLOOTrainer


@dataclass(frozen=True)
class Peak:
    """The high-water mark of one phase: of live tensors; of what CUDA's allocator held for them; and what the driver
    counted for the process when the phase ended.  The last two are 0 on a CPU."""

    allocated_bytes: int
    reserved_bytes: int = 0
    process_bytes: int = 0


class CudaGauge:
    """CUDA's allocator (``torch.cuda``) and, for the whole process, NVML."""

    def restart(self) -> None:
        """Forget the peaks so far."""
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> Peak:
        """The allocator's peaks, and the driver's count as it is now."""
        return Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), cuda_process_bytes())


class TensorGauge(TorchDispatchMode):
    """Live bytes of tensors on a CPU, counted at every operation inside ``with gauge:``: now, at most since
    :meth:`restart`, and of the largest single storage since then.

    Each storage counts once, from the operation that returns it until it is freed; not what a kernel allocates inside.
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
    """Peaks by phase, read of a gauge; None keeps none.  Phases may be nested: a moment counts for the innermost."""

    def __init__(self, gauge: CudaGauge | TensorGauge | None = None) -> None:
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
        assert self.gauge is not None
        if self._open:
            name, peak = self._open[-1], self.gauge.read()
            self.peaks[name] = Peak(*map(max, astuple(peak), astuple(self.peaks.get(name, peak))))
        self.gauge.restart()


@dataclass(frozen=True)
class Row:
    """One line of a comparison; ``measured_bytes`` is None where nothing was measured."""

    name: str
    planned_bytes: int
    measured_bytes: int | None

    @property
    def off_by(self) -> float | None:
        """The plan's error as a share of what was measured."""
        return self.planned_bytes / self.measured_bytes - 1 if self.measured_bytes else None


@dataclass(frozen=True, repr=False)
class Measured:
    """A plan beside what a run took: what stands in memory after an update, part by part; the peaks of tensors by
    phase, without context and fragmentation; and the most that the driver counted for the process, on a GPU only."""

    parts: tuple[Row, ...]
    phases: tuple[Row, ...]
    process_bytes: Row

    def rows(self) -> list[list[str]]:
        """The table, header first; in MiB."""
        body = [["MiB", "planned", "measured", "plan is off by"]]
        for row in (*self.parts, *self.phases, self.process_bytes):
            measured = "not measured" if row.measured_bytes is None else f"{row.measured_bytes / MIB:.1f}"
            share = "" if row.off_by is None else f"{100 * row.off_by:+.0f} %"
            body.append([row.name, f"{row.planned_bytes / MIB:.1f}", measured, share])
        return body

    def __repr__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def compare(phases: Mapping[str, Mapping[str, int]], trainer: RLOOTrainer) -> Measured:
    """What :meth:`Plan.compare` returns, of a plan's ``phases``."""
    reference = getattr(trainer, "ref_model", None)
    lora = {name: p for name, p in trainer.model.named_parameters() if is_lora(name)}
    linear, rest = weight_bytes(trainer.model)
    measured = {
        formulas.WEIGHTS: linear,
        formulas.REST: rest,
        formulas.LORA: bytes_of(p for name, p in lora.items() if ".ref." not in name),
        formulas.REFERENCE: bytes_of(p for name, p in lora.items() if ".ref." in name),
        formulas.REFERENCE_MODEL: bytes_of(reference.parameters()) if reference is not None else 0,
        formulas.OPTIMIZER: bytes_of(optimizer_tensors(trainer.optimizer)),
    }
    parts = [Row(name, phases["optimizer"].get(name, 0), size) for name, size in measured.items()]
    tensors: dict[str, int] = {}
    for name, planned in phases.items():
        merged = "train" if name in ("forward", "backward") else name  # a trainer does not tell them apart
        beside = planned.get(formulas.CONTEXT, 0) + planned.get(formulas.FRAGMENTATION, 0)
        tensors[merged] = max(tensors.get(merged, 0), sum(planned.values()) - beside)
    del tensors["load"]
    peaks = trainer.memory.peaks if trainer.memory else {}
    seen = {name: peak.allocated_bytes for name, peak in peaks.items()}
    driver = max((peak.process_bytes for peak in peaks.values()), default=0) or None
    return Measured(
        tuple(row for row in parts if row.planned_bytes or row.measured_bytes),
        tuple(Row(f"peak in {name}", size, seen.get(name)) for name, size in tensors.items()),
        Row("process, by the driver", max(sum(planned.values()) for planned in phases.values()), driver),
    )


def optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """The tensors of an optimizer's state."""
    entries = optimizer.state.values() if optimizer is not None else ()
    return [value for entry in entries for value in entry.values() if isinstance(value, torch.Tensor)]
