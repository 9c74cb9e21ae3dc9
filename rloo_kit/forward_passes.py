"""Which forward passes a training step needs, and the defaults that this depends on.

Shared by the trainer, which runs the passes, and :mod:`rloo_kit.memory`, which counts their bytes.  Values only: no
tensors, no trainer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defaults:
    """Those defaults of :class:`rloo_kit.RLOOConfig` that decide about memory, under its names."""

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

CPU_TILE = 512
"""Positions and entries of the vocabulary whose logits a CPU computes at once (train/cpu_logprobs.py): 1 MiB of
float32, which a core's own cache holds."""

DRAWN_AT_ONCE = 8192
"""Entries of a row of logits that a CPU makes exponentials of at once when it draws (policy/generate.py)."""

PLAIN = {"single_pass": False, "fast_sampling": False}
"""What a plain ``trl.RLOOConfig``, which has no such arguments, means."""


@dataclass(frozen=True)
class Passes:
    """The forward passes of a training step besides the loss's own.

    Attributes:
        reference: whether log-probabilities of the reference are needed (``beta`` above 0).
        kl_in_loss: whether the KL term is part of the loss; otherwise it is subtracted from the rewards.
        single: whether the loss's own pass yields the old log-probabilities, so that the ratio is 1.
        two_because: why ``single_pass`` cannot be honoured, although every loss is on-policy; else empty.
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

        A single pass suffices where every loss is computed with the weights that sampled its completions: each
        generation batch is used once, and each update consumes whole generation batches.  With the KL term in the
        reward, advantages then have to wait for the loss's own pass, so a micro-batch must hold everything that an
        advantage depends on.

        Args:
            beta, num_generations, steps_per_generation, single_pass, kl_placement: as in ``RLOOConfig``.
            micro_rows, accumulation: ``per_device_train_batch_size``, ``gradient_accumulation_steps``.
            iterations, normalized: ``num_iterations``, ``normalize_advantages``.
            estimator, groupwise: the advantage estimator's name, and whether it needs one group at a time only.
        """
        kl_in_loss = kl_placement == "loss"
        on_policy = iterations == 1 and accumulation % steps_per_generation == 0
        single, because = single_pass and on_policy, ""
        if single and beta and not kl_in_loss:
            because = _beyond_a_micro_batch(num_generations, micro_rows, estimator, groupwise, normalized)
        return cls(bool(beta), kl_in_loss, single and not because, because)

    @property
    def advantages_wait(self) -> bool:
        """Whether advantages need a KL term that only the loss's own pass computes."""
        return self.single and self.reference and not self.kl_in_loss

    @property
    def before_update(self) -> bool:
        """Whether any log-probabilities are computed before the update."""
        return self.reference or not self.single


def _beyond_a_micro_batch(
    num_generations: int, micro_rows: int, estimator: str, groupwise: bool, normalized: bool
) -> str:
    """Why an advantage depends on more than one micro-batch; empty where it does not."""
    if micro_rows % num_generations:
        return (
            f"a micro-batch of {micro_rows} does not hold whole groups of {num_generations}: "
            f"a multiple of {num_generations} would"
        )
    if not groupwise:
        return f"advantage_estimator={estimator!r} looks at more than one group"
    return "normalize_advantages looks at the whole generation batch" if normalized else ""
