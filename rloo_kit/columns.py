"""A dataset's prompts by Arrow's columns, so that a million of them take a second and no memory.

For :mod:`rloo_kit.inputs`, which looks at the few rows that are named here, and says what is wrong with them.  Nothing
here raises: a row that may be faulty is a suspect, and a row that is not is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute as compute

if TYPE_CHECKING:
    from datasets import Dataset

Mask = numpy.ndarray[Any, Any]

BATCH = 10_000  # rows at once

ASKING = pyarrow.array(["user", "tool"])
"""Roles whose text comes from a dataset or a tool, and not from who wrote the prompt."""

SEEN = r"[!-~]|\p{L}|\p{N}"
"""A text with one of these is not blank, whatever Python and Arrow call white space."""


@dataclass(frozen=True)
class Texts:
    """The texts of a run of rows: one a row, or one a message.

    Attributes:
        first, rows: where the run begins, and how many rows it has.
        row: (texts,) int, the row of each, counted from the first.
        text: (texts,) of Arrow, null where there is none.
        odd: (texts,) bool, messages that may be faulty whatever their text.
        role: (texts,) of Arrow, who says each; None where the rows are texts.
    """

    first: int
    rows: int
    row: Mask
    text: pyarrow.Array
    odd: Mask
    role: Any = None


def readable(kind: pyarrow.DataType) -> bool:
    """Whether a column's type is text, or lists of messages whose role and content are text."""
    if not _is_list(kind):
        return bool(_is_text(kind))
    message = kind.value_type
    if not pyarrow.types.is_struct(message):
        return False
    types = {field.name: field.type for field in message}
    return all(name in types and _is_text(types[name]) for name in ("role", "content"))


def _is_text(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind))


def _is_list(kind: pyarrow.DataType) -> bool:
    return bool(pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind))


def texts(dataset: Dataset, column: str) -> Iterator[Texts]:
    """The texts of a column that is :func:`readable`, in the dataset's order, a batch of rows at a time."""
    first = 0
    for table in dataset.select_columns([column]).with_format("arrow").iter(batch_size=BATCH):
        values = table[column].combine_chunks()
        yield _of(values, first)
        first += len(values)


def _of(values: pyarrow.Array, first: int) -> Texts:
    if not _is_list(values.type):
        row = numpy.arange(len(values))
        return Texts(first, len(values), row, values, numpy.zeros(len(values), dtype=bool))
    messages = compute.list_flatten(values)
    row = compute.list_parent_indices(values).to_numpy(zero_copy_only=False)
    role, content = (compute.struct_field(messages, name) for name in ("role", "content"))
    # An assistant's message may call a tool in place of saying something.
    silent = compute.and_(compute.is_null(content), compute.not_equal(role, "assistant"))
    odd = compute.or_(compute.is_null(role), compute.fill_null(silent, True))
    return Texts(first, len(values), row, content, odd.to_numpy(zero_copy_only=False), role)


def of_messages(prompts: Sequence[Any]) -> Texts:
    """The messages of conversations that are in Python's lists."""
    named = [[{name: one.get(name) for name in ("role", "content")} for one in prompt] for prompt in prompts]
    text = pyarrow.string()
    return _of(pyarrow.array(named, pyarrow.list_(pyarrow.struct({"role": text, "content": text}))), 0)


def holding(batches: Iterable[Texts], anywhere: Sequence[str], asked: Sequence[str]) -> list[int]:
    """Rows of conversations with one of the words ``anywhere``, or one of ``asked`` in what a user or a tool says."""
    found: list[int] = []
    for batch in batches:
        hit = compute.and_(_has(batch.text, asked), compute.is_in(batch.role.cast("string"), ASKING))
        hit = compute.or_(hit, _has(batch.text, anywhere)).to_numpy(zero_copy_only=False)
        found += (numpy.unique(batch.row[hit]) + batch.first).tolist()
    return found


def _has(text: pyarrow.Array, words: Sequence[str]) -> pyarrow.Array:
    pattern = "|".join(map(re.escape, words)) or r"[^\s\S]"
    return compute.fill_null(compute.match_substring_regex(text, pattern), False)


def suspects(batches: Iterator[Texts]) -> list[int]:
    """Rows without any text, and with an odd message."""
    found: list[int] = []
    for batch in batches:
        seen = compute.fill_null(compute.match_substring_regex(batch.text, SEEN), False)
        suspect = numpy.ones(batch.rows, dtype=bool)
        suspect[batch.row[seen.to_numpy(zero_copy_only=False)]] = False
        suspect[batch.row[batch.odd]] = True
        found += (numpy.flatnonzero(suspect) + batch.first).tolist()
    return found


def longest(batches: Iterator[Texts], count: int) -> list[int]:
    """The rows with the most characters, the longest first, and of equals the earliest."""
    rows, sizes = numpy.zeros(0, dtype=int), numpy.zeros(0)
    for batch in batches:
        characters = compute.fill_null(compute.utf8_length(batch.text), 0).to_numpy(zero_copy_only=False)
        rows = numpy.concatenate([rows, numpy.arange(batch.rows) + batch.first])
        sizes = numpy.concatenate([sizes, numpy.bincount(batch.row, characters, minlength=batch.rows)])
        kept = numpy.argsort(-sizes, kind="stable")[:count]
        rows, sizes = rows[kept], sizes[kept]
    return [int(row) for row in rows]
