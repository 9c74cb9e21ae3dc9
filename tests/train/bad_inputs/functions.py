"""Rewards that cannot be trained on, or that disturb the run."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from tests.train.bad_inputs.case import Bad

NAN, INF = math.nan, math.inf


def gives(value: Any) -> Callable[..., Any]:
    """A reward function that gives a value for its second sample, and 0 for the others."""

    def reward(completions: Any, **kwargs: Any) -> Any:
        return [value if index == 1 else 0.0 for index in range(len(completions))]

    return reward


def returns(value: Any) -> Callable[..., Any]:
    """A reward function that returns a value as it is."""

    def reward(completions: Any, **kwargs: Any) -> Any:
        return value

    return reward


def does(act: Callable[..., object]) -> Callable[..., Any]:
    """A reward function that does something, and gives each sample its place."""

    def reward(completions: Any, **kwargs: Any) -> Any:
        count = len(completions)
        act(completions=completions, **kwargs)
        return [float(index) for index in range(count)]

    return reward


def without_kwargs(completions: Any) -> Any:
    """Lacks **kwargs."""
    return [0.0] * len(completions)


def divides(completions: Any, **kwargs: Any) -> Any:
    """Raises."""
    return [1 / 0 for _ in completions]


def wants_gold(completions: Any, gold: Any, **kwargs: Any) -> Any:
    """Needs a column that is not there."""
    return [0.0] * len(completions)


def needs_solution(completions: Any, **kwargs: Any) -> Any:
    """Says which column it needs."""
    return [float(solution == "3") for solution in kwargs["solution"]]


needs_solution.columns = ("solution",)  # type: ignore[attr-defined]


def looks_up(completions: Any, **kwargs: Any) -> Any:
    """Reads a column that is not there, and does not say so."""
    return [float(gold == "3") for gold in kwargs["gold"]]


def judge_is_down(completions: Any, **kwargs: Any) -> Any:
    """Asks a service."""
    raise ConnectionRefusedError(111, "Connection refused")


async def waits(completions: Any, **kwargs: Any) -> Any:
    """An async reward that raises."""
    await asyncio.sleep(0)
    raise TimeoutError("the judge did not answer in 30 s")


class Scorer:
    """A reward given as its class."""

    def __call__(self, completions: Any, **kwargs: Any) -> Any:
        return [0.0] * len(completions)


def rewarded(reward: Any, *says: str, culprit: str = "reward", when: Any = "step") -> Bad:
    """A reward, or several."""
    return Bad(culprit, trainer={"reward_funcs": reward}, says=says, when=when)


def named(reward: Any, *says: str, culprit: str = "", when: Any = "step") -> Bad:
    """A reward that a message must name."""
    return rewarded(reward, reward.__name__, *says, culprit=culprit or reward.__name__, when=when)


def with_model(act: Callable[[Any], object]) -> Bad:
    """A reward that does something to the model that is trained."""

    def made(policy: Any) -> dict[str, Any]:
        return {"reward_funcs": does(lambda **kwargs: act(policy.model))}

    return Bad("reward", trainer=made, when="mended")


def edits_answers(answer: Any, **kwargs: Any) -> None:
    """Writes into a column."""
    answer[:] = ["0"] * len(answer)


def sees_answers(completions: Any, answer: Any, **kwargs: Any) -> Any:
    """Fails where another reward has written into the column."""
    assert answer[0] != "0"
    return [float(index) for index in range(len(completions))]


def endless(completions: Any, **kwargs: Any) -> Any:
    """Never ends."""
    return itertools.repeat(1.0)


def promises(completions: Any, **kwargs: Any) -> Any:
    """Returns a coroutine."""
    return waits(completions)


def empties(completions: Any, **kwargs: Any) -> Any:
    """Returns too few, and empties what they are counted against."""
    completions.clear()
    return [0.0] * 3


def policy_for_reward(policy: Any) -> dict[str, Any]:
    """A model that generates, in place of one that scores."""
    return {"reward_funcs": policy.model, "reward_processing_classes": policy.tokenizer}


REWARDS = {
    "no reward function": rewarded([], culprit="reward_funcs", when="trainer"),
    "a reward without **kwargs": named(without_kwargs, "**kwargs", when="trainer"),
    "a reward's class": named(Scorer, "an instance", when="trainer"),
    "a reward that needs a column": rewarded(wants_gold, "wants_gold", culprit="gold", when="trainer"),
    "a reward that says it needs a column": rewarded(
        needs_solution, "needs_solution", culprit="solution", when="trainer"
    ),
    "a reward that looks up a column": rewarded(looks_up, "answer", culprit="gold"),
    "a module that is no reward model": rewarded(torch.nn.Linear(2, 2), when="trainer"),
    "the policy as a reward model": Bad("reward", trainer=policy_for_reward),
    "a reward that forgets to return": rewarded(returns(None), "None"),
    "a dict": rewarded(returns({"a": 1}), "dict"),
    "one number": rewarded(returns(1.0), "not a list"),
    "a wrong length": rewarded(returns([0.0] * 3), "3 values for 4 completions"),
    "a coroutine": named(promises, "coroutine"),
    "strings": rewarded(gives("1.0"), "sample 1", "'1.0'"),
    "NaN": rewarded(gives(NAN), "sample 1", "nan"),
    "inf": rewarded(gives(INF), "sample 1", "inf"),
    "1e30": rewarded(gives(1e30), "sample 1", "1e+30"),
    "a reward that raises": named(divides, "ZeroDivisionError", "line"),
    "a judge that is down": named(judge_is_down, "did not answer", "service"),
    "an async judge that is late": named(waits, "did not answer"),
    "a reward that edits a column": rewarded([does(edits_answers), sees_answers], when="mended"),
    "a reward that evaluates": with_model(lambda model: model.eval()),
    "a reward that freezes": with_model(lambda model: model.requires_grad_(False)),
    "a reward that switches gradients off": rewarded(
        does(lambda **kwargs: torch.set_grad_enabled(False)), when="mended"
    ),
    "a reward that changes the precision": rewarded(
        does(lambda **kwargs: torch.set_default_dtype(torch.float64)), when="mended"
    ),
    "a reward that seeds": rewarded(does(lambda **kwargs: torch.manual_seed(7)), when="mended"),
}
