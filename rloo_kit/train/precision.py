"""In which precision a run computes, and that what is trained stays in the one that it was loaded in.

For ``RLOOConfig`` and :class:`rloo_kit.RLOOTrainer`.  The weights' precision is the loader's: float32 (unsloth, PEFT).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rloo_kit.session import processes

if TYPE_CHECKING:
    import torch

VARIABLE = "ACCELERATE_MIXED_PRECISION"
"""Where bf16 and fp16 are both False transformers takes this one's (training_args.py, ``__post_init__``)."""

_by_unsloth: str | None = None  # its trainer for GPUs writes the variable


def settled(given: Mapping[str, Any]) -> dict[str, bool]:
    """The device's 16-bit type unless the user chose one: in the configuration, or on a GPU by the variable.

    Args:
        given: the arguments of a configuration.
    """
    import torch
    import unsloth

    on_gpu, asked = torch.cuda.is_available(), os.environ.get(VARIABLE, "no").lower()
    asked = (
        "no" if asked == _by_unsloth else asked
    )  # and accelerate launch says "no" where it was told nothing
    chosen = given.get("bf16") is not None or bool(given.get("fp16"))  # command lines always pass fp16=False
    if chosen and on_gpu:
        taken = "fp16" if given.get("fp16") else "bf16" if given["bf16"] else "float32"
    else:
        taken = ("bf16" if unsloth.is_bfloat16_supported() else "fp16") if on_gpu else "float32"
    named = [name for name in ("bf16", "fp16") if given.get(name)]
    if named and not on_gpu:
        processes.warn(
            f"{named[0]}=True of RLOOConfig has no effect on a CPU, where a run computes in float32, or as "
            "UNSLOTH_CPU_BF16 says. What to do: leave it out."
        )
    elif asked not in ("no", taken):
        obeyed = on_gpu and not chosen and asked in ("bf16", "fp16")
        processes.warn(
            f"{VARIABLE}={asked} decides: the run computes in {asked}, and not in {taken} as on this GPU by default. "
            f"What to do: unset it, or RLOOConfig({taken}=True)."
            if obeyed
            else f"{VARIABLE}={asked} has no effect: the run computes in {taken}, "
            f"{'as RLOOConfig says' if on_gpu else 'as on every CPU, so that results agree'}. "
            "What to do: unset it."
        )
        taken = asked if obeyed else taken
    return {} if chosen else {name: taken == name for name in ("bf16", "fp16")}


@contextlib.contextmanager
def in_its_precision(model: torch.nn.Module | str) -> Iterator[None]:
    """Works around: TRL's trainer turns what is trained of a quantised model to bfloat16 when it is made
    (rloo_trainer.py, after Dettmers et al. 2023, paragraph 3).

    Eight bits of mantissa hold no change below 1 part in 256, and a step of learning rate 1e-5 is a thousandth of most
    weights.  On a GPU unsloth takes those lines out (its models/rl.py).  A model that is only named is TRL's to load.
    """
    global _by_unsloth
    weights, before = () if isinstance(model, str) else model.parameters(), os.environ.get(VARIABLE)
    trained = [(weight, weight.data) for weight in weights if weight.requires_grad]
    try:
        yield
    finally:
        if (written := os.environ.get(VARIABLE)) != before:
            _by_unsloth = written
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
