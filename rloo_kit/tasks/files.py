"""A task from a file of your own: questions and answers in CSV, JSON lines or Parquet.

It checks what would cost a run: columns that are not there, questions that come twice or on both sides of the split,
answers that the reward cannot read, prompts that are too long.  Rows that cannot be used are left out, counted in the
task's description, and warned of.  It reads whole files into memory.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rewards.text import prompt_text
from rloo_kit import values
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.session import processes
from rloo_kit.tasks.task import Message, Task, asked_for, conversation, dataset_from, made

if TYPE_CHECKING:
    from rewards.answers import Form
    from rewards.signature import Reward
    from rloo_kit.policy.policy import Policy

ADVICE = {
    "path": "give a file: tasks.from_file('mine.csv')",
    "system": "give the message's text: system='Be brief.'",
    "question": "name its column: question='problem'",
    "answer": "name its column: answer='solution'",
}

Row = dict[str, Any]


@dataclass
class Kept:
    """The rows of a file that can be used, and how many cannot for which reason, in the order of the checks."""

    rows: list[Row]  # with the columns prompt, answer and problem, and the file's others
    left_out: Counter[str] = field(default_factory=Counter)

    def without(self, bad: Sequence[object], reason: str) -> None:
        """Leave out the rows that are bad."""
        kept = [row for row, is_bad in zip(self.rows, bad, strict=True) if not is_bad]
        if len(kept) < len(self.rows):
            self.left_out[reason] += len(self.rows) - len(kept)
        self.rows = kept


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
    """A file's questions and answers as a task, split by problem.

    A question is on the same side in every process, whatever the order of the rows: two rows of the same question are
    one problem.  Other columns stay, and rewards get them.

    Args:
        path: a .csv, .tsv, .jsonl, .json or .parquet file, in UTF-8.
        question, answer: its columns.  A question may be a list of messages that ends with the user's.  An answer may
            be a whole solution: what follows "####", or its last box, counts.
        system: a message before each question.
        held_out: the share of problems that is held out, or a file of its own.
        kind: of the answers, as for ``rewards.answer_reward``: "number", "math", "choice" or "exact".
        form: where the answer has to stand, as for ``arithmetic``.
        policy: from ``load_policy``; with it, prompts that leave no room for ``max_new_tokens`` are left out.
        max_new_tokens: the length that the policy will be trained at.

    Raises:
        DatasetError: no such file or column, a file that cannot be read, or no problem on a side of the split.
        ConfigError: a share that is not between 0 and 1, or no text where one is asked for.
        ValueError: an unknown kind or form.
    """
    texts = {"path": path, "question": question, "answer": answer, "system": system}
    values.check(texts, {**dict.fromkeys(texts, str), "system": str | None}, "tasks.from_file", ADVICE)
    correct, asks = asked_for(form, policy, kind)
    file = home(path)
    train = _usable(file, question, answer, correct, kind)
    if isinstance(held_out, str | os.PathLike):
        other = _usable(home(held_out), question, answer, correct, kind)
        known = {_key(row["problem"]) for row in other.rows}
        train.without([_key(row["problem"]) in known for row in train.rows], "held out too")
    else:
        other = _split_off(train, held_out)
    for side in (train, other):
        for row in side.rows:
            row["prompt"] = _prompt(row, asks, system)
        if policy is not None:
            _leave_out_long(side, policy, max_new_tokens)
    description = _described(file, train, other)
    if train.left_out + other.left_out:
        processes.warn(f"tasks.from_file, {description}.")
    return Task(file.stem, dataset_from(train.rows), dataset_from(other.rows), correct, None, description)


def home(path: str | os.PathLike[str]) -> Path:
    """A path with "~" as the user's home."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - Path.expanduser raises for an unknown user


def _usable(file: Path, question: str, answer: str, correct: Reward, kind: str) -> Kept:
    kept = Kept([_renamed(row, question, answer) for row in read(file, question, answer)])
    kept.without([row["problem"] is None for row in kept.rows], "whose question is neither text nor messages")
    kept.without([not row["problem"] for row in kept.rows], "without a question")
    told = [row["prompt"] and row["prompt"][-1]["role"] == "assistant" for row in kept.rows]
    kept.without(told, "whose messages end with the assistant's")
    kept.without([not row["answer"] for row in kept.rows], "without an answer")
    first: dict[str, Row] = {}
    firsts = [first.setdefault(_key(row["problem"]), row) for row in kept.rows]
    differ = [row["answer"] != one["answer"] for row, one in zip(kept.rows, firsts, strict=True)]
    kept.without(differ, "repeated with another answer")
    kept.without([row is not first[_key(row["problem"])] for row in kept.rows], "repeated")
    answers = [row["answer"] for row in kept.rows]
    unread = [score is None for score in correct(completions=[""] * len(answers), answer=answers)]
    example = next((one for one, bad in zip(answers, unread, strict=True) if bad), "")
    kept.without(unread, f"whose answer is not of kind {kind!r}, such as {example[:40]!r}")
    return kept


def _renamed(row: Row, question: str, answer: str) -> Row:
    """A row as a task has it; the question and the answer as text, the other columns as they are."""
    others = {name: value for name, value in row.items() if name not in (question, answer)}
    asked, messages, said = row[question], _messages(row[question]), _messages(row[answer])
    problem = None if isinstance(asked, list | dict) and not messages else _text(messages or asked)
    return others | {"prompt": messages, "answer": _text(said[-1:] or row[answer]), "problem": problem}


def _messages(value: Any) -> list[Message]:
    """A list of messages, without the empty keys that Parquet adds; empty for anything else."""
    given = value if isinstance(value, list) else []
    for one in given:
        if not (isinstance(one, dict) and isinstance(one.get("role"), str)):
            return []
        if not isinstance(one.get("content"), str | None):
            return []
    return [{name: part for name, part in one.items() if part is not None} for one in given]


def _text(value: Any) -> str:
    return "" if value is None else prompt_text(value) if _messages(value) else str(value).strip()


def _prompt(row: Row, asks: str, system: str | None) -> list[Message]:
    """The row's own messages, or its question as one."""
    *first, last = row["prompt"] or conversation(row["problem"])
    if system and not any(one["role"] == "system" for one in first):
        first = [{"role": "system", "content": system}, *first]
    return [*first, {**last, "content": f"{last['content']} {asks}".rstrip()}]


def _key(question: str) -> str:
    """A question without what does not tell problems apart: case and space."""
    return re.sub(r"\s+", " ", question).strip().casefold()


def _split_off(main: Kept, share: float) -> Kept:
    """Move the share of problems to a side of their own, by a fixed rule on their text."""
    if not 0 < share < 1:
        raise ConfigError(
            "the share of problems that is held out must lie between 0 and 1",
            where=f"tasks.from_file(held_out={share})",
            todo="write held_out=0.2, or name a file of its own",
        )
    is_out = [zlib.crc32(_key(row["problem"]).encode()) < share * 2**32 for row in main.rows]
    other = Kept([row for row, out in zip(main.rows, is_out, strict=True) if out])
    main.rows = [row for row, out in zip(main.rows, is_out, strict=True) if not out]
    return other


def _leave_out_long(side: Kept, policy: Policy, max_new_tokens: int) -> None:
    limit = getattr(policy.model, "max_seq_length", None)
    if limit is None or not side.rows:
        return
    prompts: list[list[Message]] = [row["prompt"] for row in side.rows]
    reason = f"of more tokens than the policy takes ({limit} with {max_new_tokens} new ones)"
    side.without([len(ids) + max_new_tokens > limit for ids in policy.tokenize(prompts)], reason)


def _described(file: Path, train: Kept, held_out: Kept) -> str:
    counts = ", ".join(f"{count} {reason}" for reason, count in (train.left_out + held_out.left_out).items())
    why = f"; left out: {counts}" if counts else ""
    for side, name in ((train, "to train on"), (held_out, "that is held out")):
        if not side.rows:
            raise DatasetError(
                f"no problem is left {name}",
                where=f"{file}{why or ', which has too few rows to split'}",
                todo="look at kind=..., give more rows, or another held_out=... (a share, or a file of its own)",
            )
    return f"{file.name}: {len(train.rows)} to train on, {len(held_out.rows)} held out{why}"


def read(file: Path, question: str, answer: str) -> list[Row]:
    """All rows of a file, with the same columns; in CSV the question and the answer are text as written.

    Raises:
        DatasetError: it is not there, cannot be read, or has no such columns.
    """
    if not file.is_file():
        beside = [path.name for path in file.parent.iterdir()] if file.parent.is_dir() else []
        near = difflib.get_close_matches(file.name, beside, n=1, cutoff=0.4)
        todo = (
            f"did you mean {str(file.parent / near[0])!r}?" if near else "give the path of a .csv or .jsonl"
        )
        raise DatasetError("there is no such file", where=str(file), todo=todo)
    if file.suffix.lower() not in READERS:
        raise DatasetError(
            f"files of this kind are not read: {file.suffix!r}", where=str(file), todo=f"give a {KINDS}"
        )
    try:
        rows = READERS[file.suffix.lower()](file, question, answer)
    except Exception as error:  # pandas, json and pyarrow raise what they like
        said = (str(error).splitlines() or [type(error).__name__])[0][:200]
        todo = "save it in UTF-8; JSON lines have one object a line, CSV a line of column names first"
        raise DatasetError(f"{file.name} cannot be read: {said}", where=str(file), todo=todo) from error
    if not rows:
        raise DatasetError("the file has no rows", where=str(file), todo="give a line for each problem")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    for argument, name in (("question", question), ("answer", answer)):
        if name not in columns:
            near = difflib.get_close_matches(name.casefold(), {one.casefold(): one for one in columns}, n=1)
            likeliest = next((one for one in columns if [one.casefold()] == near), "...")
            raise DatasetError(
                f"the file has no column {name!r}",
                where=f"{file}, whose columns are {', '.join(columns)}",
                todo=f"name it: {argument}={likeliest!r}",
            )
    return [{name: row.get(name) for name in columns} for row in rows]


def _csv(file: Path, question: str, answer: str) -> list[Row]:
    import pandas as pd  # type: ignore[import-untyped]

    separator, as_written = "\t" if file.suffix.lower() == ".tsv" else ",", {question: str, answer: str}
    how: Any = {"sep": separator, "converters": as_written, "keep_default_na": False, "encoding": "utf-8-sig"}
    rows: list[Row] = pd.read_csv(file, **how).to_dict("records")
    return rows


def _json(file: Path, question: str, answer: str) -> list[Row]:
    text = file.read_text(encoding="utf-8-sig")
    is_list = text.lstrip().startswith("[")
    rows = json.loads(text) if is_list else [json.loads(line) for line in text.split("\n") if line.strip()]
    return [dict(row) for row in rows]


def _parquet(file: Path, question: str, answer: str) -> list[Row]:
    from pyarrow import parquet

    rows: list[Row] = parquet.read_table(file).to_pylist()
    return rows


READERS = {".csv": _csv, ".tsv": _csv, ".jsonl": _json, ".json": _json, ".parquet": _parquet}
KINDS = ".csv, .tsv, .jsonl, .json or .parquet file"
