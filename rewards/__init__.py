"""Token-ID-aware reward functions for TRL: plain callables, pure Python at import.

For any TRL or Unsloth notebook, with or without rloo_kit.  Each reward takes TRL's keywords and returns one float or
None per completion.  Names load on first use, so that ``import rewards`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rewards.answers import FORMS, answer_reward, instruction
    from rewards.auditing import Audit, AuditFailed, audit
    from rewards.cases import CASES, Band, Case
    from rewards.compose import cached, clipped, gated, only_for, scaled, weighted
    from rewards.errors import RewardCallError, RewardSignatureError, RewardValueError
    from rewards.guard import guarded
    from rewards.judge import Criterion, reward_model, rubric_reward
    from rewards.signature import check_signature
    from rewards.text import length_reward, overlong_reward, repetition_reward, sentence_reward
    from rewards.thinking import (
        QWEN3,
        ThinkTokens,
        Thought,
        split_thinking,
        thinking_reward,
        thought_then_answer,
    )

# Where __getattr__ finds each public name; the imports above say the same to type checkers and editors.
_HOMES = {
    "thinking": "QWEN3 ThinkTokens Thought split_thinking thinking_reward thought_then_answer",
    "answers": "FORMS answer_reward instruction",
    "text": "length_reward overlong_reward repetition_reward sentence_reward",
    "judge": "Criterion reward_model rubric_reward",
    "signature": "check_signature",
    "guard": "guarded",
    "compose": "cached clipped gated only_for scaled weighted",
    "errors": "RewardCallError RewardSignatureError RewardValueError",
    "cases": "CASES Band Case",
    "auditing": "Audit AuditFailed audit",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = ["CASES", "FORMS", "QWEN3", "Audit", "AuditFailed", "Band", "Case", "Criterion"]
__all__ += ["RewardCallError", "RewardSignatureError", "RewardValueError", "ThinkTokens", "Thought"]
__all__ += ["answer_reward", "audit", "cached", "check_signature", "clipped", "gated", "guarded"]
__all__ += ["instruction", "length_reward", "only_for", "overlong_reward", "repetition_reward"]
__all__ += ["reward_model", "rubric_reward", "scaled", "sentence_reward", "split_thinking"]
__all__ += ["thinking_reward", "thought_then_answer", "weighted"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None and name not in _HOMES:
        raise AttributeError(f"module 'rewards' has no attribute '{name}'; it has {', '.join(__all__)}")
    module = importlib.import_module(f"rewards.{home or name}")
    value = getattr(module, name) if home else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_HOMES, *(name for name in globals() if name.startswith("__"))})
