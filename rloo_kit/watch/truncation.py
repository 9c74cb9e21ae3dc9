"""Warnings that completions are cut off, with a length that would be enough where the lengths so far can tell.

For the trainer.  A completion that reached ``max_completion_length`` has no answer, so a reward for answers is
the same for all of them and their group teaches nothing.  No setting is changed here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import NormalDist, linear_regression

BATCHES = 3
"""Generation batches that a warning is based on."""

MANY = 0.5
"""The share of cut completions above which the user is warned."""

ENOUGH = 0.2
"""The share of cut completions in a run's first batch up to which the limit was long enough for the policy then."""

WANTED = 0.9
"""The share of completions that the recommended length should let end."""

KNOWN = 10
"""Completions that must have ended before a length is recommended; with fewer it is a guess."""

REACH = 8
"""A recommendation of this many times the longest completion that ended is not given: it is beyond the data."""


def length_for(ended: Sequence[int], cut: int) -> int | None:
    """The length at which :data:`WANTED` of the completions would have ended, by those that did.

    A log-normal is fitted to the lengths known: a line through (normal quantile of the rank, log length),
    where the cut completions rank above all that ended (regression on order statistics, Helsel and Cohn 1988).

    Args:
        ended: tokens of the completions that ended; ``cut`` others did not.

    Returns:
        Tokens, rounded up to a multiple of 64; None where fewer than :data:`KNOWN` lengths or only equal ones are
        known, or the line would have to be followed beyond :data:`REACH` times the longest.
    """
    lengths = sorted(max(1, length) for length in ended)
    if len(lengths) < KNOWN or lengths[0] == lengths[-1]:
        return None
    total = len(lengths) + cut
    quantile = NormalDist().inv_cdf
    ranks = [quantile((i + 0.625) / (total + 0.25)) for i in range(len(lengths))]
    slope, intercept = linear_regression(ranks, [math.log(length) for length in lengths])
    wanted = intercept + slope * quantile(WANTED)
    return None if wanted > math.log(REACH * lengths[-1]) else math.ceil(math.exp(wanted) / 64) * 64


class Watch:
    """Remembers the last generation batches' lengths, and warns once when most completions were cut.

    Args:
        limit: ``max_completion_length``.
        masked: whether cut completions are masked (``mask_truncated_completions``).
    """

    def __init__(self, limit: int, masked: bool) -> None:
        self.limit, self.masked = limit, masked
        self._batches: deque[tuple[list[int], int]] = deque(maxlen=BATCHES)
        self._said: set[str] = set()
        self._share_at_first: float | None = None

    @property
    def has_spoken(self) -> bool:
        """Whether there was a warning."""
        return bool(self._said)

    def see(self, lengths: Sequence[int], cut: Sequence[bool]) -> str | None:
        """Take in a generation batch, (completions,) tokens of each and whether it was cut; return the warning that it
        gives rise to, once for each kind."""
        ended = [length for length, was_cut in zip(lengths, cut, strict=True) if not was_cut]
        self._batches.append((ended, sum(cut)))
        if self._share_at_first is None:
            self._share_at_first = sum(cut) / len(cut)
        if self.masked and not ended:
            return self._once("all masked", "this step changes nothing: every completion was cut and masked")
        share = sum(n for _, n in self._batches) / sum(len(e) + n for e, n in self._batches)
        if len(self._batches) == BATCHES and share > MANY:
            said = f"{share:.0%} of the completions of the last {BATCHES} batches were cut"
            return self._once("many cut", said)
        return None

    def _once(self, kind: str, what: str) -> str | None:
        if kind in self._said:
            return None
        self._said.add(kind)
        at_first = self._share_at_first or 0.0
        if at_first <= ENOUGH:
            return (
                f"{what} at {self.limit} tokens, and {at_first:.0%} of the first batch. The policy has come to write "
                "longer: read completions, and look at learning_rate and the reward before max_completion_length."
            )
        ended = [length for lengths, _ in self._batches for length in lengths]
        wanted = length_for(ended, sum(n for _, n in self._batches))
        if wanted and wanted > self.limit:
            advice = f"max_completion_length={wanted} would let about {WANTED:.0%} end, by the {len(ended)} that did"
        else:
            advice = (
                f"Try max_completion_length={2 * self.limit} and look again; the {len(ended)} that ended are too "
                "few or too short to suggest a length"
            )
        return f"{what} at {self.limit} tokens. {advice}."
