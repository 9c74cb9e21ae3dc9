"""What a guarded reward is called with, and what its own error means.

For :func:`rewards.guarded`: lists that a function may edit, logs that are checked before TRL adds them up, and the
place and the cause of an error.
"""

from __future__ import annotations

import numbers
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from rewards.errors import RewardValueError, shown


def copied(value: Any) -> Any:
    """The same lists, tuples and dicts, made anew, so that a reward that edits them edits its own.

    The next reward, the policy's loss and the log then see what was sampled.  What the lists hold is shared.
    """
    kind = type(value)
    if kind in (list, tuple):
        return kind(map(copied, value))
    return {name: copied(one) for name, one in value.items()} if kind is dict else value


def log_metric_checked(reward: str, log_metric: Callable[[str, float], None], name: str, value: Any) -> None:
    """TRL adds the values up when the step is over, and its error then names neither metric nor reward."""
    number = value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value
    if not isinstance(name, str) or not isinstance(number, numbers.Real):
        raise RewardValueError(
            f"log_metric takes a name and one number, and got {shown(name)} and {shown(value)}",
            reward_name=reward,
            todo="log_metric('name', 0.5)",
        )
    log_metric(name, float(number))


def log_extra_checked(
    reward: str, log_extra: Callable[[str, Any], None], count: int | None, column: str, values: Any
) -> None:
    """TRL appends the values to a table whatever their number, and its columns no longer match."""
    found = len(values) if hasattr(values, "__len__") and not isinstance(values, str) else 1
    if not isinstance(column, str) or found != (found if count is None else count):
        raise RewardValueError(
            f"log_extra takes a name and one value per completion: got {shown(column)} and {found} values for {count}",
            reward_name=reward,
            value=values,
            todo="log_extra('column', [text for completion in completions])",
        )
    log_extra(column, list(values))


def unreached(error: BaseException | None) -> BaseException | None:
    """The lost connection or the timeout behind an error; HTTP libraries have classes of their own for them."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        named = re.search(r"Connect|Timeout|Unavailable", type(error).__name__)
        if isinstance(error, (ConnectionError, TimeoutError)) or named:
            return error
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return None


def place(error: BaseException) -> str:
    """Where in the reward an error arose: the deepest line that is not an installed library's."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is the guard's
    own = [frame for frame in frames if "site-packages" not in frame.filename]
    if not own:
        return "in its own code"
    file = own[-1].filename.replace("\\", "/").rpartition("/")[2]
    return f"in its own code, at line {own[-1].lineno} of {own[-1].name} in {file}"


def hints(error: BaseException, kwargs: Mapping[str, Any], columns: Collection[str]) -> Iterator[str]:
    """The form of the call's arguments, for errors that mostly come from expecting another form."""
    if isinstance(error, (TypeError, AttributeError)) and kwargs.get("completions"):
        if isinstance(kwargs["completions"][0], str):
            yield "completions are strings here, as the prompts are"
        else:
            yield "completions are lists of messages here: completion[0]['content']"
    if isinstance(error, KeyError) and error.args and error.args[0] not in kwargs:
        yield f"rewards get {f'the columns {sorted(columns)}' if columns else 'no column of the dataset'}"
