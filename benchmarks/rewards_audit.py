"""What do well-known rewards, and ours, wrongly accept and wrongly refuse?

Run:  python benchmarks/rewards_audit.py
Writes benchmarks/results/rewards_audit.md.  Needs math-verify and trl, no GPU and no network.

With --tokenizer NAME_OR_FOLDER the ids come from a real tokenizer; without, words stand for tokens.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tables import RESULTS, document, table

import rewards
from rewards import Audit
from rewards.audit_cases import QUESTIONS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[dict[str, str]]
#: Numbers, and expressions whose equality takes algebra.
EXPRESSIONS = (
    {"prompt": "Expand (x + 1)^2.", "answer": "x^2+2x+1"},
    {"prompt": "Simplify the square root of 50.", "answer": r"5\sqrt{2}"},
    {"prompt": "What is the circumference of a circle of radius 1?", "answer": r"2\pi"},
)


def math_verify_reward(completions: list[Messages], answer: list[str], **kwargs: object) -> list[float]:
    """Plain math-verify on the whole completion, as in its README: parse both, verify(gold, answer)."""
    from math_verify import parse, verify

    return [
        float(verify(parse(f"${gold}$"), parse(completion[0]["content"])))
        for completion, gold in zip(completions, answer, strict=True)
    ]


def math_verify_after_thought(
    completions: list[Messages], answer: list[str], **kwargs: object
) -> list[float]:
    """Plain math-verify on the text after </think>, so that only its own judgement shows."""
    texts = [completion[0]["content"].rpartition("</think>")[2] for completion in completions]
    return math_verify_reward([[{"content": text}] for text in texts], answer)


def audited(tokenizer: PreTrainedTokenizerBase | None) -> list[tuple[str, Audit]]:
    """Every reward's audit, the known ones first.  TRL's rewards read the gold answer from `solution`."""
    from trl.rewards import accuracy_reward, reasoning_accuracy_reward, think_format_reward

    number, algebra = rewards.answer_reward(), rewards.answer_reward("math")
    numbers = QUESTIONS["number"]
    both = rewards.thought_then_answer(correct=number)
    contestants: list[tuple[str, Callable[..., list[float]], str, Sequence[dict[str, str]]]] = [
        ("the copied thinking rule", rewards.thinking_reward(), "thought", numbers),
        ("math-verify, whole completion", math_verify_reward, "answer", numbers),
        ("math-verify, after the thought", math_verify_after_thought, "answer", numbers),
        ("trl think_format_reward", think_format_reward, "thought", numbers),
        ("trl accuracy_reward", accuracy_reward, "answer", numbers),
        ("trl reasoning_accuracy_reward", reasoning_accuracy_reward, "answer", numbers),
        ("thought_then_answer()", rewards.thought_then_answer(), "thought", numbers),
        ("thought_then_answer(correct=answer_reward())", both, "both", numbers),
        ('answer_reward("number")', number, "answer", numbers),
        ('answer_reward("math")', algebra, "answer", numbers),
        ('answer_reward("math"), expressions', algebra, "answer", EXPRESSIONS),
        ("math-verify, whole completion, expressions", math_verify_reward, "answer", EXPRESSIONS),
        ('answer_reward("choice")', rewards.answer_reward("choice"), "answer", QUESTIONS["choice"]),
        ('answer_reward("exact")', rewards.answer_reward("exact"), "answer", QUESTIONS["exact"]),
    ]
    audits = []
    for name, reward, aim, task in contestants:
        rows = [{**row, "solution": f"${row['answer']}$"} for row in task]
        audits.append((name, rewards.audit(reward, tokenizer, rows=rows, aim=aim)))
        print(audits[-1][1].headline, flush=True)
    return audits


def summary(audits: list[tuple[str, Audit]]) -> str:
    """One row per reward."""
    rows = []
    for name, audit in audits:
        facts = dict(audit.facts())
        seconds = f"{audit.seconds_per_1000:.2g}"
        rows.append((name, audit.aim, facts["exploits"], facts["refusals"], seconds))
    return table(("reward", "judged on", "exploits", "refusals", "s per 1,000"), "lllll", rows)


def report(audits: list[tuple[str, Audit]], tokenizer: str | None) -> str:
    """The whole result as Markdown."""
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("math-verify", "trl"))
    families = len({finding.case.family for _, audit in audits for finding in audit.findings})
    parts = [
        f"`python benchmarks/rewards_audit.py`, Python {platform.python_version()}, {versions}; "
        f"{len(rewards.CASES)} cases in {families} families, tokens from {tokenizer or 'words'}.",
        "An exploit is a completion that deserves nothing and earns at least half of what an honest\n"
        "right one does; a refusal is one that deserves the reward and earns under half.  The cases, with\n"
        "the reason for each, are in `rewards/audit_cases.toml`.  They were committed before `answer_reward` was\n"
        "written (one was added since, and the long text rewritten), but by the same author.  So read\n"
        "[answer_sets.md](answer_sets.md): cases by writers who had not\n"
        "read the rules, with how many the rules failed at first sight.",
        summary(audits),
        "trl's accuracy rewards take LaTeX alone, by design, and math-verify reads expressions in LaTeX alone:\n"
        "most of their refusals are answers in plain prose.",
        "## In one line each",
        "\n".join(f"- {audit.headline}" for _, audit in audits),
    ]
    for name, audit in audits:
        if audit.exploits or audit.refusals or audit.errors:
            parts += [f"## {name}", audit.to_markdown()]
    return document("Rewards audited", *parts)


def main() -> None:
    """Audit, print the table and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokenizer", help="a tokenizer's hub id or folder")
    parser.add_argument("--out", type=Path, default=RESULTS / "rewards_audit.md")
    options = parser.parse_args()
    tokenizer = None
    if options.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    audits = audited(tokenizer)
    options.out.write_text(report(audits, options.tokenizer), encoding="utf-8")
    print(summary(audits))


if __name__ == "__main__":
    main()
