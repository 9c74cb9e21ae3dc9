"""Prefill each distinct prompt once, and give its K completions copies of the cache: a candidate of speed.py.

TRL repeats each prompt K times before it samples, so the same prompt goes forward K times.  What that costs grows with
the prompt and not with the completion.  Whether the copies cost less is measured before the kit would do it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def prefilled_once(generate: Callable[..., Any], k: int) -> Callable[..., Any]:
    """``generate`` of a model, for rows of which each ``k`` side by side have one prompt; all else is handed on.

    The cache comes out of ``generate`` itself, which knows the model's mode, positions and padding: one token of each
    distinct prompt, thrown away.  (Unsloth's takes a cache from outside as well: models/llama.py,
    ``unsloth_fast_generate``.)  The cache is cut by the prompt's last token, which the rows' own call has to see.

    Args:
        generate: ``model.generate`` of transformers or unsloth, without a loop of its own (``custom_generate``).
        k: rows of a prompt.

    Returns:
        ``generate`` as called by TRL: ``input_ids`` and ``attention_mask`` (rows, prompt), padded on the left.
    """

    def generate_once(
        *, input_ids: torch.Tensor, attention_mask: torch.Tensor, generation_config: Any, **kwargs: Any
    ) -> Any:
        first = generate(
            input_ids=input_ids[::k],
            attention_mask=attention_mask[::k],
            generation_config=generation_config,
            **{**kwargs, "max_new_tokens": 1, "return_dict_in_generate": True},
        )
        cache = _as_cache(first.past_key_values)
        cache.crop(input_ids.size(1) - 1)
        cache.batch_repeat_interleave(k)
        return generate(
            input_ids=input_ids,
            attention_mask=attention_mask,
            generation_config=generation_config,
            past_key_values=cache,
            **kwargs,
        )

    return generate_once


def _as_cache(found: Any) -> Any:
    """Unsloth's decoding gives a tuple of each layer's keys and values."""
    from transformers import DynamicCache

    if not isinstance(found, tuple):
        return found
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(found):
        cache.update(keys, values, layer)
    return cache
