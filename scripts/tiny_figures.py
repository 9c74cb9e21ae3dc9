"""Measure the bundled tiny Qwen3 before any RLOO, into benchmarks/results/tiny.md."""

from __future__ import annotations

import rloo_kit  # isort: skip - before the libraries that unsloth patches

import random
from pathlib import Path

from rloo_kit.policy.bundled import DATA
from rloo_kit.tasks.arithmetic import Problem, sum_of

REPORT = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "tiny.md"
BELOW, TOKENS = 50, 32
END = 151_645

HEAD = f"""# The bundled tiny Qwen3, before any RLOO

Written by `python scripts/tiny_figures.py`; the model by `python scripts/train_tiny.py`.

Additions a + b with 0 <= a, b < {BELOW}. Held out: the fifth of the problems that no
demonstration showed, in either order of a and b.
Completions of at most {TOKENS} tokens, temperature 1 where sampled.

| problems | decoding | completions | accuracy | format | truncated | mean tokens |
|---|---|---:|---:|---:|---:|---:|
"""


def formed(
    completions: list[list[dict[str, str]]], completion_ids: list[list[int]], **_: object
) -> list[float]:
    """1 for one closed thought at the start, and the turn ended."""
    texts = [completion[0]["content"] for completion in completions]
    pairs = zip(texts, completion_ids, strict=True)
    return [
        float(ids[-1] == END and text.startswith("<think>") and text.count("</think>") == 1)
        for text, ids in pairs
    ]


def row(policy: rloo_kit.Policy, name: str, problems: list[Problem], greedy: bool) -> str:
    """A line of the table."""
    rows = [{"prompt": one.prompt, "answer": str(one.answer)} for one in problems]
    how = {"max_new_tokens": TOKENS, "greedy": greedy, "samples": 1 if greedy else 4}
    correct = rloo_kit.tasks.addition(1, 1).correct
    found = rloo_kit.evaluate(policy, rows, [formed], correct=correct, **how)  # type: ignore[arg-type]
    assert found.accuracy is not None, "every row has an answer"
    return (
        f"| {name} | {'greedy' if greedy else 'sampled'} | {len(found.completions)} | {found.accuracy.value:.3f} "
        f"| {found.reward_means['formed']:.3f} | {found.truncated:.3f} | {found.mean_length:.1f} |\n"
    )


def main() -> None:
    """Measure, print, write."""
    policy = rloo_kit.load_policy("tiny", load_in_4bit=False)
    additions = [sum_of(a, b) for a in range(BELOW) for b in range(BELOW)]
    held_out = [one for one in additions if one.is_held_out]
    seen = random.Random(0).sample([one for one in additions if not one.is_held_out], len(held_out))
    sides = {"held out": held_out, "seen": seen}
    table = [row(policy, name, sides[name], greedy) for name in sides for greedy in (True, False)]
    kilobytes = sum(path.stat().st_size for path in DATA.iterdir()) / 1000
    tail = "\nFormat: one closed thought at the start, and the turn ended.\n"
    REPORT.write_text(f"{HEAD}{''.join(table)}{tail}\nShipped files: {kilobytes:.0f} KB together.\n")
    print(REPORT.read_text())


if __name__ == "__main__":
    main()
