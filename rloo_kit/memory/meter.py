"""Measure the peak memory of each phase of a run on a GPU, and compare a plan with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from rloo_kit.memory.formulas import CONTEXT, FRAGMENTATION, Parts
from rloo_kit.session.output import MIB, text_table


class Peak(NamedTuple):
    """The high-water mark of one phase."""

    allocated_bytes: int  # of live tensors
    reserved_bytes: int = 0  # that CUDA's allocator held for them


class Meter:
    """Peaks by phase, as CUDA's allocator counts them; none on a CPU, where torch keeps no count.

    Phases may be nested: a peak counts for the innermost one.
    """

    def __init__(self, on_gpu: bool = True) -> None:
        self.on_gpu = on_gpu
        self.peaks: dict[str, Peak] = {}
        self._open: list[str] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the peak inside under ``name``; of several visits the largest peak is kept."""
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
            self.peaks[self._open[-1]] = Peak(*map(max, peak, before))
        torch.cuda.reset_peak_memory_stats()


class Measured(dict[str, tuple[int, int | None]]):
    """Phase -> bytes of tensors at its peak, planned and measured; None where nothing was measured."""

    def __str__(self) -> str:
        body = [["MiB", "planned", "measured", "plan is off by"]]
        for name, (planned, size) in self.items():
            measured = "not measured" if size is None else f"{size / MIB:.1f}"
            share = f"{100 * (planned / size - 1):+.0f} %" if size else ""
            body.append([f"peak in {name}", f"{planned / MIB:.1f}", measured, share])
        return text_table(body)

    __repr__ = __str__


def compare(phases: Mapping[str, Parts], peaks: Mapping[str, Peak]) -> Measured:
    """Compare a plan's phases, without context and fragmentation, with a meter's peaks."""
    compared = Measured()
    for name, parts in list(phases.items())[1:]:  # the trainer's meter does not see loading
        phase = "train" if name in ("forward", "backward") else name  # it measures these as one
        planned = sum(parts.values()) - parts.get(CONTEXT, 0) - parts.get(FRAGMENTATION, 0)
        measured = peaks[phase].allocated_bytes if phase in peaks else None
        compared[phase] = max(planned, compared.get(phase, (0, None))[0]), measured
    return compared
