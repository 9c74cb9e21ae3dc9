"""How fast is the thought's boundary found?  Tokens per second on one core.

Run:  python benchmarks/rewards_split.py
Writes benchmarks/results/rewards_split.md.  Best of five rounds; no torch needed, numpy where installed.
"""

from __future__ import annotations

import argparse
import functools
import platform
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import rewards

RESULTS = Path(__file__).parent / "results" / "rewards_split.md"


def completions(count: int, length: int, boundary: float | None) -> list[list[int]]:
    """Completions of a length in tokens whose thought ends after this share of it; None for never."""
    rng = random.Random(0)
    made = []
    for _ in range(count):
        ids = [rewards.QWEN3.open_id, *(rng.randrange(150_000) for _ in range(length - 2)), 151645]
        if boundary is not None:
            ids[max(1, int(boundary * length) - 1)] = rewards.QWEN3.close_id
        made.append(ids)
    return made


def tokens_per_second(run: Callable[[], object], tokens: int, rounds: int = 5) -> float:
    """Best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return tokens / best


def split_all(batch: Sequence[Any]) -> None:
    """Split every completion of a batch."""
    for ids in batch:
        rewards.split_thinking(ids)


def measured() -> list[tuple[str, float]]:
    """(what, tokens per second) for lists, tuples, arrays, and the rewards built on the split."""
    rows = []
    for name, boundary in (("early", 0.02), ("in the middle", 0.5), ("at the end", 1.0), ("nowhere", None)):
        batch = completions(256, 4096, boundary)
        rows.append(
            (
                f"split_thinking, lists, boundary {name}",
                tokens_per_second(functools.partial(split_all, batch), 256 * 4096),
            )
        )
    batch = completions(256, 4096, 0.9)
    tuples = [tuple(ids) for ids in batch]
    rows.append(("split_thinking, tuples", tokens_per_second(lambda: split_all(tuples), 256 * 4096)))
    short = completions(16_384, 64, 0.5)
    rows.append(
        ("split_thinking, lists of 64 tokens", tokens_per_second(lambda: split_all(short), 16_384 * 64))
    )
    try:
        import numpy
    except ImportError:
        pass
    else:
        arrays = [numpy.array(ids) for ids in batch]
        rows.append(
            ("split_thinking, numpy arrays", tokens_per_second(lambda: split_all(arrays), 256 * 4096))
        )
    texts = ["<think>some thought?</think>The answer is 42."] * len(batch)
    for reward in (rewards.thinking_reward(), rewards.thought_then_answer()):
        speed = tokens_per_second(
            functools.partial(reward, completions=texts, completion_ids=batch), 256 * 4096
        )
        rows.append((reward.__name__, speed))
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    out = parser.parse_args().out
    lines = [
        "# Speed of the split by token id",
        "",
        f"`python benchmarks/rewards_split.py`, Python {platform.python_version()}, {platform.machine()},"
        " one core; 4,096 tokens a completion unless said, best of 5.",
        "",
        "| what | million tokens per second |",
        "|---|---|",
        *(f"| {name} | {speed / 1e6:.1f} |" for name, speed in measured()),
        "",
    ]
    out.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
