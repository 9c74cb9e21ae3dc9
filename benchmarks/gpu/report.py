"""Outcomes as a table, as Markdown and as JSON: pure, from what was recorded.

A check has passed only where it ran to its end and every bounded figure lies within its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .checks import Figure

PASSED, MISSED, FAILED, MEASURED, NOT_RUN = "passed", "goal missed", "FAILED", "measured", "not run"


@dataclass(frozen=True)
class Outcome:
    """What came of one check.

    Attributes:
        status: :data:`PASSED`, :data:`MISSED`, :data:`FAILED`, :data:`MEASURED` (nothing was demanded) or
            :data:`NOT_RUN`.
        note: the error's first line, or why it did not run.
        commit: of the sources that ran.
    """

    name: str
    status: str
    figures: tuple[Figure, ...] = ()
    note: str = ""
    seconds: float = 0.0
    commit: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, answer: dict[str, Any]) -> Outcome:
        """What a worker answered."""
        seconds = answer.get("seconds", 0.0)
        if answer.get("error"):
            return cls(name, FAILED, note=answer["error"], seconds=seconds)
        figures = tuple(Figure(**figure) for figure in answer["figures"])
        return cls(name, verdict(figures), figures, seconds=seconds, details=answer.get("details", {}))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Outcome:
        """What :meth:`to_json` gave."""
        return cls(**{**data, "figures": tuple(Figure(**figure) for figure in data["figures"])})

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def verdict(figures: Sequence[Figure]) -> str:
    """The status that figures stand for."""
    bounded = [figure for figure in figures if figure.is_bounded]
    broken = [figure for figure in bounded if not figure.holds]
    if any(not figure.is_goal for figure in broken):
        return FAILED
    if broken:
        return MISSED
    return PASSED if bounded else MEASURED


def merged(earlier: Iterable[Outcome], later: Iterable[Outcome]) -> list[Outcome]:
    """Outcomes of two commands: the later one's, but what it did not run stays as it was."""
    found = {outcome.name: outcome for outcome in earlier}
    for outcome in later:
        if outcome.status != NOT_RUN or outcome.name not in found:
            found[outcome.name] = outcome
    return list(found.values())


def stamped(outcome: Outcome, commit: str) -> Outcome:
    """With the commit that it ran on, where none is known."""
    return replace(outcome, commit=outcome.commit or commit)


# --- shown ------------------------------------------------------------------------------------------------


def shown(figure: Figure) -> tuple[str, str]:
    """A figure's value and its bounds, in words.

    >>> shown(Figure("peak, measured / planned", 0.934, low=0.9, high=1.0))
    ('0.934', '0.9 to 1')
    >>> shown(Figure("is four bit", 1.0, low=1.0))
    ('yes', 'yes')
    """
    if figure.low == 1.0 and figure.high is None and figure.value in (0.0, 1.0) and not figure.unit:
        return ("yes" if figure.value else "no"), "yes"
    bounds = {
        (False, False): "",
        (True, False): f"at least {_number(figure.low)}",
        (False, True): f"at most {_number(figure.high)}",
        (True, True): f"{_number(figure.low)} to {_number(figure.high)}",
    }[figure.low is not None, figure.high is not None]
    goal = " (goal)" if figure.is_goal and bounds else ""
    return f"{_number(figure.value)} {figure.unit}".strip(), bounds + goal


def _number(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.4g}"


def telling(outcome: Outcome) -> Figure | None:
    """The one figure for the short table: the first that is out of bounds, goals after limits; else the first."""
    broken = sorted((f for f in outcome.figures if not f.holds), key=lambda figure: figure.is_goal)
    return next(iter([*broken, *outcome.figures]), None)


def rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """The short table: check, result, figure, limit."""
    table = [["check", "result", "figure", "limit"]]
    for outcome in outcomes:
        figure = telling(outcome)
        value, bounds = shown(figure) if figure else ("", "")
        text = f"{figure.name}: {value}" if figure else outcome.note
        table.append([outcome.name, outcome.status, text, bounds])
    return table


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many of each status, in one line."""
    counts = dict.fromkeys((PASSED, MISSED, FAILED, MEASURED, NOT_RUN), 0)
    for outcome in outcomes:
        counts[outcome.status] += 1
    return ", ".join(f"{count} {status}" for status, count in counts.items() if count) or "nothing ran"


def text(outcomes: Sequence[Outcome], title: str) -> str:
    """For a terminal: the title, the short table, the counts; figures and notes are cut to a line."""
    table = [[cell[:72] for cell in row] for row in rows(outcomes)]
    widths = [max(len(row[i]) for row in table) for i in range(4)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
    return "\n".join([title, "", lines[0], "-" * max(map(len, lines)), *lines[1:], "", summary(outcomes)])


def markdown(outcomes: Sequence[Outcome], machine: dict[str, str], command: str) -> str:
    """The committed table: the machine, every check, and every figure."""
    commits = {outcome.commit for outcome in outcomes if outcome.commit}
    lines = [
        f"# {machine['device']}",
        "",
        *(
            ["**A rehearsal on a CPU: no figure here says anything about a GPU.**", ""]
            if _rehearsed(machine)
            else []
        ),
        f"`{command}`",
        "",
        *(f"- {name}: {value}" for name, value in machine.items() if name != "device"),
        "",
        f"{summary(outcomes)}.",
        "",
        "| check | result | figure | value | limit | s |",
        "|---|---|---|---:|---|---:|",
    ]
    for outcome in outcomes:
        lines += _markdown_rows(outcome, several=len(commits) > 1)
    return "\n".join([*lines, ""])


def _rehearsed(machine: dict[str, str]) -> bool:
    return machine["device"].startswith("rehearsal")


def _markdown_rows(outcome: Outcome, several: bool) -> list[str]:
    status = f"{outcome.status} ({outcome.commit})" if several and outcome.commit else outcome.status
    head = [outcome.name, status]
    if not outcome.figures:
        return [_markdown_row([*head, outcome.note, "", "", f"{outcome.seconds:.0f}"])]
    lines = []
    for number, figure in enumerate(outcome.figures):
        value, bounds = shown(figure)
        first = head if number == 0 else ["", ""]
        seconds = f"{outcome.seconds:.0f}" if number == 0 else ""
        mark = "" if figure.holds else " **<**"
        lines.append(_markdown_row([*first, figure.name, value + mark, bounds, seconds]))
    return lines


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
