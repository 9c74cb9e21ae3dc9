"""Tasks from a file: one result for all formats, and every row that cannot be used is counted."""

import json
import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from rewards import instruction
from rloo_kit import tasks
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.models import CATALOGUE

Rows = list[dict[str, Any]]
SUMS = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "grade": "easy"} for n in range(40)]


@pytest.fixture
def write(tmp_path):
    """``write(rows, "mine.csv")``: write a file in the format that its suffix names."""

    def made(rows, name="mine.csv"):
        file, table = tmp_path / name, pd.DataFrame(rows)
        if file.suffix == ".parquet":
            table.to_parquet(file)
        elif file.suffix in (".jsonl", ".json"):
            table.to_json(file, orient="records", lines=file.suffix == ".jsonl")
        else:
            table.to_csv(file, sep="\t" if file.suffix == ".tsv" else ",", index=False)
        return file

    return made


def rows_of(task):
    return list(task.train), list(task.held_out)


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_each_format_gives_the_same_task(ending, write, recwarn):
    task = tasks.from_file(write(SUMS, f"mine.{ending}"))
    train, held_out = rows_of(task)
    assert task.name == "mine"
    assert task.description == f"mine.{ending}: {len(train)} to train on, {len(held_out)} held out"
    assert sorted(row["problem"] for row in [*train, *held_out]) == sorted(row["question"] for row in SUMS)
    assert 2 <= len(held_out) <= 16
    row = train[0]
    assert row["prompt"] == [{"role": "user", "content": row["problem"]}]
    assert row["answer"] == str(int(row["problem"].split()[2]) + 1)
    assert row["grade"] == "easy", "other columns stay, for rewards"
    assert task.correct(completions=["It is 42.", "43"], answer=["42", "42"]) == [1.0, 0.0]
    assert not [warning for warning in recwarn if "from_file" in str(warning.message)]


def test_a_question_is_on_the_same_side_in_the_same_place_whatever_stands_around_it(write):
    sides = [rows_of(tasks.from_file(write(rows)))[1] for rows in (SUMS, SUMS[::-1], SUMS[10:] + SUMS[:10])]
    held_out = [[row["problem"] for row in side] for side in sides]
    assert held_out[0] == held_out[1] == held_out[2]
    in_the_file = [row["question"] for row in SUMS if row["question"] in held_out[0]]
    assert held_out[0] not in (in_the_file, in_the_file[::-1]), "the first n of a sorted file are not the easiest n"


BAD = [
    {"question": "What is  3 + 1? ", "answer": "4"},
    {"question": "What is 3 + 1?", "answer": "5"},
    {"question": "A word?", "answer": "n/a"},
    {"question": "Nothing?", "answer": ""},
    {"question": " ", "answer": "7"},
]


def test_rows_that_cannot_be_used_are_left_out_counted_and_warned_of(write):
    rows = [{"question": row["question"], "answer": row["answer"]} for row in SUMS]
    with pytest.warns(UserWarning, match="left out") as caught:
        task = tasks.from_file(write(rows + BAD))
    assert len(task.train) + len(task.held_out) == 40
    for reason in ("2 repeated", "2 without a usable question or answer", "1 whose answer is not of kind 'number'"):
        assert reason in task.description
    assert any(task.description in str(warning.message) for warning in caught)
    kept = {row["problem"]: row["answer"] for row in [*task.train, *task.held_out]}
    assert kept["What is 3 + 1?"] == "4", "the first of a question's answers"


def test_a_short_row_of_a_csv_lacks_its_question_or_its_answer_and_is_left_out(tmp_path):
    lines = [f"{n},What is {n} + {n}?" for n in range(20)]
    (tmp_path / "short.csv").write_text("\n".join(["answer,question", *lines, "5"]))
    with pytest.warns(UserWarning, match="1 without a usable question or answer"):
        task = tasks.from_file(tmp_path / "short.csv")
    assert "None" not in {row["problem"] for row in [*task.train, *task.held_out]}


def test_questions_that_differ_in_case_are_two_problems_on_one_side(write):
    rows = [{"question": f"The code of {c}?", "answer": str(ord(c))} for c in "abcdefghijABCDEFGHIJ"]
    sides = [[row["problem"] for row in side] for side in rows_of(tasks.from_file(write(rows), held_out=0.5))]
    assert sorted(sides[0] + sides[1]) == sorted(row["question"] for row in rows)
    assert not {text.casefold() for text in sides[0]} & {text.casefold() for text in sides[1]}


def test_what_pandas_wrote_as_nan_is_missing(tmp_path):
    rows = [
        {"question": f"What is {n} + 1?", "answer": n + 1, "topic": "sums" if n % 2 else math.nan} for n in range(20)
    ]
    (tmp_path / "mine.json").write_text(json.dumps([*rows, {"question": math.nan, "answer": 1}]))
    with pytest.warns(UserWarning, match="1 without a usable question"):
        task = tasks.from_file(tmp_path / "mine.json")
    assert set(task.train["topic"]) == {"sums", None}


def test_a_column_is_of_one_type_in_the_rows_that_are_used(write):
    rows = [{**row, "level": n, "problem": "" if n else 0} for n, row in enumerate(SUMS)]
    with pytest.warns(UserWarning, match="1 without a usable"):
        task = tasks.from_file(write([*rows, {"question": "", "answer": "1", "level": "header"}], "mine.jsonl"))
    assert set(task.train["level"]) < set(range(40))


def test_text_in_a_csv_stays_as_it_is_written(write):
    rows = [{"question": f"Which code {n}?", "answer": f"00{n}"} for n in range(20)]
    task = tasks.from_file(write(rows), kind="exact")
    assert all(row["answer"].startswith("00") for row in task.train)


def test_a_file_of_its_own_is_held_out_and_takes_its_questions_out_of_training(write):
    other = write([{"question": "WHAT is 5 + 1?", "answer": "6"}, {"question": "Another?", "answer": "1"}], "test.csv")
    with pytest.warns(UserWarning, match="1 held out too"):
        task = tasks.from_file(write(SUMS), held_out=other)
    assert (len(task.train), len(task.held_out)) == (39, 2)
    assert "What is 5 + 1?" not in task.train["problem"]


def test_a_policy_says_the_form_and_which_prompts_are_too_long(write):
    class Counting(SimpleNamespace):
        def tokenize(self, prompts):
            return [[0] * len(prompt[-1]["content"]) for prompt in prompts]

    long = {"question": f"What is {'1' * 200}?", "answer": "1"}
    rows = [{"question": row["question"], "answer": row["answer"]} for row in SUMS]
    model = SimpleNamespace(max_seq_length=256)
    policy = Counting(checkpoint=CATALOGUE["qwen3-4b"], model=model)
    with pytest.warns(UserWarning, match="1 longer than the policy takes, 256 tokens with 100 new"):
        task = tasks.from_file(write([*rows, long]), policy=policy, max_new_tokens=100, system="Be brief.")
    system, user = task.train[0]["prompt"]
    assert system == {"role": "system", "content": "Be brief."}
    assert user["content"].endswith(instruction("boxed"))
    assert task.correct.form == "boxed"


ERRORS = [
    ("mine.csv", {"answer": "anser"}, r"whose columns are question, answer, grade[\s\S]*that has it: answer="),
    ("semicolons.csv", {}, r"separate columns by commas in a .csv"),
    ("mine.csv", {"kind": "choice"}, "no problem is left to train on"),
    ("mine.csv", {"held_out": 1e-9}, "no problem is left to hold out"),
    ("mine.csv", {"held_out": 20}, "between 0 and 1"),
    ("mine.csv", {"held_out": None}, "between 0 and 1"),
    ("mne.csv", {}, r"no such file[\s\S]*mne.csv"),
    ("mine.txt", {}, "files of this kind are not read"),
    ("half.jsonl", {}, "half.jsonl cannot be read"),
    ("utf16.csv", {}, "save it in UTF-8"),
    ("commas.csv", {}, r"loss of data[\s\S]*quote texts with commas"),
    ("quote.tsv", {}, r"expected after[\s\S]*double a quote"),
    ("mixed.jsonl", {}, "the column 'level' holds values of several types"),
    ("huge.jsonl", {}, "the column 'level' holds"),
]


@pytest.mark.parametrize(("name", "settings", "says"), ERRORS, ids=lambda value: str(value)[:30])
def test_what_cannot_be_a_task_is_an_error_that_says_what_can(name, settings, says, write, tmp_path):
    write(SUMS)
    (tmp_path / "mine.txt").write_text("question")
    (tmp_path / "semicolons.csv").write_text("question;answer\n1+1?;2\n")
    (tmp_path / "half.jsonl").write_text('{"question": "a", "answer": 1}\n{"question":')
    (tmp_path / "utf16.csv").write_text("question,answer\na,1\n", encoding="utf-16")
    (tmp_path / "commas.csv").write_text("question,answer\nTom has 7, buys 8: how many?,15\nAnn has 1, 2?,3\n")
    (tmp_path / "quote.tsv").write_text('question\tanswer\n"A, he said. 1+1?\t2\n2+2?\t4\n"B", she said. 3+3?\t6\n')
    mixed = '{{"question": "{n}", "answer": 1, "level": {value}}}\n'.format
    (tmp_path / "mixed.jsonl").write_text(mixed(n=1, value=1) + mixed(n=2, value='"hard"'))
    (tmp_path / "huge.jsonl").write_text(mixed(n=1, value=10**25) + mixed(n=2, value=2))
    with pytest.raises((DatasetError, ConfigError), match=says) as caught:
        tasks.from_file(tmp_path / name, **settings)
    assert len(str(caught.value).splitlines()) == 3


def test_messages_are_taken_as_messages_and_not_as_their_python_text(write):
    def row(n, *turns):
        asked = [*turns, {"role": "user", "content": f"What is {n} + 1?"}]
        return {"question": asked, "answer": [{"role": "assistant", "content": f"{n + 1}"}]}

    turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello."}]
    system = {"role": "system", "content": "Its own."}
    rows = [row(n) for n in range(30)] + [row(n, *turns) for n in range(30, 60)] + [row(90, system)]
    ended = {"question": [*row(0)["question"], *row(0)["answer"]], "answer": row(0)["answer"]}
    parts = {"question": [{"role": "user", "content": [{"type": "text", "text": "1 + 1?"}]}], "answer": "2"}
    file = write([*rows, ended, parts], "mine.jsonl")
    with pytest.warns(UserWarning, match="2 without a usable question or answer") as caught:
        task = tasks.from_file(file, system="Be brief.", form="boxed")
    assert len(caught) == 1
    found = {one["problem"]: one for side in rows_of(task) for one in side}
    brief, asks = {"role": "system", "content": "Be brief."}, instruction("boxed")
    plain = found["What is 7 + 1?"]
    assert plain["prompt"] == [brief, {"role": "user", "content": f"What is 7 + 1? {asks}"}]
    assert plain["answer"] == "8"
    later = next(one for one in found.values() if "31 + 1" in one["problem"])
    assert later["prompt"] == [brief, *turns, {"role": "user", "content": f"What is 31 + 1? {asks}"}]
    assert found["What is 90 + 1?"]["prompt"][0] == system, "a row's own system message stands"
