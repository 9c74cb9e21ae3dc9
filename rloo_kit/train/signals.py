"""SIGTERM and Ctrl-C: they stop a run where that does no harm.  Nothing here saves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch

if TYPE_CHECKING:
    from accelerate import Accelerator


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
    """Which of SIGTERM and SIGINT has asked a run to stop, and whether it may stop now.

    It stops at once, and its step is dropped; it waits (``held``) while weights are updated, the step is logged and
    evaluated, or a checkpoint is written, but not if it comes twice.  Several processes (``together``) stop after the
    same step.  A signal that is ignored stays so.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self.held = self.together = False
        self._process = os.getpid()

    @contextmanager
    def listening(self, together: bool = False) -> Iterator[None]:
        """Take the signals while inside, in the main thread, and give them back."""
        self.asked, self.held, self.together = None, False, together
        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            terminate, interrupt = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
            if terminate not in (signal.SIG_IGN, None):
                before[signal.SIGTERM] = terminate
            if interrupt is signal.default_int_handler:
                before[signal.SIGINT] = interrupt
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def release(self, accelerator: Accelerator) -> None:
        """From here on a signal stops the run; one that waits, in any of several processes, does so now.

        Raises:
            Terminated: on SIGTERM.
            KeyboardInterrupt: on SIGINT.
        """
        if self.together:
            mine = torch.tensor([self.asked or 0], device=accelerator.device)
            self.asked = int(accelerator.gather(mine).max()) or None
        self.held = self.asked is not None
        if self.held:
            self._stop()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork, as a worker of a reward's pool, which must save nothing
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
            signal.raise_signal(number)
            return
        again = self.asked == signal.SIGINT == number
        self.asked = signal.SIGTERM if signal.SIGTERM in (number, self.asked) else number
        if again or not (self.held or self.together):
            self.held = True  # until what is done is saved
            self._stop()

    def _stop(self) -> NoReturn:
        raise Terminated() if self.asked == signal.SIGTERM else KeyboardInterrupt()
