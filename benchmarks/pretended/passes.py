"""The passes of a training step on meta tensors, counted: prefill, a decoded token, log-probabilities, the update.

Unsloth's own code runs, at the real shapes; see :mod:`.meta`.  For a process that began with
``start(card, target="meta")``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rloo_kit import Policy

from .counter import Counter
from .meta import META, Answers, make_passes_run
from .work import Work, size, total

CACHE_MIB = {"t4": 4, "rtx 3090": 6, "rtx 4060": 24}
"""Second-level cache (NVIDIA's whitepapers of Turing, GA102 and Ada)."""

Found = dict[str, Work]


class Passes:
    """Counts passes of one policy after another."""

    def __init__(self, card: str) -> None:
        self.counter = Counter(cache_bytes=CACHE_MIB[card] * 2**20)
        self.counter.count_launches()
        self._answers: Answers = make_passes_run()
        self._padded, self._left = False, 0
        self._marks: list[Found] = []
        self._watch_generation()
        self._count_head()

    def of(self, policy: Policy) -> None:
        """Take up a policy."""
        from trl.trainer.utils import add_fused_lm_head

        self.model: Any = policy.model
        add_fused_lm_head(self.model.base_model.model, outputs=("log_probs", "entropy"))
        self.model.for_training()

    def generate(self, rows: int, prompt: int, padded: bool = False) -> tuple[Found, Found]:
        """Of all rows: the prefill with the cache's first allocation, and the decoding of one token from a cache of
        ``prompt + 1``, its sampling included."""
        ids, self._padded = torch.zeros(rows, prompt, dtype=torch.long, device=META), padded
        self._marks, self._left = [], 3
        self.counter.taken()
        sampled = {"max_new_tokens": 3, "do_sample": True, "temperature": 1.0, "top_k": 0}
        with torch.no_grad(), self.counter:
            self.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **sampled)
        prefill, _, first, steady = self._marks
        names = {*prefill, *first, *steady}
        before = {n: prefill.get(n, Work()) + first.get(n, Work()) - steady.get(n, Work()) for n in names}
        return before, steady

    def update(self, rows: int, prompt: int, completion: int) -> tuple[Found, Found]:
        """The forward pass, and the backward pass with what is recomputed."""
        for parameter in self.model.parameters():
            parameter.grad = None
        loss = self._forward(rows, prompt, completion)
        forward = self.counter.taken()
        with self.counter:
            loss.backward()
        return forward, self.counter.taken()

    def log_probs(self, rows: int, prompt: int, completion: int) -> Found:
        """A pass without gradient."""
        with torch.no_grad():
            self._forward(rows, prompt, completion)
        return self.counter.taken()

    def _forward(self, rows: int, prompt: int, completion: int) -> torch.Tensor:
        """Rows without padding on the left: the kit trims a group's, and stock drops the mask."""
        ids = torch.zeros(rows, prompt + completion, dtype=torch.long, device=META)
        self._answers.selected, self._padded = rows * completion, False
        for module in self.model.modules():
            if hasattr(module, "embed_tokens"):
                module._unsloth_keep_padding_mask = False
        self.counter.taken()
        with self.counter, torch.autocast("cuda", dtype=self._dtype):
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
            found = self.model(**given, fused_lm_head=True, use_cache=False)
            loss: torch.Tensor = found.log_probs[:, -completion:].float().sum()
        return loss

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = self.model.get_input_embeddings().weight.dtype
        return found

    def _watch_generation(self) -> None:
        """End ``generate`` after so many tokens, and put a mark between them; say whether prompts are padded."""
        import unsloth.models.llama
        from transformers.generation.utils import GenerationMixin

        def goes_on(*args: Any, **kwargs: Any) -> bool:
            self._marks.append(self.counter.taken())
            self._left -= 1
            return self._left >= 0

        GenerationMixin._has_unfinished_sequences = goes_on
        masks = unsloth.models.llama.AttentionMaskConverter
        masks._ignore_causal_mask_sdpa = staticmethod(lambda *args, **kwargs: not self._padded)

    def _count_head(self) -> None:
        """The head's products, which :mod:`.meta` leaves out."""
        import unsloth_zoo.fused_losses.fused_linear as head

        make, add = head._mm_fp32, head._addmm_fp32

        def counted(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> Any:
            found = make(a, b, out)
            flops = 2 * a.shape[0] * a.shape[1] * b.shape[1]
            self.counter.add("head's product", Work(size((a, b)), size(found), flops, 1))
            return found

        def added(acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
            add(acc, a, b)
            flops = 2 * a.shape[0] * a.shape[1] * b.shape[1]
            self.counter.add("head's product", Work(size((a, b, acc)), size(acc), flops, 1))

        head._mm_fp32, head._addmm_fp32 = counted, added


OF_PRODUCTS = ("UNSLOTH_BNB_GEMM_4BIT", "UNSLOTH_GEMV_MAX_ROWS")


@contextmanager
def switched(variables: dict[str, str]) -> Iterator[None]:
    """Unsloth's switches of its 4-bit products, as if they had been set before it was imported; one that is not given
    is not set, although the kit sets it."""
    import unsloth.kernels.utils as kernels

    before = {name: os.environ.pop(name) for name in OF_PRODUCTS if name in os.environ}
    rows = kernels._GEMV_MAX_ROWS

    def read_again() -> None:
        kernels._GEMV_ROWS_CAP.clear()
        kernels._BNB_GEMM_4BIT_DEVICE.clear()
        kernels._BNB_GEMM_4BIT, kernels._BNB_GEMM_4BIT_DTYPES = None, (torch.float16,)

    os.environ.update(variables)
    kernels._GEMV_MAX_ROWS = int(variables.get(OF_PRODUCTS[1], rows))
    read_again()
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)
        kernels._GEMV_MAX_ROWS = rows
        read_again()


def whole(found: Found) -> Work:
    """All kernels together."""
    return total(found.values())
