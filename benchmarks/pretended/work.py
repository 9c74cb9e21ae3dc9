"""What a kernel does, in figures: bytes read and written, floating-point operations."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Work:
    """What some kernels do: bytes, floating-point operations (a multiply and an add are two), and how many they are."""

    read: float = 0.0
    written: float = 0.0
    flops: float = 0.0
    kernels: float = 0.0

    @property
    def bytes(self) -> float:
        """Read and written."""
        return self.read + self.written

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, times: float) -> Work:
        return Work(*(times * a for a in astuple(self)))

    def __sub__(self, other: Work) -> Work:
        return self + other * -1


def total(works: Iterable[Work]) -> Work:
    """The sum."""
    return functools.reduce(Work.__add__, works, Work())


def size(value: Any) -> int:
    """Bytes of the tensors in a value, without the dimensions along which a tensor repeats (stride 0)."""
    found = 0
    for tensor in tree_leaves(value):
        if isinstance(tensor, torch.Tensor):
            lengths = zip(tensor.shape, tensor.stride(), strict=True)
            found += tensor.element_size() * math.prod(n for n, stride in lengths if stride or not n)
    return found
