"""How long a run takes on a GPU, roughly: a range from weights, cache and kernel launches, never timed.

All prompts and completions are taken to be as long as they may be.  Downloads, grading and saving are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rloo_kit.memory.plan_inputs import Model, Settings

BANDWIDTH_SHARE, PEAK_SHARE = 0.5, 0.3
"""Of a GPU's bandwidth and of its peak, in a slow case.  An assumption: large language models were trained at 21 to
46 % of their accelerators' peak (Chowdhery et al. 2022, PaLM, table 3)."""

LAUNCH_SECONDS = 10e-6
"""What launching a kernel costs, in a slow case: published figures are 5 to 20 microseconds."""

FUSED_ROWS = 16
"""Up to so many rows are multiplied with 4-bit weights directly (unsloth's ``_BNB_GEMM_4BIT_MAX_ROWS``)."""

Range = tuple[float, float]
Work = tuple[float, float, float]  # bytes moved, operations, kernels launched


class Speed:
    """A model under settings on a GPU of some bandwidth, in bytes a second, and peak, in operations a second."""

    def __init__(self, model: Model, settings: Settings, bandwidth: float, peak: float) -> None:
        self.model, self.settings, self.bandwidth, self.peak = model, settings, bandwidth, peak
        self.shape = shape = model.checkpoint
        self.head, self.lora = shape.vocabulary * shape.hidden_size, sum(model.lora_sizes)
        self.dense = shape.linear_parameters + self.lora
        # A matrix in 16 bit: as it is, or made of its 4 bits, written and read.
        in_16_bit = 2 * 2 * shape.linear_parameters
        self.weights = model.linear_bytes + in_16_bit if settings.four_bit else 2 * self.dense
        self.pairs = (
            4 * shape.heads * shape.head_dim * shape.layers
        )  # operations of a token with one before it

    def step(self) -> Range:
        """Seconds of a training step."""
        s = self.settings
        completions, rows = s.micro_rows * s.accumulation, s.sampled_rows
        batches, before = completions / s.micro_rows, s.passes.reference + (not s.passes.single)
        return self._range(
            *self._sampled(completions / (rows * s.iterations), rows, rows > s.num_generations),
            self._passes(before * batches / s.iterations, s.micro_rows, s.row_tokens, s.completion_tokens),
            # Forward, once more for what was not kept, and backward.
            self._passes(3 * batches, s.micro_rows, s.row_tokens, s.completion_tokens),
        )

    def _passes(self, n: float, rows: int, length: int, scored: int) -> Work:
        """``n`` forward passes of ``rows``, with log-probabilities of the last ``scored`` tokens."""
        flops = rows * (length * (2 * self.dense + self.pairs * length) + scored * 2 * self.head)
        return n * (self.weights + 2 * self.head), n * flops, n * 50 * self.shape.layers

    def _sampled(self, n: float, rows: int, padded: bool) -> Iterable[Work]:
        """``n`` rounds of sampling: the prompts, then token after token."""
        s, shape = self.settings, self.shape
        cached, groups = s.prompt_tokens + s.completion_tokens / 2, shape.heads // shape.kv_heads
        # Prompts of unlike length are masked, for which unsloth copies keys and values for every head.
        copies = 1 + 2 * groups if padded and groups > 1 else 1
        read = self.model.linear_bytes if rows <= FUSED_ROWS else self.weights
        moved = read + 2 * (self.lora + self.head) + rows * cached * copies * shape.kv_bytes_per_token
        flops = rows * (2 * (self.dense + self.head) + self.pairs * cached)
        tokens = n * (s.completion_tokens - 1)
        yield self._passes(n, rows, s.prompt_tokens, 1)
        yield tokens * moved, tokens * flops, tokens * 38 * shape.layers

    def _range(self, *phases: Work) -> Range:
        """At best each phase takes as long as its bytes or its operations, whichever is more; in a slow case both are
        done in part of the GPU's speed, one after the other, or launching the kernels takes longer still."""
        low = sum(max(moved / self.bandwidth, flops / self.peak) for moved, flops, _ in phases)
        bandwidth, peak = BANDWIDTH_SHARE * self.bandwidth, PEAK_SHARE * self.peak
        slow = (
            max(moved / bandwidth + flops / peak, LAUNCH_SECONDS * kernels)
            for moved, flops, kernels in phases
        )
        return low, sum(slow)


def spelled(found: Range) -> str:
    """A range in seconds, minutes or hours.

    >>> spelled((31.0, 250.0)), spelled((5.25, 75.0))
    ('0.5 to 4.2 min', '5.2 to 75.0 s')
    """
    size, unit = next(
        (size, unit) for size, unit in ((3600, "h"), (60, "min"), (1, "s")) if found[1] >= 2 * size
    )
    return f"{found[0] / size:.1f} to {found[1] / size:.1f} {unit}"
