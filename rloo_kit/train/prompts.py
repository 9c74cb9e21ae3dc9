"""Which prompts come next: those whose completions are likely to disagree.

For the trainer, behind ``RLOOConfig(prompt_sampling="informative")``.  A group whose K rewards are all equal
costs as much to sample as any other and teaches nothing.  So each prompt remembers how its completions were
rewarded, and is drawn with a weight that grows with the chance that its next group is alive.

What changes: the objective.  The gradient of each prompt drawn is as unbiased as before, but the mean over
prompts is a weighted one, which leans towards those the policy solves sometimes, and moves as it learns.
Each generation batch is drawn anew, so an epoch is a number of batches and visits no prompt for certain.  An
unknown prompt is taken to be alive, which is the largest weight.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

FLOOR = 0.1
"""The least weight, so that no prompt starves, whatever was counted.  In a run counts fade (:data:`FORGET`): a
prompt that has always been dead settles at 0.15 (K = 2) to 0.18 (K = 8)."""

FORGET = 0.5
"""What is left of earlier counts each time a prompt is seen again: the policy has moved meanwhile."""

PRIOR = 0.5
"""Added to the count of each value seen, and once for a value not seen yet (Jeffreys' prior)."""


def alive_chance(counts: Mapping[str, float], k: int) -> float:
    """The chance that k completions of a prompt do not all earn the same reward.

    1 - sum over values v of P(all k earn v), with P of the posterior predictive (Dirichlet-multinomial) of the
    counts seen: prod_{j < k} (c_v + 1/2 + j) / (n + A + j), A the priors' sum.  For a reward of 0 or 1 it is
    near 1 - p^k - (1 - p)^k.

    Args:
        counts: reward -> how often it was earned.
        k: completions per group, 2 or more.

    >>> round(alive_chance({"0": 4, "1": 4}, k=8), 2), round(alive_chance({"1": 8}, k=8), 2)
    (0.97, 0.29)
    """
    if not counts:
        return 1.0
    total = sum(counts.values()) + PRIOR * (len(counts) + 1)
    same = 0.0
    for count in [*counts.values(), 0.0]:
        same += math.prod((count + PRIOR + j) / (total + j) for j in range(k))
    return 1.0 - same


class PromptHistory(TrainerCallback, ExportableState):
    """What each prompt's completions have earned; kept in ``trainer_state.json``, so that a resumed run has it.

    Args:
        k: completions per group.
    """

    def __init__(self, k: int) -> None:
        self.k = k
        self.batches = 0
        self._counts: dict[int, Counter[str]] = {}
        self._weights: dict[int, float] = {}
        self._recent: deque[tuple[int, dict[int, Counter[str]]]] = deque()

    def record(self, rows: Sequence[int], rewards: torch.Tensor) -> None:
        """Remember one generation batch.

        Args:
            rows: (groups,) the dataset rows of the prompts.
            rewards: (groups, K), NaN where unscored.
        """
        seen: dict[int, Counter[str]] = {}
        for row, group in zip(rows, rewards.tolist(), strict=True):
            scored = [f"{reward + 0.0:.6g}" for reward in group if not math.isnan(reward)]
            # A group that nothing scored is as dead as one that agrees.
            seen.setdefault(int(row), Counter()).update(scored or ["unscored"] * len(group))
        self._recent.append((self.batches, seen))
        self.batches += 1

    def weights(self, prompts: int, before: int) -> torch.Tensor:
        """The weight of each of ``prompts`` prompts, by the generation batches numbered below ``before``.

        What is younger is left out, also where it is known: a run that is resumed then draws what the run
        that was not stopped would have drawn.  (With data workers, which draw further ahead, it may differ in the
        batches that they had drawn when the checkpoint was written.)
        """
        while self._recent and self._recent[0][0] < before:
            self._settle(self._recent.popleft()[1])
        weights = torch.ones(prompts, dtype=torch.float64)
        if self._weights:
            known = torch.tensor(list(self._weights.values()), dtype=torch.float64)
            weights[list(self._weights)] = known
        return weights

    def _settle(self, seen: Mapping[int, Counter[str]]) -> None:
        for row, counts in seen.items():
            merged = Counter({v: c * FORGET for v, c in self._counts.get(row, Counter()).items()})
            merged.update(counts)
            self._remember(row, {value: count for value, count in merged.items() if count > 0.01})

    def _remember(self, row: int, counts: Mapping[str, float]) -> None:
        self._counts[row] = Counter(counts)
        self._weights[row] = max(FLOOR, alive_chance(counts, self.k))

    def state(self) -> dict[str, Any]:
        """For transformers, which writes it into ``trainer_state.json``."""
        recent = [[batch, {str(r): dict(c) for r, c in seen.items()}] for batch, seen in self._recent]
        counts = {str(row): dict(counts) for row, counts in self._counts.items()}
        return {
            "args": {"k": self.k},
            "attributes": {"batches": self.batches, "counts": counts, "recent": recent},
        }

    def restore(self, state: Mapping[str, Any], batches: int) -> None:
        """Take over what :meth:`state` gave, in place of what is known.

        Args:
            batches: how many generation batches were trained on; one that was sampled and not trained on, since
                the run was stopped, will be sampled again.
        """
        kept = state["attributes"]
        self.batches = min(kept["batches"], batches)
        self._counts, self._weights = {}, {}
        for row, counts in kept["counts"].items():
            self._remember(int(row), counts)
        self._recent = deque(
            (batch, {int(row): Counter(counts) for row, counts in seen.items()})
            for batch, seen in kept["recent"]
            if batch < self.batches
        )


class ByEpoch(Sampler[int]):
    """TRL's order of prompts, of any epoch.

    Works around: TRL's sampler shuffles each epoch by where its generator has got to, so that a run that is resumed in
    the second epoch would see the first one's order again.

    Args:
        sampler: TRL's ``RepeatSampler``.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.epoch = sampler, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        if self.sampler.shuffle and self.sampler.seed is not None:
            self.sampler.generator.manual_seed(self.sampler.seed)
            for _ in range(self.epoch):
                torch.randperm(self.sampler.num_samples, generator=self.sampler.generator)
        return iter(self.sampler)


class InformativeSampler(Sampler[int]):
    """Dataset rows in the order that TRL's trainer expects, drawn by :meth:`PromptHistory.weights`.

    A generation batch has distinct prompts, each ``k`` times in a row, and the whole is repeated
    ``repeats`` times, as TRL's own sampler does.  An epoch has as many batches as with uniform sampling.

    Args:
        history: of the prompts.
        prompts: in the dataset.
        per_batch: prompts in a generation batch, over all processes.
        repeats: how often the dataloader hands out one generation batch.
        lag: how many generation batches are drawn before the first of them has been scored.
        seed: of the draws; the same on every process.
    """

    def __init__(
        self, history: PromptHistory, *, prompts: int, per_batch: int, repeats: int, lag: int, seed: int
    ) -> None:
        self.history, self.prompts, self.per_batch = history, prompts, per_batch
        self.repeats, self.lag, self.seed = repeats, lag, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by accelerate at the start of each epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._batches * self.per_batch * self.history.k * self.repeats

    @property
    def _batches(self) -> int:
        return self.prompts // self.per_batch

    def __iter__(self) -> Iterator[int]:
        start = self.epoch * self._batches
        for batch in range(start, start + self._batches):
            rows = self._draw(batch)
            for _ in range(self.repeats):
                for row in rows:
                    yield from [row] * self.history.k

    def _draw(self, batch: int) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + batch)
        weights = self.history.weights(self.prompts, before=batch - self.lag + 1)
        # The largest of u ** (1 / weight): a weighted draw without replacement (Efraimidis and Spirakis 2006).
        keys = torch.rand(self.prompts, generator=generator, dtype=torch.float64).log() / weights
        return [int(row) for row in keys.topk(self.per_batch).indices]
