"""The peak memory of each phase of a run, as CUDA's allocator counts it, beside the plan's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import torch

from rloo_kit import Plan
from rloo_kit.memory import out_of_memory
from rloo_kit.memory.formulas import CONTEXT, FRAGMENTATION


class Peak(NamedTuple):
    allocated_bytes: int  # of live tensors
    reserved_bytes: int = 0  # that CUDA's allocator held for them


@contextmanager
def measured() -> Iterator[dict[str, Peak]]:
    """Yield the peaks by phase of what runs inside: a moment counts for the innermost phase, and the largest visit is
    kept.  The trainer names its phases where it explains that memory ran out."""
    peaks: dict[str, Peak] = {}
    open_phases: list[str] = []
    explained = out_of_memory.explained

    def settle() -> None:
        if open_phases:
            peak = Peak(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
            peaks[open_phases[-1]] = Peak(*map(max, peak, peaks.get(open_phases[-1], peak)))
        torch.cuda.reset_peak_memory_stats()

    @contextmanager
    def phase(name: str, planned: Plan) -> Iterator[None]:
        settle()
        open_phases.append(name)
        try:
            with explained(name, planned):
                yield
        finally:
            settle()
            open_phases.pop()

    with mock.patch.object(out_of_memory, "explained", phase):
        yield peaks


def planned(plan: Plan) -> dict[str, int]:
    """Return the plan's bytes of tensors by measured phase: without loading, context and fragmentation."""
    found: dict[str, int] = {}
    for name, parts in list(plan.phases.items())[1:]:
        phase = "train" if name in ("forward", "backward") else name  # the trainer names these as one
        size = sum(size for part, size in parts.items() if part not in (CONTEXT, FRAGMENTATION))
        size += plan.in_16_bit_bytes if name == "generate" else 0
        found[phase] = max(size, found.get(phase, 0))
    return found
