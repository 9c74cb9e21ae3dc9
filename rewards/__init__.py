"""Token-ID-aware reward functions for TRL: plain callables, pure Python at import.

For TRL and Unsloth notebooks, with or without rloo_kit.  Each reward takes TRL's keywords and returns one float or
None per completion.
"""

from rewards.answers import FORMS, answer_reward, instruction
from rewards.audit_cases import CASES, Band, Case
from rewards.auditing import Audit, AuditFailed, audit
from rewards.compose import cached, clipped, gated, only_for, scaled, weighted
from rewards.errors import RewardCallError, RewardSignatureError, RewardValueError
from rewards.reward_models import reward_model
from rewards.text import length_reward, overlong_reward, repetition_reward, sentence_reward
from rewards.thinking import QWEN3, ThinkTokens, Thought, split_thinking, thinking_reward, thought_then_answer
from rewards.trl_interface import check_signature, guarded

__all__ = ["CASES", "FORMS", "QWEN3", "Audit", "AuditFailed", "Band", "Case"]
__all__ += ["RewardCallError", "RewardSignatureError", "RewardValueError", "ThinkTokens", "Thought"]
__all__ += ["answer_reward", "audit", "cached", "check_signature", "clipped", "gated", "guarded"]
__all__ += ["instruction", "length_reward", "only_for", "overlong_reward", "repetition_reward"]
__all__ += ["reward_model", "scaled", "sentence_reward", "split_thinking"]
__all__ += ["thinking_reward", "thought_then_answer", "weighted"]
