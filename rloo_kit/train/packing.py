"""Which completions go through the model, in which micro-batch, and with how little padding.

For the trainer.  A completion whose advantage is 0 adds nothing to the gradient of the reward, so the rows
that are left are packed into as few micro-batches as hold them, those of like length together, and each
micro-batch is cut to its own longest prompt and completion.  What a row weighs in the update is settled
before (:func:`rloo_kit.train.losses.row_weights`), so the update is the same.  Nothing here computes a loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

PROMPT = ("prompt_ids", "prompt_mask")
COMPLETION = ("completion_ids", "completion_mask", "old_per_token_logps", "ref_per_token_logps")


def unit(accumulation: int, steps_per_generation: int) -> int:
    """How many micro-batches of a generation batch always belong to one optimizer step.

    Rows may change places within such a unit without changing any update.

    >>> unit(accumulation=4, steps_per_generation=2), unit(2, 8), unit(3, 2)
    (2, 2, 1)
    """
    return math.gcd(accumulation, steps_per_generation)


def blocks_of(rows: Sequence[int], size: int, lengths: Sequence[int]) -> list[list[int]]:
    """Runs of ``size`` rows, in order, the shortest first; a block is as long as its longest row.

    >>> blocks_of([0, 1, 2, 3], 2, [9, 1, 3, 4])
    [[2, 3], [0, 1]]
    """
    runs = [list(rows[i : i + size]) for i in range(0, len(rows), size)]
    return sorted(runs, key=lambda run: max(lengths[row] for row in run))


def lay_out(
    blocks: Sequence[Sequence[int]], per_batch: int, batches: int, needed: int = 0
) -> list[list[int]]:
    """Cut blocks into ``batches`` micro-batches of at most ``per_batch`` blocks, the empty ones first.

    The empty ones come first because the last micro-batch of an optimizer step is the one at which processes
    exchange gradients, and for that it must pass through the model.

    Args:
        needed: micro-batches that must not be empty, where other processes need that many; there must be as
            many blocks.

    >>> lay_out([[0], [1], [2]], per_batch=2, batches=3)
    [[], [0, 1], [2]]
    >>> lay_out([[0], [1], [2]], per_batch=2, batches=3, needed=3)
    [[0], [1], [2]]
    """
    filled = max(needed, math.ceil(len(blocks) / per_batch))
    each, over = divmod(len(blocks), filled) if needed and filled else (per_batch, 0)
    laid: list[list[int]] = [[] for _ in range(batches - filled)]
    start = 0
    for index in range(filled):
        stop = start + each + (index < over)
        laid.append([row for block in blocks[start:stop] for row in block])
        start = stop
    return laid


def select(batch: dict[str, torch.Tensor], rows: Sequence[int], trim: bool = True) -> dict[str, torch.Tensor]:
    """Some rows of a batch, without the columns that are padding in all of them.

    Args:
        batch: tensors of which the first dimension is rows; prompts padded on the left, completions on the
            right.
        rows: which, in this order.
        trim: False keeps the width.
    """
    index = torch.as_tensor(rows, dtype=torch.long, device=batch["prompt_ids"].device)
    chosen = {name: value[index] for name, value in batch.items()}
    if not trim or not len(index):
        return chosen
    prompt = chosen["prompt_mask"].any(0)
    completion = chosen["completion_mask"].any(0)
    # Every prompt has a token, and a completion that is masked whole keeps one column.
    start = int(prompt.int().argmax())
    stop = int(completion.nonzero().max()) + 1 if completion.any() else 1
    chosen |= {name: chosen[name][:, start:] for name in PROMPT}
    chosen |= {name: chosen[name][:, :stop] for name in COMPLETION if name in chosen}
    return chosen
