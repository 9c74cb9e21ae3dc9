"""Which forward passes a training step needs, and the defaults that this depends on: the trainer runs them, and the
plan counts their bytes."""

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

DRAWN_AT_ONCE = 8192  # entries of a row of logits that a CPU makes exponentials of at once when it draws
PLAIN = {"single_pass": False, "fast_sampling": False}  # what a plain trl.RLOOConfig means


@dataclass(frozen=True)
class Passes:
    """The forward passes of a training step besides the loss's own."""

    reference: bool  # log-probabilities of the reference are needed (beta above 0)
    kl_in_loss: bool  # the KL term is part of the loss; else it is subtracted from the rewards
    single: bool  # the loss's own pass yields the old log-probabilities, so that the ratio is 1
    two_because: str = ""  # why single_pass cannot be honoured, although every loss is on-policy

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
        groupwise: bool = True,
        normalized: bool = False,
    ) -> Passes:
        """The passes of a configuration, by the fields of ``RLOOConfig``; ``groupwise`` as in ``advantages.register``.

        A single pass suffices where every loss is computed with the weights that sampled its completions: each
        generation batch is used once, and each update consumes whole generation batches.  With the KL term in the
        reward, advantages wait for the loss's own pass, so a micro-batch must hold all that an advantage depends on.
        """
        on_policy = iterations == 1 and accumulation % steps_per_generation == 0
        single, because = single_pass and on_policy, ""
        if single and beta and kl_placement != "loss":
            if micro_rows % num_generations:
                because = f"a micro-batch of {micro_rows} does not hold whole groups of {num_generations}: "
                because += f"a multiple of {num_generations} would"
            elif not groupwise:
                because = "the advantage estimator looks at more than one group"
            elif normalized:
                because = "normalize_advantages looks at the whole generation batch"
        return cls(bool(beta), kl_placement == "loss", single and not because, because)

    @property
    def advantages_wait(self) -> bool:
        """Whether advantages need a KL term that only the loss's own pass computes."""
        return self.single and self.reference and not self.kl_in_loss

    @property
    def before_update(self) -> bool:
        """Whether any log-probabilities are computed before the update."""
        return self.reference or not self.single
