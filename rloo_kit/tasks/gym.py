"""Tasks of reasoning-gym: a hundred generators of verifiable problems (Stojanovski et al. 2025, arXiv 2505.24760).

For a policy that reads English, from a package of its own: ``pip install reasoning-gym`` (Apache-2.0).  Where all
answers are numbers, ``rewards.answer_reward`` grades them, and is the stricter: the package's own graders pay a part
for a wrong answer that holds the right one, and that of "gsm_symbolic" reads a text's first number, without its sign.
Other answers are graded by the package's own rule, of which the full score alone counts.
"""

from __future__ import annotations

import difflib
import inspect
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from rewards.answers import answer_reward, stated
from rewards.numbers import to_number
from rewards.thinking import QWEN3
from rloo_kit.errors import ConfigError, VersionError
from rloo_kit.tasks.task import Question, Task, asked_for, both_sides, dataset_of, made

if TYPE_CHECKING:
    from rewards.answers import Form
    from rloo_kit.policy.policy import Policy

    Generator = Any  # reasoning_gym.dataset.ProceduralDataset

SEEDS = 2**31  # reasoning-gym adds an index to its seed


@dataclass(frozen=True)
class OwnRule:
    """Whether the text after a thought states an answer to which the generator's grader gives its full score."""

    name: str
    form: Form

    def __call__(self, text: str, entry: str) -> bool:
        """For ``answer_reward``: what stands in a named form, else the text; and the column ``entry``."""
        found = stated(text, self.form, "exact") if self.form in ("auto", "prose") else [text.strip()]
        answer = found[-1] if found else text.strip() if self.form == "auto" else None
        return answer is not None and _grader(self.name).score_answer(answer, json.loads(entry)) >= 1.0


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
    """Problems of one of reasoning-gym's generators, split by problem.

    Problems of one template are on both sides of the split, with other numbers: what is measured is not a new kind.

    Args:
        name: of the generator: "gsm_symbolic" (word problems as in GSM8K), "chain_sum", "leg_counting", ...
        difficulty: settings of its configuration, such as {"max_terms": 3, "max_digits": 2}; None takes its defaults.
        policy, form, n_train, n_held_out, seed: as for ``arithmetic``; for answers that are not numbers None takes the
            form "<answer>".

    Raises:
        VersionError: the package is not installed.
        ConfigError: there is no such generator or setting.
        DatasetError: more problems than there are.
    """
    _generator(name, difficulty, 0)  # an error of its settings, before anything is drawn
    what, stream = f"problems of {name}", f"gym {name} {{held_out}} {seed}"
    sides = both_sides(lambda rng: _question(name, difficulty, rng), n_train, n_held_out, stream, what)
    numbers = all(to_number(one.answer) is not None for side in sides for one in side)
    form = form or (None if numbers else "<answer>")
    correct, asks = asked_for(form, policy)
    if not numbers and form is not None:
        tokens = QWEN3 if policy is None else policy.checkpoint.tokens
        correct = answer_reward(OwnRule(name, form), form=form, column="entry", tokens=tokens)
    train, held_out = (dataset_of(side, asks) for side in sides)
    graded = "answer_reward" if numbers else "the generator's own rule"
    settings = f" with {json.dumps(dict(difficulty))}" if difficulty else ""
    return Task(name, train, held_out, correct, None, f"reasoning-gym's {name}{settings}, graded by {graded}")


def _question(name: str, difficulty: Mapping[str, Any] | None, rng: random.Random) -> Question:
    found = _generator(name, difficulty, rng.randrange(SEEDS))[0]
    text = found["question"].strip()
    return Question(text, str(found["answer"]), text, json.dumps(found, default=str))


def _generator(name: str, difficulty: Mapping[str, Any] | None, seed: int) -> Generator:
    gym = _package()
    try:
        return gym.create_dataset(name, **{**(difficulty or {}), "seed": seed, "size": 1})
    except (ValueError, TypeError, AssertionError) as error:
        from reasoning_gym.factory import DATASETS

        if name in DATASETS:
            settings = sorted({*inspect.signature(DATASETS[name][1]).parameters} - {"seed", "size"})
            what, todo = f"{name} does not take these settings: {error}", f"it takes {', '.join(settings)}"
        else:
            near = difflib.get_close_matches(name, DATASETS, n=1, cutoff=0.3)
            what, todo = f"there is no generator {name!r}", f"did you mean {(near or ['gsm_symbolic'])[0]}?"
        where = f"tasks.reasoning_gym({name!r}, {dict(difficulty or {})})"
        raise ConfigError(f"reasoning-gym: {what}", where=where, todo=todo) from error


@cache
def _grader(name: str) -> Generator:
    return _package().create_dataset(name, size=1, seed=0)


def _package() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        todo = "pip install reasoning-gym==0.1.25 (40 MB; one of its dependencies needs a C compiler)"
        what = "reasoning-gym is not installed"
        raise VersionError(what, where="tasks.reasoning_gym", todo=todo) from error
    return reasoning_gym
