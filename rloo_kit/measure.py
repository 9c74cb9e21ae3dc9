"""Read how much memory is really used: of tensors, of CUDA's allocator, of the card.

For ``Plan.compare``, which sets it beside the arithmetic of :mod:`rloo_kit.memory`.  A :class:`Meter` keeps the
peak of each phase of a run; ``bytes_of`` and the functions beside it weigh what stands in memory now.  It plans
nothing and changes nothing.  On a GPU reading costs microseconds; on a CPU, where torch keeps no account, tensors
are counted only when asked for.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rloo_kit import footprint, tables
from rloo_kit.devices import where_computed

if TYPE_CHECKING:
    from rloo_kit.memory import Plan


@dataclass(frozen=True)
class Peak:
    """The high-water mark of one phase.

    Attributes:
        allocated_bytes: live tensors.
        reserved_bytes: what CUDA's allocator held for them, unused blocks included; 0 on a CPU.
        process_bytes: what the driver counted for this process when the phase ended, the CUDA context included;
            0 on a CPU.
    """

    allocated_bytes: int
    reserved_bytes: int = 0
    process_bytes: int = 0

    def above(self, other: Peak) -> Peak:
        """The larger of two peaks, figure by figure."""
        return Peak(
            max(self.allocated_bytes, other.allocated_bytes),
            max(self.reserved_bytes, other.reserved_bytes),
            max(self.process_bytes, other.process_bytes),
        )


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


def cuda_process_bytes() -> int:
    """What the driver counts for this process; without NVML, what is used on the whole card
    (``cudaMemGetInfo``), other programs included."""
    own = nvml_process_bytes()
    if own is not None:
        return own
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def nvml_process_bytes() -> int | None:
    """What NVML counts for this process on the current card; None where nobody can say: no Python binding
    (nvidia-ml-py), no permission, or a container that hides process ids."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except Exception:
        return None
    own = [process.usedGpuMemory for process in running if process.pid == os.getpid()]
    return int(own[0]) if own and own[0] else None


class TensorGauge(TorchDispatchMode):
    """Live bytes of tensors, counted at every operation: for a CPU, where torch keeps no account.

    Counts each storage once, from the operation that returns it until it is freed.  What a kernel allocates
    inside itself is not seen.  Slows Python down by some microseconds per operation, so it is on only inside
    ``with gauge:``.

    Attributes:
        live_bytes, peak_bytes: now, and at most since :meth:`restart`.
        largest_bytes: the largest single storage since :meth:`restart`.
    """

    def __init__(self, standing: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live_bytes = self.peak_bytes = self.largest_bytes = 0
        self._known: dict[int, Any] = {}
        for tensor in standing:
            self._count(tensor)
        self.restart()

    def restart(self) -> None:
        """Set the peak to what is live now."""
        self.peak_bytes, self.largest_bytes = self.live_bytes, 0

    def read(self) -> Peak:
        """The peak since :meth:`restart`."""
        return Peak(self.peak_bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known or not size:
            return

        def freed(_: Any) -> None:
            if self._known.pop(key, None) is not None:
                self.live_bytes -= size

        self._known[key] = weakref.ref(storage, freed)
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.largest_bytes = max(self.largest_bytes, size)


class Meter:
    """Peaks by phase.  Phases may lie inside each other; a moment counts for the innermost one.

    Args:
        gauge: what to read; None keeps no peaks (a CPU, unless somebody asks).
    """

    def __init__(self, gauge: Gauge | None = None) -> None:
        self.gauge = gauge
        self.peaks: dict[str, Peak] = {}
        self._open: list[str] = []

    @classmethod
    def for_model(cls, model: torch.nn.Module, count_tensors: bool = False) -> Meter:
        """The meter of a run: CUDA's allocator on a GPU; on a CPU tensors, if asked for, else nothing."""
        if where_computed(model).type == "cuda":
            return cls(CudaGauge())
        return cls(TensorGauge(standing_tensors(model)) if count_tensors else None)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as ``name``; the largest of all visits is kept."""
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
        """Book the peak so far on the open phase, and start afresh."""
        assert self.gauge is not None
        if self._open:
            name, peak = self._open[-1], self.gauge.read()
            self.peaks[name] = peak.above(self.peaks.get(name, peak))
        self.gauge.restart()


# --- what stands in memory --------------------------------------------------------------------------------


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of tensors, each storage once."""
    sizes = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(sizes.values())


def quantisation_tensors(parameter: Any) -> list[torch.Tensor]:
    """What bitsandbytes keeps beside a 4-bit weight: scales, their scales, offset, code books."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return []
    found = [state.absmax, state.code, state.offset]
    if state.state2 is not None:
        found += [state.state2.absmax, state.state2.code]
    return [tensor for tensor in found if tensor is not None]


def is_lora(name: str) -> bool:
    """Whether a parameter's name is that of a LoRA matrix."""
    return "lora_" in name


def standing_tensors(model: torch.nn.Module, optimizer: Any = None) -> list[torch.Tensor]:
    """Parameters with their quantisation state, buffers, gradients and the optimizer's state."""
    parameters = list(model.parameters())
    found: list[torch.Tensor] = [*parameters, *model.buffers()]
    found += [tensor for p in parameters for tensor in quantisation_tensors(p)]
    found += [p.grad for p in parameters if p.grad is not None]
    return found + optimizer_tensors(optimizer)


def optimizer_tensors(optimizer: Any) -> list[torch.Tensor]:
    """The tensors of an optimizer's state, accelerate's wrapper or none included."""
    state = getattr(optimizer, "state", None) or {}
    return [value for entry in state.values() for value in entry.values() if isinstance(value, torch.Tensor)]


def cache_tensors(cache: Any) -> list[torch.Tensor]:
    """Keys and values of a transformers ``Cache``, as ``generate(return_dict_in_generate=True)`` returns it."""
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def weight_bytes(model: torch.nn.Module) -> tuple[int, int]:
    """Bytes of the frozen projections with their quantisation state, and of the other frozen parameters."""
    frozen = [(name, p) for name, p in model.named_parameters() if not is_lora(name)]
    linear = [p for name, p in frozen if name.split(".")[-2] == "base_layer" or "_proj." in name]
    rest = [p for name, p in frozen if not any(p is other for other in linear)]
    return bytes_of([*linear, *(t for p in linear for t in quantisation_tensors(p))]), bytes_of(rest)


def is_four_bit(model: torch.nn.Module) -> bool:
    """Whether any weight is stored in 4 bit."""
    return any(getattr(p, "quant_state", None) is not None for p in model.parameters())


def is_trained(model: torch.nn.Module) -> bool:
    """Whether a LoRA has left the zero map that it starts as."""
    return any(bool(p.any()) for name, p in model.named_parameters() if "lora_B.default" in name)


def checkpointing_of(model: torch.nn.Module) -> bool | str:
    """The gradient checkpointing that a policy was loaded with: "unsloth", True or False."""
    named = getattr(model, "_unsloth_gradient_checkpointing", None)
    if named is not None:
        return named if isinstance(named, str) else bool(named)
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


# --- beside the plan --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One line of a comparison: what, as planned, as measured; None where it was not measured."""

    name: str
    planned_bytes: int
    measured_bytes: int | None

    @property
    def off_by(self) -> float | None:
        """The plan's error as a share of what was measured."""
        if not self.measured_bytes:
            return None
        return self.planned_bytes / self.measured_bytes - 1


@dataclass(frozen=True, repr=False)
class Measured:
    """A plan beside what a run took.

    Attributes:
        parts: what stands in memory after an update, part by part.
        phases: peaks: tensors alone, without what the plan adds for context and fragmentation.
        process_bytes: the most that the driver counted for the process, and the plan's peak; measured on a GPU only.
    """

    parts: tuple[Row, ...]
    phases: tuple[Row, ...]
    process_bytes: Row

    def __repr__(self) -> str:
        return str(self)

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """Parts, phases and process, in the order shown."""
        return (*self.parts, *self.phases, self.process_bytes)

    def rows(self) -> list[list[str]]:
        """The table, header first; in MiB."""
        body = []
        for row in self.all_rows:
            measured = "not measured" if row.measured_bytes is None else f"{row.measured_bytes / 2**20:.1f}"
            share = "" if row.off_by is None else f"{100 * row.off_by:+.0f} %"
            body.append([row.name, f"{row.planned_bytes / 2**20:.1f}", measured, share])
        return [["MiB", "planned", "measured", "plan is off by"], *body]

    def __str__(self) -> str:
        return tables.as_text(self.rows())

    def _repr_html_(self) -> str:
        return tables.as_html(self.rows())


TENSORS_NOT_COUNTED = (footprint.CONTEXT, footprint.FRAGMENTATION)


def compare(plan: Plan, trainer: Any) -> Measured:
    """What :meth:`Plan.compare` gives."""
    model = trainer.model
    lora = {name: p for name, p in model.named_parameters() if is_lora(name)}
    linear, rest = weight_bytes(model)
    measured = {
        footprint.WEIGHTS: linear,
        footprint.REST: rest,
        footprint.LORA: bytes_of(p for name, p in lora.items() if ".ref." not in name),
        footprint.REFERENCE: bytes_of(p for name, p in lora.items() if ".ref." in name),
        footprint.OPTIMIZER: bytes_of(optimizer_tensors(getattr(trainer, "optimizer", None))),
    }
    standing = plan.phases["optimizer"]
    parts = [Row(name, standing.get(name, 0), size) for name, size in measured.items()]
    peaks: dict[str, Peak] = getattr(getattr(trainer, "memory", None), "peaks", {})
    driver = max((peak.process_bytes for peak in peaks.values()), default=0)
    return Measured(
        tuple(row for row in parts if row.planned_bytes or row.measured_bytes),
        tuple(
            Row(f"peak in {name}", size, peaks[name].allocated_bytes if name in peaks else None)
            for name, size in planned_tensors(plan).items()
        ),
        Row("process, by the driver", plan.peak_bytes, driver or None),
    )


def planned_tensors(plan: Plan) -> dict[str, int]:
    """Phase -> planned bytes of tensors, by the phases a trainer tells apart: forward and backward are "train"."""
    found: dict[str, int] = {}
    for name, parts in plan.phases.items():
        merged = "train" if name in ("forward", "backward") else name
        size = sum(size for part, size in parts.items() if part not in TENSORS_NOT_COUNTED)
        found[merged] = max(found.get(merged, 0), size)
    found.pop("load")
    return found
