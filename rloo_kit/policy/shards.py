"""Weights that several processes hold in parts: made whole for a while, by all of them together.

For :mod:`.policy` and :mod:`.weights`.  Parts are DeepSpeed's ZeRO-3.  FSDP's are not gathered here: its policies are
saved by the trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextmanager
def gathered(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Whole parameters while inside, where ZeRO-3 has cut them; all processes have to enter it."""
    shards = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    if not shards:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(shards):
        yield


@contextmanager
def uncut() -> Iterator[None]:
    """Load a model whole, also where an ``RLOOConfig(deepspeed=...)`` was made before.

    A configuration of ZeRO-3 sets a global of transformers, which then refuses the ``device_map`` that unsloth gives
    (modeling_utils.py, "DeepSpeed Zero-3 is not compatible with passing a `device_map`").  DeepSpeed cuts the weights
    when the training begins.
    """
    from transformers.integrations import deepspeed

    configured = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = configured


def local(parameter: torch.nn.Parameter) -> torch.Tensor:
    """What this process holds of a parameter: all of it, or its shard."""
    held: torch.Tensor = getattr(parameter, "ds_tensor", parameter)
    return held.detach()


def wait_for_others() -> None:
    """Return when every process of the run is here; at once where there is one, or none has a group yet."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.barrier()
