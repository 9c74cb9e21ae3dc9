"""Where a training step's time goes, for any of TRL's RLOOTrainers: stock or the kit's, on a CPU or a GPU.

For benchmarks/step.py, benchmarks/time_to_accuracy.py and the GPU check.  It wraps bound methods of one trainer
object, so the same code measures classes that know nothing of it, and it changes nothing of what they compute.  It
does not run the training (benchmarks/one_run.py does) and it does not compare.
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
"""generate: sampling the completions.  reference, old: log-probabilities without gradient, of the reference and of
the policy that sampled.  loss forward: log-probabilities with gradient.  backward: includes the activations that
gradient checkpointing recomputes.  optimizer: the update alone.  rest: tokenizing, rewards, clipping, logs."""

CLOCKS = {"cpu_seconds": "CPU seconds", "wall_seconds": "wall seconds"}
"""Attribute of ``Spent`` -> its name in a table."""


@dataclass(frozen=True)
class Spent:
    """Time on both clocks; CPU seconds are those of all threads of the process."""

    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.cpu_seconds + other.cpu_seconds, self.wall_seconds + other.wall_seconds)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(self.cpu_seconds - other.cpu_seconds, self.wall_seconds - other.wall_seconds)


class PhaseClock:
    """Charges every moment between ``start`` and ``pause`` to exactly one phase, the innermost.

    Args:
        now: reads both clocks; a test passes its own.
        synchronize: called before each reading, so that a GPU's queued work is charged to its own phase.
    """

    def __init__(
        self,
        now: Callable[[], Spent] = lambda: Spent(time.process_time(), time.perf_counter()),
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        self._now, self._synchronize = now, synchronize
        self._inside = ["rest"]
        self._since: Spent | None = None
        self.spent = dict.fromkeys(PHASES, Spent())

    def start(self) -> None:
        """Start, or continue in the phase that was paused."""
        self._synchronize()
        self._since = self._now()

    def pause(self) -> None:
        """Stop until ``start``; the time between is charged to no phase."""
        self._charge()
        self._since = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time inside to a phase, except for that of phases inside it."""
        self._charge()
        self._inside.append(name)
        try:
            yield
        finally:
            self._charge()
            self._inside.pop()

    @property
    def total(self) -> Spent:
        """All phases together, up to the last change of phase."""
        return sum(self.spent.values(), Spent())

    def _charge(self) -> None:
        if self._since is None:
            return
        self._synchronize()
        now = self._now()
        self.spent[self._inside[-1]] += now - self._since
        self._since = now


@dataclass(frozen=True)
class Step:
    """One update of the policy.

    Attributes:
        spent: phase -> time.
        tokens: generated in it, end-of-turn tokens included, padding not.
    """

    spent: dict[str, Spent]
    tokens: int

    @property
    def total(self) -> Spent:
        """All phases together."""
        return sum(self.spent.values(), Spent())


class Meter:
    """Measures one trainer's steps.

    Call ``begin`` when training begins (the optimizer exists by then), ``end_step`` after each update, and put
    ``paused`` around whatever is not training.

    Args:
        trainer: constructed, not yet training.
        clock: replaced in tests.
    """

    def __init__(self, trainer: RLOOTrainer, clock: PhaseClock | None = None) -> None:
        on_gpu = trainer.accelerator.device.type == "cuda"
        self.clock = clock or PhaseClock(synchronize=torch.cuda.synchronize if on_gpu else lambda: None)
        self.steps: list[Step] = []
        self._trainer, self._tokens, self._before = trainer, 0, dict(self.clock.spent)
        self._time(trainer, "_generate_single_turn", lambda *_: "generate")
        self._time(trainer, "_get_per_token_logps_and_entropies", self._pass_of)
        self._time(trainer.accelerator, "backward", lambda *_: "backward")

    def begin(self) -> None:
        """Start the clock."""
        self._time(self._trainer.optimizer, "step", lambda *_: "optimizer")
        self.clock.start()

    def end_step(self) -> None:
        """Record what one step took."""
        self.clock.pause()
        spent = {name: self.clock.spent[name] - self._before[name] for name in PHASES}
        self.steps.append(Step(spent, self._tokens))
        self._before, self._tokens = dict(self.clock.spent), 0
        self.clock.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock while inside."""
        self.clock.pause()
        try:
            yield
        finally:
            self.clock.start()

    def _time(self, owner: object, name: str, phase_of: Callable[..., str]) -> None:
        """Replace a bound method by one that is timed; ``phase_of`` sees its positional arguments."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def timed(*args: object, **kwargs: object) -> object:
            phase = phase_of(*args)
            with self.clock.phase(phase):
                result = method(*args, **kwargs)
            if phase == "generate":
                self._tokens += sum(map(len, result))
            return result

        setattr(owner, name, timed)

    def _pass_of(self, model: object = None, *_: object) -> str:
        """Which of the three forward passes a call for log-probabilities is.

        TRL's reference is a model of its own, the adapter "ref", or the base model with its adapters off.
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


# --- memory -----------------------------------------------------------------------------------------------


def reset_peak(device: str) -> int:
    """Reset the high-water mark to what is held now, and return that, in bytes."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    marks = Path("/proc/self/clear_refs")
    if marks.exists():
        marks.write_text("5")  # man 5 proc: resets the resident set's high-water mark
    return peak_bytes(device)


def peak_bytes(device: str) -> int:
    """The high-water mark: memory that torch allocated on a GPU, the process's resident set on a CPU.

    Where the system cannot reset its mark (no /proc), that of the whole process.
    """
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
