"""What several rooms need of a run's configuration: the kit's defaults, and the forward passes that follow from it.

For the trainer, which makes these passes, and for :mod:`rloo_kit.memory`, which counts their bytes.  Pure values: it
knows no tensor and no trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KLPlacement = Literal["reward", "loss"]


@dataclass(frozen=True)
class Defaults:
    """The defaults of :class:`rloo_kit.RLOOConfig` that decide about memory too, under its names."""

    num_generations: int = 4
    per_device_train_batch_size: int = 4
    gradient_accumulation_steps: int = 2
    num_iterations: int = 1
    max_completion_length: int = 512
    beta: float = 0.05
    optim: str = "adamw_torch_fused"
    single_pass: bool = True
    fast_sampling: bool = True


DEFAULTS = Defaults()


@dataclass(frozen=True)
class Passes:
    """Which forward passes a training step needs beside the loss's own.

    Attributes:
        reference: whether log-probabilities of the reference are needed (``beta`` above 0).
        kl_in_loss: whether the KL term is part of the loss; else it is taken off the rewards.
        single: whether the loss's own pass gives the old log-probabilities, so that the ratio is 1.
        two_because: why a second pass is needed although ``single_pass`` asks for one; empty where it is not.
    """

    reference: bool
    kl_in_loss: bool
    single: bool
    two_because: str = ""

    @classmethod
    def of(
        cls,
        *,
        beta: float,
        num_generations: int,
        micro_rows: int,
        accumulation: int,
        steps_per_generation: int,
        iterations: int,
        single_pass: bool = True,
        kl_placement: str = "reward",
        estimator: str = "rloo",
        groupwise: bool = True,
        normalized: bool = False,
    ) -> Passes:
        """The passes of a configuration.

        A single pass is enough where every loss of a generation batch is taken of the policy that sampled it: each
        batch is used once, and whole batches make an update.  With the KL term in the reward the advantages then wait
        for the loss's own pass, so each micro-batch must hold whole groups.

        Args:
            beta, num_generations, single_pass, kl_placement: as in ``RLOOConfig``.
            micro_rows: completions per pass (``per_device_train_batch_size``).
            accumulation: micro-batches per update (``gradient_accumulation_steps``).
            steps_per_generation: micro-batches per generation batch.
            iterations: how often a generation batch is used (``num_iterations``).
            estimator: the advantage estimator's name, for the message.
            groupwise: whether it looks at one group at a time.
            normalized: ``normalize_advantages``.
        """
        kl_in_loss = kl_placement == "loss"
        on_policy = iterations == 1 and accumulation % steps_per_generation == 0
        wanted = single_pass and on_policy
        torn = ""
        if wanted and beta and not kl_in_loss:
            torn = _torn(num_generations, micro_rows, estimator, groupwise, normalized)
        return cls(bool(beta), kl_in_loss, wanted and not torn, torn)

    @property
    def advantages_wait(self) -> bool:
        """Whether the advantages need a KL term that only the loss's own pass will give."""
        return self.single and self.reference and not self.kl_in_loss

    @property
    def before_update(self) -> bool:
        """Whether any log-probabilities are computed before the update."""
        return self.reference or not self.single


def _torn(num_generations: int, micro_rows: int, estimator: str, groupwise: bool, normalized: bool) -> str:
    """Why advantages cannot be computed one micro-batch at a time; empty where they can."""
    if micro_rows % num_generations:
        return (
            f"a micro-batch of {micro_rows} does not hold whole groups of {num_generations}: "
            f"a multiple of {num_generations} would"
        )
    if not groupwise:
        return f"advantage_estimator={estimator!r} looks at more than one group"
    return "normalize_advantages looks at the whole generation batch" if normalized else ""
