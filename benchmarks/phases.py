"""Measure where a training step's time goes, in TRL's own RLOOTrainer or the kit's, on a CPU or a GPU.

It wraps bound methods of one trainer object and does not change what they compute.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trl import RLOOTrainer

PHASES = ("generate", "reference", "old", "loss forward", "backward", "optimizer", "rest")
"""generate: sampling the completions.  reference, old: log-probabilities without gradient, under the reference and
under the policy that sampled.  loss forward: log-probabilities with gradient.  backward: includes the activations that
gradient checkpointing recomputes.  optimizer: the update alone.  rest: tokenizing, rewards, clipping, logs."""

CLOCKS = ("cpu_seconds", "wall_seconds")


@dataclass(frozen=True)
class Spent:
    """Time on both clocks; CPU seconds are summed over the process's threads."""

    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.cpu_seconds + other.cpu_seconds, self.wall_seconds + other.wall_seconds)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.cpu_seconds - other.cpu_seconds, self.wall_seconds - other.wall_seconds)


@dataclass(frozen=True)
class Step:
    """One update of the policy.

    Attributes:
        spent: phase -> time.
        tokens: generated for it, including end-of-turn tokens but no padding.
    """

    spent: dict[str, Spent]
    tokens: int

    @property
    def total(self) -> Spent:
        return sum(self.spent.values(), Spent())


class Meter:
    """Measures one trainer's steps: every moment goes to exactly one phase, the innermost.

    Call ``begin`` when training begins (the optimizer exists by then), ``end_step`` after each update, and put
    ``paused`` around whatever is not training.

    Args:
        trainer: constructed, not yet training.
        now: reads both clocks; a test passes its own.
    """

    def __init__(
        self, trainer: RLOOTrainer, now: Callable[[], Spent] = lambda: Spent(time.process_time(), time.perf_counter())
    ) -> None:
        on_gpu = trainer.accelerator.device.type == "cuda"
        # Called before each reading, so that a GPU's queued work is charged to its own phase.
        self._synchronize = torch.cuda.synchronize if on_gpu else lambda: None
        self._trainer, self._now = trainer, now
        self._inside = ["rest"]
        self._since: Spent | None = None
        self._tokens, self._spent = 0, dict.fromkeys(PHASES, Spent())
        self.steps: list[Step] = []
        self._time(trainer, "_generate_single_turn", lambda *_: "generate")
        self._time(trainer, "_get_per_token_logps_and_entropies", self._pass_of)
        self._time(trainer.accelerator, "backward", lambda *_: "backward")

    def begin(self) -> None:
        self._time(self._trainer.optimizer, "step", lambda *_: "optimizer")
        self._start()

    def end_step(self) -> None:
        self._charge()
        self.steps.append(Step(self._spent, self._tokens))
        self._tokens, self._spent = 0, dict.fromkeys(PHASES, Spent())

    @property
    def total(self) -> Spent:
        return sum((step.total for step in self.steps), Spent())

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._charge()
        self._since = None
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        self._synchronize()
        self._since = self._now()

    def _charge(self) -> None:
        if self._since is None:
            return
        self._synchronize()
        now = self._now()
        self._spent[self._inside[-1]] += now - self._since
        self._since = now

    def _time(self, owner: object, name: str, phase_of: Callable[..., str]) -> None:
        """Replace a bound method by a timed one; ``phase_of`` gets its positional arguments."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def timed(*args: object, **kwargs: object) -> object:
            phase = phase_of(*args)
            self._charge()
            self._inside.append(phase)
            try:
                result = method(*args, **kwargs)
            finally:
                self._charge()
                self._inside.pop()
            if phase == "generate":
                self._tokens += sum(map(len, result))
            return result

        setattr(owner, name, timed)

    def _pass_of(self, model: object = None, *_: object) -> str:
        """Return the forward pass that a call for log-probabilities belongs to.

        TRL's reference is a separate model, the adapter "ref", or the base model with its adapters off.
        """
        if torch.is_grad_enabled():
            return "loss forward"
        model = model or self._trainer.model
        plain = self._trainer.accelerator.unwrap_model(model)
        is_reference = (
            model is getattr(self._trainer, "ref_model", None)
            or getattr(plain, "_adapters_disabled", False)
            or getattr(plain, "active_adapter", "") == "ref"
        )
        return "reference" if is_reference else "old"


def reset_peak(device: str) -> int:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    marks = Path("/proc/self/clear_refs")
    if marks.exists():
        marks.write_text("5")  # man 5 proc: resets the resident set's high-water mark
    return peak_bytes(device)


def peak_bytes(device: str) -> int:
    """Return the high-water mark of torch's memory on a GPU, or of the process's resident set on a CPU."""
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
