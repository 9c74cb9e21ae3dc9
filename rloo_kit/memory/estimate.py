"""The memory of a model under some settings on a device: totals by phase, the peak, and whether it fits.

For :mod:`.planning`, which shows it, and :mod:`.changes`, which looks for one that fits.  The one owner of the rule how
many completions are sampled at once where nothing is asked for.  Arithmetic only.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, Self, get_args

from rloo_kit.memory import footprint
from rloo_kit.memory.footprint import CONTEXT, FRAGMENTATION, PARTS, Step
from rloo_kit.memory.hardware import Device
from rloo_kit.memory.settings import Model, Settings
from rloo_kit.session.show import scale_of

Verdict = Literal["fits", "tight", "does not fit"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)  # Best first

ESTIMATED = {footprint.KEPT, CONTEXT, FRAGMENTATION}  # Parts without a formula


def largest_slice(rows: int, at_most: int) -> int:
    """Rows of the largest slice, where as few slices of ``at_most`` rows as do are as even as may be.

    >>> largest_slice(8, 5)  # 4 and 4, as many rounds as 5 and 3
    4
    """
    return -(-rows // -(-rows // at_most))


@dataclass(frozen=True, repr=False)
class Estimate:
    """Bytes of a run before it begins, on a device.

    Attributes:
        phases: phase -> part -> bytes.
        sampled_rows: completions sampled at once: as ``settings.generation_rows`` asks, or as many as fit.
    """

    model: Model
    settings: Settings
    device: Device
    phases: dict[str, dict[str, int]]
    sampled_rows: int

    @classmethod
    def of(cls, model: Model, settings: Settings, device: Device) -> Self:
        """The estimate for a model and settings on a device."""
        whole = cls(model, settings, device, {}, settings.batch_rows)
        return whole._sampling(whole.rows_at_once(settings.batch_rows))

    def rows_at_once(self, wanted: int) -> int:
        """How many of the ``wanted`` completions are sampled at once, in slices as even as may be.

        At most ``settings.generation_rows``.  Where that is None: the most with which the run fits; where it does not
        fit even with one at a time, the most that make it no worse.
        """
        asked = self.settings.generation_rows
        if self.settings.engine is not None:  # vLLM schedules its completions itself
            return wanted
        if asked is not None:
            return largest_slice(wanted, asked)
        most = self._sampling(wanted)
        if most.fits == "fits":
            return wanted
        least = self._sampling(1)._shortage
        sizes = dict.fromkeys(largest_slice(wanted, rows) for rows in range(wanted, 0, -1))
        return next(rows for rows in sizes if self._sampling(rows)._shortage <= least)

    def _sampling(self, rows: int) -> Self:
        """The estimate with so many completions sampled at once."""
        settings = dataclasses.replace(self.settings, generation_rows=rows)
        phases = Step(self.model, settings).phases()
        return dataclasses.replace(self, phases=phases, sampled_rows=rows)

    @property
    def _shortage(self) -> tuple[int, int]:
        """How far from fitting: to be compared."""
        return VERDICTS.index(self.fits), self.peak_bytes if self.fits == "does not fit" else 0

    @property
    def parts(self) -> dict[str, int]:
        """The most that each part takes in any phase, in bytes."""
        most = {part: max(found.get(part, 0) for found in self.phases.values()) for part in PARTS}
        return {part: size for part, size in most.items() if size}

    @property
    def totals(self) -> dict[str, int]:
        """Phase -> bytes."""
        return {name: sum(parts.values()) for name, parts in self.phases.items()}

    @property
    def peak_phase(self) -> str:
        """The phase with the largest total."""
        return max(self.totals, key=lambda name: self.totals[name])

    @property
    def peak_bytes(self) -> int:
        """The total of that phase."""
        return self.totals[self.peak_phase]

    @property
    def estimated_bytes(self) -> int:
        """How much of the peak is :data:`ESTIMATED`; on a GPU also one layer's activations, beside which kernels
        allocate what no trace counts."""
        peak = self.phases[self.peak_phase]
        unsure = ESTIMATED | ({footprint.LAYER} if self.settings.on_gpu else set())
        return sum(size for part, size in peak.items() if part in unsure)

    @property
    def fits(self) -> Verdict:
        """ "does not fit" above the usable memory, or where vLLM's share holds no whole completion; "tight" where
        estimated parts 50 % larger would not fit."""
        usable = self.device.usable_bytes
        if self.peak_bytes > usable or self.engine_starves:
            return "does not fit"
        return "tight" if self.peak_bytes + self.estimated_bytes // 2 > usable else "fits"

    @property
    def engine_tokens(self) -> float:
        """Tokens that vLLM's cache holds, at most; no limit where it does not sample on this GPU."""
        engine, step = self.settings.engine, Step(self.model, self.settings)
        return math.inf if engine is None else engine.cached_tokens(step.weights, step.token_cache)

    @property
    def engine_starves(self) -> bool:
        """Whether vLLM would not start, since its cache holds no whole completion."""
        return self.engine_tokens < self.settings.row_tokens

    @property
    def offloaded_bytes(self) -> int:
        """What "unsloth" checkpointing moves to the computer's own memory."""
        return Step(self.model, self.settings).offloaded

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        return (
            f"{self.fits}: {'its share is too small for vLLM to start; ' * self.engine_starves}{self.takes}"
        )

    @property
    def takes(self) -> str:
        """The peak, what is usable, and the phase."""
        scale, unit = scale_of(self.peak_bytes)
        peak, usable = self.peak_bytes / scale, self.device.usable_bytes / scale
        return f"{peak:.2f} of {usable:.2f} {unit}, at its peak in {self.peak_phase}"
