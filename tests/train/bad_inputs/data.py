"""Datasets that cannot be trained or evaluated on."""

from __future__ import annotations

from typing import Any

from datasets import Dataset, IterableDataset

from tests.train.bad_inputs.case import Bad

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
LONG = [{"role": "user", "content": "What is " + " + ".join(["17"] * 1500) + "?"}]


def dataset(*prompts: Any, **columns: Any) -> Dataset:
    """Rows of these prompts, with an answer and further columns of one value."""
    return Dataset.from_list([{"prompt": prompt, "answer": "3", **columns} for prompt in prompts])


def stream(*rows: Any) -> IterableDataset:
    """A stream that may be started anew."""
    return IterableDataset.from_generator(lambda: iter(rows))


def used_up(count: int) -> IterableDataset:
    """A stream of an iterator, which gives its rows once."""
    left = iter([{"prompt": QUESTION, "answer": "3"}] * count)
    return IterableDataset.from_generator(lambda: left)


def row(prompt: Any = QUESTION) -> dict[str, Any]:
    """One row."""
    return {"prompt": prompt, "answer": "3"}


def given(culprit: str, train_dataset: Any, *says: str, when: Any = "trainer", **config: Any) -> Bad:
    """A dataset to train on."""
    return Bad(culprit, config, {"train_dataset": train_dataset}, says, when)


def rows(culprit: str, prompt: Any, *says: str) -> Bad:
    """Four rows of one prompt."""
    return given(culprit, dataset(*[prompt] * 4), *says)


def column(name: str, *says: str, when: Any = "trainer") -> Bad:
    """A dataset with a column of that name."""
    return given(f"'{name}'", dataset(*[QUESTION] * 4, **{name: "x"}), *says, when=when)


def streamed(culprit: str, stream: Any, *says: str, steps: int = 2, when: Any = "trainer") -> Bad:
    """A stream to train on, in its own order."""
    config = {"max_steps": steps, "shuffle_dataset": False}
    return Bad(culprit, config, {"train_dataset": stream}, says, when, aka="IterableDataset")


def evaluated(dataset: Any) -> Bad:
    """A dataset to evaluate on."""
    return Bad("eval_dataset", {"eval_strategy": "steps", "eval_steps": 1}, {"eval_dataset": dataset})


FOUR = dataset(*[QUESTION] * 4)
QUESTIONS = Dataset.from_list([{"question": "1"}] * 4)
PARTS = [{"role": "user", "content": [{"type": "text", "text": "What is 1 + 2?"}]}]

DATASETS = {
    "no prompt column": given("'prompt'", QUESTIONS, "question", "rename_column"),
    "a dataset without rows": given("dataset", Dataset.from_list([]), "has 0"),
    "an empty prompt": given("prompt", dataset("a", " ", "b"), "empty", "train_dataset[1]"),
    "a prompt that is None": given("prompt", dataset("a", None, "b"), "NoneType", "train_dataset[1]"),
    "a prompt that is a number": rows("prompt", 1, "string or a list of messages", "train_dataset[0]"),
    "a prompt that is one message": rows("prompt", QUESTION[0], "not a dict"),
    "fewer prompts than a generation batch": given(
        "dataset", dataset(QUESTION, QUESTION), "takes 4 prompts", "has 2", per_device_train_batch_size=8
    ),
    "a prompt that leaves no room": given("prompt", dataset(QUESTION, LONG), "train_dataset[1] has 6010"),
    "a list for a dataset": given("train_dataset", [row()] * 4, "from_list"),
    "no dataset": given("train_dataset", None),
    "a column completions": column("completions", "rename_column"),
    "a column self": column("self"),
    "a column of images": given("image", dataset(*[QUESTION] * 4, image="x")),
    "a message without a role": rows("role", [{"content": "What is 1 + 2?"}], "train_dataset[0]"),
    "a message of an unknown role": rows("role", [{"role": "usr", "content": "What is 1 + 2?"}], "'usr'"),
    "a message without content": rows("content", [{"role": "user", "content": None}]),
    "numpy's format": given("format", FOUR.with_format("numpy"), "with_format(None)"),
    "an empty stream": streamed("stream", stream(), "has 0"),
    "a stream that ends before the run": streamed("stream", used_up(12), steps=9, when="warned"),
    "a stream without the column": streamed("prompt", stream(*[{"question": "1"}] * 4), "rename_column"),
    "a stream with a None in the middle": streamed(
        "prompt", stream(row(), row(), row(None), row()), "NoneType", "step 2", when="step"
    ),
    "a stream with a row of another kind": streamed(
        "prompt", stream(row(), row(), row(), row("What?")), "texts", when="step"
    ),
    "a stream without max_steps": streamed("max_steps", stream(*[row()] * 4), steps=-1),
    "a list to evaluate on": evaluated([row()]),
    "nothing to evaluate on": evaluated(FOUR.select([])),
}
