"""Call a reward on a policy's completions as TRL calls it in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rewards
from rewards.trl_interface import Reward, call_reward, full_score, reward_name, said_by, trl_keywords
from rloo_kit.session import output

if TYPE_CHECKING:
    from rloo_kit.policy.policy import Completion


def score(reward: Reward, rows: Sequence[Mapping[str, Any]], completions: Sequence[Completion]) -> list[float | None]:
    """Score completions by TRL's keywords, one row each; a completion is messages if its prompt is."""
    from transformers import TrainerState

    texts = [
        c.text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": c.text}]
        for row, c in zip(rows, completions, strict=True)
    ]
    prompts, ids = [row["prompt"] for row in rows], [list(c.ids) for c in completions]
    given = {"prompts": prompts, "completions": texts, "completion_ids": ids, "trainer_state": TrainerState(epoch=0.0)}
    return call_reward(rewards.guarded(reward), **trl_keywords(rows, **given))


def solved(reward: Reward, rows: Sequence[Mapping[str, Any]], completions: Sequence[Completion]) -> list[bool | None]:
    """Return whether each completion ended and earns the full score (1 if unknown); None if its score is None."""
    right, scores = full_score(reward), score(reward, rows, completions)
    full = 1.0 if right is None else right
    if said_by(reward, "right") is None and any(one is not None and one > full for one in scores):
        output.warn(f"{reward_name(reward)} pays more than 1, and from 1 on counts as right: set its attribute right.")
    pairs = zip(scores, completions, strict=True)
    return [None if one is None else said.finished and one >= full for one, said in pairs]
