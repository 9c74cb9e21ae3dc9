"""Shared by the policy tests."""

from typing import Any

import pytest
import torch


def moved(policy: Any, size: float = 0.2) -> Any:
    """Return the policy with a LoRA that moves it away from the base."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=size, generator=generator)
    return policy


def watched(model: Any, monkeypatch: pytest.MonkeyPatch, room: int = 100) -> list[int]:
    """Return the rows of each call of the model's ``generate``, which runs out of memory beyond ``room`` rows."""
    bound, calls = model.generate, []

    def generate(**given: Any) -> Any:
        calls.append(len(given["input_ids"]))
        if calls[-1] > room:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return bound(**given)

    monkeypatch.setattr(model, "generate", generate, raising=False)
    return calls
