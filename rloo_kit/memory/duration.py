"""How long a run takes on a GPU, roughly: a range from weights, cache and kernel launches, never timed.

All prompts and completions are taken to be as long as they may be.  Downloads, compiling, grading and saving are not
counted.
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

DISK = (2e9, 0.15e9)
"""Bytes a second that weights are read with: of a solid-state disk on PCIe, and of a hard disk."""

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
        # Operations of a token with one before it.
        self.pairs = 4 * shape.heads * shape.head_dim * shape.layers

    def step(self) -> Range:
        """Seconds of a training step."""
        s = self.settings
        completions, rows = s.micro_rows * s.accumulation, s.sampled_rows
        rounds = completions / (rows * s.iterations)
        batches, before = completions / s.micro_rows, s.passes.reference + (not s.passes.single)
        return self._range(
            *self._sampled(rounds, rows, s.completion_tokens, padded=rows > s.num_generations),
            self._passes(before * batches / s.iterations, s.micro_rows, s.row_tokens, s.completion_tokens),
            # Forward, once more for what was not kept, and backward.
            self._passes(3 * batches, s.micro_rows, s.row_tokens, s.completion_tokens),
        )

    def evaluation(self, completions: int, at_once: int, tokens: int) -> Range:
        """Seconds for sampling so many completions of other prompts, of so many tokens."""
        rows = max(1, min(at_once, completions))
        return self._range(*self._sampled(completions / rows, rows, tokens, padded=rows > 1))

    def _passes(self, n: float, rows: int, length: int, scored: int) -> Work:
        """``n`` forward passes of ``rows``, with log-probabilities of the last ``scored`` tokens."""
        flops = rows * (length * (2 * self.dense + self.pairs * length) + scored * 2 * self.head)
        return n * (self.weights + 2 * self.head), n * flops, n * 50 * self.shape.layers

    def _sampled(self, n: float, rows: int, tokens: int, padded: bool) -> Iterable[Work]:
        """``n`` rounds of sampling: the prompts, then token after token."""
        s, shape = self.settings, self.shape
        cached, groups = s.prompt_tokens + tokens / 2, shape.heads // shape.kv_heads
        # Prompts of unlike length are masked, for which unsloth copies keys and values for every head.
        copies = 1 + 2 * groups if padded and groups > 1 else 1
        read = self.model.linear_bytes if rows <= FUSED_ROWS else self.weights
        moved = read + 2 * (self.lora + self.head) + rows * cached * copies * shape.kv_bytes_per_token
        flops = rows * (2 * (self.dense + self.head) + self.pairs * cached)
        yield self._passes(n, rows, s.prompt_tokens, 1)
        decoded = n * (tokens - 1)
        yield decoded * moved, decoded * flops, decoded * 38 * shape.layers

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


def of_run(speed: Speed, free_bytes: int) -> dict[str, Range]:
    """Part of a run -> seconds; of ``free_bytes`` beside loaded weights ``evaluate`` takes half for what it samples."""
    s, asked, step = speed.settings, dict(speed.settings.evaluate), speed.step()
    size = speed.model.linear_bytes + speed.model.kept_bytes + speed.model.rest_bytes
    found = {"load": (size / DISK[0], size / DISK[1]), "a step": step}
    if rows := (asked.get("n") or 0) * asked.get("samples", 1):
        tokens = asked.get("max_new_tokens", s.completion_tokens)
        longest = int(tokens * (asked.get("room") or 1))
        cache = speed.shape.kv_bytes_per_token * (s.prompt_tokens + longest)
        at_once = asked.get("batch_size") or min(64, free_bytes // 2 // cache)  # as Policy.generate
        low, high = speed.evaluation(rows, at_once, tokens)[0], speed.evaluation(rows, at_once, longest)[1]
        found[f"2 evaluations of {rows} completions, before and after"] = (2 * low, 2 * high)
    if s.eval_times and s.eval_rows:
        low, high = speed.evaluation(s.eval_rows, s.eval_batch, s.completion_tokens)
        name = f"{s.eval_times} evaluations of {s.eval_rows} completions, while it trains"
        found[name] = (s.eval_times * low, s.eval_times * high)
    if s.steps:
        found[f"{s.steps} steps"] = (s.steps * step[0], s.steps * step[1])
        whole = [part for name, part in found.items() if name != "a step"]
        found["in all"] = (sum(low for low, _ in whole), sum(high for _, high in whole))
    return found


def spelled(found: Range) -> str:
    """A range in minutes, below one in seconds.

    >>> spelled((31.0, 250.0)), spelled((905.0, 4500.0)), spelled((5.25, 45.0))
    ('0.5 to 4.2 min', '15 to 75 min', '5 to 45 s')
    """
    low, high = (each / 60 for each in found)
    if high < 1:
        return f"{found[0]:.0f} to {found[1]:.0f} s"
    return f"{low:,.1f} to {high:,.1f} min" if high < 10 else f"{low:,.0f} to {high:,.0f} min"
