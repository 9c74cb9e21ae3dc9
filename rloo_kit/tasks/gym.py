"""Tasks of reasoning-gym: a hundred generators of verifiable problems (Stojanovski et al. 2025, arXiv 2505.24760).

For a policy that reads English, from a package of its own: ``pip install reasoning-gym`` (Apache-2.0).  Where all
answers are numbers, ``rewards.answer_reward`` grades them, and is the stricter: the package's own graders pay a part
for a wrong answer that holds the right one, and that of "gsm_symbolic" reads a text's first number, without its sign.
Other answers are graded by the package's own rule, of which the full score alone counts.
"""

from __future__ import annotations

import difflib
import importlib.util
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
from rloo_kit.tasks.task import Task, asked_for, conversation, dataset_of, draw, falls_out, form_for, made

if TYPE_CHECKING:
    from rewards.answers import Form
    from rloo_kit.policy.policy import Policy

    Generator = Any  # reasoning_gym.dataset.ProceduralDataset

SEEDS = 2**31  # reasoning-gym adds an index to its seed


@dataclass(frozen=True)
class Entry:
    """One problem of a generator; ``entry`` is what its grader reads, as JSON."""

    text: str
    answer: str
    entry: str

    @property
    def is_held_out(self) -> bool:
        """Whether its text belongs to the held-out fifth."""
        return falls_out(self.text)


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
        policy: from ``load_policy``; says in which form to ask for the answer.
        form: where the answer has to stand, one of ``rewards.FORMS``; None takes ``policy.checkpoint.form``, and asks
            for none without a policy; for answers that are not numbers it takes "<answer>".
        n_train, n_held_out: problems to train and to measure on; None for 1000 and 200, or as many as there are.
        seed: of the draw; the split is always the same.

    Raises:
        VersionError: the package is not installed.
        ConfigError: there is no such generator or setting.
        DatasetError: more problems than there are.
    """
    _generator(name, difficulty, 0)  # an error of its settings, before anything is drawn
    sides = [
        draw(
            lambda rng: _entry(name, difficulty, rng),
            n,
            held_out=held_out,
            seed=f"gym {name} {held_out} {seed}",
            what=f"problems of {name}",
        )
        for held_out, n in ((False, n_train), (True, n_held_out))
    ]
    numbers = all(to_number(entry.answer) is not None for side in sides for entry in side)
    asked: Form = form or (form_for(policy) if numbers else "<answer>")
    correct, asks = asked_for(asked, policy)
    if not numbers:
        tokens = QWEN3 if policy is None else policy.checkpoint.tokens
        correct = answer_reward(OwnRule(name, asked), form=asked, column="entry", tokens=tokens)
    train, held_out = (dataset_of(_row(entry, asks) for entry in side) for side in sides)
    graded = "answer_reward" if numbers else "the generator's own rule"
    settings = f" with {json.dumps(dict(difficulty))}" if difficulty else ""
    return Task(name, train, held_out, correct, None, f"reasoning-gym's {name}{settings}, graded by {graded}")


def _row(entry: Entry, asks: str) -> dict[str, Any]:
    prompt = conversation(entry.text, asks)
    return {"prompt": prompt, "answer": entry.answer, "problem": entry.text, "entry": entry.entry}


def _entry(name: str, difficulty: Mapping[str, Any] | None, rng: random.Random) -> Entry:
    found = _generator(name, difficulty, rng.randrange(SEEDS))[0]
    return Entry(found["question"].strip(), str(found["answer"]), json.dumps(found, default=str))


def _generator(name: str, difficulty: Mapping[str, Any] | None, seed: int) -> Generator:
    gym = _package()
    try:
        return gym.create_dataset(name, **{**(difficulty or {}), "seed": seed, "size": 1})
    except (ValueError, TypeError, AssertionError) as error:
        from reasoning_gym.factory import DATASETS

        near = difflib.get_close_matches(name, DATASETS, n=3, cutoff=0.3)
        known = name in DATASETS
        raise ConfigError(
            f"reasoning-gym's {name} does not take these settings: {error}"
            if known
            else f"reasoning-gym has no generator {name!r}",
            where=f"tasks.reasoning_gym({name!r}, {dict(difficulty or {})})",
            todo=f"its settings are {', '.join(_settings(DATASETS[name][1]))}"
            if known
            else f"did you mean {' or '.join(near) or 'gsm_symbolic'}?",
        ) from error


def _settings(configuration: type) -> list[str]:
    import dataclasses

    return [item.name for item in dataclasses.fields(configuration) if item.name not in ("seed", "size")]


@cache
def _grader(name: str) -> Generator:
    return _package().create_dataset(name, size=1, seed=0)


def _package() -> Any:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise VersionError(
            "reasoning-gym is not installed",
            where="tasks.reasoning_gym",
            todo="pip install reasoning-gym==0.1.25 (40 MB; one of its dependencies needs a C compiler)",
        )
    import reasoning_gym

    return reasoning_gym
