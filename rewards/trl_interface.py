"""What TRL asks of a reward: to take its keywords, and to return one finite number or None per completion.

``check_signature`` asks before any call, ``guarded`` at each one.  rloo_kit's trainer guards every reward function of a
user's; a module as a reward model is called by TRL itself.
"""

from __future__ import annotations

import contextlib
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
from typing import TYPE_CHECKING, Any, Literal, get_args

from rewards.call_records import recorded
from rewards.errors import (
    RewardCallError,
    RewardSignatureError,
    RewardValueError,
    invalid,
    shortened,
    shown,
)

if TYPE_CHECKING:
    import asyncio

Reward = Callable[..., Any]
Scores = list[float | None]
Judges = Literal["answer", "form", "length"]
"""What a reward pays for, where it is one thing: set ``reward.judges`` on a function of your own."""

Aim = Literal["answer", "thought", "both"]
"""What of a completion a reward is about, by its attribute ``aim``; an audit judges it by that."""

#: What TRL 1.15 passes to every reward besides the dataset's columns (``_calculate_rewards``).
TRL_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
UNSEEN = ("prompt", "completion")  # columns that TRL does not pass to rewards
LIMIT = 1e6


def _inner(reward: Any) -> Any:
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def reward_name(reward: Reward) -> str:
    """The name under which TRL logs a reward: partials unwrapped, callable objects by name or class."""
    inner = _inner(reward)
    return str(getattr(inner, "__name__", type(inner).__name__))


def said_by(reward: object, attribute: str, default: Any = None) -> Any:
    """An attribute of a reward, or of what it is a partial of."""
    return getattr(reward, attribute, getattr(_inner(reward), attribute, default))


def judges_of(*rewards: object) -> Judges | None:
    """What rewards say that they pay for, by ``judges``; None where they differ or do not say.

    ValueError for what is not one of :data:`Judges`.
    """
    said: list[Judges | None] = [said_by(reward, "judges") for reward in rewards]
    for reward, judges in zip(rewards, said, strict=True):
        if judges not in (None, *get_args(Judges)):
            where = f"reward '{reward_name(reward)}', judges {shown(judges)}"  # type: ignore[arg-type]
            todo = "set judges to one of them, or remove it"
            raise invalid("A reward's judges must be answer, form or length", where, todo)
    return said[0] if len(set(said)) == 1 else None


def columns_of(*rewards: object) -> tuple[str, ...]:
    """Columns of the dataset that rewards need, by their attribute ``columns``."""
    said = [said_by(reward, "columns", ()) for reward in rewards]
    named = ([names] if isinstance(names, str) else names for names in said)
    return tuple(dict.fromkeys(itertools.chain.from_iterable(named)))


class Wrapped:
    """A reward made of others, which says of itself what they say: what it pays for, and what it needs."""

    def __init__(self, name: str, *rewards: Reward) -> None:
        for reward in rewards:
            check_callable(reward)
        self.__name__, self.rewards = name, rewards
        self.judges, self.columns = judges_of(*rewards), columns_of(*rewards)
        # The audit judges by an aim, and writes its cases with these tokens and in this form.
        aims = {said_by(reward, "aim", "answer") for reward in rewards}
        self.aim = aims.pop() if len(aims) == 1 else "answer"
        for attribute in ("tokens", "form", "kind"):
            said = [value for reward in rewards if (value := said_by(reward, attribute)) is not None]
            if said and all(value == said[0] for value in said):
                setattr(self, attribute, said[0])


def members(reward: object) -> Iterator[object]:
    """The rewards that a composition is made of, however deep; any other reward itself."""
    inner = _inner(reward)
    if isinstance(inner, Wrapped):
        yield from itertools.chain.from_iterable(map(members, inner.rewards))
    else:
        yield inner


def is_async(reward: Reward) -> bool:
    """Whether calling the reward gives a coroutine: the rule by which TRL decides to await it."""
    inner = _inner(reward)
    call = getattr(inner, "__call__", None)  # noqa: B004 - the bound method is inspected, not just looked for
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(call)


def count_of(kwargs: Mapping[str, Any], args: Sequence[Any] = ()) -> int | None:
    """The number of completions in a call, by its keywords or first argument; None if unknown."""
    for key in ("completions", "completion_ids", "prompts"):
        if kwargs.get(key) is not None:
            return len(kwargs[key])
    return len(args[0]) if args and hasattr(args[0], "__len__") else None


def column_in(kwargs: Mapping[str, Any], column: str, reward: str) -> Any:
    """A column of a call's keywords; RewardValueError if the dataset lacks it."""
    if column not in kwargs:
        held = ", ".join(sorted(set(kwargs) - set(TRL_KEYWORDS) - {"prompt"})) or "only prompts"
        todo = f"add the column, or tell {reward} another; the dataset has {held}"
        raise RewardValueError(f"The dataset has no column '{column}'", reward_name=reward, todo=todo)
    return kwargs[column]


def check_callable(reward: Reward) -> None:
    """Raise RewardSignatureError for what cannot be called, and for a class in place of its instance."""
    if inspect.isclass(reward):
        name = reward.__name__
        what, todo = f"{name} is a class, and its instances are the rewards", f"pass an instance, {name}(...)"
        raise RewardSignatureError(what, reward_name=name, todo=todo)
    if not callable(reward):
        what = f"A reward must be callable, not {type(reward).__name__}"
        todo = "pass a function: def reward(completions, **kwargs): return [0.0 for _ in completions]"
        raise RewardSignatureError(what, reward_name=shown(reward), value=reward, todo=todo)


def check_signature(reward: Reward, columns: Iterable[str] | None = None) -> None:
    """Raise, before any call, if a reward cannot take the keywords that TRL passes.

    TRL calls ``reward(prompts=..., completions=..., completion_ids=..., trainer_state=..., log_extra=...,
    log_metric=..., **columns)``; a signature without ``**kwargs`` fails there with a bare TypeError.

    Args:
        columns: names of the dataset's columns besides ``prompt``; None if unknown.

    Raises:
        RewardSignatureError: not callable, a class, no ``**kwargs`` and a keyword missing, a positional-only
            argument, or a column that it requires and the dataset lacks.
    """
    check_callable(reward)
    name = reward_name(reward)
    try:
        parameters = list(inspect.signature(reward).parameters.values())
    except (ValueError, TypeError):  # a builtin or an extension type without a readable signature
        return
    known = set(columns or ())
    passed = {*TRL_KEYWORDS, *known}
    required = [p for p in parameters if p.default is p.empty]
    if positional := [p.name for p in required if p.kind is p.POSITIONAL_ONLY]:
        what = f"Its argument '{positional[0]}' is positional-only, and TRL passes keywords"
        raise RewardSignatureError(what, reward_name=name, todo="remove the '/' from the signature")
    missing = sorted(passed - {p.name for p in parameters})
    if missing and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        what = f"Its signature has no **kwargs and does not take {', '.join(missing)}, which TRL passes"
        raise RewardSignatureError(what, reward_name=name, todo="add **kwargs as the last argument")
    named = [p.name for p in required if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    needed = [one for one in (*columns_of(reward), *named) if one not in passed]
    if columns is None or not needed:
        return
    held = f"it has {', '.join(sorted(known))}" if known else "it has no column besides the prompts"
    what = f"It requires '{needed[0]}', which is neither passed by TRL nor a column of the dataset"
    raise RewardSignatureError(what, reward_name=name, todo=f"rename a column, or add it ({held})")


@recorded()
def guarded(reward: Reward, *, limit: float = LIMIT, columns: Iterable[str] | None = None) -> Reward:
    """The same reward, which now raises instead of returning a value that would silently ruin a run.

    TRL 1.15 takes +-inf (every weight NaN after one step), 1e30 (infinite gradient), a dict (its keys become the
    rewards), and reads NaN as None.  A guarded reward returns one float or None ("does not apply") per completion, or
    raises; it gets lists that it may edit.  It is picklable and ``async`` where the reward is, and keeps its name.

    Args:
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

    def __call__(self, /, *args: Any, **kwargs: Any) -> Scores:
        with self._explained(kwargs):
            returned = self.reward(*_copied(args), **_copied(kwargs))
        return checked_scores(returned, count_of(kwargs, args), name=self.__name__, limit=self.limit)

    @contextlib.contextmanager
    def _explained(self, kwargs: Mapping[str, Any]) -> Iterator[None]:
        try:
            yield
        except RewardValueError:  # from an inner guard, which names its own function
            raise
        except (Exception, SystemExit) as error:
            what = f"The reward raised {type(error).__name__}{f': {error}' if str(error) else ''}"
            what = shortened(" ".join(what.split()))  # a library's message may have lines of its own
            todo = f"fix the reward, or what it calls, {_place(error)}{_hint(error, kwargs)}"
            raise RewardCallError(what, reward_name=self.__name__, value=error, todo=todo) from error


class _AsyncGuarded(_Guarded):
    async def __call__(self, /, *args: Any, **kwargs: Any) -> Scores:  # type: ignore[override]
        with self._explained(kwargs):
            returned = await self.reward(*_copied(args), **_copied(kwargs))
        return checked_scores(returned, count_of(kwargs, args), name=self.__name__, limit=self.limit)


def call_reward(reward: Reward, **kwargs: Any) -> Scores:
    """Call a reward, awaiting it if it is ``async``, and check what it returns as ``guarded`` does."""
    returned = reward(**kwargs)
    if inspect.isawaitable(returned):
        returned = _awaited(returned)
    return checked_scores(returned, count_of(kwargs), name=reward_name(reward))


# One event loop for all of a process's calls, since a judge's semaphores and clients belong to the one that first used
# them.  By process, since a forked one has no threads, and by the loop that the call comes from: it cannot wait for
# itself.  In threads of their own: a notebook's has a loop already, and can have only one.
_loops: dict[tuple[int, str], asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def _awaited(awaitable: Awaitable[Any]) -> Any:
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
        future.cancel()  # where the wait was interrupted


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
    scores = list(values)
    if count is not None and len(scores) != count:
        what = f"It returned {len(scores)} values for {count} completions"
        todo = "return one number or None per completion, in their order"
        raise RewardValueError(what, reward_name=name, value=returned, todo=todo)
    return [as_score(value, index, name, limit) for index, value in enumerate(scores)]


def as_score(value: Any, index: int, name: str, limit: float = LIMIT) -> float | None:
    """One score as a float or None; RewardValueError if it cannot be one."""
    if value is None:
        return None
    number = value.item() if getattr(value, "ndim", None) == 0 else value  # of numpy or torch
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


def _copied(value: Any) -> Any:
    # Lists, tuples, dicts, arrays and tensors made anew, so that a reward that edits them edits its own.
    kind = type(value)
    if kind in (list, tuple):
        numbers_or_texts = all(type(one) in (str, int, float) for one in value)
        return kind(value if numbers_or_texts else map(_copied, value))
    if kind is dict:
        return {name: _copied(one) for name, one in value.items()}
    copied = getattr(value, "clone", None) or getattr(value, "copy", None)  # of torch, numpy, sets, images
    return copied() if callable(copied) and not isinstance(value, type) else value


def _place(error: BaseException) -> str:
    # The deepest line that is not a library's, Python's own or the guard's.
    frames = traceback.extract_tb(error.__traceback__)
    others = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), __file__)
    own = [frame for frame in frames if not any(place in frame.filename for place in others)]
    if not own:
        return "in its own code"
    file = own[-1].filename.replace("\\", "/").rpartition("/")[2]
    return f"in its own code, at line {own[-1].lineno} of {own[-1].name} in {file}"


def _hint(error: BaseException, kwargs: Mapping[str, Any]) -> str:
    # The form of the call's arguments, for errors that mostly come from expecting another form.
    columns = sorted(set(kwargs) - set(TRL_KEYWORDS))
    if isinstance(error, (TypeError, AttributeError)) and kwargs.get("completions"):
        text = isinstance(kwargs["completions"][0], str)
        chat = "completions are lists of messages here: completion[0]['content']"
        further = "; and each column is a list, an entry a completion" if columns else ""
        return f"; {'completions are strings here, as the prompts are' if text else chat}{further}"
    if isinstance(error, KeyError) and error.args and error.args[0] not in kwargs:
        return f"; rewards get {f'the columns {columns}' if columns else 'no column of the dataset'}"
    return ""
