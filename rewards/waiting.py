"""Wait for an ``async`` reward from code that is not async, in one event loop for all of the process's calls.

For ``rewards.guard``.  A judge's semaphores, sessions and clients belong to the loop that first used them, so it must
be there at every step.  It has a thread of its own: a notebook's has a loop already, and can have only one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable
from typing import Any


class _Loop(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="rewards", daemon=True)
        self.loop = asyncio.new_event_loop()

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:  # a task that raises one of these ends the loop, and the others are still waited for
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()


# By process, since a forked one has no threads, and by the loop that the call comes from: it cannot wait for itself.
_loops: dict[tuple[int, _Loop | None], _Loop] = {}


def awaited(awaitable: Awaitable[Any]) -> Any:
    """What it returns, or raises; an interruption cancels it."""

    async def result() -> Any:
        return await awaitable

    future = asyncio.run_coroutine_threadsafe(result(), _running())
    try:
        return future.result()
    finally:
        future.cancel()


def _running() -> asyncio.AbstractEventLoop:
    thread = threading.current_thread()
    place = os.getpid(), thread if isinstance(thread, _Loop) else None
    if place not in _loops:
        made = _Loop()
        if _loops.setdefault(place, made) is made:
            made.start()
        else:  # another thread was first
            made.loop.close()
    return _loops[place].loop
