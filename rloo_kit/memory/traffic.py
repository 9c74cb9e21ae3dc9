"""How much passes through a GPU's memory in an RLOO step, and how much is computed: one formula a pass.

For :mod:`.seconds`, which makes a range of seconds of it.  The formulas follow unsloth's GPU path as it was counted
kernel by kernel on tensors without memory (benchmarks/traffic.py); a test holds them beside that count.  Nothing here
was timed.

Letters as in :mod:`.footprint`: H hidden size, A heads x head_dim, G kv_heads x head_dim, F ffn size, V vocabulary, L
layers, r LoRA rank.  A product reads its input (I) and writes its output (O); over the seven of a layer that is
I = 5 H + A + F and O = 2 H + A + 2 G + 2 F elements per token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rloo_kit.memory.settings import Model, Settings
from rloo_kit.session.show import MIB

FUSED_ROWS = 16
"""Up to so many rows are multiplied with 4-bit weights directly; for more, each token makes every matrix in 16 bit
(unsloth's kernels/utils.py, ``_BNB_GEMM_4BIT_MAX_ROWS``)."""

CACHED_BYTES = 6 * MIB
"""A matrix of that size stays in a GPU's cache while it is read for each row."""

HEAD_ROWS, HEAD_COLUMNS = 4096, 16384
"""A tile of the fused head (see :attr:`.footprint.Step.tile`)."""

SAMPLING_BYTES = 20
"""Per logit of a sampled token: written in 16 bit, read and written in float32, softmax, and the draw."""


@dataclass(frozen=True)
class Load:
    """What a phase asks of a GPU: bytes through its memory, floating-point operations, and kernels."""

    bytes: float = 0.0
    flops: float = 0.0
    kernels: float = 0.0

    def __add__(self, other: Load) -> Load:
        return Load(self.bytes + other.bytes, self.flops + other.flops, self.kernels + other.kernels)

    def __mul__(self, times: float) -> Load:
        return Load(self.bytes * times, self.flops * times, self.kernels * times)


class Traffic:
    """The passes of a step of a model under some settings, on unsloth's GPU path."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self.model, self.settings, self.shape = model, settings, model.checkpoint
        self.hidden, self.ffn = self.shape.hidden_size, self.shape.ffn_size
        self.attention = self.shape.heads * self.shape.head_dim
        self.keys = self.shape.kv_heads * self.shape.head_dim
        self.inputs = 5 * self.hidden + self.attention + self.ffn
        self.outputs = 2 * self.hidden + self.attention + 2 * self.keys + 2 * self.ffn
        self.lora = sum(model.lora_sizes)
        self.head = self.shape.vocabulary * self.hidden

    @cached_property
    def made(self) -> int:
        """Reading every projection in 16 bit: as it is, or made of its 4 bits, written and read."""
        weights = 2 * self.shape.linear_parameters
        return self.model.linear_bytes + 2 * weights if self.settings.four_bit else weights

    def token(self, cached: float) -> Load:
        """Sampling one token of every row, from so many in the cache."""
        s, layers, rows = self.settings, self.shape.layers, self.settings.sampled_rows
        groups = self.shape.heads // self.shape.kv_heads
        # Prompts of unlike length are masked, for which unsloth copies keys and values for every head.
        copies = 1 + 2 * groups if rows > s.num_generations and groups > 1 else 1
        per_row = 32 * self.hidden + 11 * self.attention + 16 * self.keys + 17 * self.ffn
        cache = rows * self.shape.kv_bytes_per_token
        found = self._weights(rows) + 2 * self.lora + 2 * self.head + cache * (1 + copies * cached)
        found += rows * (2 * layers * per_row + SAMPLING_BYTES * self.shape.vocabulary)
        scores = 4 * self.attention * cached * layers
        flops = rows * (2 * (self.shape.linear_parameters + self.lora + self.head) + scores)
        return Load(found, flops, 38 * layers)

    def _weights(self, rows: int) -> float:
        """The projections for a token of so many rows.  What is made in 16 bit, unsloth multiplies row by row where its
        input is a slice of a wider buffer: query, key and value (see ``sampling.head_in_one_product``)."""
        if self.settings.four_bit and rows <= FUSED_ROWS:
            return self.model.linear_bytes
        sizes = [2 * self.hidden * size for size in (self.attention, self.keys, self.keys)]
        return self.made + (rows - 1) * self.shape.layers * sum(n for n in sizes if n > CACHED_BYTES)

    def forward(self, rows: int, tokens: int, scored: int, lora: bool = True) -> Load:
        """A pass over rows of so many tokens, of which the last ``scored`` get log-probabilities."""
        shape, n = self.shape, rows * tokens
        moved = self.inputs + self.outputs + 10 * self.hidden + 3 * self.ffn
        moved += 4 * self.attention + 4 * self.keys
        if lora:
            moved += self.inputs + 2 * self.outputs
        dense = shape.linear_parameters + self.lora * lora
        flops = n * (2 * dense + 4 * self.attention * tokens * shape.layers)
        layers = Load(
            self.made + 6 * self.lora * lora + 2 * n * shape.layers * moved, flops, 50 * shape.layers
        )
        return layers + self._head(rows * scored)

    def _head(self, scored: int) -> Load:
        """Logits of so many tokens, tile by tile: written, and read for their statistics."""
        blocks, tiles = -(-scored // HEAD_ROWS), -(-self.shape.vocabulary // HEAD_COLUMNS)
        once = 2 * self.head * blocks + 2 * tiles * scored * self.hidden
        return Load(once + 8 * scored * self.shape.vocabulary, 2 * scored * self.head) if scored else Load()

    def prefill(self) -> Load:
        """The prompts of all rows, the first token's logits, and the cache moved into unsloth's buffers."""
        s = self.settings
        moved = 4 * s.sampled_rows * s.prompt_tokens * self.shape.kv_bytes_per_token
        return self.forward(s.sampled_rows, s.prompt_tokens, 0) + Load(2 * self.head + moved)

    def update(self, rows: int, tokens: int, scored: int) -> Load:
        """Forward, and backward with every layer computed once more.

        The head forms its gradient in the forward pass: it reads each tile again, writes and reads it in 16 bit, and
        adds to a float32 accumulator.  A layer's gradients: 3 O + 6 I, and 12 H + 6 F + 7 A + 7 G.
        """
        shape, n = self.shape, rows * tokens
        tiles = -(-shape.vocabulary // HEAD_COLUMNS)
        head = self._head(scored * rows) + Load(8 * rows * scored * (shape.vocabulary + tiles * self.hidden))
        again = self.forward(rows, tokens, 0)
        moved = 3 * self.outputs + 6 * self.inputs + 12 * self.hidden + 6 * self.ffn
        moved += 7 * (self.attention + self.keys)
        dense = shape.linear_parameters + 2 * self.lora
        flops = n * (2 * dense + 10 * self.attention * tokens * shape.layers)
        back = Load(self.made + 2 * n * shape.layers * moved, flops, 100 * shape.layers)
        return self.forward(rows, tokens, scored) + head + again + back

    def phases(self) -> dict[str, Load]:
        """Phase -> what an update of the weights asks for, all its completions together."""
        s = self.settings
        completions = s.micro_rows * s.accumulation
        sampled = completions / (s.sampled_rows * s.iterations)  # generation batches
        batches = completions / s.micro_rows
        given = (s.micro_rows, s.row_tokens, s.completion_tokens)
        before = Load()
        if s.passes.reference:
            before += self.forward(*given, lora=s.reference_copy)
        if not s.passes.single:
            before += self.forward(*given)
        decoded = self.token(s.prompt_tokens + s.completion_tokens / 2) * (s.completion_tokens - 1)
        moments = 2 if "8bit" in s.optimizer else 8
        return {
            "prefill": self.prefill() * sampled,
            "decode": decoded * sampled,
            "log-probs": before * (batches / s.iterations),
            "update": self.update(*given) * batches,
            "optimizer": Load((24 + 2 * moments) * self.lora, 20 * self.lora, 10),
        }
