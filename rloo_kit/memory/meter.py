"""Measure the peak memory of each phase of a run on a GPU, and set a plan beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import torch

from rloo_kit.memory import formulas
from rloo_kit.memory.hardware import where_computed
from rloo_kit.memory.plan_inputs import bytes_of, is_lora, weight_bytes
from rloo_kit.session.output import MIB, text_table

if TYPE_CHECKING:
    from rloo_kit import RLOOTrainer


@dataclass(frozen=True)
class Peak:
    """The high-water mark of one phase: of live tensors, and of what CUDA's allocator held for them."""

    allocated_bytes: int
    reserved_bytes: int = 0


class Meter:
    """Peaks by phase, as CUDA's allocator counts them, in microseconds; none on a CPU, where torch keeps no count.

    Phases may be nested: a moment counts for the innermost.
    """

    def __init__(self, on_gpu: bool = True) -> None:
        self.on_gpu = on_gpu
        self.peaks: dict[str, Peak] = {}
        self._open: list[str] = []

    @classmethod
    def for_model(cls, model: torch.nn.Module) -> Meter:
        """The meter of a run of a model."""
        return cls(where_computed(model).type == "cuda")

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside as ``name``; the largest peak of all visits is kept."""
        if not self.on_gpu:
            yield
            return
        self._settle()
        self._open.append(name)
        try:
            yield
        finally:
            self._settle()
            self._open.pop()

    def _settle(self) -> None:
        if self._open:
            peak = Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
            before = self.peaks.get(self._open[-1], peak)
            self.peaks[self._open[-1]] = Peak(*map(max, astuple(peak), astuple(before)))
        torch.cuda.reset_peak_memory_stats()


@dataclass(frozen=True)
class Row:
    """One line of a comparison; ``measured_bytes`` is None where nothing was measured."""

    name: str
    planned_bytes: int
    measured_bytes: int | None


@dataclass(frozen=True, repr=False)
class Measured:
    """A plan beside what a run took: what stands in memory after an update, part by part, and the peaks of tensors by
    phase, without context and fragmentation."""

    parts: tuple[Row, ...]
    phases: tuple[Row, ...]

    def __repr__(self) -> str:
        body = [["MiB", "planned", "measured", "plan is off by"]]
        for row in (*self.parts, *self.phases):
            size = row.measured_bytes
            measured = "not measured" if size is None else f"{size / MIB:.1f}"
            share = f"{100 * (row.planned_bytes / size - 1):+.0f} %" if size else ""
            body.append([row.name, f"{row.planned_bytes / MIB:.1f}", measured, share])
        return text_table(body)


def compare(phases: Mapping[str, Mapping[str, int]], trainer: RLOOTrainer) -> Measured:
    """What :meth:`Plan.compare` returns, of a plan's ``phases``."""
    reference = getattr(trainer, "ref_model", None)
    lora = {name: p for name, p in trainer.model.named_parameters() if is_lora(name)}
    states = trainer.optimizer.state.values() if trainer.optimizer is not None else ()
    linear, rest = weight_bytes(trainer.model)
    measured = {
        formulas.WEIGHTS: linear,
        formulas.REST: rest,
        formulas.LORA: bytes_of(p for name, p in lora.items() if ".ref." not in name),
        formulas.REFERENCE: bytes_of(p for name, p in lora.items() if ".ref." in name),
        formulas.REFERENCE_MODEL: bytes_of(reference.parameters()) if reference is not None else 0,
        formulas.OPTIMIZER: bytes_of(t for state in states for t in state.values() if torch.is_tensor(t)),
    }
    parts = [Row(name, phases["optimizer"].get(name, 0), size) for name, size in measured.items()]
    tensors: dict[str, int] = {}
    for name, planned in phases.items():
        merged = "train" if name in ("forward", "backward") else name  # a trainer does not tell them apart
        beside = planned.get(formulas.CONTEXT, 0) + planned.get(formulas.FRAGMENTATION, 0)
        tensors[merged] = max(tensors.get(merged, 0), sum(planned.values()) - beside)
    del tensors["load"]
    seen = {
        name: peak.allocated_bytes for name, peak in (trainer.memory.peaks if trainer.memory else {}).items()
    }
    return Measured(
        tuple(row for row in parts if row.planned_bytes or row.measured_bytes),
        tuple(Row(f"peak in {name}", size, seen.get(name)) for name, size in tensors.items()),
    )
