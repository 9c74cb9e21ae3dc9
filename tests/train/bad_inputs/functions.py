"""Rewards that cannot be trained on, or that disturb the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
        act(completions=completions, **kwargs)
        return [float(index) for index in range(len(completions))]

    return reward


def logs(name: Any, value: Any) -> Callable[..., Any]:
    """A reward that logs a metric."""
    return does(lambda log_metric, **kwargs: log_metric(name, value))


def without_kwargs(completions: Any) -> Any:
    """Lacks **kwargs."""
    return [0.0] * len(completions)


def divides(completions: Any, **kwargs: Any) -> Any:
    """Raises."""
    return [1 / 0 for _ in completions]


def wants_gold(completions: Any, gold: Any, **kwargs: Any) -> Any:
    """Needs a column that is not there."""
    return [0.0] * len(completions)


def edits_answers(answer: Any, **kwargs: Any) -> None:
    """Writes into a column."""
    answer[:] = ["0"] * len(answer)


def sees_answers(completions: Any, answer: Any, **kwargs: Any) -> Any:
    """Fails where another reward has written into the column."""
    assert answer[0] != "0"
    return [float(index) for index in range(len(completions))]
