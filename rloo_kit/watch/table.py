"""A run's log as columns, which its next entry is added to: what a look costs does not grow with the run.

For :mod:`.log`, whose windows are views of a table.  A column holds a metric's finite figures; what is missing or not
finite is left out of it.  Nothing is judged here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, overload

Entry = dict[str, Any]
"""One entry of ``log_history``: "step" and the metrics, each a float, or None where it does not apply."""

Figure = Callable[[Entry], float | None]

RATIO = "clip_ratio/region_mean"


class Column:
    """A metric's finite figures, in the order of the entries."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.figures: list[float] = []
        self.before = [0]  # how many of them the first n entries have

    def read(self, entries: Sequence[Entry]) -> None:
        """Read the entries that it has not read yet."""
        for index in range(len(self.before) - 1, len(entries)):
            value = self.figure(entries[index])
            if value is not None and math.isfinite(value):
                self.figures.append(value)
            self.before.append(len(self.figures))

    def forget_last(self, count: int) -> None:
        """Forget what it has read of the last one of so many entries."""
        if len(self.before) == count + 1:
            self.before.pop()
            del self.figures[self.before[-1] :]


class Table:
    """Entries of training steps, and a column for each metric that was asked for."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries = list(entries)
        self._columns: dict[Hashable, Column] = {}

    def add(self, entry: Entry) -> None:
        """Take in an entry of a log: one per batch of scored completions.

        Further updates on the same batch (``num_iterations``) log no reward; their clip ratios, the only ones that are
        not 0, are taken into the batch's entry.
        """
        if entry.get("reward") is not None:
            self.entries.append(entry)
        elif self.entries and RATIO in entry:
            for column in self._columns.values():
                column.forget_last(len(self.entries))
            last = self.entries[-1]
            self.entries[-1] = {**last, RATIO: max(last.get(RATIO) or 0.0, entry[RATIO] or 0.0)}

    def column(self, key: Hashable, figure: Figure) -> Column:
        """The column of this key, whose figures ``figure`` reads off an entry."""
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = Column(figure)
        if len(column.before) <= len(self.entries):
            column.read(self.entries)
        return column


class Rows(Sequence[Entry]):
    """Some of a table's entries: spans of it, each from its first place up to its last.

    Args:
        table: what they are of.
        spans: pairs of places, in order.
    """

    __slots__ = ("size", "spans", "table")

    def __init__(self, table: Table, *spans: tuple[int, int]) -> None:
        self.table, self.spans = table, spans
        self.size = 0
        for start, stop in spans:
            self.size += stop - start

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Rows:
        """All of these."""
        table = Table(entries)
        return cls(table, (0, len(table.entries)))

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, int) and len(self.spans) == 1:
            start, stop = self.spans[0]
            return self.table.entries[stop + index if index < 0 else start + index]
        return list(self)[index]

    def __iter__(self) -> Iterator[Entry]:
        for start, stop in self.spans:
            yield from self.table.entries[start:stop]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def part(self, start: int, stop: int) -> Rows:
        """The entries from one place to another; of several spans, a table of their own."""
        if len(self.spans) != 1:
            return Rows.of(self[start:stop])
        first = self.spans[0][0]
        return Rows(self.table, (first + start, first + max(start, stop)))

    def values(self, key: Hashable, figure: Figure) -> list[float]:
        """The finite figures of a column in these rows."""
        column = self.table.column(key, figure)
        if len(self.spans) == 1:
            start, stop = self.spans[0]
            return column.figures[column.before[start] : column.before[stop]]
        found: list[float] = []
        for start, stop in self.spans:
            found += column.figures[column.before[start] : column.before[stop]]
        return found


def rounds(history: Iterable[Entry]) -> list[Entry]:
    """One entry per batch of scored completions; see :meth:`Table.add`."""
    table = Table()
    for entry in history:
        table.add(entry)
    return table.entries


def term_names(entry: Entry) -> list[str]:
    """The reward functions in an entry."""
    return list(_names(tuple(entry)))


@functools.lru_cache(maxsize=16)  # the entries of a run have the same metrics
def _names(keys: tuple[str, ...]) -> tuple[str, ...]:
    means = [key for key in keys if key.startswith("rewards/") and key.endswith("/mean")]
    return tuple(key.removeprefix("rewards/").removesuffix("/mean") for key in means)


def term(name: str) -> str:
    """The metric of a reward function's mean."""
    return f"rewards/{name}/mean"


def spread_name(name: str) -> str:
    """The metric with the standard deviation that goes with a mean."""
    return "reward_std" if name == "reward" else name.removesuffix("/mean") + "/std"
