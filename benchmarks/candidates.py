"""Ways to fill a batch that were to save tokens, to measure them; the kit does not have them.

One process, no resuming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rloo_kit.advantages import dead_groups
from rloo_kit.train.trainer import RLOOTrainer

ROUNDS = 3
HELD = 2  # batches of one K

Group = list[tuple[list[int], list[int], torch.Tensor]]  # K of: prompt, completion, its scores
Rollout = tuple[dict[str, Any], torch.Tensor]


class Candidate(RLOOTrainer):
    """The kit's trainer, which can draw prompts besides those of the batch."""

    def _fresh(self, prompts: int) -> list[dict[str, Any]]:
        """Rows drawn at random, from a generator of their own."""
        if not hasattr(self, "_fresh_generator"):
            self._fresh_generator = torch.Generator().manual_seed(self.args.seed + 1_000_003)
        drawn = torch.randint(len(self.train_dataset), (prompts,), generator=self._fresh_generator)
        return [self.train_dataset[int(row)] for row in drawn]


class Dynamic(Candidate):
    """Dynamic sampling (DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.2).

    A group whose K rewards are all equal has no gradient.  Here such groups are replaced by groups of fresh prompts
    until the batch is full, or ``ROUNDS`` times; then dead groups fill what is left.  Every token counts, also those
    thrown away.
    """

    def _rollout(self, examples: Sequence[dict[str, Any]]) -> Rollout:
        """As the kit's, of groups that are alive where there are enough."""
        k = self.num_generations
        wanted = len(examples) // k
        alive: list[Group] = []
        dead: list[Group] = []
        for attempt in range(ROUNDS):
            if attempt:
                examples = [row for row in self._fresh(wanted - len(alive)) for _ in range(k)]
            prompts = [example["prompt"] for example in examples]
            prompt_ids, completion_ids, completions = self._generate(prompts)
            scores = self._calculate_rewards(examples, prompts, completions, completion_ids)
            self._log_rollout(prompts, completions, scores)
            for number, is_dead in enumerate(dead_groups(self._totals(scores, k)).tolist()):
                rows = range(number * k, number * k + k)
                (dead if is_dead else alive).append(
                    [(prompt_ids[i], completion_ids[i], scores[i]) for i in rows]
                )
            if len(alive) >= wanted:
                break
        kept = [row for group in (alive + dead)[:wanted] for row in group]
        prompt_ids, completion_ids, scored = map(list, zip(*kept, strict=True))
        return self._padded(prompt_ids, completion_ids), torch.stack(scored)


class ChangingK(Candidate):
    """Batches of one size whose K changes: each of ``ks`` for ``HELD`` batches, and the last from there on."""

    ks: tuple[int, ...]
    num_generations: int

    def _rollout(self, examples: Sequence[dict[str, Any]]) -> Rollout:
        """As the kit's, of fewer of the batch's prompts or of fresh ones besides them."""
        if not hasattr(self, "_k_of_batch"):
            self._k_of_batch, self._rolled = self.num_generations, 0
        prompts = list(examples[:: self._k_of_batch])
        self.num_generations = self.ks[min(self._rolled // HELD, len(self.ks) - 1)]
        self._rolled += 1
        wanted = len(examples) // self.num_generations
        prompts = (prompts + self._fresh(max(0, wanted - len(prompts))))[:wanted]
        return super()._rollout([row for row in prompts for _ in range(self.num_generations)])


class GrowingK(ChangingK):
    """Many prompts at first, a better baseline later."""

    ks = (4, 8, 16)


class FallingK(ChangingK):
    """The other way round: few groups are dead where most answers are wrong."""

    ks = (16, 8, 4)


TRAINERS: dict[str, type[Candidate]] = {"dynamic": Dynamic, "growing K": GrowingK, "falling K": FallingK}
"""What ``runs.Variant.candidate`` names."""
