"""The tasks that a policy learns in measured runs: problems, reward, policy, and the accuracy that ends a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from health_runs import right_after_thought

import rewards
from rewards.trl_interface import Reward
from rloo_kit import tasks
from rloo_kit.tasks import Task

if TYPE_CHECKING:
    from rloo_kit.policy.policy import Policy

IN_TIME = 40  # tokens of a completion on the sums in words
LARGEST = 10  # number in a sum in words: with larger numbers so small a model is mostly wrong


@dataclass(frozen=True)
class Learned:
    make: Callable[[Policy, int, int], Task]  # takes a policy, a level and a seed
    score: Callable[[Task], Reward]
    target: float  # held-out greedy accuracy; a run of time_to_accuracy.py ends there
    described: str  # the policy, as a table names it
    length: int = 32  # most tokens of a completion in an evaluation
    evaluate_every: int = 900  # tokens generated between evaluations
    spec: dict[str, Any] = field(default_factory=dict)  # what differs from the defaults of ``runs.Spec``
    load: dict[str, Any] = field(default_factory=dict)  # arguments of ``load_policy``


def arithmetic(policy: Policy, level: int, seed: int) -> Task:
    return tasks.arithmetic(level, seed=seed)


def words(policy: Policy, level: int, seed: int) -> Task:
    return tasks.word_sums(policy, largest=LARGEST, seed=seed)


def sums(policy: Policy, level: int, seed: int) -> Task:
    return tasks.arithmetic(1, policy, seed=seed)


def within_reach(policy: Policy, level: int, seed: int) -> Task:
    """Keep those of the first 64 problems that the policy solves in 1 to 7 of 8 completions before the run."""
    task = words(policy, level, seed)
    return task.within_reach(policy, low=0.1, high=0.9, n_prompts=64, max_new_tokens=IN_TIME, seed=seed)


def maths(policy: Policy, level: int, seed: int) -> Task:
    """Return word problems as in GSM8K, with prompts of 135 to 165 tokens."""

    def fits(row: dict[str, Any]) -> bool:
        chat = policy.tokenizer.apply_chat_template
        return 135 <= len(chat(row["prompt"], add_generation_prompt=True, return_dict=False)) <= 165

    task = tasks.reasoning_gym("gsm_symbolic", policy=policy, n_train=600, n_held_out=20, seed=seed)
    return dataclasses.replace(task, train=task.train.filter(fits))


def right_in_time(task: Task) -> Reward:
    """Pay half for the right answer, and half more if it also ends in time: the reward of notebook 07.

    If only the answer is paid, some seeds keep being truncated and learn little.
    """

    def in_time(completion_ids: list[list[int]], **columns: Any) -> list[float]:
        return [float(len(ids) < IN_TIME) for ids in completion_ids]

    both = [task.correct, rewards.gated(by=task.correct, reward=in_time)]
    return rewards.weighted(both, [0.5, 0.5], name="right_in_time")


TINY: dict[str, Any] = {"lora_alpha": 32, "gradient_checkpointing": False}
WORDS = Learned(
    words,
    right_in_time,
    0.4,
    "smollm2-135m in float32",
    length=IN_TIME,
    evaluate_every=2500,
    spec={"policy": "smollm2-135m", "max_completion_length": IN_TIME, "learning_rate": 3e-4}
    | {"micro_batch": 16, "problems": 100},
    load={"gradient_checkpointing": False},
)

TASKS: dict[str, Learned] = {
    "arithmetic": Learned(arithmetic, lambda task: right_after_thought, 0.85, described="tiny in 4 bit", load=TINY),
    "words": WORDS,
    "maths": dataclasses.replace(WORDS, make=maths, score=lambda task: task.correct),
    "sums": dataclasses.replace(WORDS, make=sums),
    "words_within_reach": dataclasses.replace(WORDS, make=within_reach),
    "words_low_rate": dataclasses.replace(WORDS, spec=WORDS.spec | {"learning_rate": 1e-4}),
}
"""Name -> task.  The tiny policy learns additions, half of which it solves.  A real small model learns sums in words,
word problems, sums in digits, sums in words that it sometimes solves, and sums in words at a third of the rate."""
