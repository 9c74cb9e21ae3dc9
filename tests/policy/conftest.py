"""What the policy room's tests share."""

from typing import Any

import torch


def moved(policy: Any, size: float = 0.2) -> Any:
    """The policy with a LoRA that says other things than the base."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=size, generator=generator)
    return policy
