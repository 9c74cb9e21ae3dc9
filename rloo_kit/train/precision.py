"""The LoRA stays in the precision that it was loaded in.

For :class:`rloo_kit.RLOOTrainer`.  Which precision that is, the loader decides: float32 (unsloth, PEFT).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def in_its_precision(model: torch.nn.Module | str) -> Iterator[None]:
    """Works around: TRL's trainer turns what is trained of a quantised model to bfloat16 when it is made
    (rloo_trainer.py, after Dettmers et al. 2023, paragraph 3).

    Eight bits of mantissa hold no change below 1 part in 256, and a step of learning rate 1e-5 is a thousandth of most
    weights.  On a GPU unsloth takes those lines out (its models/rl.py).  A model that is only named is TRL's to load.
    """
    weights = () if isinstance(model, str) else model.parameters()
    trained = [(weight, weight.data) for weight in weights if weight.requires_grad]
    try:
        yield
    finally:
        for weight, exact in trained:
            if weight.dtype != exact.dtype:
                weight.data = exact.to(weight.device)
