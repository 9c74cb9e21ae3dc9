"""vLLM's share of a GPU that also trains: how much, what it holds, and what it lets go of in standby.

For :mod:`.planning`.  Two ways put vLLM on the GPU: unsloth's ``fast_inference``, which gives the trainer vLLM's own
weights, and TRL's ``vllm_mode="colocate"``, which keeps its own.  A server's memory is another GPU's.  Arithmetic only;
read in unsloth, unsloth_zoo 2026.10.9 and TRL 1.15, and not measured: vLLM was not run for this kit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rloo_kit.session.show import GIB

FAST_INFERENCE_SHARE = 0.5
"""``gpu_memory_utilization`` where ``load_policy`` is not told: unsloth's ``from_pretrained``."""

COLOCATE_SHARE = 0.3
"""``vllm_gpu_memory_utilization``: TRL's RLOOConfig."""

STANDBY_SHARES = ((40, 0.925), (25, 0.9), (20, 0.825), (14, 0.8), (10, 0.775), (0, 0.75))
"""Shares that unsloth_zoo's ``load_vllm`` puts in place of the one asked for in standby, by GiB of the GPU at least."""

STANDBY_FACTOR = 0.95
"""What it multiplies them by."""


@dataclass(frozen=True)
class Engine:
    """vLLM on the GPU that trains.

    Attributes:
        share_bytes: what it takes while it samples: weights, key-value cache, its activations.
        shares_weights: whether the trainer's weights are vLLM's, so that they are part of the share.
        standby: whether it lets go of its cache, and of weights of its own, while the trainer works.
    """

    share_bytes: int
    shares_weights: bool
    standby: bool

    def beside(self, weights: int, asleep: bool) -> int:
        """Bytes beside the trainer's own ``weights``, awake or asleep."""
        if asleep and self.standby:
            return 0
        return max(0, self.share_bytes - (weights if self.shares_weights else 0))

    def cached_tokens(self, weights: int, token_bytes: int) -> int:
        """How many tokens' keys and values fit beside the weights, at most; vLLM's activations take some of it."""
        return max(0, self.share_bytes - weights) // token_bytes


def of(
    usable_bytes: int,
    config: Any = None,
    model: Any = None,
    fast_inference: bool = False,
    share: float | None = None,
) -> Engine | None:
    """The engine of a run on a GPU; None where vLLM does not sample on it.

    Args:
        usable_bytes: the GPU's; shares are taken of them, as unsloth's are of what is free.
        config: an ``RLOOConfig``, or None.
        model: a loaded one; its ``vllm_engine`` says what it was given.
        fast_inference, share: as for ``load_policy``, ``gpu_memory_utilization``.
    """
    standby = bool(getattr(config, "vllm_enable_sleep_mode", False))
    loaded = getattr(model, "vllm_engine", None)
    if loaded is not None:
        given = setting(loaded, "cache_config.gpu_memory_utilization", FAST_INFERENCE_SHARE)
        return Engine(int(given * usable_bytes), True, sleeps(loaded))
    if fast_inference:
        share = FAST_INFERENCE_SHARE if share is None else share
        return Engine(int((standby_share(usable_bytes) if standby else share) * usable_bytes), True, standby)
    if not getattr(config, "use_vllm", False) or getattr(config, "vllm_mode", "colocate") != "colocate":
        return None
    share = getattr(config, "vllm_gpu_memory_utilization", COLOCATE_SHARE)
    return Engine(int(share * usable_bytes), False, standby)


def sleeps(loaded: Any) -> bool:
    """Whether a loaded engine was made with vLLM's sleep mode, which unsloth calls standby."""
    return bool(setting(loaded, "model_config.enable_sleep_mode", False))


def setting(loaded: Any, path: str, default: Any) -> Any:
    """One of a loaded vLLM's settings, where unsloth looks for them; the default where this release has it not."""
    found = loaded
    for name in ("llm_engine", "vllm_config", *path.split(".")):
        found = getattr(found, name, None)
    return default if found is None else found


def standby_share(gpu_bytes: int) -> float:
    """What unsloth gives vLLM in standby, whatever was asked for.

    >>> round(standby_share(24 * 2**30), 3), round(standby_share(80 * 2**30), 3)
    (0.784, 0.879)
    """
    return STANDBY_FACTOR * next(share for least, share in STANDBY_SHARES if gpu_bytes >= least * GIB)
