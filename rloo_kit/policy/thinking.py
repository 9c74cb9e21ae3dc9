"""Thinking on, off or limited: ``load_policy(thinking=...)`` is written into the chat template, which a save keeps.

False renders prompts with the thought closed.  A number N is a budget: a thought still open after N tokens is closed,
as in s1's budget forcing (Muennighoff et al. 2025, arXiv 2501.19393) and Qwen3's thinking budget (arXiv 2505.09388).
A token that the budget forces was not drawn from the policy, so it is not trained on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rewards.thinking import ThinkTokens
from rloo_kit.errors import ConfigError
from rloo_kit.models import Checkpoint
from rloo_kit.session import output

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

NO_THOUGHT = "{%- if enable_thinking is not defined %}{%- set enable_thinking = false %}{%- endif %}"
"""Put before a hybrid Qwen3's chat template, it turns thinking off unless a call says otherwise."""

BUDGET = re.compile(r"\{#- thinking_budget=(\d+) -#\}")
"""A comment before a chat template: the kit reads it, and the template renders as before for other programs."""


@dataclass(frozen=True)
class Budget:
    """A ``LogitsProcessor`` of transformers that closes a thought still open after ``tokens`` tokens.

    Tokens are counted from the <think> that opened the thought, in the prompt or the completion.  When the budget is
    spent, the sampled process has one continuation, </think>, whatever the policy says.  So a </think> at that place is
    always forced, even if the policy would have drawn it, and :meth:`forced` finds it from the ids alone.

    The gradient of the process's expected reward has a term for each drawn token, and none for a forced one, whose
    probability is 1 under every policy: E[R sum over drawn t of grad log pi(o_t | o_<t)].  For the same reason a forced
    token is left out of the ratio, the KL term and the entropy.
    """

    tokens: int
    markers: ThinkTokens

    def full(self, ids: torch.Tensor) -> torch.Tensor:
        """Mark each of the ids (rows, tokens), prompts included, after which a thought is open and the budget spent."""
        import torch

        place, ends = ids.new_ones(ids.shape).cumsum(1), ids == self.markers.close_id
        for eos_id in self.markers.eos_ids:
            ends |= ids == eos_id
        ended, opens = (place * ends).cummax(1).values, place * (ids == self.markers.open_id)
        before = torch.nn.functional.pad(opens.cummax(1).values[:, :-1], (1, 0))
        opened = opens.masked_fill(before > ended, 0).cummax(1).values  # a <think> within a thought opens none
        return (opened > ended) & (place - opened >= self.tokens)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores (rows, vocabulary) of the next token, which leave only </think> where the budget is spent."""
        full = self.full(input_ids)[:, -1]
        if not full.any():
            return scores
        closing = scores.masked_fill(full.unsqueeze(1), -float("inf"))
        closing[full, self.markers.close_id] = 0.0
        return closing

    def forced(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> list[bool]:
        """Return, for each token of a completion, whether the budget forced it."""
        import torch

        full = self.full(torch.tensor([[*prompt_ids, *completion_ids]]))[0].tolist()
        return full[len(prompt_ids) - 1 : -1]


def setting_of(tokenizer: PreTrainedTokenizerBase) -> bool | int:
    """Return False if prompts are rendered with thinking off, a budget in tokens if there is one, else True."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    budget = BUDGET.match(template)
    return int(budget[1]) if budget else not template.startswith(NO_THOUGHT)


def budget_of(tokenizer: PreTrainedTokenizerBase) -> Budget | None:
    """Return the budget in this tokenizer's chat template; None if it has none."""
    tokens = setting_of(tokenizer)
    return None if isinstance(tokens, bool) else Budget(tokens, ThinkTokens.from_tokenizer(tokenizer))


def warn_of_no_room(tokenizer: PreTrainedTokenizerBase, tokens: int, where: str) -> None:
    """Warn if a completion of so many tokens has no room for an answer after the thinking budget."""
    budget = setting_of(tokenizer)
    if not isinstance(budget, bool) and budget >= tokens:
        what = f"The thinking budget of {budget} tokens leaves no room for an answer in {tokens}"
        output.warn(f"{what}. What to do: raise {where}, or lower load_policy(thinking=...).")


def set_thinking(tokenizer: PreTrainedTokenizerBase, checkpoint: Checkpoint, thinking: bool | int) -> None:
    """Write the setting into the chat template; ConfigError if the checkpoint only ever does the opposite."""
    if (checkpoint.thinks, bool(thinking)) in (("always", False), ("never", True)):
        others = "qwen3-1.7b is hybrid" if thinking else "qwen3-4b-instruct answers at once"
        where = f"load_policy({checkpoint.name!r}, thinking={thinking})"
        todo = f"leave thinking out, or load another checkpoint: {others}"
        raise ConfigError(f"this checkpoint {checkpoint.thinks} thinks", where=where, todo=todo)
    template = BUDGET.sub("", str(tokenizer.chat_template or "").removeprefix(NO_THOUGHT), count=1)
    if not isinstance(thinking, bool):
        template = f"{{#- thinking_budget={thinking} -#}}{template}"
    elif not thinking and checkpoint.thinks != "never":
        template = NO_THOUGHT + template
    tokenizer.chat_template = template


def check_thinking(tokenizer: PreTrainedTokenizerBase, template: Mapping[str, object]) -> None:
    """Raise ConfigError if a call asks for thinking from a policy that was loaded with thinking off."""
    if template.get("enable_thinking") and setting_of(tokenizer) is False:
        where = "chat_template_kwargs={'enable_thinking': True}"
        todo = "load_policy(..., thinking=True), or leave enable_thinking out"
        raise ConfigError("the policy was loaded with thinking off", where=where, todo=todo)
