"""What answer_reward pays and refuses on attacks and right answers written by people who had not read it.

    python benchmarks/answer_sets.py            # writes benchmarks/results/answer_sets.md
    python benchmarks/answer_sets.py --misjudged   # shows each case that is misjudged, and writes nothing

The sets stand in tests/rewards/answers, one case a line: kind, form asked for, question, gold answer, completion
after the thought, and whether it is right.  Each was written from the documentation of the forms alone.  "before" is
the first run on a set, by a version of the code whose rules its cases had not yet changed (answer_sets_first.json);
"now" is this version.  A case that the gold answer cannot decide ("80 m/s" for a gold answer of 80) is set aside.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tables import RESULTS, command_line, document, table

from rewards import answer_reward

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "rewards" / "answers"
FIRST = RESULTS / "answer_sets_first.json"


def main() -> None:
    """Judge every case and write the table."""
    now = {path.stem: judged(path) for path in sorted(FOLDER.glob("*.jsonl"))}
    if "--misjudged" in sys.argv:
        for name, found in now.items():
            for case, mode in found["misjudged"]:
                print(name, mode, json.dumps(case, ensure_ascii=False))
        return
    if "--first" in sys.argv:
        known = json.loads(FIRST.read_text()) if FIRST.exists() else {}
        new = {name: found["counts"] for name, found in now.items() if name not in known}
        FIRST.write_text(json.dumps(known | new, indent=1) + "\n")
        return
    first = json.loads(FIRST.read_text())
    head = ["set", "form", "attacks paid, before", "now", "right answers refused, before", "now"]
    rows = []
    for name, found in now.items():
        for mode in ("asked for", "auto"):
            before, after = first.get(name, {}).get(mode), found["counts"][mode]
            cells = [share(c, k) if c else "" for k in ("attack", "right") for c in (before, after)]
            rows.append([name.upper(), mode, *cells])
    text = document(
        "Fresh answers",
        command_line(),
        'Attacks and right answers by writers who had not read the rules. "asked for": the form that the prompt asks '
        'for is named to `answer_reward(form=...)`. "auto": it is not, and cases in prose are added. Sets A to C were '
        'written before the rules of these forms, D after they had been mended on A to C: its "before" is the best '
        "estimate for text that the rules have not seen.",
        table(head, "llrrrr", rows),
    )
    (RESULTS / "answer_sets.md").write_text(text)
    print(text)


def share(counts: dict[str, list[int]], kind: str) -> str:
    """A count with its share: 3 of 120 (2.5 %)."""
    wrong, of = counts[kind]
    return f"{wrong} of {of} ({wrong / of:.1%})"


def judged(path: Path, algebra: bool = True) -> dict[str, Any]:
    """Misjudged cases and their counts, by how the form is known; without ``algebra`` none of the kind "math"."""
    cases = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    cases = [case for case in cases if algebra or case["kind"] != "math"]
    counts = {mode: {"attack": [0, 0], "right": [0, 0]} for mode in ("asked for", "auto")}
    misjudged = []
    groups: dict[tuple[str, Any, str], list[dict[str, Any]]] = defaultdict(
        list
    )  # a batch for each reward, as in training
    for case in cases:
        for mode in modes(case):
            groups[case["kind"], case["form"] if mode == "asked for" else "auto", mode].append(case)
    for (kind, form, mode), batch in groups.items():
        reward = answer_reward(kind, form=form)
        texts, golds = ([case[key] for case in batch] for key in ("text", "gold"))
        for case, score in zip(batch, reward(completions=texts, answer=golds), strict=True):
            wrong = (score == 1.0) is not case["right"]
            count = counts[mode]["right" if case["right"] else "attack"]
            count[0], count[1] = count[0] + wrong, count[1] + 1
            if wrong:
                misjudged.append((case, mode))
    return {"counts": counts, "misjudged": misjudged}


def modes(case: dict[str, Any]) -> list[str]:
    """How a case is judged: with its form named, without, or both.

    "auto" cannot know that all of a text was to be the answer, nor that another form was asked for.
    """
    if "set_aside" in case:
        return []
    explicit = ["asked for"] if case["form"] != "prose" else []
    return explicit + (["auto"] if case["form"] != "whole" and "only_form" not in case else [])


if __name__ == "__main__":
    main()
