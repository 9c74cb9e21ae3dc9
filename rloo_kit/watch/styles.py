"""How a reward function's curve looks: one colour, dash and mark for its name, in every figure of a process.

For :mod:`.plots`.  Names get their styles in the order in which they are first drawn.  A hash of the name would be the
same in every process, and give two of three rewards one of six colours in four notebooks of nine; in order, the first
six have a colour each, and no two are alike in grey before all :data:`COUNT` are given.
"""

from __future__ import annotations

from dataclasses import dataclass

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito (2002), Color Universal Design: told apart in all common kinds of colour blindness.  Without black,
which is the total's, and without yellow, which is hard to see on white."""

DASHES = ("-", "--", ":", "-.")
MARKS = ("o", "s", "^", "D", "v", "<", ">")
COUNT = len(DASHES) * (1 + len(MARKS))
"""Styles that differ without colour."""


@dataclass(frozen=True)
class Style:
    """What matplotlib draws a curve with; dash and mark alone tell two apart, as in grey.

    Attributes:
        mark: of a figure that no line leads to.
        marked: whether the line has its mark all along.
    """

    colour: str = "black"
    dash: str = "-"
    mark: str = "o"
    marked: bool = False


PLAIN = Style()
"""Of a curve that is no reward function's: the total, and every other metric."""

_given: dict[str, Style] = {}


def style_of(name: str) -> Style:
    """The style of a reward function's curve; it keeps the one that it was given first."""
    return _given.setdefault(name, _numbered(len(_given)))


def _numbered(n: int) -> Style:
    return Style(
        COLOURS[n % len(COLOURS)],
        DASHES[n % len(DASHES)],
        MARKS[n % len(MARKS)],
        marked=n >= len(DASHES),
    )
