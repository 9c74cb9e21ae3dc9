"""Log-probabilities on a CPU with each distinct prompt computed once, and not once for each of its K completions.

For the rollout and the loss.  A first pass fills transformers' own cache with the prompts' keys and values, gradient
included; the completions go on from it.  No attention is replaced, and columns and positions are those of the plain
pass, so padding on the left stays where it is.  Where this cannot be done (:func:`fits`) nothing changes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import DynamicCache

FEWEST = 2  # rows a prompt, on average: below, two passes cost about what the tokens left out would have


class PromptCache(DynamicCache):
    """Keys and values of distinct prompts; with ``rows`` set, read for each row and no longer added to.

    Each layer repeats what it reads and lets it go, so that no more is held than attention keeps anyway.
    """

    rows: torch.Tensor | None = None  # the prompt of each row

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (rows, heads, tokens, width) of the prompts and then of the tokens given."""
        if self.rows is None:
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)
        held: Any = self.layers[layer_idx]
        return (
            torch.cat([held.keys.index_select(0, self.rows), key_states], dim=-2),
            torch.cat([held.values.index_select(0, self.rows), value_states], dim=-2),
        )


def sharing(model: Any, ids: torch.Tensor, mask: torch.Tensor, width: int) -> Any:
    """The model, or where it fits what TRL may call in its place, for completions of ``width`` columns."""
    # The prompts' last token goes with the completions: it predicts their first.
    start = ids.size(1) - width - 1
    if start < 1:
        return model
    prompts, rows = torch.stack([ids[:, :start], mask[:, :start]], 1).unique(dim=0, return_inverse=True)
    if len(ids) < FEWEST * len(prompts):
        return model
    backbones = [module for module in model.modules() if hasattr(module, "embed_tokens")]
    possible = len(backbones) == 1 and fits(model, backbones[0])
    return partial(_shared, model, backbones[0], prompts, rows) if possible else model


def fits(model: Any, backbone: Any) -> bool:
    """Whether the pass goes on from a cache as it would go on from the tokens: transformers' own forward on a CPU (not
    unsloth's for a GPU), attention to all earlier tokens in each layer, and no layer computed again for its gradient
    (transformers switches the cache off there)."""
    config = backbone.config
    recomputed = any(getattr(module, "gradient_checkpointing", False) for module in backbone.modules())
    return (
        backbone.embed_tokens.weight.device.type == "cpu"
        and type(backbone).forward.__module__.startswith("transformers.")
        and config._attn_implementation in ("sdpa", "eager")
        and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
        and not (recomputed and backbone.training)
        and not getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)
    )


def _shared(
    model: Any,
    backbone: Any,
    prompts: torch.Tensor,
    rows: torch.Tensor,
    *,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    labels: torch.Tensor,
    **kwargs: Any,
) -> Any:
    """What the model says of the rows; its log-probabilities are of the completions' tokens alone."""
    cache, start = PromptCache(), prompts.size(-1)
    backbone(input_ids=prompts[:, 0], attention_mask=prompts[:, 1], past_key_values=cache, use_cache=True)
    cache.rows = rows
    return model(
        input_ids=input_ids[:, start:-1],
        attention_mask=attention_mask[:, :-1],
        past_key_values=cache,
        shift_labels=labels[:, start + 1 :],
        **kwargs,
    )
