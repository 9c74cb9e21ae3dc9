"""How long a step takes on a GPU, roughly: a range from weights, cache and kernel launches, never timed."""

from __future__ import annotations

from rloo_kit.memory.plan_inputs import Model, Settings

BANDWIDTH_SHARE, PEAK_SHARE = 0.5, 0.3
"""Of a GPU's bandwidth and of its peak, in a slow case.  An assumption: large language models were trained at 21 to
46 % of their accelerators' peak (Chowdhery et al. 2022, PaLM, table 3)."""

LAUNCH_SECONDS = 10e-6
"""What launching a kernel costs, in a slow case: published figures are 5 to 20 microseconds."""

FUSED_ROWS = 16
"""Up to so many rows are multiplied with 4-bit weights directly (unsloth's ``_BNB_GEMM_4BIT_MAX_ROWS``)."""


def of_step(model: Model, settings: Settings, bandwidth: float, peak: float) -> tuple[float, float]:
    """Seconds of a step, at best and in a slow case, where all prompts and completions are as long as they may be.

    At best each phase takes as long as its bytes at full ``bandwidth`` or its operations at the ``peak``, whichever is
    more.  In a slow case both are used in part, one after the other, or launching the kernels takes longer still.
    """
    s, shape, rows, tokens = settings, model.checkpoint, settings.sampled_rows, settings.completion_tokens
    head, lora = shape.vocabulary * shape.hidden_size, sum(model.lora_sizes)
    dense = shape.linear_parameters + lora
    # A matrix in 16 bit: as it is, or made of its 4 bits, written and read.
    weights = (model.linear_bytes + 2 * 2 * shape.linear_parameters) if s.four_bit else 2 * dense
    pairs = 4 * shape.heads * shape.head_dim * shape.layers  # operations of a token with one before it

    cached = s.prompt_tokens + tokens / 2
    groups = shape.heads // shape.kv_heads
    # Prompts of unlike length are masked, for which unsloth copies keys and values for every head.
    copies = 1 + 2 * groups if rows > s.num_generations and groups > 1 else 1
    read = model.linear_bytes if rows <= FUSED_ROWS else weights
    token_bytes = read + 2 * (lora + head) + rows * cached * copies * shape.kv_bytes_per_token
    token_flops = rows * (2 * (dense + head) + pairs * cached)

    def passes(n: float, of_rows: int, length: int, scored: int) -> tuple[float, float, float]:
        """Bytes, operations and kernels of ``n`` forward passes."""
        flops = of_rows * (length * (2 * dense + pairs * length) + scored * 2 * head)
        return n * (weights + 2 * head), n * flops, n * 50 * shape.layers

    completions = s.micro_rows * s.accumulation
    slices, batches = completions / (rows * s.iterations), completions / s.micro_rows
    before = s.passes.reference + (not s.passes.single)
    decoded = slices * (tokens - 1)
    phases = (
        passes(slices, rows, s.prompt_tokens, 1),
        (decoded * token_bytes, decoded * token_flops, decoded * 38 * shape.layers),
        passes(before * batches / s.iterations, s.micro_rows, s.row_tokens, tokens),
        # Forward, once more for what was not kept, and backward.
        passes(3 * batches, s.micro_rows, s.row_tokens, tokens),
    )
    low = sum(max(n_bytes / bandwidth, flops / peak) for n_bytes, flops, _ in phases)
    high = sum(
        max(n_bytes / (BANDWIDTH_SHARE * bandwidth) + flops / (PEAK_SHARE * peak), LAUNCH_SECONDS * kernels)
        for n_bytes, flops, kernels in phases
    )
    return low, high


def spelled(seconds: float) -> str:
    """In seconds, minutes or hours."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
