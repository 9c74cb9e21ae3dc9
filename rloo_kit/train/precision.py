"""What is trained stays in the precision that it was loaded in, and so does the reference.

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


def as_at_the_start(reference: torch.nn.Module | None, model: torch.nn.Module) -> None:
    """Works around: without PEFT TRL loads the reference by the model's name, in float32, whatever the model's weights
    and precision are by then.

    Args:
        reference: TRL's second model; None where there is none, and nothing is done.
        model: the policy, before its first step.
    """
    if reference is None:
        return
    # By parameter: a cast of the whole module would round the rotary embedding's frequencies, too.
    for kept, trained in zip(reference.parameters(), model.parameters(), strict=True):
        kept.data = trained.detach().clone().to(kept.device)
