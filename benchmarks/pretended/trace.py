"""Trace the live bytes of one RLOO step, phase by phase, on meta tensors through Unsloth's own code.

A memory plan is compared with them.  They count tensors: weights, LoRA, optimizer, gradients, cache, activations,
Unsloth's buffers.  They leave out the CUDA context, fragmentation, and what a kernel allocates inside.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .shapes import load  # isort: skip - Unsloth first
import torch
from bitsandbytes.optim import AdamW8bit
from trl.trainer.utils import add_fused_lm_head
from unsloth.kernels.utils import _SCRATCH as scratch
from unsloth_zoo.gradient_checkpointing import initialize_unsloth_gradient_checkpointing

from rloo_kit.models import CATALOGUE, Checkpoint

from .gauge import TensorGauge, standing_tensors
from .meta import Answers, on_meta

if TYPE_CHECKING:
    from rloo_kit import Policy

SAMPLED = 3
"""Tokens sampled before the jump to the last one."""


@dataclass(frozen=True)
class Case:
    """A configuration: ``rows`` completions of ``completion`` tokens are sampled at once, and trained on ``micro`` at a
    time.  ``checkpointing`` and ``optimizer`` are as in the config; None for ``layers`` means all of the shape's."""

    model: str
    layers: int | None = None
    rows: int = 8
    micro: int = 2
    prompt: int = 512
    completion: int = 1024
    padded: bool = False
    checkpointing: bool | str = "unsloth"
    optimizer: str = "adamw_torch_fused"

    @property
    def checkpoint(self) -> Checkpoint:
        whole = CATALOGUE[self.model]
        return replace(whole, layers=self.layers or whole.layers)


class MetaGauge(TensorGauge):
    def _count(self, tensor: torch.Tensor) -> None:
        if on_meta(tensor):
            super()._count(tensor)


class Run:
    """Takes a policy and its optimizer through a step on the pretended card.

    Attributes:
        peaks: phase -> live bytes at its peak.
    """

    def __init__(self, case: Case, mode: Answers) -> None:
        self.case, self.mode = case, mode
        # Drop the buffers of an earlier case.
        scratch.clear()
        initialize_unsloth_gradient_checkpointing()
        longest = case.prompt + case.completion
        self.policy: Policy = load(case.checkpoint, gradient_checkpointing=case.checkpointing, max_seq_length=longest)
        self.model = self.policy.model
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        add_fused_lm_head(self.model.base_model.model, outputs=("log_probs", "entropy"))
        fused = case.optimizer == "adamw_torch_fused"
        self.optimizer = torch.optim.AdamW(self.trained, fused=True) if fused else AdamW8bit(self.trained)
        self.gauge = MetaGauge([t for t in standing_tensors(self.model) if on_meta(t)])
        self.peaks = {"load": self.gauge.live_bytes}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.gauge.restart()
        with self.gauge:
            yield
        self.peaks[name] = max(self.peaks.get(name, 0), self.gauge.peak_bytes)

    def step(self) -> None:
        """Make two updates: the first makes both offload buffers and the optimizer's state, the second is counted."""
        self._update()
        self.peaks = {"load": self.peaks["load"]}
        self._generate()
        with self.phase("log-probs"), torch.no_grad():
            self._pass()
        self._update()

    def _update(self) -> None:
        for _ in range(2):  # the second pass finds gradients
            with self.phase("forward"):
                out = self._pass()
                loss = -out.log_probs[:, -self.case.completion :].float().sum()
                del out
            with self.phase("backward"):
                loss.backward()
            del loss
        with self.phase("optimizer"):
            torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _pass(self) -> Any:
        case = self.case
        self.model.for_training(use_gradient_checkpointing=case.checkpointing)
        for module in self.model.modules():
            if hasattr(module, "embed_tokens"):
                module._unsloth_keep_padding_mask = case.padded
        self.mode.selected, self.mode.is_padded = case.micro * case.completion, case.padded
        ids = torch.zeros(case.micro, case.prompt + case.completion, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return self.model(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                labels=torch.zeros_like(ids),
                fused_lm_head=True,
                use_cache=False,
            )

    def _generate(self) -> None:
        """Sample as Unsloth's trainer does, with its captured decode step: prefill, the first token, which copies the
        prompts' cache into buffers, and, after a jump, the last token."""
        from unsloth.models import _decode_graphs

        case, drawn = self.case, itertools.count(1)
        self.mode.is_padded = case.padded
        ids = torch.zeros(case.rows, case.prompt, dtype=torch.long, device="cuda")

        def after_a_token(ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
            if next(drawn) == SAMPLED:
                raise _Finished  # a meta tensor has no value to say that all rows are done
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

        self.model.for_inference()
        with self.phase("generate"), _decode_graphs.rl_generation():
            with contextlib.suppress(_Finished):
                self.model.generate(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    do_sample=True,
                    max_new_tokens=case.completion,
                    top_k=0,
                    stopping_criteria=[after_a_token],
                )
            with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16):
                self._last_token()
        _decode_graphs.release_for_training(self.model)

    def _last_token(self) -> None:
        """Decode a token, grow the buffers to their size at the last one, and decode that.  As transformers' loop does,
        draw after each decode, and hold scores and probabilities until they are replaced."""
        from unsloth.models import _decode_graphs
        from unsloth.models.qwen3 import KV_CACHE_INCREMENT

        case, shape = self.case, self.policy.checkpoint
        tokens = case.prompt + case.completion
        attentions = [layer.self_attn for layer in self.model.base_model.model.model.layers]
        _decode_graphs.start_generation(tokens)
        for cached in (case.prompt + SAMPLED, tokens - 2):
            while attentions[0].paged_attention.shape[0] <= cached + 1:
                for attention in attentions:
                    _decode_graphs.resize_decode_buffers(
                        attention, KV_CACHE_INCREMENT, case.rows, shape.heads, shape.kv_heads, shape.head_dim
                    )
            views = ("paged_attention_K", "paged_attention_V")
            cache = [tuple(getattr(a, n)[:cached].permute(1, 2, 0, 3) for n in views) for a in attentions]
            ids = torch.zeros(case.rows, 1, dtype=torch.long, device="cuda")
            logits = self.model.base_model.model(
                input_ids=ids,
                past_key_values=cache,
                position_ids=ids,
                attention_mask=torch.ones(case.rows, cached + 1, dtype=torch.long, device="cuda"),
                use_cache=True,
            )[0]
            scores = logits[:, -1].to(torch.float32, copy=True)
            del logits
            probabilities = torch.nn.functional.softmax(scores, dim=-1)
            torch.multinomial(probabilities, 1)
        _decode_graphs.end_generation()


class _Finished(Exception):
    """Sampling has made as many tokens as needed."""
