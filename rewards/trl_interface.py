"""Check that a reward takes TRL's keywords and returns one finite number or None per completion.

``check_signature`` checks before any call, ``guarded`` at each one; rloo_kit's trainer guards every reward function.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import math
import numbers
import os
import sysconfig
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rewards.errors import RewardCallError, RewardSignatureError, RewardValueError, invalid, shortened, shown
from rewards.factory_calls import recorded

if TYPE_CHECKING:
    import asyncio

Reward = Callable[..., Any]
Scores = list[float | None]
Judges = Literal["answer", "form", "length"]
"""What a reward pays for, if it is one thing: set ``reward.judges`` on a function of your own."""

Aim = Literal["answer", "thought", "both"]
"""The part of a completion that a reward scores, as its attribute ``aim`` says; an audit judges by it."""

#: What TRL 1.15 passes to every reward besides the dataset's columns (``_calculate_rewards``).
TRL_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
UNSEEN = ("prompt", "completion", "completion_ids")  # columns that TRL does not pass to rewards
LIMIT = 1e6


def passed_columns(columns: Iterable[str]) -> list[str]:
    """Those of a dataset's columns that TRL passes to rewards."""
    return [name for name in columns if name not in UNSEEN]


def trl_keywords(rows: Sequence[Mapping[str, Any]], **given: Any) -> dict[str, Any]:
    """What TRL passes to a reward for a dataset's rows: their columns, and the ``given`` of :data:`TRL_KEYWORDS`."""
    columns = {name: [row.get(name) for row in rows] for name in passed_columns(rows[0])}
    return {**columns, "log_extra": lambda column, values: None, "log_metric": lambda name, value: None, **given}


def _inner(reward: Any) -> Any:
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def reward_name(reward: Reward) -> str:
    """Return the name under which TRL logs a reward."""
    inner = _inner(reward)
    return str(getattr(inner, "__name__", type(inner).__name__))


def said_by(reward: object, attribute: str, default: Any = None) -> Any:
    return getattr(reward, attribute, getattr(_inner(reward), attribute, default))


def judges_of(*rewards: Any) -> Judges | None:
    """Return the ``judges`` that all rewards share; None if they differ or one does not say."""
    judged: set[Judges | None] = {said_by(reward, "judges") for reward in rewards}
    if unknown := judged - {None, *get_args(Judges)}:
        where = f"judges {shown(unknown.pop())}, of one of {', '.join(map(reward_name, rewards))}"
        todo = "set judges to one of them, or remove it"
        raise invalid("A reward's judges must be answer, form or length", where, todo)
    return judged.pop() if len(judged) == 1 else None


def columns_of(*rewards: object) -> tuple[str, ...]:
    said = [said_by(reward, "columns", ()) for reward in rewards]
    named = ([names] if isinstance(names, str) else names for names in said)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(named)))


def full_score(reward: object) -> float | None:
    """Return the score of a right answer: ``reward.right``, or 1 for a plain function; None if unknown."""
    return said_by(reward, "right", 1.0 if inspect.isfunction(_inner(reward)) else None)


class Wrapped:
    """A reward made of others, which takes over their attributes: what they pay for and what they need."""

    def __init__(self, name: str, *rewards: Reward) -> None:
        for reward in rewards:
            check_callable(reward)
        self.__name__, self.rewards = name, rewards
        self.right = full_score(rewards[0]) if len(rewards) == 1 else None
        self.judges, self.columns = judges_of(*rewards), columns_of(*rewards)
        # The audit judges by the aim, and writes its cases with these tokens, in this form and of this kind.
        aims = {said_by(reward, "aim", "answer") for reward in rewards}
        self.aim = aims.pop() if len(aims) == 1 else "answer"
        for attribute in ("tokens", "form", "kind"):
            said = [value for reward in rewards if (value := said_by(reward, attribute)) is not None]
            if said and all(value == said[0] for value in said):
                setattr(self, attribute, said[0])


def members(reward: object) -> list[object]:
    """Return the rewards that a composition is made of, however deep; for any other reward, itself."""
    inner = _inner(reward)
    return [one for part in inner.rewards for one in members(part)] if isinstance(inner, Wrapped) else [inner]


def is_async(reward: Reward) -> bool:
    """Whether calling the reward gives a coroutine: the rule by which TRL decides to await it."""
    inner = _inner(reward)
    return any(map(inspect.iscoroutinefunction, (inner, getattr(inner, "__call__", None))))  # noqa: B004


def count_of(kwargs: Mapping[str, Any]) -> int | None:
    columns = (kwargs.get(key) for key in ("completions", "completion_ids", "prompts"))
    return next((len(column) for column in columns if column is not None), None)


def column_in(kwargs: Mapping[str, Any], column: str, reward: str) -> Any:
    if column not in kwargs:
        held = ", ".join(sorted(set(kwargs) - set(TRL_KEYWORDS) - {"prompt"})) or "only prompts"
        todo = f"add the column, or tell {reward} another; the dataset has {held}"
        raise RewardValueError(f"The dataset has no column '{column}'", reward_name=reward, todo=todo)
    return kwargs[column]


def check_callable(reward: Reward) -> None:
    if inspect.isclass(reward):
        name = reward.__name__
        what, todo = f"{name} is a class, and its instances are the rewards", f"pass an instance, {name}(...)"
        raise RewardSignatureError(what, reward_name=name, todo=todo)
    if not callable(reward):
        what = f"A reward must be callable, not {type(reward).__name__}"
        todo = "pass a function: def reward(completions, **kwargs): return [0.0 for _ in completions]"
        raise RewardSignatureError(what, reward_name=shown(reward), value=reward, todo=todo)


def check_signature(reward: Reward, columns: Iterable[str] | None = None) -> None:
    """Raise if a reward cannot take the keywords that TRL passes, before any call.

    TRL calls ``reward(prompts=..., completions=..., completion_ids=..., trainer_state=..., log_extra=...,
    log_metric=..., **columns)``.

    Args:
        columns: names of the dataset's columns besides ``prompt``; None if unknown.

    Raises:
        RewardSignatureError: it is a class or not callable, lacks a keyword, or needs a missing column.
    """
    check_callable(reward)
    name, known = reward_name(reward), sorted(set(columns or ()))
    lacks = [] if columns is None else [repr(column) for column in columns_of(reward) if column not in known]
    try:
        signature = inspect.signature(reward)
    except (TypeError, ValueError):  # a builtin or an extension type without a readable signature
        return
    try:
        bind = signature.bind_partial if columns is None else signature.bind
        bind(**dict.fromkeys((*TRL_KEYWORDS, *known)))
    except TypeError as error:
        if "missing" not in str(error):
            what, todo = f"It {error}, which TRL passes", "add **kwargs as the last argument"
            raise RewardSignatureError(what, reward_name=name, todo=todo) from None
        lacks.append(str(error).rpartition(" ")[2])
    if lacks:
        what = f"It requires {lacks[0]}, which is neither passed by TRL nor a column of the dataset"
        todo = f"rename a column, or add it (it has {', '.join(known) or 'no column besides the prompts'})"
        raise RewardSignatureError(what, reward_name=name, todo=todo)


@recorded()
def guarded(reward: Reward, *, limit: float = LIMIT, columns: Iterable[str] | None = None) -> Reward:
    """Make a reward raise instead of returning a value that would silently ruin a run.

    TRL 1.15 accepts +-inf (every weight NaN after one step), 1e30 (infinite gradient), a dict (its keys become the
    rewards), and reads NaN as None.  A guarded reward returns one float or None ("does not apply") per completion, or
    raises; it gets copies of lists, which it may edit.

    Args:
        limit: largest magnitude allowed.
        columns: names of the dataset's columns, if known; see :func:`check_signature`.

    >>> def reward(completions, **kwargs):
    ...     return [1, float("inf")]
    >>> guarded(reward)(completions=["a", "b"])
    Traceback (most recent call last):
    ...
    rewards.errors.RewardValueError: A reward must be finite, and this one is inf.
    Where: reward 'reward', sample 1, value inf.
    What to do: return a finite number, or None for a sample the reward does not apply to.
    """
    if isinstance(reward, _Guarded) and limit in (LIMIT, reward.limit):
        return reward
    check_signature(reward, columns)
    if not limit > 0:
        raise invalid("limit must be positive", f"guarded(limit={limit})", "leave it at 1e6")
    return (_AsyncGuarded if is_async(reward) else _Guarded)(reward, limit)


class _Guarded(Wrapped):
    def __init__(self, reward: Reward, limit: float) -> None:
        super().__init__(reward_name(reward), reward)
        self.reward, self.limit = reward, limit

    def __call__(self, **kwargs: Any) -> Scores:
        with self._explained(kwargs):
            returned = self.reward(**_copied(kwargs))
        return checked_scores(returned, count_of(kwargs), name=self.__name__, limit=self.limit)

    @contextlib.contextmanager
    def _explained(self, kwargs: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except RewardValueError:  # from an inner guard, which names its own function
            raise
        except (Exception, SystemExit) as error:
            what = f"The reward raised {type(error).__name__}{f': {error}' if str(error) else ''}"
            what = shortened(" ".join(what.split()))  # a library's message may have several lines
            todo = f"fix the reward, or what it calls{_place(error)}{_hint(error, kwargs)}"
            raise RewardCallError(what, reward_name=self.__name__, value=error, todo=todo) from error


class _AsyncGuarded(_Guarded):
    async def __call__(self, **kwargs: Any) -> Scores:  # type: ignore[override]
        with self._explained(kwargs):
            returned = await self.reward(**_copied(kwargs))
        return checked_scores(returned, count_of(kwargs), name=self.__name__, limit=self.limit)


def call_reward(reward: Reward, limit: float | None = LIMIT, /, **kwargs: Any) -> Scores:
    """Call a reward, awaiting it if it is ``async``, and check what it returns as ``guarded`` does; a limit of None
    lets any magnitude pass, also an infinite one."""
    returned = reward(**kwargs)
    returned = _awaited(returned) if inspect.isawaitable(returned) else returned
    return checked_scores(returned, count_of(kwargs), name=reward_name(reward), limit=limit)


# One event loop serves all of a process's calls, since a judge's semaphores and clients belong to the loop that first
# used them.  It runs in its own thread, since a notebook's thread already has a loop.  The key is the process, since a
# forked process has no threads, and the loop that makes the call, if any, since a loop cannot wait for itself.
_loops: dict[tuple[int, str], asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def _awaited(awaitable: Awaitable[Any]) -> Any:
    import asyncio  # slow to import

    async def result() -> Any:
        try:
            return await awaitable
        except SystemExit as error:  # it would end the loop, and every call that the loop serves
            raise RuntimeError(f"The reward called sys.exit({error.code})") from error

    caller = threading.current_thread().name
    place = os.getpid(), caller if caller.startswith("rewards-") else ""
    with _starting:
        if place not in _loops:
            loop = _loops[place] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name=f"rewards-{len(_loops)}", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(result(), _loops[place])
    try:
        return future.result()
    finally:
        future.cancel()  # if the wait was interrupted


def checked_scores(returned: Any, count: int | None, *, name: str, limit: float | None = LIMIT) -> Scores:
    values = returned.tolist() if hasattr(returned, "tolist") else returned  # numpy, torch and pandas
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
    scores = list(values)
    if count is not None and len(scores) != count:
        what = f"It returned {len(scores)} values for {count} completions"
        todo = "return one number or None per completion, in their order"
        raise RewardValueError(what, reward_name=name, value=returned, todo=todo)
    return [as_score(value, index, name, limit) for index, value in enumerate(scores)]


def as_score(value: Any, index: int, name: str, limit: float | None = LIMIT) -> float | None:
    if value is None:
        return None
    number = value.item() if getattr(value, "ndim", None) == 0 else value  # numpy or torch
    todo = "return a finite number, or None for a sample the reward does not apply to"
    if not isinstance(number, numbers.Real):
        what = f"A reward must be one real number, and this one is a {type(value).__name__}"
        todo = "return a flat list of floats; take the parts of a nested one apart"
    elif number != number:
        what = "A reward must be finite, and this one is NaN, which TRL would read as None"
    elif limit is not None and abs(number) == math.inf:
        what = f"A reward must be finite, and this one is {number}"
    elif limit is not None and abs(number) > limit:  # type: ignore[operator]
        what = f"A reward's magnitude must not exceed {limit:g}"
        todo = "scale it down (rewards.scaled, rewards.clipped), or raise guarded(limit=...)"
    else:
        return float(number)
    raise RewardValueError(what, reward_name=name, sample=index, value=value, todo=todo)


def _copied(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    # TRL gives the same lists to every reward: with a copy, a reward that edits them edits only its own.
    return {key: _copy_of(value) if isinstance(value, list) else value for key, value in kwargs.items()}


def _copy_of(values: list[Any]) -> list[Any]:
    try:
        return copy.deepcopy(values)
    except Exception:  # a column of objects that cannot be copied, such as one with a lock
        return list(values)


def _place(error: BaseException) -> str:
    # Name the deepest line that is not of a library, of Python itself or of this guard.
    others = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), __file__)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(place in frame.filename for place in others)]
    return f", at line {own[-1].lineno} of {own[-1].name} in {Path(own[-1].filename).name}" if own else ""


def _hint(error: BaseException, kwargs: Mapping[str, Any]) -> str:
    # Describe the call's arguments, for errors that mostly come from expecting another form.
    columns = sorted(set(kwargs) - set(TRL_KEYWORDS))
    if isinstance(error, KeyError):
        return f"; rewards get {f'the columns {columns}' if columns else 'no column of the dataset'}"
    if not isinstance(error, (TypeError, AttributeError)) or not kwargs.get("completions"):
        return ""
    texts = isinstance(kwargs["completions"][0], str)
    form = "strings here, as the prompts are" if texts else "lists of messages here: completion[0]['content']"
    return f"; completions are {form}{'; and each column is a list, an entry a completion' * bool(columns)}"
