"""Where a training step's time goes, for any of TRL's RLOOTrainers: stock or the kit's, on a CPU or a GPU.

For benchmarks/step.py and benchmarks/time_to_accuracy.py.  It wraps bound methods of one trainer object, so
that the same code measures classes that know nothing of it, and it changes nothing of what they compute.  It
does not run the training (benchmarks/runs.py does) and it does not compare.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHASES = ("generate", "reference", "old", "loss forward", "backward", "optimizer", "rest")
"""generate: sampling the completions.  reference, old: log-probabilities without gradient, of the reference and
of the policy that sampled.  loss forward: log-probabilities with gradient.  backward: with the activations that
gradient checkpointing computes again.  optimizer: the update alone.  rest: everything else, such as
tokenizing, rewards, clipping and logs."""


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
        now: both clocks' reading; a test gives its own.
        synchronize: called before each reading, so that a GPU's queued work is charged to its own phase.
    """

    def __init__(
        self, now: Callable[[], Spent] | None = None, synchronize: Callable[[], None] | None = None
    ) -> None:
        self._now = now or (lambda: Spent(time.process_time(), time.perf_counter()))
        self._synchronize = synchronize or (lambda: None)
        self._inside: list[str] = []
        self._since = Spent()
        self._is_running = False
        self.spent = dict.fromkeys(PHASES, Spent())

    def start(self) -> None:
        """Run on, in the phase that was paused; in "rest" outside of all."""
        self._synchronize()
        self._since = self._now()
        self._is_running = True

    def pause(self) -> None:
        """Stand still until ``start``: what happens in between is nobody's."""
        self._charge()
        self._is_running = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time inside to a phase, but for that of phases inside it."""
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
        if not self._is_running:
            return
        self._synchronize()
        now = self._now()
        name = self._inside[-1] if self._inside else "rest"
        self.spent[name] += now - self._since
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

    Call ``begin`` when training begins (the optimizer exists by then), ``end_step`` after each update, and
    put ``paused`` around whatever is not training.

    Args:
        trainer: made, not yet training.
        clock: another one, for a test.
    """

    def __init__(self, trainer: Any, clock: PhaseClock | None = None) -> None:
        self.clock = clock or PhaseClock(synchronize=synchronizer(trainer.accelerator.device.type))
        self.steps: list[Step] = []
        self._trainer = trainer
        self._tokens = 0
        self._before = dict(self.clock.spent)
        self._wrap(trainer, "_generate_single_turn", lambda *_: "generate", self._count)
        self._wrap(trainer, "_get_per_token_logps_and_entropies", self._pass_of)
        self._wrap(trainer.accelerator, "backward", lambda *_: "backward")

    def begin(self) -> None:
        """Start the clock."""
        self._wrap(self._trainer.optimizer, "step", lambda *_: "optimizer")
        self.clock.start()

    def end_step(self) -> None:
        """Close the books of one step."""
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

    def _wrap(
        self,
        owner: Any,
        name: str,
        phase_of: Callable[..., str],
        look_at: Callable[[Any], None] = lambda result: None,
    ) -> None:
        """Put a measured method in front of the bound one; ``phase_of`` sees its positional arguments."""
        bound = getattr(owner, name)

        @functools.wraps(bound)
        def measured(*args: Any, **kwargs: Any) -> Any:
            with self.clock.phase(phase_of(*args)):
                result = bound(*args, **kwargs)
            look_at(result)
            return result

        setattr(owner, name, measured)

    def _count(self, completion_ids: list[list[int]]) -> None:
        self._tokens += sum(len(ids) for ids in completion_ids)

    def _pass_of(self, *args: Any) -> str:
        """Which of the three forward passes a call for log-probabilities is."""
        import torch

        if torch.is_grad_enabled():
            return "loss forward"
        return "reference" if self._is_reference(args[0] if args else self._trainer.model) else "old"

    def _is_reference(self, model: Any) -> bool:
        """TRL's reference is a model of its own, the adapter "ref", or the base with its adapters off."""
        if model is getattr(self._trainer, "ref_model", None):
            return True
        plain = self._trainer.accelerator.unwrap_model(model)
        return getattr(plain, "_adapters_disabled", False) or getattr(plain, "active_adapter", "") == "ref"


def synchronizer(device: str) -> Callable[[], None]:
    """What waits for a device's queued work."""
    if device != "cuda":
        return lambda: None
    import torch

    return torch.cuda.synchronize


# --- memory -----------------------------------------------------------------------------------------------


def reset_peak(device: str) -> int:
    """Let the high-water mark fall to what is held now, and return that, in bytes."""
    if device == "cuda":
        import torch

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
        import torch

        return int(torch.cuda.max_memory_allocated())
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
