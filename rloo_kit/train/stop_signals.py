"""Stop a run by SIGTERM or Ctrl-C: where that does no harm.  Nothing here saves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

HANDLERS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
"""Python's own.  A signal that is ignored, as under nohup, or handled by others stays so."""


class Terminated(SystemExit):
    """SIGTERM has stopped the run; the process ends with the status that a shell gives it, 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """SIGINT has stopped the run in IPython, which shows the message and no traceback: the stop button is no fault.

    Elsewhere it stays a KeyboardInterrupt: Python ends a script with SIGINT's status for no subclass of it.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Stops:
    """Which of SIGTERM and SIGINT has come to stop a run, and whether it may stop now.

    It stops at once, and its step is dropped; it waits (``held``) while weights are updated, the step is logged and
    evaluated, or a checkpoint is written.  A second Ctrl-C does not wait.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.held = False
        self._process = os.getpid()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take the signals while inside, in the main thread, and give them back."""
        main = threading.current_thread() is threading.main_thread()
        taken = {number: own for number, own in HANDLERS.items() if main and signal.getsignal(number) is own}
        for number in taken:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, own in taken.items():
                signal.signal(number, own)

    def release(self) -> None:
        """From here on a signal stops the run; one that waits does so now, as Terminated or KeyboardInterrupt."""
        self.held = self.signal is not None
        if self.held:
            self._stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a worker that a reward has forked: it must save nothing
            os._exit(128 + number)
        again = number == signal.SIGINT == self.signal
        self.signal = signal.SIGTERM if signal.SIGTERM in (number, self.signal) else number
        if again or not self.held:
            self.held = True  # until what is done is saved
            self._stop()

    def _stop(self) -> NoReturn:
        raise Terminated() if self.signal == signal.SIGTERM else KeyboardInterrupt()
