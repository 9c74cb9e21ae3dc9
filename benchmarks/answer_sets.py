r"""What answer_reward pays and refuses on attacks and right answers written by people who had not read it.

    python benchmarks/answer_sets.py            # writes benchmarks/results/answer_sets.md
    python benchmarks/answer_sets.py --misjudged   # shows each case that is misjudged, and writes nothing

The sets stand in tests/rewards/answers, one case a line: kind, form asked for, question, gold answer, completion
after the thought, and whether it is right.  Each was written from the documentation of the forms alone; "natural" was
made by tests/rewards/natural_answers.py of commit 1a82a8e.  "before" is the first run on a set, by a version of the
code whose rules its cases had not yet changed (answer_sets_first.json); "now" is this version.  A case that the gold
answer cannot decide ("80 m/s" for a gold answer of 80) is set aside.

With a form named only the form is read, and a case that words or an expression around it make an attack ("not
\boxed{42}") is paid: its writer could have put the same box alone.  Such cases have "by_form", and are counted apart.
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


def main() -> None:
    """Judge every case and write the table."""
    found = {path.stem: verdicts(cases_of(path)) for path in sorted(FOLDER.glob("*.jsonl"))}
    if "--misjudged" in sys.argv:
        for name, of_set in found.items():
            for case, mode in of_set["misjudged"]:
                print(name, mode, json.dumps(case, ensure_ascii=False))
        return
    text = report(found, json.loads((RESULTS / "answer_sets_first.json").read_text()))
    (RESULTS / "answer_sets.md").write_text(text)
    print(text)


def report(found: dict[str, dict[str, Any]], first: dict[str, Any]) -> str:
    """A row a set, and by how the form is known."""
    head = ["set", "form", "attacks paid, first run", "now", "by the form's rule"]
    head += ["right answers refused, first run", "now", "by the form's rule"]
    rows = []
    for name, of_set in found.items():
        for mode, counts in of_set["counts"].items():
            if counts["right"][1]:
                before = first[name][mode]
                both = ((before[key], counts[key]) for key in ("attack", "right"))
                cells = (cell for old, now in both for cell in (share(old), share(now), str(now[2])))
                rows.append([name.upper(), mode, *cells])
    return document(
        "Fresh answers",
        command_line(),
        'Attacks and right answers by writers who had not read the rules, and "natural", made by a generator. "asked '
        'for": the form that the prompt asks for is named to `answer_reward(form=...)`. "auto": it is not, and cases '
        "in prose are added; it is a guess, and refuses in doubt.",
        "With a form named only the form is read. By the form's rule: cases that were written as attacks and are paid "
        "all the same, most because of a denial or an operation beside an own right box, a few because of words within "
        "the form that are not read (another language, phantom); and right answers with boxes that differ, or with two "
        "formulas in a tag, which are refused. They were marked, once read, among what this version misjudged, and are "
        'not in "now".',
        'No set is fresh for "now": the guess of "auto" was mended on A to D, and the forms on all sets. At its first '
        'run on "natural" the form\'s reader refused 1 of 592 and paid 1 of 253.',
        table(head, "llrrrrrr", rows),
    )


def share(count: list[int]) -> str:
    """A count with its share: 3 of 120 (2.5%)."""
    return f"{count[0]} of {count[1]} ({count[0] / count[1]:.1%})"


def cases_of(path: Path) -> list[dict[str, Any]]:
    """A set's cases."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def verdicts(cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Misjudged cases, and by how the form is known: how many, of how many, and how many more by the form's rule."""
    counts = {mode: {"attack": [0, 0, 0], "right": [0, 0, 0]} for mode in ("asked for", "auto")}
    misjudged = []
    # A batch for each reward, as in training.
    groups: dict[tuple[str, Any, str], list[dict[str, Any]]] = defaultdict(list)
    for case in cases:
        for mode in modes(case):
            groups[case["kind"], case["form"] if mode == "asked for" else "auto", mode].append(case)
    for (kind, form, mode), batch in groups.items():
        reward = answer_reward(kind, form=form)
        texts, golds = ([case[key] for case in batch] for key in ("text", "gold"))
        for case, score in zip(batch, reward(completions=texts, answer=golds), strict=True):
            wrong = (score == 1.0) is not case.get("by_form", case["right"])
            count = counts[mode]["right" if case["right"] else "attack"]
            count[:] = count[0] + wrong, count[1] + 1, count[2] + ("by_form" in case)
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
