"""How fast is the thought's boundary found?  Tokens per second on one core.

Run:  python benchmarks/rewards_split.py
Writes benchmarks/results/rewards_split.md.  Best of five rounds; no torch needed.
"""

import functools
import platform
import random
import timeit
from collections.abc import Sequence

import numpy as np
from tables import RESULTS, command_line, document, table

import rewards

LENGTH = 4096  # Tokens of a completion, unless a row says otherwise


def completions(boundary: float | None, count: int = 256, length: int = LENGTH) -> list[list[int]]:
    """Completions whose thought ends after this share of their tokens; None for never."""
    rng = random.Random(0)
    made = []
    for _ in range(count):
        ids = [rewards.QWEN3.open_id, *(rng.randrange(150_000) for _ in range(length - 2)), 151645]
        if boundary is not None:
            ids[max(1, int(boundary * length) - 1)] = rewards.QWEN3.close_id
        made.append(ids)
    return made


def split_all(batch: Sequence[Sequence[int] | np.ndarray]) -> None:
    """Split every completion of a batch."""
    for ids in batch:
        rewards.split_thinking(ids)


def measured() -> list[tuple[str, str]]:
    """(what, million tokens per second) for lists, tuples, arrays, and the rewards built on the split."""
    late = completions(0.9)
    boundaries = {"early": 0.02, "in the middle": 0.5, "at the end": 1.0, "nowhere": None}
    batches: dict[str, Sequence[Sequence[int] | np.ndarray]] = {
        f"lists, boundary {name}": completions(share) for name, share in boundaries.items()
    }
    batches["tuples"] = [tuple(ids) for ids in late]
    batches["lists of 64 tokens"] = completions(0.5, 16_384, 64)
    batches["numpy arrays"] = [np.array(ids) for ids in late]
    calls = {
        f"split_thinking, {name}": functools.partial(split_all, batch) for name, batch in batches.items()
    }
    texts = ["<think>some thought?</think>The answer is 42."] * len(late)
    for reward in (rewards.thinking_reward(), rewards.thought_then_answer()):
        calls[reward.__name__] = functools.partial(reward, completions=texts, completion_ids=late)
    tokens = 256 * LENGTH  # in each batch
    return [
        (name, f"{tokens / min(timeit.repeat(call, number=1)) / 1e6:.1f}") for name, call in calls.items()
    ]


def main() -> None:
    """Measure, print and write."""
    text = document(
        "Speed of the split by token id",
        f"{command_line()}, Python {platform.python_version()}, {platform.machine()}, one core; "
        f"{LENGTH:,} tokens a completion unless said, best of 5.",
        table(("what", "million tokens per second"), "ll", measured()),
    )
    (RESULTS / "rewards_split.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
