"""In which order prompts come: TRL's own, the same again where a run is resumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import Sampler


class ByEpoch(Sampler[int]):
    """TRL's order of prompts, of any epoch.

    Works around: TRL's sampler shuffles each epoch by where its generator has got to, so that a run that is resumed in
    the second epoch would see the first one's order again.

    Args:
        sampler: TRL's ``RepeatSampler``.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.epoch = sampler, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        if self.sampler.shuffle and self.sampler.seed is not None:
            self.sampler.generator.manual_seed(self.sampler.seed)
            for _ in range(self.epoch):
                torch.randperm(self.sampler.num_samples, generator=self.sampler.generator)
        return iter(self.sampler)
