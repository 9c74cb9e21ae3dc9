"""What published reward functions judge, by the name under which TRL logs them.

For logs of plain TRL and unsloth, whose functions do not say it.  The names are those of the libraries and recipes
given beside them, letter by letter; nothing is concluded from a name that only sounds alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rewards.signature import Judges

PUBLISHED: dict[str, Judges] = {
    # trl.rewards
    "accuracy_reward": "answer",
    "reasoning_accuracy_reward": "answer",
    "think_format_reward": "form",
    "soft_overlong_punishment_reward": "length",
    # open-r1
    "format_reward": "form",
    "tag_count_reward": "form",
    "len_reward": "length",
    # unsloth's notebooks
    "correctness_reward_func": "answer",
    "strict_format_reward_func": "form",
    "soft_format_reward_func": "form",
    "xmlcount_reward_func": "form",
    "match_format_exactly": "form",
    "match_format_approximately": "form",
    "check_answer": "answer",
    "check_numbers": "answer",
}
