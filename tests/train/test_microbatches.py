"""Laying out moves rows between micro-batches and trims padding; it drops or repeats no row and changes no token."""

import itertools
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rloo_kit.train.microbatches import lay_out, select


@given(st.integers(1, 5), st.integers(1, 6), st.data())
@settings(max_examples=200, deadline=None)
def test_every_row_is_in_exactly_one_micro_batch_and_none_is_too_full(per_batch, batches, data):
    count = data.draw(st.integers(0, per_batch * batches))
    most = range(math.ceil(count / per_batch), min(batches, count) + 1)  # as many as there are rows for
    needed = data.draw(st.sampled_from([0, *most]))
    laid = lay_out(range(count), per_batch, batches, needed)
    assert len(laid) == batches
    assert list(itertools.chain(*laid)) == list(range(count)), "each row once, in order"
    assert all(len(part) <= per_batch for part in laid)
    filled = [bool(part) for part in laid]
    assert filled == sorted(filled), "the empty ones first"
    assert sum(filled) == max(needed, math.ceil(count / per_batch))


PAD = 0


def batch_of(prompts: list[int], completions: list[int]) -> dict[str, torch.Tensor]:
    """Return rows of these lengths: prompt tokens 11, 12, ... padded left, completion tokens 21, ... padded right."""
    p, c = max(prompts), max(completions)
    prompt_mask = torch.tensor([[0] * (p - n) + [1] * n for n in prompts])
    completion_mask = torch.tensor([[1] * n + [0] * (c - n) for n in completions])
    rows = 100 * torch.arange(len(prompts)).unsqueeze(1)
    logps = -(rows + torch.arange(1, c + 1)).float() * completion_mask
    return {
        "prompt_ids": torch.where(prompt_mask.bool(), rows + 10 + prompt_mask.cumsum(1), PAD),
        "prompt_mask": prompt_mask,
        "completion_ids": torch.where(completion_mask.bool(), rows + 20 + completion_mask.cumsum(1), PAD),
        "completion_mask": completion_mask,
        "old_per_token_logps": logps,
        "ref_per_token_logps": logps - 1,
        "advantages": torch.arange(len(prompts)).float(),
    }


lengths = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=6)


@given(lengths, st.data())
@settings(max_examples=200, deadline=None)
def test_no_token_that_counts_is_cut_and_no_column_of_padding_is_left(rows, data):
    batch = batch_of([p for p, _ in rows], [c for _, c in rows])
    picked = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
    if not batch["completion_ids"].size(1):
        return  # TRL pads to at least one column
    chosen = select(batch, picked)
    for place, row in enumerate(picked):
        for part in ("prompt", "completion"):
            kept = chosen[f"{part}_ids"][place][chosen[f"{part}_mask"][place].bool()]
            assert torch.equal(kept, batch[f"{part}_ids"][row][batch[f"{part}_mask"][row].bool()])
        for name in ("old_per_token_logps", "ref_per_token_logps"):
            assert chosen[name].size(1) == chosen["completion_ids"].size(1)
            assert torch.equal(chosen[name][place], batch[name][row, : chosen[name].size(1)])
        assert chosen["advantages"][place] == row
    assert chosen["prompt_ids"].size(1) == max(rows[row][0] for row in picked)
    assert chosen["completion_ids"].size(1) == max(1, *(rows[row][1] for row in picked), 0)
