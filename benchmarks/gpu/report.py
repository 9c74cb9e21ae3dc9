"""Results as lines for the terminal, as Markdown, and as the file that a later command adds to."""

import json
from collections import Counter
from pathlib import Path

from .runner import NOT_RUN, Figure, Outcome

Outcomes = dict[str, Outcome]


def merged(earlier: Outcomes, later: Outcomes) -> Outcomes:
    """Return the earlier outcomes updated by the later ones; a check that was not run keeps its earlier outcome."""
    return earlier | {n: o for n, o in later.items() if o.status != NOT_RUN or n not in earlier}


def load(file: Path) -> Outcomes:
    found: Outcomes = {}
    stored = json.loads(file.read_text())["checks"] if file.exists() else {}
    for name, (status, note, seconds, figures) in stored.items():
        found[name] = Outcome(status, note, seconds, {key: Figure(*one) for key, one in figures.items()})
    return found


def save(folder: Path, machine: dict[str, str], outcomes: Outcomes) -> None:
    """Write results.json, and results.md with every figure; a figure outside its limits is marked."""
    (folder / "results.json").write_text(json.dumps({"machine": machine, "checks": outcomes}, indent=1))
    lines = [f"# {machine['device']}", "", *(f"- {key}: {value}" for key, value in machine.items())]
    lines += ["", counts(outcomes), ""]
    lines += ["| check | result | s | figure | value | limit |", "|---|---|---|---|---|---|"]
    for name, outcome in outcomes.items():
        note = outcome.note.replace("|", "/")
        lines.append(f"| {name} | {outcome.status} | {outcome.seconds:.0f} | {note} | | |")
        for key, figure in outcome.figures.items():
            mark = "" if figure.holds else " **<**"
            lines.append(f"| | | | {key} | {figure.shown}{mark} | {figure.limits} |")
    (folder / "results.md").write_text("\n".join([*lines, ""]))


def line(name: str, outcome: Outcome) -> str:
    said = outcome.note
    if outcome.figures:
        key, figure = min(outcome.figures.items(), key=lambda item: item[1].holds)
        said = f"{key}: {figure.shown}" + (f", {figure.limits}" if figure.limits else "")
    return f"{outcome.seconds:5.0f} s  {outcome.status:<8}  {name:<44}  {said[:110]}"


def counts(outcomes: Outcomes) -> str:
    found = Counter(outcome.status for outcome in outcomes.values())
    return ", ".join(f"{count} {status}" for status, count in found.items())
