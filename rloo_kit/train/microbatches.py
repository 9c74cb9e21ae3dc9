"""Choose which completions go through the model, pack them into micro-batches, and cut padding.

A completion whose advantage is 0 adds nothing to the gradient of the reward.  The others are packed by length into as
few micro-batches as possible, each cut to its own longest prompt and completion.  Row weights are computed beforehand
(:func:`.losses.row_weights`), so the update is the same.
"""

import itertools
import math
from collections.abc import Sequence

import torch
import trl
from accelerate import Accelerator

from rloo_kit.train.losses import row_weights

Batch = dict[str, torch.Tensor]
PROMPT = ("prompt_ids", "prompt_mask")
COMPLETION = ("completion_ids", "completion_mask", "old_per_token_logps", "ref_per_token_logps")


def micro_batches(batch: Batch, args: trl.RLOOConfig, accelerator: Accelerator, filled: bool) -> list[Batch]:
    """Cut this process's generation batch into ``steps_per_generation`` micro-batches, of which some may be empty.
    Each has ``row_weight`` (rows,) in place of ``live`` (rows,) bool, which marks the rows that are trained on.

    ``filled``: whether no micro-batch may be empty: if processes share the weights, a gradient of 0 without a pass
    through the model has a shard's shape, which DeepSpeed rejects.
    """
    # One randperm, as in TRL, so that the random state stays the same.
    shuffled = torch.randperm(len(batch["prompt_ids"]))
    batch["row_weight"] = torch.zeros(len(shuffled), device=accelerator.device)
    # So many micro-batches always share an update; rows may move between them.
    unit = math.gcd(args.gradient_accumulation_steps, args.steps_per_generation)
    parts = shuffled.split(args.per_device_train_batch_size * unit)
    laid_out = [rows for part in parts for rows in _lay_out_unit(batch, part, unit, args, accelerator, filled)]
    tensors = {name: value for name, value in batch.items() if name != "live"}
    return [select(tensors, rows, trim=args.pad_to_multiple_of is None) for rows in laid_out]


def _lay_out_unit(
    batch: Batch, shuffled: torch.Tensor, unit: int, args: trl.RLOOConfig, accelerator: Accelerator, filled: bool
) -> list[list[int]]:
    """Return the rows of each micro-batch of a unit, and write their weights into the batch."""
    rows, size = shuffled.tolist(), args.per_device_train_batch_size
    tokens, processes = batch["completion_mask"].sum(1), accelerator.num_processes
    total = int(accelerator.reduce(tokens[rows].sum(), reduction="sum"))
    longest = args.max_completion_length
    weights = row_weights(args.loss_aggregation, tokens[rows], len(rows) * processes, total, longest)
    # Undo transformers' division by the accumulation and the mean over processes; an update's units are averaged.
    batch["row_weight"][rows] = weights * unit * processes
    lengths, live = tokens.tolist(), batch["live"].tolist()
    rows.sort(key=lengths.__getitem__)
    trained, needed = [row for row in rows if live[row]], 0
    if processes > 1:  # all must run the model equally often, or they wait for each other
        mine = torch.tensor(max(1, math.ceil(len(trained) / size)), device=accelerator.device)
        needed = unit if filled else int(accelerator.gather(mine).max())
        idle = [row for row in rows if not live[row]][: max(0, needed - len(trained))]
        batch["row_weight"][idle] = 0.0
        batch["completion_mask"][idle] = 0
        trained = idle + trained
    return lay_out(trained, size, unit, needed)


def lay_out(rows: Sequence[int], per_batch: int, batches: int, needed: int = 0) -> list[list[int]]:
    """Spread rows over as few of ``batches`` micro-batches as possible, at most ``per_batch`` in each, but over
    ``needed`` if other processes fill more.  Empty ones come first: processes exchange gradients at the last one.

    >>> lay_out([0, 1, 2], per_batch=2, batches=3)
    [[], [0, 1], [2]]
    >>> lay_out([0, 1, 2], per_batch=2, batches=3, needed=3)
    [[0], [1], [2]]
    """
    filled = max(needed, math.ceil(len(rows) / per_batch))
    cuts = [-(-len(rows) * edge // filled) for edge in range(filled + 1)] if filled else []
    return [[] for _ in range(batches - filled)] + [[*rows[i:j]] for i, j in itertools.pairwise(cuts)]


def select(batch: Batch, rows: Sequence[int], trim: bool = True) -> Batch:
    """Select rows of a batch, in this order; ``trim`` drops the columns that are padding in all of them.  Prompts are
    padded on the left, completions on the right."""
    index = torch.as_tensor(rows, dtype=torch.long, device=batch["prompt_ids"].device)
    chosen = {name: value[index] for name, value in batch.items()}
    if not trim or not len(index):
        return chosen
    completion = chosen["completion_mask"].any(0)
    # Every prompt has a token; a completion that is masked whole keeps one column.
    start = int(chosen["prompt_mask"].any(0).int().argmax())
    stop = int(completion.nonzero().max()) + 1 if completion.any() else 1
    chosen |= {name: chosen[name][:, start:] for name in PROMPT}
    chosen |= {name: chosen[name][:, :stop] for name in COMPLETION if name in chosen}
    return chosen


def model_inputs(batch: Batch) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return token ids, attention mask and the number of completion columns, as TRL's log-probabilities take them."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    # A token that a thinking budget forced is not trained on, but later tokens attend to it.
    attended = batch["completion_mask"].flip(1).cummax(1).values.flip(1)
    return ids, torch.cat([batch["prompt_mask"], attended], dim=1), batch["completion_ids"].size(1)
