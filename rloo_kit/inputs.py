"""Validate datasets and reward functions before GPU time is spent.

For training and evaluation.  Each check raises one of ``rloo_kit.errors`` with the culprit and the mend, and changes
nothing.  What a reward function returns is checked by ``rewards.guarded``; a configuration by
:mod:`rloo_kit.train.guards`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from rloo_kit.errors import DatasetError, RewardError


def check_dataset(dataset: Any, args: Any, tokenizer: Any, name: str = "train_dataset") -> None:
    """Check that a dataset has prompts, that none is empty, and that it fills one generation batch.

    Args:
        dataset: a ``datasets.Dataset`` or ``IterableDataset``; of the latter only the first row is seen.
        args: the config.
        tokenizer: asked whether it can render conversations.
        name: the argument's name, for messages.

    Raises:
        DatasetError: with the row that is at fault.
    """
    _check_kind(dataset, name)
    columns = dataset.column_names
    if columns is not None and {"image", "images"} & set(columns):
        raise DatasetError(
            "the dataset has images, and rloo_kit trains text policies",
            where=f"{name}, whose columns are {sorted(columns)}",
            todo="drop the column with dataset.remove_columns, or train with trl.RLOOTrainer",
        )
    if columns is not None and "prompt" not in columns:
        raise DatasetError(
            "the dataset has no column 'prompt'",
            where=f"{name}, whose columns are {sorted(columns)}",
            todo=f"rename the column that holds the prompts: dataset.rename_column({_likeliest(columns)}, 'prompt')",
        )
    sized = hasattr(dataset, "__len__")
    needed = args.generation_batch_size // args.num_generations
    if sized and name == "train_dataset" and len(dataset) < needed:
        raise DatasetError(
            f"one generation batch takes {needed} prompts and the dataset has {len(dataset)}, so no step would run",
            where=name,
            todo="give more prompts (rows may repeat), or a smaller batch or accumulation",
        )
    prompts: Iterable[Any] = dataset["prompt"] if sized else (row["prompt"] for row in dataset.take(1))
    for index, prompt in enumerate(prompts):
        _check_prompt(prompt, index, tokenizer, name)


def _check_kind(dataset: Any, name: str) -> None:
    columns = getattr(dataset, "column_names", dataset)
    if columns is not None and not (isinstance(columns, list) and hasattr(dataset, "column_names")):
        refuse_dataset(dataset, name, where="RLOOTrainer")


def refuse_dataset(dataset: Any, name: str, where: str) -> NoReturn:
    """Say what to give instead of something that is no dataset."""
    todo = "datasets.Dataset.from_list(rows), each row a dict with a 'prompt'"
    if hasattr(dataset, "held_out"):  # a Task
        todo = f"pass task.{'train' if name == 'train_dataset' else 'held_out'}"
    elif hasattr(dataset, "column_names"):  # a DatasetDict
        todo = f"pass one of its splits: dataset[{next(iter(dataset), 'train')!r}]"
    elif hasattr(dataset, "iloc"):
        todo = "datasets.Dataset.from_pandas(frame)"
    raise DatasetError(
        f"{name} is a {type(dataset).__name__} and no datasets.Dataset", where=where, todo=todo
    )


USUAL = ("question", "problem", "instruction", "query", "messages", "input", "text")
"""Names under which prompts are published."""


def _likeliest(columns: Sequence[str]) -> str:
    return next((repr(column) for column in USUAL if column in columns), "its name")


def _check_prompt(prompt: Any, index: int, tokenizer: Any, name: str) -> None:
    where = f"{name}[{index}]['prompt'] = {str(prompt)[:60]!r}"
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        text = "".join(str(message.get("content") or "") for message in prompt)
        if tokenizer is not None and getattr(tokenizer, "chat_template", None) is None:
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


def longest_prompts(dataset: Any, count: int = 16) -> tuple[list[int], list[Any]]:
    """The prompts with the most characters, the candidates for the most tokens, and their rows."""
    prompts = dataset["prompt"] if hasattr(dataset, "__len__") else [r["prompt"] for r in dataset.take(1)]
    longest = sorted(enumerate(prompts), key=lambda pair: len(str(pair[1])), reverse=True)[:count]
    return [row for row, _ in longest], [prompt for _, prompt in longest]


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, numbered from their second occurrence on.

    >>> distinct(["right", "short", "right"])
    ['right', 'short', 'right_2']
    """
    return [name if (n := names[: i + 1].count(name)) == 1 else f"{name}_{n}" for i, name in enumerate(names)]


def check_lengths(
    prompt_ids: Sequence[Sequence[int]],
    max_completion_length: int,
    max_seq_length: int | None,
    rows: Sequence[int] | None = None,
) -> None:
    """Check that prompt + completion fit, since unsloth cuts inside the forward pass and shapes break.

    Args:
        prompt_ids: token ids of each prompt.
        max_completion_length, max_seq_length: in tokens; a max_seq_length of None sets no limit.
        rows: where in the dataset the prompts stand; None where they are a generation batch.

    Raises:
        DatasetError: a prompt that is too long, with its tokens.
    """
    if max_seq_length is None:
        return
    index, longest = max(enumerate(map(len, prompt_ids)), key=lambda pair: pair[1])
    if longest + max_completion_length > max_seq_length:
        place = f"prompt {index} of the batch" if rows is None else f"train_dataset[{rows[index]}]"
        raise DatasetError(
            f"prompt + completion can reach {longest + max_completion_length} tokens, and the policy was loaded "
            f"for {max_seq_length}",
            where=f"{place} has {longest} tokens, max_completion_length is {max_completion_length}",
            todo=f"load_policy(max_seq_length={longest + max_completion_length}), a smaller "
            "max_completion_length, or drop the long prompts",
        )


def check_rewards(reward_funcs: Sequence[Any], reward_weights: Sequence[float] | None, where: str) -> None:
    """Check that there are rewards, and as many weights, all finite and not all zero.

    Args:
        reward_funcs, reward_weights: as the user gave them.
        where: the call that takes the weights, for the message: "RLOOConfig".

    Raises:
        RewardError: none, or weights that do not match them.
    """
    if not reward_funcs:
        raise RewardError(
            "there is no reward function, so every reward is 0 and nothing is learned",
            where="RLOOTrainer(reward_funcs=[])",
            todo="pass at least one: def reward(completions, **kwargs) -> list[float]",
        )
    if reward_weights is None:
        return
    if len(reward_weights) != len(reward_funcs):
        raise RewardError(
            f"there are {len(reward_weights)} reward_weights for {len(reward_funcs)} reward functions",
            where=f"{where}(reward_weights={list(reward_weights)})",
            todo="give one weight per function, in the same order",
        )
    if not all(map(math.isfinite, reward_weights)) or not any(reward_weights):
        raise RewardError(
            "reward_weights must be finite and not all 0",
            where=f"{where}(reward_weights={list(reward_weights)})",
            todo="1.0 each weighs all functions alike",
        )


def reward_columns(dataset: Any) -> list[str] | None:
    """The columns that rewards receive besides TRL's own keywords; None where the dataset does not tell."""
    columns = dataset.column_names
    if columns is None:
        columns = list(next(iter(itertools.islice(dataset, 1)), {})) or None
    return None if columns is None else [column for column in columns if column != "prompt"]
