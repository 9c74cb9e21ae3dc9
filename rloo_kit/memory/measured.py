"""A plan beside what a run took: what :meth:`Plan.compare <rloo_kit.Plan>` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rloo_kit.memory import footprint
from rloo_kit.memory.estimate import Estimate
from rloo_kit.memory.reading import bytes_of, is_lora, optimizer_tensors, weight_bytes
from rloo_kit.session.show import MIB, html_table, text_table

if TYPE_CHECKING:
    import torch

    from rloo_kit.memory.meter import Meter


class Trained(Protocol):
    """What this room reads of an :class:`rloo_kit.RLOOTrainer`."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    memory: Meter | None


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
    """A plan beside what a run took.

    Attributes:
        parts: what stands in memory after an update, part by part.
        phases: peaks of tensors, without the plan's context and fragmentation.
        process_bytes: the most that the driver counted for the process, beside the plan's peak; measured on a GPU only.
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
            measured = "not measured" if row.measured_bytes is None else f"{row.measured_bytes / MIB:.1f}"
            share = "" if row.off_by is None else f"{100 * row.off_by:+.0f} %"
            body.append([row.name, f"{row.planned_bytes / MIB:.1f}", measured, share])
        return [["MiB", "planned", "measured", "plan is off by"], *body]

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table(self.rows())


def compare(plan: Estimate, trainer: Trained) -> Measured:
    """What :meth:`Plan.compare` returns."""
    reference = getattr(trainer, "ref_model", None)
    lora = {name: p for name, p in trainer.model.named_parameters() if is_lora(name)}
    linear, rest = weight_bytes(trainer.model)
    measured = {
        footprint.WEIGHTS: linear,
        footprint.REST: rest,
        footprint.LORA: bytes_of(p for name, p in lora.items() if ".ref." not in name),
        footprint.REFERENCE: bytes_of(p for name, p in lora.items() if ".ref." in name),
        footprint.REFERENCE_MODEL: bytes_of(reference.parameters()) if reference is not None else 0,
        footprint.OPTIMIZER: bytes_of(optimizer_tensors(trainer.optimizer)),
    }
    standing, peaks = plan.phases["optimizer"], trainer.memory.peaks if trainer.memory else {}
    parts = [Row(name, standing.get(name, 0), size) for name, size in measured.items()]
    driver = max((peak.process_bytes for peak in peaks.values()), default=0)
    return Measured(
        tuple(row for row in parts if row.planned_bytes or row.measured_bytes),
        tuple(
            Row(f"peak in {name}", size, peaks[name].allocated_bytes if name in peaks else None)
            for name, size in planned_tensors(plan).items()
        ),
        Row("process, by the driver", plan.peak_bytes, driver or None),
    )


def planned_tensors(plan: Estimate) -> dict[str, int]:
    """Phase -> planned bytes of tensors, by the phases a trainer tells apart: forward and backward are "train"."""
    found: dict[str, int] = {}
    for name, parts in plan.phases.items():
        merged = "train" if name in ("forward", "backward") else name
        beside = sum(parts.get(part, 0) for part in (footprint.CONTEXT, footprint.FRAGMENTATION))
        found[merged] = max(found.get(merged, 0), plan.totals[name] - beside)
    del found["load"]
    return found
