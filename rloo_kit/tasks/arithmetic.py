"""Arithmetic of rising difficulty and sums in words; the search for a level that a policy solves sometimes.

A fixed rule on a problem's operands, in any order, decides whether it is held out.  The bundled tiny Qwen3 was trained
under the same rule, so its warm start has seen no held-out addition either.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rloo_kit.errors import ConfigError
from rloo_kit.session import output
from rloo_kit.tasks.reward_calls import solved
from rloo_kit.tasks.task import Problem, Task, asked_for, both_sides, draw, made, task_of

if TYPE_CHECKING:
    from rewards.answers import Form
    from rloo_kit.policy.policy import Policy


class Level(NamedTuple):
    """What the problems of a level are, and how to draw one."""

    description: str
    draw: Callable[[random.Random], Problem]


def problem(template: str, *operands: int) -> Problem:
    """Fill in a template of products that are added and subtracted; the order of operands does not change its side.

    >>> problem("{} * {} - {}", 3, 4, 5)
    Problem(text='3 * 4 - 5', answer='7', key='3,4,5', question='What is 3 * 4 - 5?', entry=None)
    """
    text = template.format(*operands)
    terms = text.replace("- ", "+ -").split(" + ")
    answer = sum(math.prod(map(int, term.split(" * "))) for term in terms)
    return Problem(text, str(answer), ",".join(map(str, sorted(operands))), f"What is {text}?")


def _of_digits(template: str, *digits: int) -> Callable[[random.Random], Problem]:
    return lambda rng: problem(template, *[_number(rng, count) for count in digits])


def _long_sum(rng: random.Random) -> Problem:
    operands = [_number(rng, 3) for _ in range(4)]
    return problem("{}" + "".join(f" {rng.choice('+-')} {{}}" for _ in range(3)), *operands)


def _number(rng: random.Random, digits: int) -> int:
    return rng.randrange(10 ** (digits - 1), 10**digits)


MIXED = "{} * {} + {} * {} - {} * {}"

# From what the bundled tiny Qwen3 can learn to products that a large model may get wrong.
LEVELS: dict[int, Level] = {
    1: Level("a + b, both under 50", lambda rng: problem("{} + {}", rng.randrange(50), rng.randrange(50))),
    2: Level("four three-digit numbers, added and subtracted", _long_sum),
    3: Level("a * b, two and three digits", _of_digits("{} * {}", 2, 3)),
    4: Level("a * b + c * d - e * f, two digits each", _of_digits(MIXED, *[2] * 6)),
    5: Level("a * b, four digits each", _of_digits("{} * {}", 4, 4)),
    6: Level("a * b + c * d - e * f, four digits each", _of_digits(MIXED, *[4] * 6)),
    7: Level("a * b * c, five digits each", _of_digits("{} * {} * {}", 5, 5, 5)),
}


@dataclass(frozen=True)
class PassRate:
    """A policy's result at one level; ``correct`` counts completions that ended and state the right answer."""

    level: int
    correct: int
    truncated: int
    completions: int

    @property
    def rate(self) -> float:
        """The share of completions that are correct."""
        return self.correct / self.completions

    def __str__(self) -> str:
        figures = f"{self.correct} of {self.completions} right, {self.truncated} truncated"
        return f"level {self.level} ({LEVELS[self.level].description}): {figures}"


@made
def arithmetic(
    level: int | str = "auto",
    policy: Policy | None = None,
    *,
    form: Form | None = None,
    n_train: int | None = None,
    n_held_out: int | None = None,
    seed: int = 0,
    max_new_tokens: int = 256,
    n_prompts: int = 16,
    n_samples: int = 2,
    chat_template_kwargs: dict[str, object] | None = None,
) -> Task:
    """Make arithmetic problems at a level that the policy solves sometimes: always or never teaches RLOO nothing.

    If all completions of a prompt earn the same, their advantages are zero; a binary reward's variance
    p (1 - p) is largest at a pass rate of one half.  ``level="auto"`` finds the level nearest to one half by
    bisection: it samples a few training prompts per level and prints a line for each level.

    Args:
        level: a key of ``LEVELS``, or ``"auto"``, which needs a policy.
        form: where the answer must stand, one of ``rewards.FORMS``.  None means the policy's own: ``"boxed"`` with the
            sentence of Qwen's model cards, ``"whole"`` for the tiny policy, ``"auto"`` without a policy.
        n_train, n_held_out: problems to train and to measure on; None means 1000 and 200, or all if there are fewer.
        seed: seeds the draw of problems and the measurement's sampling.
        max_new_tokens, chat_template_kwargs: as in training.
        n_prompts, n_samples: prompts per level, and completions per prompt.

    Raises:
        ConfigError: an unknown level, or no policy for ``"auto"``.
        ValueError: an unknown form.
        DatasetError: more problems than exist.
    """
    correct, asks = asked_for(form, policy)
    if level == "auto" and policy is not None:
        how: dict[str, Any] = {"chat_template_kwargs": chat_template_kwargs, "seed": seed}
        how |= {"max_new_tokens": max_new_tokens, "temperature": policy.checkpoint.temperature}

        def measure(level: int) -> PassRate:
            rows = [one.row(asks) for one in problems_of(level, n_prompts, held_out=False, seed=seed)]
            rows *= n_samples
            completions = policy.generate([row["prompt"] for row in rows], **how)
            right = solved(correct, rows, completions).count(True)
            return PassRate(level, right, sum(not one.finished for one in completions), len(rows))

        level = level_near_half(measure)
    if level not in LEVELS:
        what = "there is no such level" if level != "auto" else "'auto' measures a policy, and none was given"
        todo = f"give a level from {min(LEVELS)} to {max(LEVELS)}, or 'auto' with policy=..."
        raise ConfigError(what, where=f"tasks.arithmetic(level={level!r})", todo=todo)
    level, counts = int(level), ((n_train, False), (n_held_out, True))
    sides = [problems_of(level, n, held_out=out, seed=seed) for n, out in counts]
    return task_of("arithmetic", sides, correct, LEVELS[level].description, asks=asks, level=level)


@made
def addition(n_train: int | None = None, n_held_out: int | None = None, *, seed: int = 0) -> Task:
    """Make additions of two numbers under 50, the task that the bundled tiny Qwen3 was made for.

    A real Qwen3 solves all of these, so RLOO learns nothing from them: use ``arithmetic`` there.  Arguments and errors
    are those of ``arithmetic``.  The tiny model's warm start has seen no held-out problem.
    """
    task = arithmetic(1, form="whole", n_train=n_train, n_held_out=n_held_out, seed=seed)
    return replace(task, name="addition")


def problems_of(level: int, n: int | None, *, held_out: bool, seed: int) -> list[Problem]:
    """Draw distinct problems of a level from one side of the split, in random order."""
    what = f"problems at level {level} ({LEVELS[level].description})"
    return draw(LEVELS[level].draw, n, held_out=held_out, stream=f"{level} {{side}} {seed}", what=what)


def level_near_half(measure: Callable[[int], PassRate]) -> int:
    """Return the level whose pass rate is nearest to one half, by bisection: pass rates fall as levels rise."""
    measured: list[PassRate] = []
    low, high = min(LEVELS), max(LEVELS)
    while low <= high:
        middle = (low + high) // 2
        measured.append(measure(middle))
        output.say(measured[-1])
        low, high = (middle + 1, high) if measured[-1].rate > 0.5 else (low, middle - 1)
    # The last level measured is where the bisection ended: it wins a tie.
    best = min(reversed(measured), key=lambda result: abs(result.rate - 0.5))
    if best.rate in (0, 1):
        todo = "raise max_new_tokens" if best.truncated else "take another policy or task"
        why = "no level has a pass rate between 0 and 1, so RLOO has little to learn"
        output.warn(f"{why}: {todo}. Nearest: {best}.")
    output.say(f"level {best.level} is taken: of these the nearest to half right")
    return best.level


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


def word_sum(rng: random.Random, largest: int) -> Problem:
    """Draw a sum or difference of two numbers from 2 to ``largest``, in words; its key ignores the wording."""
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
    largest: int = 20,
    n_train: int | None = None,
    n_held_out: int | None = None,
    seed: int = 0,
) -> Task:
    """Make one-step word problems of addition and subtraction, with numbers up to ``largest``.

    A small language model gets them wrong more often than not.  A held-out sum is not in training in any wording, but
    both sides use the same wordings.

    Args:
        largest: the largest number in a question.
        policy, form, n_train, n_held_out, seed: as for ``arithmetic``.

    Raises:
        DatasetError: more problems than exist.
    """
    correct, asks = asked_for(form, policy)
    what, stream = f"word problems with numbers up to {largest}", f"words {{held_out}} {seed}"
    sides = both_sides(lambda rng: word_sum(rng, largest), (n_train, n_held_out), stream, what)
    description = f"additions and subtractions in words, numbers up to {largest}"
    return task_of("word sums", sides, correct, description, asks=asks)
