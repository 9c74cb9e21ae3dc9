"""Thresholds of the rules in :mod:`.rules`, each with its reason.

The reasons are published results, standard errors, or the recorded runs of tests/data/health; tests/watch checks the
figures that are quoted from those runs.  How often chance alone passes the thresholds together:
benchmarks/results/health_alarms.md.
"""

from __future__ import annotations

from statistics import NormalDist

from rloo_kit.watch.log import MEMORY

SHORT = 2
"""Entries for what moves by orders of magnitude, where waiting for :data:`~rloo_kit.watch.log.WINDOW` would waste
steps."""

FEW = 3
"""The fewest entries that anything else is told from."""

OVERFLOWS = 17
"""As often as fp16's loss scaler halves torch's first scale, 65536, until it is below 1: to overflow less often is its
search for a scale.  (The kit's own runs start with a lower scale and stop when it is used up:
:mod:`rloo_kit.train.gradients`.)"""

COLLAPSE_SURE = NormalDist().inv_cdf(1 - 0.01 / (2 * MEMORY**2 / 2))
"""Standard errors, 4.8, where the best window of many is compared with the last: the best one was lucky too, and it is
compared again at every entry.  All pairs of windows, of two sizes, in MEMORY entries together err in at most one run of
100 (Bonferroni), as far as their means are near normal; those of two completions a step are not."""

LIKELY = 1.5
"""Standard errors for high variance: fewer than :data:`.chance.SURE`, since the mend does no harm."""

DEAD = 0.5
"""Share of dead groups: more than half of what is sampled then teaches nothing.  With few completions per prompt chance
alone leads there, and :func:`.chance.dead_by_chance` takes its place."""

DEAD_MARGIN = 0.15
"""Share of dead groups by which what chance does must be passed: how much the completions of a prompt are alike,
:data:`.chance.ALIKE`, is assumed, and many entries would find out that it is not quite so."""

CUT = 0.2
"""Share of truncated completions: one in five cannot be right whatever it says.  The healthy runs of tests/data/health
stay below 0.13 in every step."""

COLLAPSE = 0.5
"""Share of its best level, and of a single completion's standard deviation, that the reward has lost: half."""

KL_PER_TOKEN = 1.0
"""Nats per token: the policy gives every token that it writes e times the reference's probability, so that a
completion of 20 tokens is e^20 times likelier than before.  Healthy runs of tests/data/health: at most 0.31."""

KL_NEGATIVE = -0.02
"""Nats per token.  KL is not negative; its estimate k1 = log policy - log reference can be by chance: with a true
KL of e, the mean over n tokens has a standard error of about sqrt(2e/n), so e - 4 x error is lowest at -8/n,
which is -0.02 for 400 tokens, what ten steps of 8 completions have at five tokens each."""

ENTROPY_LEFT = 0.2
"""Share of its first value that the entropy has fallen to.  Cui et al. 2025 (arXiv 2505.22617) fit reward to
-a exp(entropy) + b: what can be gained is paid for with entropy, and at a fifth of it four fifths are spent.  Healthy
runs of tests/data/health keep half of it until they are good."""

ENTROPY_GROWN = 5.0
"""Times its first value that the entropy has grown to, and above one nat: the policy dissolves into noise.  In
tests/data/health it went from 0.17 to 11.93, which is log(151936), all tokens of the vocabulary equally likely."""

LONGER = 1.1
"""Growth of the mean length that counts, where it is beyond noise too: a tenth."""

DROWNED = 10.0
"""Ratio of two terms' weighted spreads.  The smaller one's share of the advantage's variance is 1 %, and it takes
100 times the completions to be seen."""

IN_PLAY = (0.1, 0.9)
"""Shares of completions that a reward function pays, between which it has something left to teach."""

REACHED, MISSED = 0.8, 0.15
"""Shares of completions with the format, and surely at most with the right answer."""

EFFECTIVE = 2.0
"""Independent completions that a step is worth, below which there are too few: leave-one-out needs two."""

CLIPPED = 0.3
"""Share of completions whose ratio left the clip range.  They give no gradient (Schulman et al. 2017), so a
third of the sampling is lost, and PPO's usual share is 0.1 to 0.2."""

GRADIENT = 10.0
"""Growth of the gradient's median norm, while the reward does not rise.  Healthy runs of tests/data/health: up to
5, with the reward, as groups become rare in which completions differ."""

PATIENCE = 100
"""Entries after which a rise should have been seen.  It is :data:`WORTH` from the first third to the last, so that
fewer entries would ask for a faster rise; 100 ask for one more right answer in 100 every five steps."""

WORTH = 0.25
"""A rise worth having, in standard deviations of single completions: about Cohen's (1988) small effect.  A log too
noisy to have shown it is not judged."""

SPIKE, SPIKE_OVER_HIGH = 20.0, 5.0
"""Times the median of the gradients before it, and times their ninth decile, that a gradient is a spike.  Norms of
healthy runs are log-normal with a deviation of about 0.6: e^(0.6 x 5) is 20, five deviations.  The second is for norms
that alternate, as where steps without a live group have the KL term's small gradient alone."""

STILL, STILL_SURE = 60, 2.5
"""Entries in which what has risen no longer does, and the standard errors by which its gain must be below what is worth
having, now and LONG entries ago.  For the reward that is :data:`WORTH` in MEMORY entries, so much less in fewer: a rise
of one more right answer in 100 every five steps is slow, and no plateau."""

RATE_LEFT = 0.1
"""Share of its highest value below which the learning rate explains that nothing more is learned."""

LONGER_ALONE = 1.5
"""Growth of the mean length, where the reward gets no better, that is more than drift: half as much time a step."""

LOWEST_RATE = 1e-9
"""Adam moves a weight by about the learning rate, and float32 keeps of a weight of 0.01 steps of 6e-10."""
