"""Sample a batch a slice at a time: the key-value cache of all of its completions is most of a run's memory.

For the trainer and for :meth:`Policy.generate`, around ``model.generate``.  Given their prompts completions are
independent, so slices of a batch have the distribution of the whole.  How many fit is
:meth:`rloo_kit.memory.estimate.Estimate.rows_at_once`'s to say; here is what happens where it was wrong.
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from rloo_kit.memory import shortage
from rloo_kit.policy import sampling
from rloo_kit.policy.sampling import Drawn

Arguments = dict[str, Any]
Rows = list[int]


def packed(lengths: Sequence[int], at_once: int) -> list[Rows]:
    """Indices of rows in as few slices as do, as even as may be, rows of near lengths together.

    The longest come first, so that memory that is short shows early.  A single slice keeps its order.

    >>> packed([3, 9, 4, 8, 3], at_once=3)
    [[1, 3], [2, 0, 4]]
    """
    if len(lengths) <= at_once:
        return [list(range(len(lengths)))]
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    count = -(-len(order) // at_once)
    cuts = [len(order) * cut // count for cut in range(count + 1)]
    return [order[start:end] for start, end in itertools.pairwise(cuts)]


class SlicedGenerate:
    """``model.generate`` for a batch padded on the left, at most ``at_once`` rows at a time.

    Where memory runs out in a slice of more than one row, ``at_once`` becomes half of that slice, for good, and its
    rows go on from the tokens that they have: their forward pass is repeated, no draw is.  (Drawn anew, they would
    come out shorter than the policy makes them, since long completions are what did not fit.)

    Args:
        model: what samples.
        at_once: rows of a slice, at most.
        eos_ids: what ends a completion.
        fast: on a CPU, draw with the kit's own loop (:mod:`.sampling`).
        halves: whether to go on where memory runs out.
    """

    def __init__(
        self, model: Any, at_once: int, eos_ids: Sequence[int], *, fast: bool = True, halves: bool = True
    ) -> None:
        self.model, self.at_once, self.eos_ids, self.fast, self.halves = model, at_once, eos_ids, fast, halves
        self._generate = model.generate  # as it is now: the trainer puts this object in its place

    def __call__(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **how: Any) -> torch.Tensor:
        """As ``model.generate(input_ids=..., attention_mask=..., **how)``.

        Args:
            input_ids, attention_mask: (rows, tokens).
            how: further arguments; with a tensor among them, as vision models have, the batch stays whole.

        Returns:
            (rows, tokens + longest completion) ids, padded on the right.

        Raises:
            RuntimeError, MemoryError: as torch raises them, where memory runs out and the slice is not halved.
        """
        if any(isinstance(value, torch.Tensor) for value in how.values()):
            how |= sampling.options(input_ids.device, fast=self.fast)
            return self._generate(input_ids=input_ids, attention_mask=attention_mask, **how)
        prompts = [ids[kept] for ids, kept in zip(input_ids, attention_mask.bool(), strict=True)]
        config = how.get("generation_config")
        pad_id = config.pad_token_id if config else how["pad_token_id"]
        texts = self._continued(prompts, pad_id, how)
        completions = [text[len(prompt) :] for prompt, text in zip(prompts, texts, strict=True)]
        return torch.cat([input_ids, pad_sequence(completions, batch_first=True, padding_value=pad_id)], 1)

    def _continued(self, prompts: list[torch.Tensor], pad_id: int, how: Arguments) -> list[torch.Tensor]:
        """Each prompt with its completion; one that ended before others of its slice has pads behind it."""
        texts = list(prompts)
        waiting = self._cut(list(range(len(texts))), texts)
        while waiting:
            rows = waiting.pop(0)
            ids = pad_sequence([texts[row] for row in rows], True, pad_id, "left")
            mask = pad_sequence([torch.ones_like(texts[row]) for row in rows], True, 0, "left")
            already = len(texts[rows[0]]) - len(prompts[rows[0]])  # as many in each row of a slice
            found, going = self._slice(ids, mask, _with_less(how, already))
            for row, text in zip(rows, found, strict=True):
                texts[row] = torch.cat([texts[row], text[ids.size(1) :]])
            if going.any():
                left = [row for row, goes in zip(rows, going.tolist(), strict=True) if goes]
                waiting = [part for several in (left, *waiting) for part in self._cut(several, texts)]
        return texts

    def _cut(self, rows: Rows, texts: Sequence[torch.Tensor]) -> list[Rows]:
        slices = packed([len(texts[row]) for row in rows], self.at_once)
        return [[rows[index] for index in part] for part in slices]

    def _slice(
        self, ids: torch.Tensor, mask: torch.Tensor, how: Arguments
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The texts (rows, tokens) as far as they were sampled, and which rows (rows,) have not ended."""
        drawn, training = Drawn(ids), self.model.training
        options = sampling.options(ids.device, drawn, fast=self.fast)
        try:
            whole = self._generate(input_ids=ids, attention_mask=mask, **how, **options)
            return whole, torch.zeros(len(ids), dtype=torch.bool)
        except (RuntimeError, MemoryError) as error:
            if len(ids) == 1 or not self.halves or not shortage.is_out_of_memory(error):
                raise
            _recover(self.model, training)
            shortage.let_go(error)
        self.at_once = -(-len(ids) // 2)
        new = drawn.ids[:, ids.size(1) :]
        return drawn.ids, ~torch.isin(new, new.new_tensor(self.eos_ids)).any(1)


def _with_less(how: Arguments, already: int) -> Arguments:
    """The arguments of ``generate`` for what is left of completions that have so many tokens."""
    if not already:
        return how
    config = copy.deepcopy(how.get("generation_config")) or SimpleNamespace(**how)
    config.max_new_tokens -= already
    if getattr(config, "min_new_tokens", None):
        config.min_new_tokens = max(0, config.min_new_tokens - already)
    return how | {"generation_config": config} if "generation_config" in how else vars(config)


def _recover(model: Any, training: bool) -> None:
    """Works around: where unsloth's ``generate`` fails on a GPU, the model stays in its inference mode, and so do the
    buffers of that many rows, beside those of the next, smaller slice."""
    if training and not model.training:
        model.for_training()
    graphs: Any = sys.modules.get("unsloth.models._decode_graphs")
    if graphs is not None:
        graphs.release_for_training(model)
