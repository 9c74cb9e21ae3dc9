"""The end of a step: what a run that is stopped within the next one is set back to, so that it resumes to the bit.

For :mod:`.saving`.  Weights, optimizer and schedule change at the end of a step alone.  Sampling and scoring change the
rest: random states, counts, and which part of a generation batch comes next.  Of a batch that several steps train on
the remainder is kept too, since another policy would sample it anew.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from transformers import TrainerState

Batches = list[dict[str, torch.Tensor]]


class Stepping(Protocol):
    """What this needs of a trainer."""

    state: TrainerState
    current_flos: float
    _step: int
    _buffered_inputs: Batches | None


@dataclass(frozen=True)
class Moment:
    """A trainer's state at the end of a step, beside its weights and its optimizer.

    Attributes:
        step: which ended.
        evaluation_due: it is to be evaluated still, and that draws random numbers too.
        micro_step: micro-batches since the run began.
        batches: of the generation batch that the next step goes on with, or None where it samples.
    """

    step: int
    evaluation_due: bool
    micro_step: int
    batches: Batches | None
    counts: tuple[float, float, float]
    randomness: dict[str, Any]

    @classmethod
    def of(cls, trainer: Stepping, batch_steps: int, evaluation_due: bool = False) -> Moment:
        """The trainer's state now.

        Args:
            trainer: at the end of a step.
            batch_steps: micro-batches that a generation batch is trained on for.
            evaluation_due: see above.
        """
        state, within = trainer.state, trainer._step % batch_steps
        return cls(
            step=state.global_step,
            evaluation_due=evaluation_due,
            micro_step=trainer._step,
            batches=trainer._buffered_inputs if within else None,
            counts=(state.num_input_tokens_seen, state.total_flos, trainer.current_flos),
            randomness=randomness(),
        )

    def restore(self, trainer: Stepping) -> None:
        """Set the trainer back to this."""
        trainer._step, trainer._buffered_inputs = self.micro_step, self.batches
        state = trainer.state
        state.num_input_tokens_seen, state.total_flos, trainer.current_flos = self.counts
        set_randomness(self.randomness)


def randomness() -> dict[str, Any]:
    """The states of all generators that a run draws from, as transformers saves them."""
    found = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def set_randomness(states: dict[str, Any]) -> None:
    """Undo what was drawn since."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
