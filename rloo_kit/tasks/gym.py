"""Tasks of reasoning-gym: a hundred generators of verifiable problems (Stojanovski et al. 2025, arXiv 2505.24760).

If all answers are numbers, ``rewards.answer_reward`` grades them.  It is stricter than the package's own graders, which
give part credit to a wrong answer that holds the right one.  The package grades the others; only its full score counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from rewards.numbers import to_number
from rloo_kit.errors import ConfigError, VersionError
from rloo_kit.tasks.task import Problem, Task, asked_for, both_sides, made, task_of

if TYPE_CHECKING:
    from rewards.answers import Form
    from rloo_kit.policy.policy import Policy


@made
def reasoning_gym(
    name: str,
    difficulty: Mapping[str, Any] | None = None,
    *,
    policy: Policy | None = None,
    form: Form | None = None,
    n_train: int | None = None,
    n_held_out: int | None = None,
    seed: int = 0,
) -> Task:
    """Make a task from a reasoning-gym generator, split by problem: ``pip install reasoning-gym``.

    Both sides of the split share templates, with different numbers: held-out problems are not of a new kind.

    Args:
        name: the generator: "gsm_symbolic" (word problems as in GSM8K), "chain_sum", "leg_counting", ...
        difficulty: settings of the generator, such as {"max_terms": 3}.
        policy, form, n_train, n_held_out, seed: as for ``arithmetic``; non-numeric answers default to "<answer>".

    Raises:
        VersionError: the package is not installed.
        ConfigError: there is no such generator or setting.
        DatasetError: more problems than exist.
    """

    def problem(rng: Any) -> Problem:
        entry = _made(name, {**(difficulty or {}), "seed": rng.randrange(2**31)})[0]
        text = entry["question"].strip()
        return Problem(text, str(entry["answer"]), text, entry=json.dumps(entry, default=str))

    what, stream = f"problems of {name}", f"gym {name} {{held_out}} {seed}"
    sides = both_sides(problem, (n_train, n_held_out), stream, what)
    numbers = all(to_number(one.answer) is not None for side in sides for one in side)
    if numbers:
        correct, asks = asked_for(form, policy)
    else:
        form = "<answer>" if form in (None, "auto", "prose") else form
        correct, asks = asked_for(form, policy, partial(_has_full_score, name), column="entry")
    graded = "answer_reward" if numbers else "the generator's own rule"
    settings = f" with {json.dumps(dict(difficulty))}" if difficulty else ""
    description = f"reasoning-gym's {name}{settings}, graded by {graded}"
    return task_of(name, sides, correct, description, asks=asks)


def _has_full_score(name: str, answer: str, entry: str) -> bool:
    return bool(_generator(name).score_answer(answer.strip(), json.loads(entry)) >= 1.0)


@cache
def _generator(name: str) -> Any:
    return _made(name, {"seed": 0})


def _made(name: str, settings: Mapping[str, Any]) -> Any:
    try:
        import reasoning_gym

        return reasoning_gym.create_dataset(name, **settings, size=1)
    except ImportError as error:
        todo = "pip install reasoning-gym==0.1.25 (40 MB; one of its dependencies needs a C compiler)"
        what = "reasoning-gym is not installed"
        raise VersionError(what, where="tasks.reasoning_gym", todo=todo) from error
    except (ValueError, TypeError, AssertionError) as error:
        where = f"tasks.reasoning_gym({name!r}, {dict(settings)})"
        todo = "the names and settings are in reasoning-gym's GALLERY.md"
        raise ConfigError(f"reasoning-gym: {error}", where=where, todo=todo) from error
