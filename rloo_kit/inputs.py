"""Validate datasets and reward functions before GPU time is spent.

For training and evaluation.  Each check raises an error that names the row or the argument and says how to fix it; it
changes nothing.  Values that a reward function returns are checked by ``rewards.guarded``, a configuration by
:mod:`rloo_kit.train.guards`.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

from rewards.signature import TRL_KEYWORDS, members, reward_name, said_by
from rewards.thinking import CLOSE, OPEN, QWEN3, ThinkTokens
from rloo_kit import columns
from rloo_kit.errors import DatasetError, RewardError
from rloo_kit.session import processes

if TYPE_CHECKING:
    import trl
    from transformers import PreTrainedTokenizerBase

    from rloo_kit.policy.policy import Prompt

USUAL_NAMES = ("messages", "question", "problem", "instruction", "query", "input", "text")
"""Columns under which published datasets keep their prompts; conversations first, which get the chat template."""

TAKEN = ("self", *TRL_KEYWORDS)
"""Columns that collide with what TRL passes to a reward, or are overwritten by it without a word."""

UNSEEN = ("prompt", "completion")
"""Columns that TRL does not pass to rewards."""

FILES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""Endings that ``tasks.from_file`` reads."""

RENDERED = 16  # prompts that are rendered before training
SEEN = 40  # characters of a message that must be found in what is rendered


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
        dataset: a ``datasets.Dataset`` or ``IterableDataset``; of the latter only the first row is checked, and that
            there are enough of them; :func:`check_prompts` checks the others as they come.
        tokenizer: asked whether it can render conversations, and whether the prompt is in what it renders.
        name: the argument's name, for messages.

    Raises:
        DatasetError: names the faulty row or column.
    """
    if not isinstance(dataset, Dataset | IterableDataset):
        raise not_a_dataset(dataset, name, where="RLOOTrainer")
    needed = args.generation_batch_size // args.num_generations if name == "train_dataset" else 1
    known = isinstance(dataset, Dataset)
    first = [] if known else list(dataset.take(needed))
    _check_columns(dataset.column_names or (list(first[0]) if first else []), name)
    rows = len(dataset) if known else len(first)
    if rows < needed:
        raise DatasetError(
            f"one generation batch takes {needed} prompts and the dataset has {rows}, so no step would run"
            if name == "train_dataset"
            else "there is nothing to evaluate: the dataset has no rows",
            where=name
            if known
            else f"{name}, a stream: an iterator that has been read to its end gives nothing more",
            todo="give more prompts (rows may repeat), or a smaller batch or accumulation",
        )
    prompts = dataset["prompt"] if known else [row.get("prompt") for row in first[:1]]
    check_prompts(prompts, tokenizer, name, _suspects(dataset) if known else None)
    if tokenizer is not None:
        name_special_tokens(prompts, tokenizer, name, _in_arrow(dataset) if known else None)
    if tokenizer is not None and tokenizer.chat_template is not None:
        for index, prompt in enumerate(prompts[:RENDERED]):
            if not isinstance(prompt, str):
                _check_rendered(prompt, tokenizer, args, f"{name}[{index}]['prompt'] = {str(prompt)[:60]!r}")


def check_prompts(
    prompts: Sequence[object],
    tokenizer: PreTrainedTokenizerBase | None,
    name: str,
    rows: Sequence[int] | None = None,
) -> None:
    """Check that prompts are texts or conversations, all of one kind, and that none is empty.

    Args:
        rows: those to look at, in order; None for all.

    Raises:
        DatasetError: names the first that is not, as ``name[index]``.
    """
    renders = tokenizer is None or tokenizer.chat_template is not None
    for index, prompt in enumerate(prompts) if rows is None else ((row, prompts[row]) for row in rows):
        where = f"{name}[{index}]['prompt'] = {str(prompt)[:60]!r}"
        _check_prompt(prompt, where, renders)
        if isinstance(prompt, str) != isinstance(prompts[0], str):
            raise DatasetError(
                "some prompts are texts and others are conversations",
                where=f"{where}, and {name}[0] is a {'text' if isinstance(prompts[0], str) else 'conversation'}",
                todo="make all of one kind: [{'role': 'user', 'content': text}]",
            )


THOUGHT = ("<think>", "</think>")


def name_special_tokens(
    prompts: Sequence[Any],
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    batches: Iterable[columns.Texts] | None = None,
) -> None:
    """Warn once of conversations whose text the tokenizer reads as control tokens: an end of turn in a user's words.

    A prompt that is one text may be rendered already, and a system message may ask for <think>: those are left alone.

    Args:
        prompts: checked by :func:`check_prompts`.
        batches: the same as Arrow has them, where it has.
    """
    if not prompts or isinstance(prompts[0], str):
        return
    vocabulary = getattr(tokenizer, "tokenizer", tokenizer).get_added_vocab()  # of a processor its own
    special = getattr(tokenizer, "tokenizer", tokenizer).all_special_tokens
    control, thought = ([token for token in known if token in vocabulary] for known in (special, THOUGHT))
    if rows := columns.holding(batches or [columns.of_messages(prompts)], control, thought):
        said = " ".join(str(message.get("content")) for message in prompts[rows[0]])
        token = next(token for token in (*control, *thought) if token in said)
        others = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        processes.warn(
            f"{name}[{rows[0]}]['prompt']{others} has {token!r} in a message's text, which the tokenizer reads as a "
            "control token, and not as what was written. What to do: take it out, unless it is meant."
        )


def not_a_dataset(given: object, name: str, where: str) -> DatasetError:
    """The error for something that is not a dataset, with what to pass instead."""
    library = type(given).__module__.partition(".")[0]
    if isinstance(given, _Split):
        todo = f"pass task.{'train' if name == 'train_dataset' else 'held_out'}"
    elif isinstance(given, DatasetDict | IterableDatasetDict):
        todo = f"pass one of its splits: dataset[{next(iter(given), 'train')!r}]"
    elif isinstance(given, str | os.PathLike):
        of_file = Path(given).suffix.lower() in FILES or Path(given).exists()
        read = f"rloo_kit.tasks.from_file({os.fspath(given)!r}).train"
        todo = f"read it: {read}" if of_file else f"load it: datasets.load_dataset({given!r}, split='train')"
    elif library in ("pandas", "polars"):
        todo = f"datasets.Dataset.from_{library}(frame)"
    else:
        todo = "datasets.Dataset.from_list(rows), each row a dict with a 'prompt'"
    return DatasetError(f"{name} is a {type(given).__name__}, not a datasets.Dataset", where=where, todo=todo)


def _check_columns(columns: Sequence[str], name: str) -> None:
    where = f"{name}, whose columns are {sorted(columns)}" if columns else f"{name}, which has no columns"
    if {"image", "images"} & set(columns):
        raise DatasetError(
            "the dataset has images, and rloo_kit trains text policies",
            where=where,
            todo="drop the column with dataset.remove_columns, or train with trl.RLOOTrainer",
        )
    if "prompt" not in columns and columns:
        likeliest = next((repr(column) for column in USUAL_NAMES if column in columns), "its name")
        raise DatasetError(
            "the dataset has no column 'prompt'",
            where=where,
            todo=f"rename the column that holds the prompts: dataset.rename_column({likeliest}, 'prompt')",
        )
    for column in columns:
        if column in TAKEN:
            raise DatasetError(
                f"the dataset has a column {column!r}, and rewards get another argument of that name",
                where=where,
                todo=f"rename it: dataset.rename_column({column!r}, 'given_{column}')",
            )
    if "tools" in columns:
        processes.warn(
            f"{name} has a column 'tools': the policy does not see it, since the chat template gets the prompt alone. "
            "Rewards get it. Write the tools into a system message, or give RLOOConfig(chat_template_kwargs=...)."
        )


def _prompts(dataset: Dataset | IterableDataset) -> Sequence[Prompt]:
    return dataset["prompt"] if isinstance(dataset, Dataset) else [row["prompt"] for row in dataset.take(1)]


def _check_prompt(prompt: object, where: str, renders: bool) -> None:
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        text = "".join(_content(message, where) for message in prompt)
        if not renders:
            raise DatasetError(
                "the prompts are conversations and the tokenizer has no chat template",
                where=where,
                todo="use an instruct or chat checkpoint, or give plain strings as prompts",
            )
    elif isinstance(prompt, str):
        text = prompt
    elif type(prompt).__module__.partition(".")[0] in ("numpy", "torch"):
        raise DatasetError(
            f"a prompt must be a string or a list of messages, and the dataset's format makes it a "
            f"{type(prompt).__name__}",
            where=where,
            todo="give dataset.with_format(None)",
        )
    else:
        raise DatasetError(
            "a prompt must be a string or a list of messages, not "
            f"{'an empty' if prompt == [] else 'a'} {type(prompt).__name__}",
            where=where,
            todo="give text, or [{'role': 'user', 'content': text}]",
        )
    if not text.strip():
        raise DatasetError("a prompt is empty", where=where, todo="drop such rows with dataset.filter")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DatasetError(
            "a prompt has half of a surrogate pair, which is no character and cannot be tokenized",
            where=where.encode("ascii", "backslashreplace").decode(),
            todo="read the file with errors='replace', or drop the row with dataset.filter",
        )


def _content(message: object, where: str) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise DatasetError(
            "a message has no role",
            where=where,
            todo="give each message a role and a content: {'role': 'user', 'content': text}",
        )
    content = message.get("content")
    if content is None and message["role"] == "assistant":  # it may call a tool instead
        return ""
    if not isinstance(content, str):
        parts = isinstance(content, list | tuple)
        raise DatasetError(
            f"the content of a message must be text, and one is a {type(content).__name__}",
            where=where,
            todo="join its parts: ''.join(part['text'] for part in content)"
            if parts
            else "write it, or leave the row out",
        )
    return content


def _check_rendered(
    prompt: Prompt, tokenizer: PreTrainedTokenizerBase, args: trl.RLOOConfig, where: str
) -> None:
    """The chat template may leave a message out, as Qwen3's does one of an unknown role, and nothing says so."""
    how = getattr(args, "chat_template_kwargs", None) or {}
    try:
        rendered = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **how)
    except Exception as error:  # a template raises what it likes
        raise DatasetError(
            f"the tokenizer's chat template cannot render a prompt: {error}",
            where=where,
            todo="look at tokenizer.chat_template, and at the roles of the prompt's messages",
        ) from error
    last = prompt[-1] if isinstance(prompt[-1], dict) else {}
    role, content = last.get("role"), str(last.get("content") or "").strip()
    if content[:SEEN] not in rendered:
        raise DatasetError(
            f"the tokenizer's chat template leaves out the prompt's last message, of role {role!r}",
            where=where,
            todo="use a role that tokenizer.chat_template knows, such as 'user', or mend the template",
        )


def longest_prompts(dataset: Dataset | IterableDataset, count: int = 16) -> tuple[list[int], list[Prompt]]:
    """The row numbers and the prompts with the most characters, which are likely to have the most tokens."""
    if isinstance(dataset, Dataset) and (texts := _in_arrow(dataset)) is not None:
        rows = columns.longest(texts, count)
        prompts = dataset["prompt"]
        return rows, [prompts[row] for row in rows]
    longest = sorted(enumerate(_prompts(dataset)), key=lambda pair: len(str(pair[1])), reverse=True)[:count]
    return [row for row, _ in longest], [prompt for _, prompt in longest]


def _in_arrow(dataset: Dataset) -> Iterator[columns.Texts] | None:
    """The prompts as Arrow has them; None where a format or a type makes something else of them, which only Python
    can look at."""
    if dataset.format["type"] is not None or not columns.readable(
        dataset.features.arrow_schema.field("prompt").type
    ):
        return None
    return columns.texts(dataset, "prompt")


def _suspects(dataset: Dataset) -> list[int] | None:
    """The rows that may be faulty, and the first, with which the others are compared; None where all may be."""
    texts = _in_arrow(dataset)
    return None if texts is None else sorted({0, *columns.suspects(texts)})


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
    check_weights(reward_funcs, reward_weights, where)


def check_thoughts(reward_funcs: Sequence[object], tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Check that rewards of the thought, also within others, look for tokens that the policy can write.

    One that reads the answer alone needs none: a policy that never thinks answers with all that it writes.

    Args:
        tokenizer: the policy's; None where TRL will load it.

    Raises:
        RewardError: names the reward and the ids.
    """
    for reward in itertools.chain.from_iterable(map(members, reward_funcs)):
        tokens = getattr(reward, "tokens", None)
        if tokenizer is None or not isinstance(tokens, ThinkTokens) or said_by(reward, "aim") != "thought":
            continue
        ids = (tokens.open_id, tokens.close_id)
        written = [
            name for name, i in getattr(tokenizer, "tokenizer", tokenizer).get_vocab().items() if i in ids
        ]
        if len(written) < 2 or (tokens == QWEN3 and {*written} != {OPEN, CLOSE}):
            name = reward_name(reward)  # type: ignore[arg-type]
            raise RewardError(
                f"'{name}' looks for a thought between the tokens {ids[0]} and {ids[1]}, which the policy's tokenizer "
                "does not have, so it scores all completions alike",
                where=f"RLOOTrainer(reward_funcs=...), tokens={tokens}",
                todo=f"{name}(tokens=rewards.ThinkTokens.from_tokenizer(policy.tokenizer)); leave it out where the "
                "policy does not think",
            )


def check_weights(reward_funcs: Sequence[object], reward_weights: Sequence[float] | None, where: str) -> None:
    """Check that there are as many weights as rewards, all finite and not all zero; None weighs all alike.

    Raises:
        RewardError: they do not match.
    """
    if reward_weights is None:
        return
    if isinstance(reward_weights, str) or not hasattr(reward_weights, "__len__"):
        raise RewardError(
            f"reward_weights must be a list of numbers, not a {type(reward_weights).__name__}",
            where=f"{where}(reward_weights={reward_weights!r})",
            todo="give one weight per function, in the same order: [1.0, 0.5]",
        )
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
    return None if columns is None else [column for column in columns if column not in UNSEEN]


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, numbered from their second occurrence on: right, right_2."""
    return [name if (n := names[: i + 1].count(name)) == 1 else f"{name}_{n}" for i, name in enumerate(names)]
