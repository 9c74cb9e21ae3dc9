"""Dynamic sampling (DAPO, Yu et al. 2025, arXiv 2503.14476, section 3.2), to measure it; the kit does not have it.

A group whose K rewards are all equal has no gradient.  Here such groups are replaced by groups of fresh prompts until
the batch is full, or ``ROUNDS`` times; then dead groups fill what is left.  Every token counts, also those thrown away.
One process, no resuming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rloo_kit.advantages import dead_groups
from rloo_kit.train.trainer import RLOOTrainer

ROUNDS = 3

Group = list[tuple[list[int], list[int], torch.Tensor]]  # K of: prompt, completion, its scores


class DynamicTrainer(RLOOTrainer):
    """The kit's trainer, which samples again what is dead."""

    def _rollout(self, examples: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], torch.Tensor]:
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

    def _fresh(self, prompts: int) -> list[dict[str, Any]]:
        """Rows drawn at random, from a generator of their own."""
        if not hasattr(self, "_fresh_generator"):
            self._fresh_generator = torch.Generator().manual_seed(self.args.seed + 1_000_003)
        drawn = torch.randint(len(self.train_dataset), (prompts,), generator=self._fresh_generator)
        return [self.train_dataset[int(row)] for row in drawn]
