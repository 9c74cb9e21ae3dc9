"""Count the live bytes of tensors at every operation, to compare a memory plan with."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rloo_kit.memory.policy_tensors import quantisation_tensors


class TensorGauge(TorchDispatchMode):
    """Live bytes of tensors on a CPU, counted at every operation inside ``with gauge:``, and their peak.

    Each storage counts once, from the operation that returns it until it is freed; a kernel's own buffers do not count.
    """

    def __init__(self, standing: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self.live_bytes = self.peak_bytes = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._sizes: dict[int, int] = {}
        for tensor in standing:
            self._count(tensor)
        self.restart()

    def restart(self) -> None:
        self.peak_bytes = self.live_bytes

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if self._sizes.get(key, 0) == size:
            return

        def freed(_: object) -> None:
            if self._known.pop(key, None) is not None:
                self.live_bytes -= self._sizes.pop(key)

        if key not in self._known:
            self._known[key] = weakref.ref(storage, freed)
        self.live_bytes += size - (before := self._sizes.get(key, 0))
        self._sizes[key] = size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes + before)  # resize_ copies: both sizes live at once


def standing_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    parameters = list(model.parameters())
    found: list[torch.Tensor] = [*parameters, *model.buffers()]
    found += [tensor for p in parameters for tensor in quantisation_tensors(p)]
    return found + [p.grad for p in parameters if p.grad is not None]
