"""Sums in words: questions of one step that a small language model gets wrong more often than not.

A fixed rule on the numbers and the operation decides whether a sum is held out, so a held-out sum is in training in no
other wording.  The wordings themselves are the same on both sides: it measures sums, not reading.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from rloo_kit.tasks.task import Problem, Task, asked_for, both_sides, made, task_of

if TYPE_CHECKING:
    from rewards.answers import Form
    from rloo_kit.policy.policy import Policy

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Henry", "Ines", "Jonas", "Kira", "Leo")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pencils", "shells", "stamps", "stones", "tickets")

MORE = (
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
    "{name} finds {a} {things} in the morning and {b} {things} in the evening. How many {things} is that in all?",
    "There are {a} {things} on the table and {b} {things} in the box. How many {things} are there altogether?",
    "{name} has {a} {things}. {other} has {b} {things}. How many {things} do they have together?",
)
FEWER = (
    "{name} has {a} {things} and gives {b} of them to {other}. How many {things} does {name} have left?",
    "There were {a} {things} in the box. {name} took {b} of them out. How many {things} are still in the box?",
    "{name} had {a} {things} and lost {b}. How many {things} does {name} have now?",
    "{name} needs {a} {things} and has {b}. How many {things} are missing?",
)
LARGEST = 20


def word_sum(rng: random.Random, largest: int) -> Problem:
    """A question about two numbers of 2 to ``largest``: what they are together, or what is left of the larger."""
    a, b = rng.randint(2, largest), rng.randint(2, largest)
    adds = a == b or rng.random() < 0.5
    a, b = (a, b) if adds else (max(a, b), min(a, b))
    name, other = rng.sample(NAMES, 2)
    wording = rng.choice(MORE if adds else FEWER)
    text = wording.format(name=name, other=other, things=rng.choice(THINGS), a=a, b=b)
    key = f"{min(a, b)} + {max(a, b)}" if adds else f"{a} - {b}"
    return Problem(text, str(a + b if adds else a - b), key)


@made
def word_sums(
    policy: Policy | None = None,
    *,
    form: Form | None = None,
    largest: int = LARGEST,
    n_train: int | None = None,
    n_held_out: int | None = None,
    seed: int = 0,
) -> Task:
    """Additions and subtractions told as stories of one step, numbers up to ``largest``.

    Args:
        largest: number in a question.
        policy, form, n_train, n_held_out, seed: as for ``arithmetic``.

    Raises:
        DatasetError: more problems than there are.
    """
    correct, asks = asked_for(form, policy)
    what, stream = f"word problems with numbers up to {largest}", f"words {{held_out}} {seed}"
    sides = both_sides(lambda rng: word_sum(rng, largest), (n_train, n_held_out), stream, what)
    description = f"additions and subtractions in words, numbers up to {largest}"
    return task_of("word sums", ([one.row(asks) for one in side] for side in sides), correct, description)
