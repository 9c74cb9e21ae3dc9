"""Sample completions: the kit's own loop on a CPU, and as many rows of a batch at once as fit into memory.

For each token, transformers' own loop draws one random variate per vocabulary entry (``torch.multinomial``), and keeps
computing finished rows until the last row ends.  :func:`decode` draws one uniform number per row, drops rows as they
end, and computes each prompt once for all its completions: the same distribution in a fraction of the time.  On a GPU
unsloth has its own loop.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence

from rloo_kit.errors import NonFiniteError
from rloo_kit.memory import out_of_memory
from rloo_kit.memory.formulas import DRAWN_AT_ONCE
from rloo_kit.memory.hardware import four_bit_rows
from rloo_kit.policy import dequantize_for_sampling, onednn_linear
from rloo_kit.policy.thinking import Budget

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

BLOCK = 128
"""Entries per block when drawing: sums in a block are vectorised, the cumulative sum over blocks is not."""


@contextmanager
def head_in_one_product(model: torch.nn.Module) -> Iterator[None]:
    """Works around: on a GPU unsloth hands lm_head a slice of a wider buffer, and torch then reads the matrix once for
    each row (aten's LinearAlgebra.cpp, ``should_fold``).  Here lm_head's input is made contiguous; no value changes.
    On a CPU, oneDNN computes lm_head's product."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is None or head.weight.device.type == "cpu":
        with onednn_linear.in_use(head) if head is not None else nullcontext():
            yield
        return
    with head.register_forward_pre_hook(lambda module, given: (given[0].contiguous(), *given[1:])):
        yield


@contextmanager
def decode_graphs(model: torch.nn.Module) -> Iterator[None]:
    """Works around: unsloth replays decoding as CUDA graphs only in a trainer's generate.  Inside this block it does so
    too, and the graphs' buffers are freed afterwards.  UNSLOTH_DECODE_CUDA_GRAPHS=0 still switches them off."""
    graphs = sys.modules.get("unsloth.models._decode_graphs")  # imported on a GPU only
    with graphs.rl_generation() if graphs else nullcontext():
        try:
            yield
        finally:
            if graphs:
                graphs.release_for_training(model)


@torch.no_grad()
def decode(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **model_inputs: Any,
) -> torch.Tensor:
    """Sample, or search greedily, as ``transformers.GenerationMixin._sample`` does; given as ``custom_generate``.

    Takes the arguments that ``generate`` prepares, with input_ids (rows, prompt) padded on the left.  Returns ids
    (rows, prompt + longest completion) padded on the right.  A cache that cannot drop rows goes to transformers' loop.
    """
    from transformers import DynamicCache

    if not isinstance(model_inputs.get("past_key_values"), DynamicCache):
        prepared = (input_ids, logits_processor, stopping_criteria, generation_config)
        sampled: torch.Tensor = model._sample(*prepared, **model_inputs)
        return sampled
    choose = draw if generation_config.do_sample else partial(torch.argmax, dim=-1)
    mask, cache = model_inputs.pop("attention_mask"), model_inputs.pop("past_key_values")
    model_inputs.pop("use_cache", None)
    whole = input_ids.new_full((len(input_ids), generation_config.max_length), generation_config.pad_token_id)
    whole[:, : input_ids.size(1)] = input_ids
    rows, ids = torch.arange(len(input_ids)), input_ids
    cached = {"past_key_values": cache, "use_cache": True}
    first, prompt = _distinct(input_ids, mask)
    model_inputs["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[first]
    logits = model(input_ids=input_ids[first], attention_mask=mask[first], **cached, **model_inputs).logits
    logits = logits[:, -1][prompt]
    if len(first) < len(rows):
        cache.batch_select_indices(prompt)
    while True:
        scores = logits_processor(ids, logits.float())
        del logits
        step = choose(scores).unsqueeze(1)
        del scores  # free it before the next forward pass
        ids = torch.cat([ids, step], dim=1)
        whole[rows, ids.size(1) - 1] = step.squeeze(1)
        going = ~stopping_criteria(ids, None)
        if not going.any():
            return whole[:, : ids.size(1)]
        if not going.all():
            rows, ids, step, mask = rows[going], ids[going], step[going], mask[going]
            cache.batch_select_indices(going.nonzero().squeeze(1))
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        model_inputs["position_ids"] = mask.sum(1, keepdim=True) - 1
        logits = model(input_ids=step, attention_mask=mask, **cached, **model_inputs).logits[:, -1]


def _distinct(ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first row of each distinct prompt (prompts,), and the index of each row's prompt (rows,)."""
    seen: dict[tuple[int, ...], int] = {}
    which = [seen.setdefault(tuple(row), len(seen)) for row in torch.cat([ids, mask], dim=1).tolist()]
    return torch.tensor([which.index(prompt) for prompt in range(len(seen))]), torch.tensor(which)


def draw(scores: torch.Tensor) -> torch.Tensor:
    """Draw one token per row by inverse CDF: the first whose cumulative probability exceeds a uniform number.

    Takes float32 logits (rows, vocabulary) and returns indices (rows,).  An entry of probability 0 is never drawn.
    Raises NonFiniteError if a row is not a distribution.
    """
    top = scores.amax(1, keepdim=True)
    sums = torch.cat([_block_sums(tile, top) for tile in scores.split(DRAWN_AT_ONCE, dim=1)], dim=1)
    below = sums.double().cumsum(1)
    if not below[:, -1].isfinite().all():
        raise NonFiniteError(
            "the policy's logits are not finite, so it cannot be sampled from",
            where=f"{int((~below[:, -1].isfinite()).sum())} of {len(scores)} completions",
            todo="look for NaN in the weights: load the policy anew, or train(resume_from_checkpoint=True)",
        )
    uniform = torch.rand(len(scores), 1, dtype=torch.float64, device=scores.device)
    block, left = _first_above(below, uniform * below[:, -1:])
    inside = block * BLOCK + torch.arange(BLOCK, device=scores.device)
    past_end = inside >= scores.size(1)
    entries = (scores.gather(1, inside.masked_fill(past_end, 0)) - top).exp().masked_fill(past_end, 0.0)
    entry, _ = _first_above(entries.double().cumsum(1), left)
    return (block * BLOCK + entry).squeeze(1)


def _block_sums(scores: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    # The last block may be shorter: padding it would copy the tile.
    chances = (scores - top).exp_()
    whole = chances.size(1) // BLOCK * BLOCK
    sums = chances[:, :whole].unflatten(1, (-1, BLOCK)).sum(2)
    last = chances[:, whole:]
    return torch.cat([sums, last.sum(1, keepdim=True)], dim=1) if last.size(1) else sums


def _first_above(cumulated: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the index at which a row first exceeds its value (rows, 1), and the value minus the sum before it."""
    total = cumulated[:, -1:]
    # Rounding may bring the value up to the total, which no entry exceeds.
    value = torch.minimum(value, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulated, value, right=True)
    before = torch.where(index > 0, cumulated.gather(1, (index - 1).clamp(min=0)), 0.0)
    return index, value - before


def packed(rows: Iterable[int], lengths: Sequence[int], at_once: int) -> list[list[int]]:
    """Cut row indices as evenly as possible into the fewest slices, with rows of similar length together.

    The longest rows come first, so that a lack of memory shows early.  A single slice keeps its order.

    >>> packed(range(5), lengths=[3, 9, 4, 8, 3], at_once=3)
    [[1, 3], [2, 0, 4]]
    """
    order = list(rows)
    if len(order) <= at_once:
        return [order]
    order.sort(key=lambda row: -lengths[row])
    count = -(-len(order) // at_once)
    cuts = [len(order) * cut // count for cut in range(count + 1)]
    return [order[start:end] for start, end in itertools.pairwise(cuts)]


@dataclass(eq=False, repr=False)
class SlicedGenerate:
    """``model.generate`` for a batch padded on the left, at most ``at_once`` rows at a time.

    If memory runs out in a slice and ``halves`` is set, ``at_once`` becomes half of that slice for good, and its rows
    are sampled again.  The rows that did not fit had long completions, so this favours shorter ones slightly, each
    time.  ``fast`` uses the kit's own loop on a CPU.  ``in_16_bit`` holds 4-bit weights in 16 bit
    (:mod:`.dequantize_for_sampling`), and is switched off before rows are halved.
    """

    model: Any
    at_once: int
    pad_id: int
    fast: bool = True
    halves: bool = True
    in_16_bit: bool = False
    budget: Budget | None = None

    def __post_init__(self) -> None:
        self._generate = self.model.generate  # kept here: the trainer replaces model.generate by this object

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **how: Any) -> torch.Tensor:
        """As ``model.generate``: ids (rows, tokens) to ids (rows, tokens + longest completion), padded on the right."""
        from transformers import LogitsProcessorList

        how |= {"logits_processor": LogitsProcessorList([self.budget])} if self.budget else {}
        if self.fast and input_ids.device.type == "cpu":
            how["custom_generate"] = decode
        lengths = attention_mask.sum(1).tolist()
        completions: dict[int, torch.Tensor] = {}
        waiting = packed(range(len(lengths)), lengths, self.at_once)
        while waiting:
            rows, training = waiting[0], self.model.training
            width = max(lengths[row] for row in rows)
            ids, mask = input_ids[rows, -width:], attention_mask[rows, -width:]
            try:
                held = self.in_16_bit and len(rows) > four_bit_rows()
                with dequantize_for_sampling.in_16_bit(self.model) if held else nullcontext():
                    texts = self._generate(input_ids=ids, attention_mask=mask, **how)
            except (RuntimeError, MemoryError) as error:
                halves = self.halves and len(rows) > 1
                if not (held or halves) or not out_of_memory.is_out_of_memory(error):
                    raise
                _recover(self.model, training)
                out_of_memory.let_go(error)
                if held:
                    self.in_16_bit = False
                else:
                    self.at_once = -(-len(rows) // 2)
                    waiting = packed(itertools.chain(*waiting), lengths, self.at_once)
            else:
                completions |= zip(rows, texts[:, width:], strict=True)
                waiting = waiting[1:]
        in_order = [completions[row] for row in range(len(lengths))]
        return torch.cat([input_ids, pad_sequence(in_order, batch_first=True, padding_value=self.pad_id)], 1)


def _recover(model: Any, training: bool) -> None:
    """Works around: if unsloth's ``generate`` fails on a GPU, the model stays in inference mode and keeps the buffers
    of that many rows, beside those of the next, smaller slice."""
    if training and not model.training:
        model.for_training()
    if graphs := sys.modules.get("unsloth.models._decode_graphs"):
        graphs.release_for_training(model)
