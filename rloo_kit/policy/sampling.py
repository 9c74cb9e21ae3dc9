"""Sample from a vocabulary of 151,936 on a CPU, without work that changes nothing.

transformers' own loop makes, for each token, one random variate per entry of the vocabulary
(``torch.multinomial``), and goes on computing rows that have ended until the last one has.  :func:`decode`
draws by inverse CDF, one uniform number a row, and drops rows as they end: the same distribution, a fraction
of the time.  It goes in through ``generate``'s public ``custom_generate``; generate prepares inputs, cache,
warpers and stopping criteria as ever.  On a GPU, where multinomial is cheap beside the model and unsloth has its
own loop, nothing is changed.
"""

from __future__ import annotations

from typing import Any

import torch

from rloo_kit.errors import NonFiniteError

BLOCK = 128
"""Entries that are summed first when drawing: one pass over the vocabulary is then vectorised, and the
cumulated sum, which is not, runs over a hundredth of it."""


def options(device: torch.device, beams: int = 1) -> dict[str, Any]:
    """What to add to ``model.generate(...)`` on this device."""
    return {"custom_generate": decode} if device.type == "cpu" and beams == 1 else {}


@torch.no_grad()
def decode(
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **model_inputs: Any,
) -> torch.Tensor:
    """Sampling or greedy search as ``transformers.GenerationMixin._sample`` does them, for ``custom_generate``.

    Args:
        model, input_ids, logits_processor, stopping_criteria, generation_config: as ``generate`` prepared them;
            input_ids (rows, prompt), padded on the left.
        model_inputs: ``attention_mask``, ``position_ids``, ``past_key_values`` and flags of the forward pass.

    Returns:
        (rows, prompt + longest completion) token ids, padded on the right.  Without a cache, and with one that
        cannot drop rows (``cache_implementation="static"``), transformers' own loop samples.

    Raises:
        NonFiniteError: see :func:`draw`.
    """
    from transformers import DynamicCache

    if not isinstance(model_inputs.get("past_key_values"), DynamicCache):
        sampled: torch.Tensor = model._sample(
            input_ids, logits_processor, stopping_criteria, generation_config, **model_inputs
        )
        return sampled
    choose = draw if generation_config.do_sample else _largest
    mask, cache = model_inputs.pop("attention_mask"), model_inputs.pop("past_key_values")
    model_inputs.pop("use_cache", None)
    whole = input_ids.new_full((len(input_ids), generation_config.max_length), generation_config.pad_token_id)
    whole[:, : input_ids.size(1)] = input_ids
    rows, ids, step = torch.arange(len(input_ids)), input_ids, input_ids
    while True:
        outputs = model(
            input_ids=step, attention_mask=mask, past_key_values=cache, use_cache=True, **model_inputs
        )
        scores = logits_processor(ids, outputs.logits[:, -1].float())
        del outputs
        step = choose(scores).unsqueeze(1)
        del scores  # or it would stand beside the next token's
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


def _largest(scores: torch.Tensor) -> torch.Tensor:
    return scores.argmax(-1)


def draw(scores: torch.Tensor) -> torch.Tensor:
    """One token per row, by inverse CDF: the first whose cumulated probability exceeds a uniform number.

    An entry of probability 0 is never drawn.

    Args:
        scores: (rows, vocabulary) float32 logits.

    Returns:
        (rows,) indices.

    Raises:
        NonFiniteError: a row has NaN or +inf, or no entry above -inf.
    """
    probabilities = torch.softmax(scores, dim=1)
    below = _block_sums(probabilities).double().cumsum(1)
    if not below[:, -1].isfinite().all():
        raise NonFiniteError(
            "the policy's logits are not finite, so there is nothing to sample from",
            where=f"{int((~below[:, -1].isfinite()).sum())} of {len(scores)} completions",
            todo="look for NaN in the weights: load the policy anew, or train(resume_from_checkpoint=True)",
        )
    uniform = torch.rand(len(scores), 1, dtype=torch.float64, device=scores.device)
    block, left = _first_above(below, uniform * below[:, -1:])
    inside = block * BLOCK + torch.arange(BLOCK, device=scores.device)
    past_end = inside >= scores.size(1)
    entries = probabilities.gather(1, inside.masked_fill(past_end, 0)).masked_fill(past_end, 0.0)
    entry, _ = _first_above(entries.double().cumsum(1), left)
    return (block * BLOCK + entry).squeeze(1)


def _block_sums(values: torch.Tensor) -> torch.Tensor:
    """Sums over runs of :data:`BLOCK` entries of each row, the last run perhaps shorter."""
    whole = values.size(1) // BLOCK * BLOCK
    sums = values[:, :whole].unflatten(1, (-1, BLOCK)).sum(2)
    rest = values[:, whole:].sum(1, keepdim=True)
    return sums if whole == values.size(1) else torch.cat([sums, rest], dim=1)


def _first_above(cumulated: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where a row first exceeds its value (rows, 1), and what of the value is left there."""
    total = cumulated[:, -1:]
    value = torch.minimum(
        value, torch.nextafter(total, torch.zeros_like(total))
    )  # rounding may reach the total
    index = torch.searchsorted(cumulated, value, right=True)
    before = torch.where(index > 0, cumulated.gather(1, (index - 1).clamp(min=0)), 0.0)
    return index, value - before
