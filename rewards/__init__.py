"""Token-ID-aware reward functions for TRL: plain callables, pure Python at import."""

from rewards.compose import check_signature, guarded
from rewards.errors import RewardCallError, RewardSignatureError, RewardValueError

__all__ = ["RewardCallError", "RewardSignatureError", "RewardValueError", "check_signature", "guarded"]
