"""What happens at a step's edges: only finite gradients reach a weight, and a signal stops the run where that does no
harm.  Nothing here clips, scales, or saves.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from rloo_kit.errors import NonFiniteError

if TYPE_CHECKING:
    from accelerate import Accelerator

    from rloo_kit.train.checkpointing import SavingTrainer

FIRST_LOSS_SCALE = 1024.0
"""Where fp16's loss scaler starts.  torch starts at 65536, which suits a loss that is a mean over tokens.  RLOO's is a
sum over some hundred tokens of a completion, and each overflow costs a step's completions to halve the scale."""

NO_SCALE_LEFT = 1.0
"""Below it the scaler has halved as often as it can: the gradient is too large, not the scale."""


class FiniteGradients(TrainerCallback):
    """Works around: clipping a gradient of infinite norm multiplies it by zero, and inf x 0 is NaN.

    In fp16 the scaler skips a step whose gradient overflows, and halves its scale; it would do so forever.

    Raises:
        NonFiniteError: before the optimizer's step; the weights are those of the last good one.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: torch.nn.Module, **kwargs: Any
    ) -> None:
        """Stop where the gradient is not finite and no scaler is left to lower."""
        scaler = _scaler_of(self._accelerator)
        if scaler is not None and scaler.get_scale() >= NO_SCALE_LEFT:
            return
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if gradients and not torch.nn.utils.get_total_norm(gradients).isfinite():
            model.zero_grad()
            tried = "" if scaler is None else f", at every loss scale down to {scaler.get_scale():g}"
            raise NonFiniteError(
                f"the gradient is not finite{tried}; the weights are those of the last good step",
                where=f"step {state.global_step + 1}",
                todo="look at the last rewards, lower learning_rate, and train(resume_from_checkpoint=True)",
            )


def reset_loss_scale(accelerator: Accelerator) -> None:
    """Works around: a step that stopped between unscaling and updating leaves its mark in fp16's loss scaler, and the
    next run of the trainer fails with "unscale_() has already been called".  (A resumed one loads its checkpoint's.)"""
    if (scaler := _scaler_of(accelerator)) is not None:
        scaler.scale(torch.zeros((), device=accelerator.device))  # one that was never used cannot be updated
        scaler.update(new_scale=FIRST_LOSS_SCALE)


def _scaler_of(accelerator: Accelerator) -> torch.amp.GradScaler | None:
    scaler: torch.amp.GradScaler | None = accelerator.scaler
    return scaler if scaler is not None and scaler.is_enabled() else None


class StepEnds(TrainerCallback):
    """Tells the trainer when an update begins, and when weights, optimizer and schedule belong together again."""

    def __init__(self, trainer: SavingTrainer) -> None:
        self._trainer = trainer

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Gradients are in; the optimizer is next."""
        self._trainer.begin_update()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """The step's number is that of its weights."""
        self._trainer.end_update()


# --- signals ----------------------------------------------------------------------------------------------


class Terminated(SystemExit):
    """SIGTERM has stopped the run; the process ends with the status that a shell gives it, 143."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


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
        self._before: dict[int, Any] = {}

    @contextmanager
    def listening(self, together: bool = False) -> Iterator[None]:
        """Take the signals while inside, in the main thread, and give them back."""
        self.asked, self.held, self.together = None, False, together
        if threading.current_thread() is threading.main_thread():
            self._before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
            if self._before[signal.SIGTERM] in (signal.SIG_IGN, None):
                del self._before[signal.SIGTERM]
            if self._before[signal.SIGINT] is not signal.default_int_handler:
                del self._before[signal.SIGINT]
        for number in self._before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, handler in self._before.items():
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
            raise self._exception()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a fork, as a worker of a reward's pool, which must save nothing
            os._exit(128 + number)
        again = self.asked == signal.SIGINT == number
        self.asked = signal.SIGTERM if signal.SIGTERM in (number, self.asked) else number
        if again or not (self.held or self.together):
            self.held = True  # until what is done is saved
            raise self._exception()

    def _exception(self) -> BaseException:
        return Terminated() if self.asked == signal.SIGTERM else KeyboardInterrupt()
