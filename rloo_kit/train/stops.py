"""SIGTERM and SIGINT while a run trains: when they may stop it, and when they have to wait.

For :mod:`.checkpointing`, which says where a step ends.  A signal stops the run at once, in the middle of sampling or
of a backward pass, whose step is dropped; it waits while weights are updated, the step is logged, or a checkpoint is
written.  Several processes have to stop after the same step, so there a signal waits for the step's end.  What is saved
then is :mod:`.resume`'s.  Nothing is changed outside ``train()``, off the main thread, or where a signal is ignored.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rloo_kit.session import processes
from rloo_kit.session.output import in_notebook, running_shell

STATUS = 128 + signal.SIGTERM
"""What a shell and a job scheduler call a process that SIGTERM has ended: 143."""


class Terminated(SystemExit):
    """SIGTERM has stopped the run; the process ends with status 143."""

    def __init__(self) -> None:
        super().__init__(STATUS)


class Interrupted(KeyboardInterrupt):
    """SIGINT has stopped the run in IPython, which shows the message and no traceback: the stop button is no fault."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def told(stop: BaseException, said: str) -> BaseException:
    """What to raise where ``stop`` has ended a run and ``said`` is what became of it.

    In IPython a KeyboardInterrupt that says so.  Elsewhere the same exception, said before it: Python ends a script
    with the status of SIGINT for a KeyboardInterrupt, and not for a subclass.
    """
    if isinstance(stop, KeyboardInterrupt) and running_shell() is not None:
        return Interrupted(said)
    processes.say(said)
    return stop


class Stops:
    """Which signal has asked the run to stop, and whether it may stop now."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.held = False
        self.together = False
        self._listening = False
        self._process = os.getpid()
        self._terminate: Any = None

    @contextmanager
    def listening(self, together: bool = False) -> Iterator[None]:
        """Take SIGTERM and SIGINT while inside, and give them back.

        Args:
            together: the run has several processes, which stop at :meth:`release` alone.
        """
        self.asked, self.held, self.together, self._process = None, False, together, os.getpid()
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        if before.get(signal.SIGTERM) is signal.SIG_IGN:
            del before[signal.SIGTERM]
        if before.get(signal.SIGINT) is not signal.default_int_handler:
            before.pop(signal.SIGINT, None)
        self._terminate, self._listening = before.get(signal.SIGTERM), True
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            self._listening = False
            for number, handler in before.items():
                # A handler that was not set by Python is None, and cannot be set again.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def hold(self) -> None:
        """From here on a signal waits."""
        self.held = True

    def release(self, agreed: Callable[[int], int] | None = None) -> None:
        """From here on a signal stops the run; one that waits does so now.

        Args:
            agreed: gives the largest of all processes' numbers, where there are several.

        Raises:
            Terminated: on SIGTERM.
            KeyboardInterrupt: on SIGINT.
        """
        if self.together and agreed and self._listening:
            self.asked = agreed(self.asked or 0) or None
        self.held = False
        if self.asked is not None and self._listening:
            self.held = True
            raise self._exception()

    def pass_on(self) -> None:
        """After the run has saved: give SIGTERM to the handler that it was taken from.

        In a notebook also to the default one: SystemExit ends a cell there, and the kernel would be killed later.
        """
        if self.asked == signal.SIGTERM and (callable(self._terminate) or in_notebook()):
            signal.raise_signal(signal.SIGTERM)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork, of a reward's pool for instance, which must save nothing
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
            signal.raise_signal(number)
            return
        again = self.asked == signal.SIGINT == number
        self.asked = signal.SIGTERM if signal.SIGTERM in (number, self.asked) else number
        if again or not (self.held or self.together):
            self.held = True  # until what is done is saved
            raise self._exception()

    def _exception(self) -> BaseException:
        return Terminated() if self.asked == signal.SIGTERM else KeyboardInterrupt()
