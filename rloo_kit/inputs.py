"""Validate datasets and reward functions before GPU time is spent.

For training and evaluation.  Each check raises an error that names the row or the argument and says how to fix it; it
changes nothing.  Values that a reward function returns are checked by ``rewards.guarded``, a configuration by
:mod:`rloo_kit.train.guards`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

from rloo_kit.errors import DatasetError, RewardError

if TYPE_CHECKING:
    import trl
    from transformers import PreTrainedTokenizerBase

    from rloo_kit.policy.policy import Prompt

USUAL_NAMES = ("question", "problem", "instruction", "query", "messages", "input", "text")
"""Columns under which published datasets keep their prompts."""


@runtime_checkable
class _Split(Protocol):
    """A ``Task``, which this module sits beside and cannot import."""

    train: Dataset
    held_out: Dataset


def check_dataset(
    dataset: object,
    args: trl.RLOOConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    name: str = "train_dataset",
) -> None:
    """Check that a dataset has prompts, that none is empty, and that it fills one generation batch.

    Args:
        dataset: a ``datasets.Dataset`` or ``IterableDataset``; of the latter only the first row is checked.
        tokenizer: asked whether it can render conversations.
        name: the argument's name, for messages.

    Raises:
        DatasetError: names the faulty row or column.
    """
    if not isinstance(dataset, Dataset | IterableDataset):
        raise not_a_dataset(dataset, name, where="RLOOTrainer")
    _check_columns(dataset.column_names, name)
    needed = args.generation_batch_size // args.num_generations
    if name == "train_dataset" and isinstance(dataset, Dataset) and len(dataset) < needed:
        raise DatasetError(
            f"one generation batch takes {needed} prompts and the dataset has {len(dataset)}, so no step would run",
            where=name,
            todo="give more prompts (rows may repeat), or a smaller batch or accumulation",
        )
    renders = tokenizer is None or tokenizer.chat_template is not None
    for index, prompt in enumerate(_prompts(dataset)):
        _check_prompt(prompt, f"{name}[{index}]['prompt'] = {str(prompt)[:60]!r}", renders)


def not_a_dataset(given: object, name: str, where: str) -> DatasetError:
    """The error for something that is not a dataset, with what to pass instead."""
    library = type(given).__module__.partition(".")[0]
    if isinstance(given, _Split):
        todo = f"pass task.{'train' if name == 'train_dataset' else 'held_out'}"
    elif isinstance(given, DatasetDict | IterableDatasetDict):
        todo = f"pass one of its splits: dataset[{next(iter(given), 'train')!r}]"
    elif library in ("pandas", "polars"):
        todo = f"datasets.Dataset.from_{library}(frame)"
    else:
        todo = "datasets.Dataset.from_list(rows), each row a dict with a 'prompt'"
    return DatasetError(f"{name} is a {type(given).__name__}, not a datasets.Dataset", where=where, todo=todo)


def _check_columns(columns: Sequence[str] | None, name: str) -> None:
    if columns is None:  # a stream that does not tell
        return
    where = f"{name}, whose columns are {sorted(columns)}"
    if {"image", "images"} & set(columns):
        raise DatasetError(
            "the dataset has images, and rloo_kit trains text policies",
            where=where,
            todo="drop the column with dataset.remove_columns, or train with trl.RLOOTrainer",
        )
    if "prompt" not in columns:
        likeliest = next((repr(column) for column in USUAL_NAMES if column in columns), "its name")
        raise DatasetError(
            "the dataset has no column 'prompt'",
            where=where,
            todo=f"rename the column that holds the prompts: dataset.rename_column({likeliest}, 'prompt')",
        )


def _prompts(dataset: Dataset | IterableDataset) -> Sequence[Prompt]:
    """All prompts, or a stream's first."""
    return dataset["prompt"] if isinstance(dataset, Dataset) else [row["prompt"] for row in dataset.take(1)]


def _check_prompt(prompt: object, where: str, renders: bool) -> None:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        text = "".join(str(message.get("content") or "") for message in prompt)
        if not renders:
            raise DatasetError(
                "the prompts are conversations and the tokenizer has no chat template",
                where=where,
                todo="use an instruct or chat checkpoint, or give plain strings as prompts",
            )
    elif isinstance(prompt, str):
        text = prompt
    else:
        raise DatasetError(
            "a prompt must be a string or a list of messages",
            where=where,
            todo="give text, or [{'role': 'user', 'content': text}]",
        )
    if not text.strip():
        raise DatasetError("a prompt is empty", where=where, todo="drop such rows with dataset.filter")


def longest_prompts(dataset: Dataset | IterableDataset, count: int = 16) -> tuple[list[int], list[Prompt]]:
    """The row numbers and the prompts with the most characters, which are likely to have the most tokens."""
    longest = sorted(enumerate(_prompts(dataset)), key=lambda pair: len(str(pair[1])), reverse=True)[:count]
    return [row for row, _ in longest], [prompt for _, prompt in longest]


def check_lengths(
    prompt_ids: Sequence[Sequence[int]],
    max_completion_length: int,
    max_seq_length: int | None,
    rows: Sequence[int] | None = None,
) -> None:
    """Check that prompt + completion fit: unsloth cuts longer sequences inside the forward pass, and shapes break.

    Args:
        max_completion_length, max_seq_length: in tokens; a max_seq_length of None sets no limit.
        rows: where in the dataset the prompts stand; None for a generation batch.

    Raises:
        DatasetError: names the longest prompt and its tokens.
    """
    if max_seq_length is None:
        return
    index, longest = max(enumerate(map(len, prompt_ids)), key=lambda pair: pair[1])
    total = longest + max_completion_length
    if total > max_seq_length:
        place = f"prompt {index} of the batch" if rows is None else f"train_dataset[{rows[index]}]"
        raise DatasetError(
            f"prompt + completion can reach {total} tokens, and the policy was loaded for {max_seq_length}",
            where=f"{place} has {longest} tokens, max_completion_length is {max_completion_length}",
            todo=f"load_policy(max_seq_length={total}), a smaller max_completion_length, or drop the long prompts",
        )


def check_rewards(reward_funcs: Sequence[object], reward_weights: Sequence[float] | None, where: str) -> None:
    """Check that there are rewards, and as many weights, all finite and not all zero.

    Args:
        where: the call that takes the weights, for the message: "RLOOConfig".

    Raises:
        RewardError: no rewards, or weights that do not match them.
    """
    if not reward_funcs:
        raise RewardError(
            "there is no reward function, so every reward is 0 and nothing is learned",
            where="RLOOTrainer(reward_funcs=[])",
            todo="pass at least one: def reward(completions, **kwargs) -> list[float]",
        )
    if reward_weights is None:
        return
    where = f"{where}(reward_weights={list(reward_weights)})"
    if len(reward_weights) != len(reward_funcs):
        raise RewardError(
            f"there are {len(reward_weights)} reward_weights for {len(reward_funcs)} reward functions",
            where=where,
            todo="give one weight per function, in the same order",
        )
    if not all(map(math.isfinite, reward_weights)) or not any(reward_weights):
        todo = "use 1.0 for each to weigh all functions alike"
        raise RewardError("reward_weights must be finite and not all 0", where=where, todo=todo)


def reward_columns(dataset: Dataset | IterableDataset) -> list[str] | None:
    """The columns that rewards receive besides TRL's own keywords; None where the dataset does not tell."""
    columns = dataset.column_names
    if columns is None:
        columns = list(next(iter(itertools.islice(dataset, 1)), {})) or None
    return None if columns is None else [column for column in columns if column != "prompt"]


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, numbered from their second occurrence on: right, right_2."""
    return [name if (n := names[: i + 1].count(name)) == 1 else f"{name}_{n}" for i, name in enumerate(names)]
