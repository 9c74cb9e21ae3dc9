"""Make a task from a file of questions and answers.

Rows that would spoil a run are left out with a warning, and counted in the task's description: questions that occur
twice or on both sides of the split, answers that the reward cannot read, prompts that are too long.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewards.text import prompt_text
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.session import output
from rloo_kit.tasks.task import Message, Row, Task, asked_for, made, task_of

if TYPE_CHECKING:
    from rewards.answers import Form
    from rloo_kit.policy.policy import Policy

ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")


@made
def from_file(
    path: str | os.PathLike[str],
    *,
    question: str = "question",
    answer: str = "answer",
    system: str | None = None,
    held_out: float | str | os.PathLike[str] = 0.2,
    kind: str = "number",
    form: Form | None = None,
    policy: Policy | None = None,
    max_new_tokens: int = 256,
) -> Task:
    """Make a task from a file's questions and answers, split by problem.

    Rewards get the file's other columns too; prompt, answer and problem are overwritten.  Rows with the same question
    are one problem, on the same side in every process.  The file's order is not kept: the first n are not the easiest.

    Args:
        path: a .csv, .tsv, .jsonl, .json or .parquet file, in UTF-8.
        question, answer: the columns.  A question may be a list of messages that ends with the user's.  An answer may
            be a whole solution: the text after "####", or its last box, counts.
        system: a system message before each question.
        held_out: the share of problems to hold out, or a file of held-out problems.
        kind: the answers' kind, as for ``rewards.answer_reward``: "number", "math", "choice" or "exact".
        form, policy: as for ``arithmetic``; prompts longer than the policy takes are left out.
        max_new_tokens: the length that the policy will be trained at.

    Raises:
        DatasetError: no such file or column, a file that cannot be read, or no problem on a side of the split.
        ConfigError, ValueError: a share that is not between 0 and 1; an unknown kind or form.
    """
    correct, asks = asked_for(form, policy, kind)
    file, left_out = Path(path).expanduser(), Counter[str]()

    def usable(path: Path) -> dict[str, Row]:
        rows = _distinct(read(path, question, answer), question, answer, left_out)
        scores = correct(completions=[""] * len(rows), answer=[row["answer"] for row in rows.values()])
        readable = [item for item, score in zip(rows.items(), scores, strict=True) if score is not None]
        left_out[f"whose answer is not of kind {kind!r}"] += len(rows) - len(readable)
        kept = {key: _prompted(row, asks, system) for key, row in readable}
        _check_columns(path, list(kept.values()))
        return kept

    rows = usable(file)
    other = usable(Path(held_out).expanduser()) if isinstance(held_out, str | os.PathLike) else _share(rows, held_out)
    taken = {key.casefold() for key in other}
    train = {key: row for key, row in rows.items() if key.casefold() not in taken}
    left_out["held out too"] = len(rows) - len(train) if isinstance(held_out, str | os.PathLike) else 0
    sides = [[side[key] for key in sorted(side, key=_hash)] for side in (train, other)]
    sides = [_short_enough(side, policy, max_new_tokens, left_out) for side in sides]
    counts = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
    why = f"; left out: {counts}" if counts else ""
    if not all(sides):
        what = f"no problem is left {'to hold out' if sides[0] else 'to train on'}"
        shorter = "lower max_completion_length, or raise load_policy(max_seq_length=...)"
        todo = shorter if "longer than" in why else "look at kind=..., give more rows, or another held_out=..."
        raise DatasetError(what, where=f"{file}{why or ', which has too few rows to split'}", todo=todo)
    description = f"{file.name}: {len(sides[0])} to train on, {len(sides[1])} held out{why}"
    if why:
        output.warn(f"tasks.from_file, {description}.")
    return task_of(file.stem, sides, correct, description)


def _share(rows: dict[str, Row], share: float) -> dict[str, Row]:
    if not isinstance(share, int | float) or not 0 < share < 1:
        what, where = "held_out must be a share between 0 and 1", f"tasks.from_file(held_out={share})"
        raise ConfigError(what, where=where, todo="write held_out=0.2, or name a second file")
    return {key: row for key, row in rows.items() if _hash(key) < share * 2**32}


def _hash(key: str) -> int:
    return zlib.crc32(key.casefold().encode())


def _distinct(rows: Iterable[Row], question: str, answer: str, left_out: Counter[str]) -> dict[str, Row]:
    """Return rows with the columns prompt, answer, problem and the file's others, keyed by the question's text."""
    distinct: dict[str, Row] = {}
    for row in rows:
        problem, right = _text(row[question]), _text(_messages(row[answer])[-1:] or row[answer])
        prompt = _messages(row[question]) or [{"role": "user", "content": problem}]
        key = " ".join(problem.split())
        if not problem or not right or prompt[-1]["role"] == "assistant":
            left_out["without a usable question or answer"] += 1
        elif key in distinct:
            left_out["repeated"] += 1
        else:
            others = {name: value for name, value in row.items() if name not in (question, answer)}
            distinct[key] = others | {"prompt": prompt, "answer": right, "problem": problem}
    return distinct


def _messages(value: Any) -> list[Message]:
    """Return a list of messages without the empty keys that Parquet adds; an empty list for anything else."""
    each = value if isinstance(value, list) else []
    for one in each:
        if not isinstance(one, dict) or not isinstance(one.get("role"), str):
            return []
        # Content in parts, such as images, would enter the prompt as its Python repr.
        if not isinstance(one.get("content"), str | None):
            return []
    return [{name: part for name, part in one.items() if part is not None} for one in each]


def _text(value: Any) -> str:
    if isinstance(value, list | dict):
        return prompt_text(messages) if (messages := _messages(value)) else ""
    return "" if value is None else str(value).strip()


def _prompted(row: Row, asks: str, system: str | None) -> Row:
    *first, last = row["prompt"]
    if system and not any(one["role"] == "system" for one in first):
        first = [{"role": "system", "content": system}, *first]
    asked = f"{last.get('content', '')} {asks}".rstrip()
    return row | {"prompt": [*first, {**last, "content": asked}]}


def _check_columns(file: Path, rows: list[Row]) -> None:
    import pyarrow as pa

    for name in rows[0].keys() - {"prompt", "answer", "problem"} if rows else ():
        try:
            pa.array([row[name] for row in rows])
        except (pa.ArrowException, OverflowError) as error:
            what, todo = f"the column {name!r} holds values of several types", "make all of one type, or remove it"
            raise DatasetError(what, where=f"{file}; {str(error).splitlines()[0]}", todo=todo) from error


def _short_enough(rows: list[Row], policy: Policy | None, max_new_tokens: int, left_out: Counter[str]) -> list[Row]:
    limit = getattr(policy and policy.model, "max_seq_length", None)
    if policy is None or limit is None or not rows:
        return rows
    ids = policy.tokenize([row["prompt"] for row in rows])
    kept = [row for row, prompt in zip(rows, ids, strict=True) if len(prompt) + max_new_tokens <= limit]
    what = f"longer than the policy takes, {limit} tokens with {max_new_tokens} new ones"
    left_out[what] += len(rows) - len(kept)
    return kept


def read(file: Path, question: str, answer: str) -> list[Row]:
    """Read all rows of a file, with the same columns; a CSV's question and answer stay text as written.

    Raises:
        DatasetError: the file is missing, cannot be read, or lacks these columns.
    """
    if not file.is_file() or file.suffix.lower() not in ENDINGS:
        what = "files of this kind are not read" if file.is_file() else "there is no such file"
        raise DatasetError(what, where=str(file), todo=f"give a {', '.join(ENDINGS)} file")
    try:
        rows = _rows_of(file, (question, answer))
        columns = list(dict.fromkeys(name for row in rows for name in row))
    except Exception as error:  # pandas, json and pyarrow raise errors of many types
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        todo = (
            "save it in UTF-8; in JSON lines write an object a line; in a CSV quote texts with commas, double a quote"
        )
        raise DatasetError(f"{file.name} cannot be read: {said}", where=str(file), todo=todo) from error
    for argument, name in (("question", question), ("answer", answer)) if rows else ():
        if name not in columns:
            what, where = (f"the file has no column {name!r}", f"{file}, whose columns are {', '.join(columns)}")
            todo = f'name the column that has it: {argument}="COLUMN"'
            if len(columns) == 1 and re.search(r"[;|\t]", columns[0]):
                todo = "separate columns by commas in a .csv file, by tabs in a .tsv file"
            raise DatasetError(what, where=where, todo=todo)
    return [{name: row.get(name) for name in columns} for row in rows]


def _rows_of(file: Path, as_written: Sequence[str]) -> list[Row]:
    # JSON is not read by datasets or pandas, which turn answers that are text into dates and numbers.
    ending = file.suffix.lower()
    if ending in (".jsonl", ".json"):
        text = file.read_text(encoding="utf-8-sig")
        lines = [line for line in text.split("\n") if line.strip()]
        # pandas writes NaN for a missing value.
        load = partial(json.loads, parse_constant=lambda name: None if name == "NaN" else float(name))
        return load(text) if text.lstrip().startswith("[") else [dict(load(one)) for one in lines]
    if ending == ".parquet":
        from pyarrow import parquet

        return list(parquet.read_table(file).to_pylist())
    import pandas as pd  # type: ignore[import-untyped]

    # pandas' default engine reads on behind a lone quote, over the rows that follow.
    # A converter of its own keeps a column from being read as numbers; a short row has None there.
    how: Any = {"engine": "python", "converters": dict.fromkeys(as_written, _text), "keep_default_na": False}
    how |= {"encoding": "utf-8-sig", "index_col": False}
    with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):  # more fields than names
        return list(pd.read_csv(file, sep="\t" if ending == ".tsv" else ",", **how).to_dict("records"))
