"""Stop a run on SIGTERM or Ctrl-C at a moment when that does no harm; saving is done in :mod:`.resume`."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

PYTHONS_OWN = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
"""Python's own handlers.  A signal that is ignored, as under nohup, or that other code handles is left alone."""


class Terminated(SystemExit):
    """SIGTERM has stopped the run; the process ends with status 143, as shells report it."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """SIGINT has stopped the run in IPython, which shows the message without a traceback: a stop is not an error.

    Scripts get a plain KeyboardInterrupt: Python does not exit with SIGINT's status for a subclass.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Stops:
    """Whether SIGTERM or SIGINT has arrived, and whether the run may stop now.

    The run stops at once and drops its step, except while ``held``: while weights are updated, the step is logged and
    evaluated, or a checkpoint is written.  Then the signal waits.  A second Ctrl-C does not wait.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.held = False
        self._process = os.getpid()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals while inside, if this is the main thread, and restore the handlers afterwards."""
        main = threading.current_thread() is threading.main_thread()
        taken = {number: own for number, own in PYTHONS_OWN.items() if main and signal.getsignal(number) is own}
        for number in taken:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, own in taken.items():
                signal.signal(number, own)

    def release(self) -> None:
        """Let signals stop the run again; one that waited does so now, by raising Terminated or KeyboardInterrupt."""
        self.held = self.signal is not None
        if self.held:
            self._stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a worker that a reward has forked must not save
            os._exit(128 + number)
        again = number == signal.SIGINT == self.signal
        self.signal = signal.SIGTERM if signal.SIGTERM in (number, self.signal) else number
        if again or not self.held:
            self.held = True  # until the finished step is saved
            self._stop()

    def _stop(self) -> NoReturn:
        raise Terminated() if self.signal == signal.SIGTERM else KeyboardInterrupt()
