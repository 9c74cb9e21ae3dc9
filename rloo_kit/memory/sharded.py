"""What a GPU holds of a policy in 16 bit whose weights ZeRO-3 cuts among several, and what it gathers.

For docs/scale.md, before anything is rented.  Computed from shapes, and measured on no GPU.  Activations, the context
and DeepSpeed's own buffers are left out: they are as in :mod:`.footprint`, and some gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from rloo_kit.catalogue import CATALOGUE, Checkpoint
from rloo_kit.memory.footprint import lora_sizes

BYTES = 2
"""Of a weight in 16 bit."""

TRAINED_BYTES = 16
"""Of a LoRA weight: itself, its gradient and AdamW's two moments, in float32."""

LIVE = 10**9
"""Parameters that DeepSpeed may keep gathered at once (``stage3_max_live_parameters``)."""

QWEN3_32B = Checkpoint("qwen3-32b", "Qwen/Qwen3-32B", 5120, 64, 64, 8, 128, 25600, False, "by choice")
QWEN25_72B = Checkpoint(
    *(
        "qwen2.5-72b-instruct",
        "Qwen/Qwen2.5-72B-Instruct",
        8192,
        80,
        64,
        8,
        128,
        29568,
        False,
        "never",
        152064,
    ),
    family="qwen2",
)
LARGE = (CATALOGUE["qwen3-8b"], QWEN3_32B, QWEN25_72B)
"""What the table of docs/scale.md is of; the last two are outside the catalogue, which is of single GPUs."""


@dataclass(frozen=True)
class Shard:
    """What one of several GPUs holds, in bytes.

    Attributes:
        weights: its part of the policy.
        trained: its part of the LoRA, with gradients and optimizer state.
        gathered: of whole weights at once, in a forward or backward pass: the larger of a layer and the embedding, or
            more where DeepSpeed keeps some for the next layer.
        synced: of whole weights while a vLLM server is sent them: TRL 1.15 gathers a policy with LoRA whole, on every
            GPU (generation/vllm_generation.py, ``_iter_named_params``).
        served: what each GPU of the server holds of the weights, if it has as many.
    """

    weights: int
    trained: int
    gathered: int
    synced: int
    served: int

    @property
    def training_bytes(self) -> int:
        """While it trains, without a server."""
        return self.weights + self.trained + self.gathered

    @property
    def syncing_bytes(self) -> int:
        """While a server is sent the weights."""
        return self.weights + self.trained + self.synced


def shard(checkpoint: Checkpoint, gpus: int, lora_rank: int = 16) -> Shard:
    """A GPU's part of a policy.

    Args:
        checkpoint: its shape.
        gpus: among which it is cut, at least 1.
        lora_rank: of the LoRA on all seven projections.

    >>> shard(QWEN25_72B, 8).weights == QWEN25_72B.parameters * 2 // 8
    True
    """
    lora = sum(lora_sizes(checkpoint, lora_rank))
    layer = checkpoint.linear_parameters // checkpoint.layers
    embedding = checkpoint.vocabulary * checkpoint.hidden_size
    whole = BYTES * checkpoint.parameters
    live = min(max(layer, embedding, LIVE), checkpoint.parameters)
    return Shard(
        weights=-(-whole // gpus),
        trained=-(-TRAINED_BYTES * lora // gpus),
        gathered=BYTES * live,
        synced=whole,
        served=-(-whole // gpus),
    )
