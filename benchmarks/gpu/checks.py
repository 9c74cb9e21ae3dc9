"""What a check is, what it found, and the list of all checks in the order of their worth.

A check is a plain function of a :class:`Place` that returns figures, each with its limit.  It runs in a worker process
and shares that process with the checks that ask for the same one.  Nothing heavy is imported here: the command
that starts the workers never loads torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

KIT, CPU, PLAIN, BARE = "kit", "cpu", "plain", "bare"
"""Processes: with the kit (unsloth first) on the GPU; with the kit on the CPU; with TRL alone; without CUDA at all."""

HIDDEN = {"CUDA_VISIBLE_DEVICES": "", "UNSLOTH_FORCE_CPU": "1"}
"""Variables of a process that must not see the GPU."""


@dataclass(frozen=True)
class Figure:
    """One measured number, and what it must be.

    Attributes:
        low, high: it must lie between them, both included; None sets no bound.
        is_goal: the bounds are what is aimed at, and missing them is said, but fails nothing.
    """

    name: str
    value: float
    unit: str = ""
    low: float | None = None
    high: float | None = None
    is_goal: bool = False

    @property
    def is_bounded(self) -> bool:
        """Whether anything is demanded of it."""
        return self.low is not None or self.high is not None

    @property
    def holds(self) -> bool:
        """Whether it lies within its bounds; NaN lies within none."""
        above = self.low is None or self.value >= self.low
        below = self.high is None or self.value <= self.high
        return above and below


def seen(name: str, value: float, unit: str = "") -> Figure:
    """A figure of which nothing is demanded."""
    return Figure(name, float(value), unit)


def at_most(name: str, value: float, high: float, unit: str = "") -> Figure:
    """A figure that must not pass ``high``."""
    return Figure(name, float(value), unit, high=high)


def at_least(name: str, value: float, low: float, unit: str = "") -> Figure:
    """A figure that must reach ``low``."""
    return Figure(name, float(value), unit, low=low)


def holds(name: str, condition: bool) -> Figure:
    """A statement that must be true: 1, or 0."""
    return Figure(name, float(condition), low=1.0)


@dataclass(frozen=True)
class Found:
    """What a check found: figures for the table, and raw numbers for whoever looks closer."""

    figures: list[Figure]
    details: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"figures": [asdict(figure) for figure in self.figures], "details": self.details}


@dataclass(frozen=True)
class Place:
    """Where a check runs.

    Attributes:
        scratch: a folder that all checks of one command share; gone afterwards.
        is_rehearsal: on a CPU, at tiny sizes, to try the harness and not the hardware.
    """

    scratch: Path
    is_rehearsal: bool


@dataclass(frozen=True)
class Check:
    """One entry of the list.

    Attributes:
        name: "part/what it checks".
        run: the function.
        seconds: after that long it is killed.
        takes: what it probably takes; it is not begun with less than that left.
        rank: lower runs earlier.
        home: which of the processes :data:`KIT`, :data:`CPU`, :data:`PLAIN`, :data:`BARE`, or one of its own by
            another name.
        variables: of its process.
        needs: checks that must have run without an error.
        is_rehearsed: whether a CPU can stand in for the GPU.
        card_gib: the smallest card that it can run on.
    """

    name: str
    run: Callable[[Place], Found]
    seconds: float
    takes: float
    rank: int
    home: str = KIT
    variables: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    is_rehearsed: bool = True
    card_gib: float = 0.0

    @property
    def process(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Two checks of the same process may share it."""
        return self.home, tuple(sorted(self.variables.items()))


CHECKS: dict[str, Check] = {}
"""name -> check, filled where this package's parts are imported."""


def add(check: Check) -> None:
    """Put a check on the list; its name must be new."""
    if check.name in CHECKS:
        raise ValueError(f"two checks are called {check.name!r}")
    CHECKS[check.name] = check


def check(name: str, **options: Any) -> Callable[[Callable[[Place], Found]], Callable[[Place], Found]]:
    """Decorate a function to put it on the list; options are those of :class:`Check`."""

    def register(run: Callable[[Place], Found]) -> Callable[[Place], Found]:
        add(Check(name, run, **options))
        return run

    return register


def ordered(checks: Iterable[Check], wanted: Sequence[str] = ()) -> list[Check]:
    """The checks whose names begin with one of ``wanted`` (none means all), with what they need, in order.

    By rank; among equals, those of one process side by side.  What is needed comes right before its first user, or,
    where it runs in another process, before the whole run of checks that share the user's, so that nothing interrupts
    a process.
    """
    known = {one.name: one for one in checks}
    groups = {one.process: number for number, one in reversed(list(enumerate(known.values())))}
    chosen = sorted(
        (one for one in known.values() if not wanted or one.name.startswith(tuple(wanted))),
        key=lambda one: (one.rank, groups[one.process]),
    )
    found: dict[str, Check] = {}

    def put(one: Check) -> None:
        for need in one.needs:
            put(known[need])
        found.setdefault(one.name, one)

    for _, block in itertools.groupby(chosen, key=lambda one: one.process):
        together = list(block)
        for one in together:
            for need in one.needs:
                if known[need].process != one.process:
                    put(known[need])
        for one in together:
            put(one)
    return list(found.values())
