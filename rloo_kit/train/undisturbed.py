"""What reward functions must leave as it is: the model's mode, torch's gradients and random numbers, the folder.

For the trainer, which calls functions that others wrote between sampling and the loss.  A judge that switches gradients
off, or the policy to evaluation, would stop the run with an error that names neither; one that seeds torch would make
every step draw the same completions.  The state is put back, and a warning names the functions, once a run.
"""

from __future__ import annotations

import os
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class State:
    """Of a process, between two calls."""

    training: bool
    trainable: tuple[str, ...]
    gradients: bool
    dtype: torch.dtype
    folder: Path

    @classmethod
    def of(cls, model: torch.nn.Module) -> State:
        """As it is now."""
        return cls(
            training=model.training,
            trainable=tuple(name for name, p in model.named_parameters() if p.requires_grad),
            gradients=torch.is_grad_enabled(),
            dtype=torch.get_default_dtype(),
            folder=Path.cwd(),
        )

    def restore(self, model: torch.nn.Module) -> list[str]:
        """Put back what is different; return what it was, in words."""
        now, found = State.of(model), []
        if now.training != self.training:
            model.train(self.training)
            found.append(f"switched the model to {'evaluation' if self.training else 'training'}")
        if now.trainable != self.trainable:
            wanted = set(self.trainable)
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name in wanted)
            found.append("changed which of the model's parameters are trained")
        if now.gradients != self.gradients:
            torch.set_grad_enabled(self.gradients)
            found.append(f"switched torch's gradients {'off' if self.gradients else 'on'}")
        if now.dtype != self.dtype:
            torch.set_default_dtype(self.dtype)
            found.append(f"set torch's default dtype to {now.dtype}")
        if now.folder != self.folder:
            os.chdir(self.folder)
            found.append(f"changed the process's folder to {now.folder}")
        return found


class Draws:
    """torch's random numbers, which are the completions': the functions get a stream of their own meanwhile.

    Its seed is one that no function sets, so that a function that seeds is found out, also with the run's own seed.
    It is made of the state before, so that a run can be repeated and the functions draw anew at each step.
    """

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        states = (state.numpy().tobytes() for state in (self._cpu, *self._gpus))
        self._theirs = _OWN | zlib.crc32(b"".join(states))
        self._seed(self._theirs)

    def _seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        if self._gpus:
            torch.cuda.manual_seed_all(seed)

    def restore(self) -> list[str]:
        """Put them back; return what the functions did to theirs, in words."""
        seeded = torch.initial_seed() != self._theirs  # what seeds the GPU's seeds the CPU's, too
        torch.set_rng_state(self._cpu)
        if self._gpus:
            torch.cuda.set_rng_state_all(self._gpus)
        return ["seeded torch, so that every step would draw the same completions"] if seeded else []


_OWN = 1 << 62
"""Added to the seeds of :class:`Draws`; seeds that people choose are smaller."""


@contextmanager
def undisturbed(model: torch.nn.Module, names: Sequence[str], told: set[str]) -> Iterator[None]:
    """Put back what the functions called inside have changed.

    Args:
        names: of the functions, for the warning.
        told: what a warning has said in this run; added to.
    """
    before, draws = State.of(model), Draws()
    try:
        yield
    finally:
        new = [what for what in (*before.restore(model), *draws.restore()) if what not in told]
        told.update(new)
        if new:
            warnings.warn(
                f"{'Reward' if len(names) == 1 else 'One of the rewards'} {', '.join(map(repr, names))} "
                f"{' and '.join(new)}. It is put back after each call; let the function restore what it changes.",
                stacklevel=2,
            )
