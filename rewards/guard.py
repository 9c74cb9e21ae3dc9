"""Guard a reward: what it is given, what it may return, and what its own error means.

rloo_kit's trainer puts ``guarded`` around every reward of a user's.  Modules as reward models are not guarded: TRL
calls those itself.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import math
import numbers
import os
import re
import sysconfig
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rewards.errors import RewardCallError, RewardValueError, invalid, shortened, shown
from rewards.made import recorded
from rewards.signature import (
    TRL_KEYWORDS,
    Reward,
    Scores,
    Wrapped,
    check_signature,
    count_of,
    is_async,
    reward_name,
)

if TYPE_CHECKING:
    import asyncio

LIMIT = 1e6


@recorded()
def guarded(reward: Reward, *, limit: float = LIMIT, columns: Iterable[str] | None = None) -> Reward:
    """The same reward, which now raises instead of returning a value that would silently ruin a run.

    TRL 1.15 takes +-inf (every weight NaN after one step), 1e30 (infinite gradient), a dict (its keys become the
    rewards), and reads NaN as None.  A guarded reward returns one float or None ("does not apply") per completion, or
    raises; it gets lists that it may edit.  It is picklable and ``async`` where the reward is, and keeps its name.

    Args:
        reward: any TRL reward callable; a guarded one comes back as it is.
        limit: largest magnitude allowed.
        columns: names of the dataset's columns, where known; see :func:`check_signature`.

    Raises:
        RewardSignatureError: at once; see :func:`check_signature`.
        RewardValueError: at a call, with ``reward_name``, ``sample`` and ``value``.
        RewardCallError: at a call, from the reward's own error.

    >>> def reward(completions, **kwargs):
    ...     return [1, float("inf")]
    >>> guarded(reward)(completions=["a", "b"])
    Traceback (most recent call last):
    ...
    rewards.errors.RewardValueError: A reward must be finite, and this one is inf.
    Where: reward 'reward', sample 1, value inf.
    What to do: return a finite number, or None for a sample the reward does not apply to.
    """
    if isinstance(reward, _Guarded):
        return reward
    check_signature(reward, columns)
    if not limit > 0:
        raise invalid("limit must be positive", f"guarded(limit={limit})", "leave it at 1e6")
    return (_AsyncGuarded if is_async(reward) else _Guarded)(reward, limit)


class _Guarded(Wrapped):
    def __init__(self, reward: Reward, limit: float) -> None:
        super().__init__(reward_name(reward), reward)
        self.reward, self.limit = reward, limit

    def __repr__(self) -> str:
        return f"guarded({self.__name__})"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Scores:
        with self._explained(kwargs):
            returned = self.reward(*_copied(args), **self._given(args, kwargs))
        return checked_scores(returned, count_of(kwargs, args), name=self.__name__, limit=self.limit)

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = _copied(dict(kwargs))
        if (state := given.get("trainer_state")) is not None:
            given["trainer_state"] = copy.copy(state)
            vars(given["trainer_state"]).update(_copied(vars(state)))
        count = count_of(kwargs, args)
        checks: dict[str, Any] = {"log_metric": _log_metric, "log_extra": partial(_log_extra, count)}
        for name, check in checks.items():
            if given.get(name) is not None:
                given[name] = partial(check, given[name], self.__name__)
        return given

    @contextlib.contextmanager
    def _explained(self, kwargs: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except RewardValueError:  # from an inner guard, which names its own function
            raise
        except (Exception, SystemExit) as error:
            if (silence := _unreached(error)) is not None:
                what = f"What the reward asks did not answer ({type(silence).__name__}: {silence})"
                todo = "see that the service is up and its address, then train(resume_from_checkpoint=True)"
            else:
                what = f"The reward raised {type(error).__name__}{f': {error}' if str(error) else ''}"
                todo = f"fix the reward {_place(error)}{_hint(error, kwargs)}"
            what = shortened(" ".join(what.split()))  # a library's message may have lines of its own
            raise RewardCallError(what, reward_name=self.__name__, value=error, todo=todo) from error


class _AsyncGuarded(_Guarded):
    async def __call__(self, /, *args: Any, **kwargs: Any) -> Scores:  # type: ignore[override]
        with self._explained(kwargs):
            returned = await self.reward(*_copied(args), **self._given(args, kwargs))
        return checked_scores(returned, count_of(kwargs, args), name=self.__name__, limit=self.limit)


def call_reward(reward: Reward, **kwargs: Any) -> Scores:
    """Call a reward, awaiting it if it is ``async``, and check what it returns as ``guarded`` does."""
    returned = reward(**kwargs)
    if inspect.isawaitable(returned):
        returned = awaited(returned)
    return checked_scores(returned, count_of(kwargs), name=reward_name(reward))


# One event loop for all of a process's calls, since a judge's semaphores and clients belong to the one that first used
# them.  By process, since a forked one has no threads, and by the loop that the call comes from: it cannot wait for
# itself.  In threads of their own: a notebook's has a loop already, and can have only one.
_loops: dict[tuple[int, str], asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def awaited(awaitable: Awaitable[Any]) -> Any:
    """What it returns, or raises; an interruption cancels it."""
    import asyncio  # it takes a while

    async def result() -> Any:
        return await awaitable

    caller = threading.current_thread().name
    place = os.getpid(), caller if caller.startswith("rewards-") else ""
    with _starting:
        if place not in _loops:
            _loops[place] = asyncio.new_event_loop()
            name = f"rewards-{len(_loops)}"
            threading.Thread(target=_run, args=(_loops[place],), name=name, daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(result(), _loops[place])
    try:
        return future.result()
    finally:
        future.cancel()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:  # a task that raises one of these ends the loop, and the others are still waited for
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            loop.run_forever()


def checked_scores(returned: Any, count: int | None, *, name: str, limit: float = LIMIT) -> Scores:
    """The returned value as a list of floats and Nones; a RewardValueError if it cannot be one."""
    values = returned.tolist() if hasattr(returned, "tolist") else returned  # of numpy, torch and pandas
    if isinstance(values, (str, bytes, set, frozenset, Mapping)) or not isinstance(values, Iterable):
        todo = "return a list with one number per completion"
        if returned is None:
            todo = "end the function with return scores"
        elif inspect.isawaitable(returned):
            todo = "define the reward itself with async def: TRL awaits no coroutine of a plain function"
        elif isinstance(returned, Mapping):
            todo += ", and log the parts through log_metric: TRL would take the keys for the rewards"
        what = f"It returned {shown(returned)} ({type(returned).__name__}), not a list of numbers"
        raise RewardValueError(what, reward_name=name, value=returned, todo=todo)
    # What has no length may never end.
    most = None if count is None or hasattr(values, "__len__") else count + 1
    scores = list(itertools.islice(values, most))
    if count is not None and len(scores) != count:
        number = f"more than {count}" if len(scores) == most else len(scores)
        what = f"It returned {number} values for {count} completions"
        todo = "return one number or None per completion, in their order"
        raise RewardValueError(what, reward_name=name, value=returned, todo=todo)
    return [as_score(value, index, name, limit) for index, value in enumerate(scores)]


def as_score(value: Any, index: int, name: str, limit: float = LIMIT) -> float | None:
    """One score as a float or None; RewardValueError if it cannot be one."""
    if value is None:
        return None
    number = _scalar(value)
    todo = "return a finite number, or None for a sample the reward does not apply to"
    if not isinstance(number, numbers.Real):
        what = f"A reward must be one real number, and this one is a {type(value).__name__}"
        todo = "return a flat list of floats; take the parts of a nested one apart"
    elif number != number:
        what = "A reward must be finite, and this one is NaN, which TRL would read as None"
    elif abs(number) == math.inf:
        what = f"A reward must be finite, and this one is {number}"
    elif abs(number) > limit:  # type: ignore[operator]
        what = f"A reward's magnitude must not exceed {limit:g}"
        todo = "scale it down (rewards.scaled, rewards.clipped), or raise guarded(limit=...)"
    else:
        return float(number)
    raise RewardValueError(what, reward_name=name, sample=index, value=value, todo=todo)


def _scalar(value: Any) -> Any:  # of numpy or torch
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


_PLAIN = frozenset((str, int, float, bool, type(None)))


def _copied(value: Any) -> Any:
    """The same lists, tuples, dicts, arrays and tensors, made anew, so that a reward that edits them edits its own."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(value if _PLAIN.issuperset(map(type, value)) else map(_copied, value))
    if kind is dict:
        return {name: _copied(one) for name, one in value.items()}
    copied = getattr(value, "clone", None) or getattr(value, "copy", None)  # of torch, numpy, sets, images
    return copied() if callable(copied) and not isinstance(value, type) else value


def _log_metric(log_metric: Callable[[str, float], None], reward: str, name: str, value: Any) -> None:
    """TRL adds the values up when the step is over, and its error then names neither metric nor reward."""
    number = _scalar(value)
    if not isinstance(name, str) or not isinstance(number, numbers.Real):
        what = f"log_metric takes a name and one number, and got {shown(name)} and {shown(value)}"
        raise RewardValueError(what, reward_name=reward, todo="log_metric('name', 0.5)")
    log_metric(name, float(number))


def _log_extra(
    count: int | None, log_extra: Callable[[str, Any], None], reward: str, column: str, values: Any
) -> None:
    """TRL appends the values to a table whatever their number, and its columns no longer match."""
    found = len(values) if hasattr(values, "__len__") and not isinstance(values, str) else 1
    if not isinstance(column, str) or found != (found if count is None else count):
        what = f"log_extra takes a name and a value per completion: not {shown(column)} and {found} values for {count}"
        todo = "log_extra('column', [text for completion in completions])"
        raise RewardValueError(what, reward_name=reward, value=values, todo=todo)
    log_extra(column, list(values))


def _unreached(error: BaseException | None) -> BaseException | None:
    """The lost connection or the timeout behind an error; HTTP libraries have classes of their own for them."""
    for _ in range(20):  # a chain of causes may be a circle
        named = re.search(r"Connect|Timeout|Unavailable", type(error).__name__)
        if error is None or named or isinstance(error, (ConnectionError, TimeoutError)):
            return error
        error = error.__cause__ or error.__context__
    return None


def _place(error: BaseException) -> str:
    """Where in the reward an error arose: the deepest line that is not a library's, Python's own or the guard's."""
    frames = traceback.extract_tb(error.__traceback__)
    others = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), __file__)
    own = [frame for frame in frames if not any(place in frame.filename for place in others)]
    if not own:
        return "in its own code"
    file = own[-1].filename.replace("\\", "/").rpartition("/")[2]
    return f"in its own code, at line {own[-1].lineno} of {own[-1].name} in {file}"


def _hint(error: BaseException, kwargs: Mapping[str, Any]) -> str:
    """The form of the call's arguments, for errors that mostly come from expecting another form."""
    if isinstance(error, (TypeError, AttributeError)) and kwargs.get("completions"):
        text = isinstance(kwargs["completions"][0], str)
        chat = "completions are lists of messages here: completion[0]['content']"
        further = (
            "; and each column is a list, an entry a completion" if set(kwargs) - set(TRL_KEYWORDS) else ""
        )
        return f"; {'completions are strings here, as the prompts are' if text else chat}{further}"
    if isinstance(error, KeyError) and error.args and error.args[0] not in kwargs:
        columns = sorted(set(kwargs) - set(TRL_KEYWORDS))
        return f"; rewards get {f'the columns {columns}' if columns else 'no column of the dataset'}"
    return ""
