"""Estimate how long a run takes on a GPU: a range computed from weights, cache and kernel launches, not from timings.

Prompts and completions count at their maximum length; downloads, compiling, grading and saving do not count.
"""

import math

from rloo_kit.memory.plan_settings import Settings
from rloo_kit.memory.policy_tensors import Model

# Assumed for the slow case; large models were trained at 21 to 46 % of peak (Chowdhery et al. 2022, PaLM).
BANDWIDTH_SHARE, PEAK_SHARE = 0.5, 0.3
# Per kernel, at best and in the slow case; published figures are 5 to 20 microseconds.  By these the one step that was
# timed (Qwen3-4B's shape on an H100; 3.8 and 5.0 s) takes 1.9 to 5.9 s.
LAUNCH_SECONDS = (5e-6, 15e-6)
DISK = (2e9, 0.15e9)  # bytes a second at which weights are read from a PCIe solid-state disk and from a hard disk

Range = tuple[float, float]
Work = tuple[float, float, float]  # bytes moved, operations, kernels launched


class Seconds:
    """Times for a GPU's ``bandwidth`` in bytes and ``peak`` in operations a second.  Up to ``four_bit_rows`` rows use
    the 4-bit weights; more rows use the 16-bit copies if ``in_16_bit``, else weights dequantised each time."""

    def __init__(
        self, model: Model, settings: Settings, bandwidth: float, peak: float, four_bit_rows: int, in_16_bit: bool
    ) -> None:
        self.model, self.settings, self.bandwidth, self.peak = model, settings, bandwidth, peak
        self.shape = shape = model.checkpoint
        # Elements of lm_head, of the LoRA, and of the LoRA and the projections.
        self.head, self.lora = shape.vocabulary * shape.hidden_size, sum(model.lora_sizes)
        self.dense = shape.linear_parameters + self.lora
        # Dequantising reads the 4-bit matrix, writes it in 16 bit, and the product reads that.
        dequantised = model.linear_bytes + 2 * 2 * shape.linear_parameters
        self.pass_bytes = dequantised if settings.four_bit else 2 * self.dense
        self.four_bit_rows = four_bit_rows
        self.many_rows_bytes = 2 * shape.linear_parameters if in_16_bit else self.pass_bytes
        self.pairs = 4 * shape.heads * shape.head_dim * shape.layers  # operations per token and earlier token

    def of_run(self, free_bytes: int) -> dict[str, Range]:
        """Part of the run -> seconds.  ``free_bytes`` is the memory that the loaded weights leave."""
        s, model, step = self.settings, self.model, self.step()
        size = model.linear_bytes + model.kept_bytes + model.rest_bytes
        seconds, low, high = {"load": (size / DISK[0], size / DISK[1]), "a step": step}, 0.0, 0.0
        for times, asked in s.evaluations:
            tokens = asked.get("max_new_tokens") or s.max_completion_length
            longest = int(tokens * (asked.get("room") or 1))
            cache = self.shape.kv_bytes_per_token * (s.prompt_tokens + longest)
            fitting = asked.get("batch_size") or min(64, free_bytes // 2 // cache)  # as Policy.generate
            completions = (asked.get("n") or 0) * (asked.get("samples") or 1)
            rows = max(1, min(fitting, completions))
            for_all = times * math.ceil(completions / rows), rows, rows > 1
            low += self._range(*self._sampled(tokens, *for_all))[0]
            high += self._range(*self._sampled(longest, *for_all))[1]
        if high:
            seconds["evaluations"] = (low, high)
        if s.max_steps > 0:
            best, slow = seconds["load"]
            seconds["in all"] = (best + low + s.max_steps * step[0], slow + high + s.max_steps * step[1])
        return seconds

    def step(self) -> Range:
        s, rows = self.settings, self.settings.sampled_rows
        rounds = s.update_rows / (rows * s.num_iterations)
        before = (bool(s.beta) + s.old_pass) / s.num_iterations
        # The update: forward, recomputation of what was not kept, and backward.
        passes = s.gradient_accumulation_steps * (before + 3)
        update = self._passes(passes, s.per_device_train_batch_size, s.row_tokens, s.max_completion_length)
        sampled = self._sampled(s.max_completion_length, rounds, rows, padded=rows > s.num_generations)
        return self._range(update, *sampled)

    def _passes(self, n: float, rows: int, length: int, scored: int) -> Work:
        """``n`` forward passes of ``rows`` rows, with log-probabilities of the last ``scored`` tokens."""
        flops = rows * (length * (2 * self.dense + self.pairs * length) + scored * 2 * self.head)
        return n * (self.pass_bytes + 2 * self.head), n * flops, n * 50 * self.shape.layers

    def _sampled(self, tokens: int, n: float, rows: int, padded: bool) -> tuple[Work, Work]:
        """``n`` rounds of sampling: the prompts, then token after token."""
        s, shape = self.settings, self.shape
        cached, groups = s.prompt_tokens + tokens / 2, shape.heads // shape.kv_heads
        # Prompts of different lengths need a mask, and then unsloth copies keys and values for every head.
        copies = 1 + 2 * groups if padded and groups > 1 else 1
        read = self.model.linear_bytes if rows <= self.four_bit_rows else self.many_rows_bytes
        moved = read + 2 * (self.lora + self.head) + rows * cached * copies * shape.kv_bytes_per_token
        flops = rows * (2 * (self.dense + self.head) + self.pairs * cached)
        decoded, kernels = n * (tokens - 1), 38 * shape.layers
        decoding = decoded * moved, decoded * flops, decoded * kernels
        return self._passes(n, rows, s.prompt_tokens, 1), decoding

    def _range(self, *phases: Work) -> Range:
        """At best a phase takes its memory, compute or launch time, whichever is longest.  In the slow case memory
        and compute run at a share of the GPU's speed, one after the other; launches may still take longer."""
        best = slow = 0.0
        for moved, flops, kernels in phases:
            memory, compute = moved / self.bandwidth, flops / self.peak
            best += max(memory, compute, LAUNCH_SECONDS[0] * kernels)
            slow += max(memory / BANDWIDTH_SHARE + compute / PEAK_SHARE, LAUNCH_SECONDS[1] * kernels)
        return best, slow


def spelled(seconds: Range) -> str:
    """A range in seconds, minutes or hours.

    >>> spelled((31.0, 250.0)), spelled((905.0, 4500.0)), spelled((5.25, 45.0)), spelled((6500.0, 19000.0))
    ('0.5 to 4.2 min', '15 to 75 min', '5 to 45 s', '1.8 to 5.3 h')
    """
    low, high = seconds
    unit, name = (1, "s") if high < 60 else (60, "min") if high < 7200 else (3600, "h")
    digits = int(name == "h" or 60 <= high < 600)
    return f"{low / unit:.{digits}f} to {high / unit:.{digits}f} {name}"
