"""``Task``: a dataset of prompts with verifiable answers, split by problem, and the reward that grades it."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from rewards.answers import Form, answer_reward, instruction
from rewards.factory_calls import Call, recorded
from rewards.thinking import QWEN3
from rewards.trl_interface import Reward
from rloo_kit import argument_types
from rloo_kit.errors import DatasetError
from rloo_kit.tasks.within_reach import within_reach

if TYPE_CHECKING:
    from datasets import Dataset

    from rloo_kit.policy.policy import Policy

HELD_OUT_EVERY = 5  # one problem in five is held out
EXHAUSTED = 50_000  # draws in a row without a new problem: more than enough for 2500 of them
N_TRAIN, N_HELD_OUT = 1000, 200  # if no number is asked for

FILES = ("path", "held_out", "folder")
"""Arguments of this package's functions that may name a file or a folder."""

Message = dict[str, str]
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A named set of problems, ready for the trainer.

    Attributes:
        name: short name, such as ``"addition"``.
        train: problems to train on; columns ``prompt`` (list of messages), ``answer`` and ``problem`` (str).
        held_out: problems to measure on, same columns; shares no problem with ``train``.
        correct: the reward that grades it: 1.0 for the right answer, else 0.0.
        level: a key of ``LEVELS``; None for tasks without levels.
        description: what the problems are, and what was left out, in a few words.
    """

    name: str
    train: Dataset
    held_out: Dataset
    correct: Reward
    level: int | None
    description: str

    def within_reach(self, policy: Policy, low: float = 0.2, high: float = 0.8, n: int = 8, **how: Any) -> Task:
        """Return the task with only the training problems that :func:`rloo_kit.tasks.within_reach` keeps."""
        train = within_reach(self.train, policy, self.correct, low, high, n, **how)
        kept = f"{len(train)} that were solved in {low:.0%} to {high:.0%} of {n} completions"
        return replace(self, train=train, description=f"{self.description}; training on {kept}")


class Origin(NamedTuple):
    """Where a dataset comes from: the call of a task's function, without the policy, and the side of that task."""

    call: Call
    side: str  # "train" or "held_out"
    correct: Reward


_origins: WeakKeyDictionary[Dataset, Origin] = WeakKeyDictionary()  # filtered or mapped copies are not in it


def origin_of(dataset: object) -> Origin | None:
    """Return the origin of a dataset that is a side of a task; None for any other dataset."""
    splits = isinstance(dataset, dict)  # a DatasetDict
    return _origins.get(dataset) if hasattr(dataset, "column_names") and not splits else None


def _remember(task: Task, call: Call) -> None:
    arguments = dict(call.arguments)
    if task.name == "arithmetic":
        arguments["level"] = task.level  # the level that "auto" found
    named = Call(call.function.rpartition(".")[2], arguments)
    for side in ("train", "held_out"):
        _origins[getattr(task, side)] = Origin(named, side, task.correct)


made = recorded(without=("policy",), files=FILES, also=_remember)
"""Decorates every function of this package that makes a task."""


@dataclass(frozen=True)
class Problem:
    """A question and its answer.

    Attributes:
        text: identifies the problem; the column ``problem``.
        key: decides the side of the split.
        question: what the prompt asks; empty means ``text``.
        entry: what a generator's own grader reads.
    """

    text: str
    answer: str
    key: str
    question: str = ""
    entry: str | None = None

    @property
    def is_held_out(self) -> bool:
        """Whether the problem is held out: a fifth are, by a rule on the key alone, for any process or seed."""
        return zlib.crc32(self.key.encode()) % HELD_OUT_EVERY == 0

    def row(self, asks: str = "") -> Row:
        """Return the problem as a dataset row; ``asks`` is the sentence of the prompt that asks for a form."""
        prompt = [{"role": "user", "content": f"{self.question or self.text} {asks}".rstrip()}]
        row: Row = {"prompt": prompt, "answer": self.answer, "problem": self.text}
        return row if self.entry is None else row | {"entry": self.entry}


def draw(
    problem: Callable[[random.Random], Problem], n: int | None, *, held_out: bool, stream: str, what: str
) -> list[Problem]:
    """Draw distinct problems from one side of the split, in random order.

    ``n``: None means 1000 to train on and 200 held out, or all if there are fewer.  ``stream`` seeds the draw;
    ``{held_out}`` and ``{side}`` in it are filled in.

    Raises:
        DatasetError: there are fewer than n, or n is not positive.
        ConfigError: n is not an integer.
    """
    side, usual = ("held_out", N_HELD_OUT) if held_out else ("train", N_TRAIN)
    argument_types.check({f"n_{side}": n}, {f"n_{side}": int | None}, "tasks")
    rng, misses = random.Random(stream.format(held_out=held_out, side=side)), 0
    drawn: dict[str, Problem] = {}
    while len(drawn) < (usual if n is None else n) and misses < EXHAUSTED:
        one, misses = problem(rng), misses + 1
        if one.is_held_out is held_out and one.text not in drawn:
            drawn[one.text], misses = one, 0
    if n is not None and not 1 <= n <= len(drawn):
        fault = f"there are only {len(drawn)} {side} {what}" if n > 0 else f"n_{side} has to be at least 1"
        todo = f"ask for 1 to {len(drawn) or 'as many as there are'}; harder problems are more"
        raise DatasetError(fault, where=f"n_{side}={n}", todo=todo)
    return list(drawn.values())


def both_sides(
    problem: Callable[[random.Random], Problem], counts: Sequence[int | None], stream: str, what: str
) -> list[list[Problem]]:
    sides = zip(counts, (False, True), strict=True)
    return [draw(problem, n, held_out=out, stream=stream, what=what) for n, out in sides]


def asked_for(
    form: Form | None, policy: Policy | None, kind: Any = "number", column: str = "answer"
) -> tuple[Reward, str]:
    """Return the reward that reads a form, and the sentence that asks for it; None means the policy's own form.

    Raises:
        ValueError: an unknown form or kind.
    """
    of_policy = "auto" if policy is None else policy.checkpoint.form
    tokens = QWEN3 if policy is None else policy.checkpoint.tokens
    form = form or of_policy
    says_no_more = form == "whole" and (policy is None or of_policy == "whole")
    correct = answer_reward(kind, form=form, column=column, tokens=tokens)
    return correct, "" if says_no_more else instruction(form)


def task_of(
    name: str, sides: Sequence[Sequence[Any]], correct: Reward, description: str, asks: str = "", level: Any = None
) -> Task:
    """Make a task of two sides, each of rows or of problems; ``asks`` is added to the problems' prompts."""
    from datasets import Dataset

    rows = ([one.row(asks) if isinstance(one, Problem) else one for one in side] for side in sides)
    train, held_out = map(Dataset.from_list, rows)
    return Task(name, train, held_out, correct, level, description)
