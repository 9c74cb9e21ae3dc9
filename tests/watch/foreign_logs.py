"""Simulate logs of plain TRL 1.15 and unsloth: sick runs of many kinds, and healthy runs.

For test_foreign.py and the docs' table of symptoms.  A run draws completions: each prompt has its own chance, each
completion a format, an answer and a length.  Figures that do not depend on completions (KL, entropy, gradient, learning
rate) follow a course with noise.  No policy is trained, so the logs show whether a course is named, but nothing about
its causes.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rloo_kit.watch.statistics import Entry
from tests.watch.logs import averaged, from_step

Course = Callable[[int], float]
"""A figure as a function of the step, from 1."""


def flat(value: float) -> Course:
    return lambda step: value


def rise(start: float, slope: float, most: float = 0.95) -> Course:
    """Return a course that rises by ``slope`` per step, up to a limit."""
    return lambda step: min(most, start + slope * step)


Rewards = Mapping[str, Callable[[bool, bool, int], float]]
"""Name -> what the reward pays for (format, right, tokens), unweighted."""

ACCURACY: Rewards = {"accuracy_reward": lambda form, right, tokens: float(right)}
FORMAT: Rewards = {"format_reward": lambda form, right, tokens: float(form)}
SIGNED: Rewards = {"reward_signed": lambda form, right, tokens: 1.0 if right else -1.0}
BOTH: Rewards = {**ACCURACY, **FORMAT}
LENGTH_TOO: Rewards = {**ACCURACY, "brevity": lambda form, right, tokens: tokens / 512}
GRADED: Rewards = {"graded": lambda form, right, tokens: 2.0 * right + 0.5 * form}
# Unsloth's GSM8K notebook: 2 for a right answer, 0.5 for the format.
GSM8K: Rewards = {
    "correctness_reward_func": lambda form, right, tokens: 2.0 * right,
    "soft_format_reward_func": lambda form, right, tokens: 0.5 * form,
}
# Up to -1 for the last quarter of the limit.
PENALTY: Rewards = {
    **ACCURACY,
    "soft_overlong_punishment_reward": lambda form, right, tokens: -max(0.0, (tokens - 384) / 128),
}

RISING, NEARLY_ALL, LENGTH = rise(0.25, 0.005, 0.9), flat(0.97), flat(180.0)
KL, ENTROPY = rise(0.0, 0.0004, 0.08), rise(0.4, -0.001, 1.0)


@dataclass(frozen=True)
class Kind:
    """A kind of run; the defaults are healthy.

    Attributes:
        named: the symptoms of which one should be found; none for a healthy run.
        right, form: chance of a right answer of a completion that has the format, and of the format.
        alike: correlation of the completions of a prompt.
        length, limit: mean tokens, and where they are cut.
        before_kl: whether zero-variance groups are counted before the KL term, as the kit does; TRL counts after it.
        per_entry: steps that an entry is the mean of (``logging_steps``).
    """

    named: tuple[str, ...] = ()
    steps: int = 120
    prompts: int = 4
    k: int = 8
    right: Course = RISING
    form: Course = NEARLY_ALL
    alike: float = 0.3
    rewards: Rewards = field(default_factory=lambda: ACCURACY)
    length: Course = LENGTH
    length_spread: float = 0.35
    limit: int = 512
    kl: Course | None = KL
    entropy: Course = ENTROPY
    per_entry: int = 1
    before_kl: bool = True


EASY, HARD, ALIKE = (f"zero-variance groups, {cause}" for cause in ("too easy", "too hard", "completions alike"))

SICK: dict[str, Kind] = {
    "length paid, answers still": Kind(
        ("length hacking",), rewards=LENGTH_TOO, right=flat(0.4), length=rise(120, 2.0, 9e9), limit=4096
    ),
    "a third cut": Kind(("truncation",), steps=60, length=flat(420.0), right=flat(0.3)),
    "too hard": Kind((HARD,), steps=60, right=flat(0.02)),
    "too easy": Kind((EASY,), steps=60, right=flat(0.97), form=flat(1.0)),
    "alike": Kind((ALIKE,), steps=60, right=flat(0.5), alike=0.9),
    # Sometimes none of its 1,920 completions is right, so that all rewards are equal.
    "too hard, counted after the KL term": Kind(
        (HARD, "constant reward"), steps=60, right=flat(0.002), before_kl=False
    ),
    "KL explosion": Kind(("KL explosion",), steps=60, kl=from_step(40, 0.02, 3.0)),
    "entropy explosion": Kind(
        ("entropy explosion",), steps=60, entropy=from_step(40, 0.4, 6.0), right=from_step(40, 0.4, 0.0)
    ),
    "entropy collapse": Kind(("entropy collapse",), right=flat(0.4), entropy=lambda step: 0.4 * 0.95**step),
    "collapse": Kind(("reward collapse",), right=from_step(80, 0.7, 0.15)),
    "nothing learned": Kind(("nothing learned",), steps=160, prompts=8, right=flat(0.35)),
    "not finite": Kind(("non-finite figures",), steps=40, entropy=from_step(25, 0.4, math.nan)),
    # Made after the rules were fixed, with other batches, rewards and sizes of the fault.
    "28 % cut, 2 x 4": Kind(("truncation",), steps=100, prompts=2, k=4, length=flat(418.0), right=flat(0.4)),
    "65 % dead": Kind((HARD,), steps=80, right=flat(0.05)),
    "a slow fall from 0.75 to 0.3": Kind(("reward collapse",), right=lambda step: 0.75 - 0.0045 * max(0, step - 20)),
    "a KL that creeps to 2": Kind(("KL explosion",), kl=rise(0.0, 0.02, 2.0)),
    "certain and wrong within 30 steps": Kind(
        ("entropy collapse",), steps=60, prompts=2, right=flat(0.3), entropy=lambda step: 0.5 * 0.9 ** min(step, 30)
    ),
    "a reward that becomes NaN": Kind(
        ("non-finite rewards",), steps=60, rewards={"judge": lambda f, r, n: math.nan if n > 440 else float(r)}
    ),
    "longer until most are cut": Kind(
        ("truncation", "truncation, policy worsened", "reward collapse"), length=rise(150, 4.0, 9e9), right=flat(0.5)
    ),
    # Was first listed as healthy, but more than half of its groups have zero variance.
    "good from the start": Kind((EASY,), right=rise(0.84, 0.001, 0.93), form=flat(0.99)),
}
"""Name of a fault -> a run that has it."""

HEALTHY: dict[str, Kind] = {
    "TRL's batch": Kind(),
    "unsloth's batch, 2 x 4": Kind(prompts=2, k=4),
    "pairs, 4 x 2": Kind(prompts=4, k=2),
    "16 x 16": Kind(prompts=16, k=16, steps=80),
    "one prompt, K 16": Kind(prompts=1, k=16),
    "an entry is the mean of 10 steps": Kind(per_entry=10, steps=400, right=rise(0.25, 0.0016, 0.9)),
    "an entry is the mean of 5 steps": Kind(per_entry=5, steps=300, right=rise(0.25, 0.002, 0.9)),
    "format first, answers later": Kind(
        rewards=BOTH, form=rise(0.2, 0.03, 0.98), right=lambda step: 0.1 + 0.7 * max(0.0, step - 40) / 80
    ),
    "rewards of -1 and 1": Kind(rewards=SIGNED),
    "up to 2.5": Kind(rewards=GRADED),
    "soon good, and stays good": Kind(right=lambda step: min(0.85, 0.4 + 0.02 * step), steps=160),
    "longer and better": Kind(length=rise(150, 2.0, 330), right=rise(0.2, 0.005, 0.8), limit=1024),
    "no KL term": Kind(kl=None),
    "counted after the KL term": Kind(before_kl=False),
    "one in eight cut": Kind(length=flat(310.0), length_spread=0.4),
    "slow but sure": Kind(steps=300, right=rise(0.25, 0.0018, 0.9)),
    "30 steps": Kind(steps=30, right=rise(0.3, 0.015)),
    # Made after the rules were fixed.
    "unsloth's rewards": Kind(rewards=GSM8K, form=rise(0.3, 0.02, 0.97)),
    "8 pairs, no KL": Kind(prompts=8, k=2, kl=None, steps=200, right=rise(0.2, 0.003, 0.85)),
    "ten entries of 10 steps": Kind(steps=100, per_entry=10),
    "better than half from the start": Kind(right=rise(0.55, 0.002, 0.8), form=flat(0.99)),
    "a late start": Kind(steps=150, right=lambda step: 0.15 + 0.7 / (1 + math.exp(-(step - 50) / 12))),
    "shorter and better": Kind(length=lambda step: max(140.0, 320.0 - 2.0 * step)),
    "2 x 32": Kind(prompts=2, k=32),
    "lengths of a heavy tail": Kind(length=flat(200.0), length_spread=0.8, limit=2048),
    "a penalty for length": Kind(rewards=PENALTY, length=lambda step: max(200.0, 300.0 - step), length_spread=0.4),
    "more uncertain and better": Kind(entropy=rise(0.3, 0.004, 0.7)),
    "an early jump, then slowly": Kind(
        steps=200, right=lambda step: min(0.85, 0.2 + 0.015 * min(step, 20) + 0.002 * step)
    ),
    "0.0022 a step": Kind(steps=300, right=rise(0.2, 0.0022, 0.85)),
    "5 steps": Kind(steps=5, right=flat(0.4)),
}
"""Name of a peculiarity -> a healthy run that has it."""


def run(kind: Kind, seed: int) -> list[Entry]:
    """Return the ``log_history`` of a run; the last entry is the summary."""
    rng = random.Random(seed)
    entries = [_step(kind, step, rng) for step in range(1, kind.steps + 1)]
    return [*averaged(entries, kind.per_entry), {"step": kind.steps, "train_loss": 0.0}]


def _step(kind: Kind, step: int, rng: random.Random) -> Entry:
    drawn = [completion for _ in range(kind.prompts) for completion in _group(kind, step, rng)]
    columns = {name: [function(*completion) for completion in drawn] for name, function in kind.rewards.items()}
    columns = {f"rewards/{name}/": values for name, values in columns.items()}
    totals = [sum(values) for values in zip(*columns.values(), strict=True)]
    groups = [totals[i : i + kind.k] for i in range(0, len(totals), kind.k)]
    dead = sum(len(set(group)) == 1 for group in groups) / len(groups)
    tokens = [tokens for _, _, tokens in drawn]
    entry: Entry = {
        "grad_norm": 0.8,
        "learning_rate": 1e-5,
        "completions/mean_length": statistics.fmean(tokens),
        "completions/max_length": float(max(tokens)),
        "completions/clipped_ratio": sum(n >= kind.limit for n in tokens) / len(tokens),
        "reward": statistics.fmean(totals),
        "reward_std": _stdev(totals),
        "frac_reward_zero_std": dead if kind.before_kl else 0.0,
        "entropy": kind.entropy(step) * math.exp(rng.gauss(0.0, 0.1)),
        "clip_ratio/region_mean": 0.0,
        "step_time": 9.0,
        "step": step,
    }
    for name, values in columns.items():
        entry |= {f"{name}mean": statistics.fmean(values), f"{name}std": _stdev(values)}
    if kind.kl:
        entry["kl"] = kind.kl(step) * math.exp(rng.gauss(0.0, 0.2)) + rng.gauss(0.0, 0.002)
    return entry


def _stdev(values: list[float]) -> float:
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def _group(kind: Kind, step: int, rng: random.Random) -> list[tuple[bool, bool, int]]:
    """Return (format, right, tokens) of a prompt's completions; for a truncated one, the first two are False."""
    right, form = (min(0.999, max(0.001, course(step))) for course in (kind.right, kind.form))
    size = 1 / kind.alike - 1
    chance = rng.betavariate(right * size, (1 - right) * size)
    completions = []
    for _ in range(kind.k):
        length = kind.length(step) * math.exp(rng.gauss(0.0, kind.length_spread))
        tokens = min(kind.limit, max(1, round(length)))
        formed = tokens < kind.limit and rng.random() < form
        completions.append((formed, formed and rng.random() < chance, tokens))
    return completions
