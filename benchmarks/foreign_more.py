"""Further logs in the shape of plain TRL and unsloth, made after the rules were fixed, to see what they miss.

The kinds are those of :mod:`foreign_logs`, with other batches, rewards, lengths of run and sizes of the fault.  What the
rules made of them at first is in the history of this file; health_alarms.py counts what they make of them now.
"""

from __future__ import annotations

import math

from benchmarks.foreign_logs import (
    DEAD,
    Kind,
    Rewards,
    accuracy,
    flat,
    jump,
    rise,
    signed,
)


def twice(form: bool, right: bool, tokens: int) -> float:
    """2 for a right answer."""
    return 2.0 * right


def half(form: bool, right: bool, tokens: int) -> float:
    """0.5 for the format."""
    return 0.5 * form


def overlong(form: bool, right: bool, tokens: int) -> float:
    """Up to -1 for the last quarter of the limit."""
    return -max(0.0, (tokens - 384) / 128)


GSM8K: Rewards = {"correctness_reward_func": twice, "soft_format_reward_func": half}
PENALTY: Rewards = {"accuracy_reward": accuracy, "soft_overlong_punishment_reward": overlong}

MORE_SICK: dict[str, Kind] = {
    "one early spike of 100 in 30 steps": Kind(("gradient spikes",), steps=30, prompts=2, k=4, spikes=((14, 100.0),)),
    "a plateau of rewards of -1 and 1": Kind(
        ("plateau",),
        steps=200,
        prompts=8,
        k=16,
        rewards={"signed": signed},
        right=lambda step: 0.15 + 0.25 * min(1.0, step / 40),
    ),
    "unsloth's rewards, answers still": Kind(
        ("one reward stands still", "format without answers"),
        steps=150,
        rewards=GSM8K,
        form=rise(0.2, 0.015, 0.97),
        right=flat(0.05),
    ),
    "2 tokens a step, an entry of 5 steps": Kind(
        ("length grows",), steps=300, per_entry=5, right=flat(0.6), length=rise(150, 2.0, 9e9), limit=4096
    ),
    "a schedule that ends at half": Kind(("learning rate 0",), right=flat(0.4), rate=jump(60, 1e-5, 0.0)),
    "28 % cut, 2 x 4": Kind(("truncation",), steps=100, prompts=2, k=4, length=flat(418.0), right=flat(0.4)),
    "65 % dead": Kind(DEAD[1:2], steps=80, right=flat(0.05)),
    "a slow fall from 0.75 to 0.3": Kind(("reward collapse",), right=lambda step: 0.75 - 0.0045 * max(0, step - 20)),
    "a KL that creeps to 2": Kind(("KL explosion",), kl=rise(0.0, 0.02, 2.0)),
    "certain and wrong within 30 steps": Kind(
        ("entropy collapse",), steps=60, prompts=2, right=flat(0.3), entropy=lambda step: 0.5 * 0.9 ** min(step, 30)
    ),
    "a reward that becomes NaN": Kind(
        ("non-finite figures",), steps=60, rewards={"judge": lambda f, r, n: math.nan if n > 440 else float(r)}
    ),
    "longer until most are cut": Kind(
        ("truncation", "truncation, policy worsened", "length grows"), length=rise(150, 4.0, 9e9), right=flat(0.5)
    ),
}
"""What is wrong -> such a run."""

MORE_HEALTHY: dict[str, Kind] = {
    "unsloth's rewards": Kind(rewards=GSM8K, form=rise(0.3, 0.02, 0.97)),
    "8 pairs, no KL": Kind(prompts=8, k=2, kl=None, steps=200, right=rise(0.2, 0.003, 0.85)),
    "ten entries of 10 steps": Kind(steps=100, per_entry=10),
    "good from the start": Kind(right=rise(0.84, 0.001, 0.93), form=flat(0.99)),
    "a late start": Kind(steps=150, right=lambda step: 0.15 + 0.7 / (1 + math.exp(-(step - 50) / 12))),
    "shorter and better": Kind(length=lambda step: max(140.0, 320.0 - 2.0 * step)),
    "2 x 32": Kind(prompts=2, k=32),
    "lengths of a heavy tail": Kind(length=flat(200.0), length_spread=0.8, limit=2048),
    "a penalty for length": Kind(rewards=PENALTY, length=lambda step: max(200.0, 300.0 - step), length_spread=0.4),
    "more uncertain and better": Kind(entropy=rise(0.3, 0.004, 0.7)),
    "an early jump, then slowly": Kind(steps=200, right=lambda step: min(0.85, 0.2 + 0.015 * min(step, 20) + 0.002 * step)),
    "5 steps": Kind(steps=5, right=flat(0.4)),
}
"""What is particular -> such a run, with nothing wrong."""
