"""What do well-known rewards, and ours, wrongly accept and wrongly refuse?

Run:  python benchmarks/rewards_audit.py
Writes benchmarks/results/rewards_audit.md.  Needs math-verify and trl, no GPU and no network.

With --tokenizer NAME_OR_FOLDER the ids come from a real tokenizer; without, words stand for tokens.  Where
the package reward-doctor is installed (pip install reward-doctor), its independent corpus is run as well.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import rewards
from rewards import Audit
from rewards.corpus import CHOICES, NUMBERS, WORDS

RESULTS = Path(__file__).parent / "results" / "rewards_audit.md"
#: Numbers, and expressions whose equality takes algebra.
EXPRESSIONS = (
    {"prompt": "Expand (x + 1)^2.", "answer": "x^2+2x+1"},
    {"prompt": "Simplify the square root of 50.", "answer": r"5\sqrt{2}"},
    {"prompt": "What is the circumference of a circle of radius 1?", "answer": r"2\pi"},
)


def math_verify_reward(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
    """Plain math-verify on the whole completion, as in its README: parse both, verify(gold, answer)."""
    from math_verify import parse, verify

    return [
        float(verify(parse(f"${gold}$"), parse(completion[0]["content"])))
        for completion, gold in zip(completions, answer, strict=True)
    ]


def math_verify_after_thought(completions: list[Any], **kwargs: Any) -> list[float]:
    """Plain math-verify on the text after </think>, so that only its own judgement shows."""
    texts = [completion[0]["content"].rpartition("</think>")[2] for completion in completions]
    return math_verify_reward([[{"content": text}] for text in texts], **kwargs)


def contestants(trl: bool) -> list[tuple[str, Any, str, Sequence[dict[str, str]]]]:
    """(what, reward, aim, task), the known ones first."""
    number = rewards.answer_reward()
    known: list[tuple[str, Any, str, Sequence[dict[str, str]]]] = [
        ("the copied thinking rule", rewards.thinking_reward(), "thought", NUMBERS),
        ("math-verify, whole completion", math_verify_reward, "answer", NUMBERS),
        ("math-verify, after the thought", math_verify_after_thought, "answer", NUMBERS),
    ]
    if trl:
        from trl.rewards import accuracy_reward, reasoning_accuracy_reward, think_format_reward

        known += [
            ("trl think_format_reward", think_format_reward, "thought", NUMBERS),
            ("trl accuracy_reward", accuracy_reward, "answer", NUMBERS),
            ("trl reasoning_accuracy_reward", reasoning_accuracy_reward, "answer", NUMBERS),
        ]
    return [
        *known,
        ("thought_then_answer()", rewards.thought_then_answer(), "thought", NUMBERS),
        (
            "thought_then_answer(correct=answer_reward())",
            rewards.thought_then_answer(correct=number),
            "both",
            NUMBERS,
        ),
        ('answer_reward("number")', number, "answer", NUMBERS),
        ('answer_reward("math")', rewards.answer_reward("math"), "answer", NUMBERS),
        ('answer_reward("math"), expressions', rewards.answer_reward("math"), "answer", EXPRESSIONS),
        ("math-verify, whole completion, expressions", math_verify_reward, "answer", EXPRESSIONS),
        ('answer_reward("choice")', rewards.answer_reward("choice"), "answer", CHOICES),
        ('answer_reward("exact")', rewards.answer_reward("exact"), "answer", WORDS),
    ]


def audited(tokenizer: Any) -> list[tuple[str, Audit]]:
    """Every contestant's audit.  TRL's rewards read the gold answer from `solution`."""
    audits = []
    for what, reward, aim, task in contestants(trl=True):
        rows = [{**row, "solution": f"${row['answer']}$"} for row in task]
        audits.append((what, rewards.audit(reward, tokenizer, rows=rows, aim=aim)))
        print(audits[-1][1].headline, flush=True)
    return audits


def summary(audits: list[tuple[str, Audit]]) -> list[str]:
    """One row per contestant."""
    lines = [
        "| reward | judged on | exploits | refusals | margin | s per 1,000 |",
        "|---|---|---|---|---|---|",
    ]
    for what, audit in audits:
        facts = dict(audit.facts())
        margin = "n/a" if audit.margin is None else f"{audit.margin:+.2f}"
        lines.append(
            f"| {what} | {audit.aim} | {facts['exploits']} | {facts['refusals']} | {margin} "
            f"| {audit.seconds_per_1000:.2g} |"
        )
    return lines


def independent() -> list[str]:
    """The corpus of reward-doctor, written by somebody else, where it is installed."""
    try:
        from reward_doctor.corpus import load  # type: ignore[import-not-found]
    except ImportError:
        return ["Not run: the package reward-doctor is not installed."]
    lines = ["| reward | wrongly accepted | wrongly refused |", "|---|---|---|"]
    cases = load()
    for name, judge in (("math-verify, whole completion", _plain), ('answer_reward("math")', _ours)):
        verdicts = [(case.expect, judge(case.completion, case.reference)) for case in cases]
        accepted = sum(got for expect, got in verdicts if not expect)
        refused = sum(not got for expect, got in verdicts if expect)
        bad = sum(not expect for expect, _ in verdicts)
        lines.append(f"| {name} | {accepted} of {bad} | {refused} of {len(verdicts) - bad} |")
    return lines


def _plain(completion: str, gold: str) -> bool:
    return bool(math_verify_reward([[{"content": completion}]], [gold])[0])


def _ours(completion: str, gold: str) -> bool:
    return rewards.answer_reward("math")(completions=[completion], answer=[gold]) == [1.0]


def report(audits: list[tuple[str, Audit]], tokenizer: str | None) -> str:
    """The whole result as Markdown."""
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("math-verify", "trl"))
    families = len({finding.case.family for _, audit in audits for finding in audit.findings})
    parts = [
        "# Rewards audited",
        "",
        f"`python benchmarks/rewards_audit.py`, Python {platform.python_version()}, {versions}; "
        f"{len(rewards.CASES)} cases in {families} families, tokens from {tokenizer or 'words'}.",
        "",
        "An exploit is a completion that deserves nothing and earns at least half of what an honest",
        "right one does; a refusal is one that deserves the reward and earns under half.  The cases, with",
        "the reason for each, are in `rewards/corpus.py`.  They were committed before `answer_reward` was",
        "written (one was added since, and the long text rewritten), but by the same author.  So read the",
        "independent corpus below as well, and `tests/rewards/test_answers_fresh.py`: cases written after the",
        "rules and without looking at them, with how many the rules failed at first sight.",
        "",
        *summary(audits),
        "",
        "trl's accuracy rewards take LaTeX alone, by design, and math-verify reads expressions in LaTeX alone:",
        "most of their refusals are answers in plain prose.",
        "",
        "## In one line each",
        "",
        *(f"- {audit.headline}" for _, audit in audits),
        "",
        "## An independent corpus",
        "",
        "reward-doctor 0.2.0, its cases without the contested ones.  `answer_reward` was mended after its",
        "first run on it, so it is no longer held out; that run, which this tree cannot repeat, gave 1 of 37",
        "and 2 of 46.",
        "",
        *independent(),
    ]
    for what, audit in audits:
        if audit.exploits or audit.refusals or audit.errors:
            parts += ["", f"## {what}", "", audit.to_markdown()]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Audit, print the table and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", help="a tokenizer's hub id or folder")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    tokenizer = None
    if options.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    audits = audited(tokenizer)
    options.out.write_text(report(audits, options.tokenizer), encoding="utf-8")
    print("\n".join(summary(audits)))


if __name__ == "__main__":
    main()
