"""Check datasets and reward functions before GPU time is spent; changes nothing.

For training and evaluation.  Each check raises an error that names the row or the argument and says how to fix it.
Values that a reward function returns are checked by ``rewards.guarded``, a configuration by
:mod:`rloo_kit.train.validate`.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy
import pyarrow
import pyarrow.compute as compute
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

from rewards.signature import TRL_KEYWORDS, members, reward_name, said_by
from rewards.thinking import CLOSE, OPEN, QWEN3, ThinkTokens
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

LOOKED_AT = 10_000
"""Rows of a larger dataset that are looked at before training; the others as they come."""

RENDERED = 16  # prompts that are rendered before training
SEEN = 40  # characters of a message that must be found in what is rendered


# --- datasets ---------------------------------------------------------------------------------------------


def check_dataset(
    dataset: object,
    args: trl.RLOOConfig,
    tokenizer: PreTrainedTokenizerBase | None,
    name: str = "train_dataset",
) -> None:
    """Check that a dataset has prompts, none of the first 10,000 faulty, and that it fills one generation batch.

    Args:
        dataset: a ``datasets.Dataset``, or an ``IterableDataset``, of which only the first row is looked at.
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
            else f"{name}, a stream; an iterator that was read to its end gives nothing more",
            todo="give more prompts (rows may repeat), or a smaller batch or accumulation",
        )
    prompts = dataset["prompt"][:LOOKED_AT] if known else [row.get("prompt") for row in first[:1]]
    check_prompts(prompts, tokenizer, name)
    if tokenizer is None:
        return
    name_special_tokens(prompts, tokenizer, name)
    if tokenizer.chat_template is not None:
        for index, prompt in enumerate(prompts[:RENDERED]):
            if not isinstance(prompt, str):
                _check_rendered(prompt, tokenizer, args, f"{name}[{index}]['prompt'] = {str(prompt)[:60]!r}")


def not_a_dataset(given: object, name: str, where: str) -> DatasetError:
    """The error for something that is not a dataset, with what to pass instead."""
    library = type(given).__module__.partition(".")[0]
    todo = "datasets.Dataset.from_list(rows), each row a dict with a 'prompt'"
    if hasattr(given, "train") and hasattr(given, "held_out"):
        todo = f"pass task.{'train' if name == 'train_dataset' else 'held_out'}"
    elif isinstance(given, DatasetDict | IterableDatasetDict):
        todo = f"pass one of its splits: dataset[{next(iter(given), 'train')!r}]"
    elif isinstance(given, str | os.PathLike):
        of_file = Path(given).suffix.lower() in FILES or Path(given).exists()
        read = f"rloo_kit.tasks.from_file({os.fspath(given)!r}).train"
        todo = f"read it: {read}" if of_file else f"load it: datasets.load_dataset({given!r}, split='train')"
    elif library in ("pandas", "polars"):
        todo = f"datasets.Dataset.from_{library}(frame)"
    return DatasetError(f"{name} is a {type(given).__name__}, not a datasets.Dataset", where=where, todo=todo)


def _check_columns(columns: Sequence[str], name: str) -> None:
    where = f"{name}, whose columns are {sorted(columns)}"
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
    if taken := [column for column in columns if column in TAKEN]:
        raise DatasetError(
            f"the dataset has a column {taken[0]!r}, and rewards get another argument of that name",
            where=where,
            todo=f"rename it: dataset.rename_column({taken[0]!r}, 'given_{taken[0]}')",
        )
    if "tools" in columns:
        processes.warn(
            f"{name} has a column 'tools': the policy does not see it, since the chat template gets the prompt alone. "
            "Rewards get it. Write the tools into a system message, or give RLOOConfig(chat_template_kwargs=...)."
        )


# --- prompts ----------------------------------------------------------------------------------------------


def check_prompts(prompts: Sequence[object], tokenizer: PreTrainedTokenizerBase | None, name: str) -> None:
    """Check that prompts are texts or conversations, all of one kind, and that none is empty.

    Raises:
        DatasetError: names the first that is not, as ``name[index]``.
    """
    renders = tokenizer is None or tokenizer.chat_template is not None
    for index, prompt in enumerate(prompts):
        where = f"{name}[{index}]['prompt'] = {str(prompt)[:60]!r}"
        text = prompt if isinstance(prompt, str) else _text_of_messages(prompt, where)
        if not isinstance(prompt, str) and not renders:
            raise DatasetError(
                "the prompts are conversations and the tokenizer has no chat template",
                where=where,
                todo="use an instruct or chat checkpoint, or give plain strings as prompts",
            )
        if not text.strip():
            raise DatasetError("a prompt is empty", where=where, todo="drop such rows with dataset.filter")
        if isinstance(prompt, str) != isinstance(prompts[0], str):
            raise DatasetError(
                "some prompts are texts and others are conversations",
                where=where,
                todo="make all of one kind: [{'role': 'user', 'content': text}]",
            )


def _text_of_messages(prompt: object, where: str) -> str:
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[0], dict):
        formatted = type(prompt).__module__.partition(".")[0] in ("numpy", "torch")
        raise DatasetError(
            f"a prompt must be a string or a list of messages, not a {type(prompt).__name__}",
            where=where,
            todo="give dataset.with_format(None)"
            if formatted
            else "give text, or [{'role': 'user', 'content': text}]",
        )
    texts = []
    for message in prompt:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DatasetError(
                "a message has no role",
                where=where,
                todo="give each message a role and a content: {'role': 'user', 'content': text}",
            )
        content = message.get("content")
        if content is None and message["role"] == "assistant":  # it may call a tool instead
            continue
        if not isinstance(content, str):
            raise DatasetError(
                f"the content of a message must be text, and one is a {type(content).__name__}",
                where=where,
                todo="write it; of one in parts join them: ''.join(part['text'] for part in content)",
            )
        texts.append(content)
    return "".join(texts)


def name_special_tokens(prompts: Sequence[Any], tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Warn once of conversations whose text the tokenizer reads as control tokens: an end of turn in a user's words.

    A prompt that is one text may be rendered already, and a system message may ask for <think>: those are left alone.

    Args:
        prompts: checked by :func:`check_prompts`.
    """
    if not prompts or isinstance(prompts[0], str):
        return
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # of a processor its own
    vocabulary = tokenizer.get_added_vocab()
    control, thought = (
        [token for token in tokens if token in vocabulary]
        for tokens in (tokenizer.all_special_tokens, (OPEN, CLOSE))
    )
    found: dict[int, str] = {}
    for index, prompt in enumerate(prompts):
        for message in prompt:
            tokens = [*control, *thought] if message["role"] in ("user", "tool") else control
            said = message.get("content") or ""
            if token := next((token for token in tokens if token in said), ""):
                found.setdefault(index, token)
    if found:
        (index, token), others = next(iter(found.items())), len(found) - 1
        processes.warn(
            f"{name}[{index}]['prompt']{f' (and {others} more)' if others else ''} has {token!r} in a message's text, "
            "which the tokenizer reads as a control token, and not as what was written. What to do: take it out, "
            "unless it is meant."
        )


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
    """The row numbers and the prompts with the most characters, which are likely to have the most tokens.

    Of a stream the first row, of prompts that a format or a type makes something else the first 10,000.
    """
    if isinstance(dataset, IterableDataset):
        return [0], [row["prompt"] for row in dataset.take(1)]
    sizes = _characters(dataset)
    if sizes is None:
        sizes = numpy.array([len(str(prompt)) for prompt in dataset["prompt"][:LOOKED_AT]])
    rows = [int(row) for row in numpy.argsort(-sizes, kind="stable")[:count]]
    return rows, [dataset["prompt"][row] for row in rows]


def _characters(dataset: Dataset) -> numpy.ndarray[Any, Any] | None:
    """Of each prompt (rows,), by Arrow: a million take a second."""
    if dataset.format["type"] is not None:
        return None
    sizes = []
    try:
        for table in dataset.select_columns(["prompt"]).with_format("arrow").iter(LOOKED_AT):
            texts = table["prompt"].combine_chunks()
            count, row = len(texts), numpy.arange(len(texts))
            if not pyarrow.types.is_string(texts.type) and not pyarrow.types.is_large_string(texts.type):
                row = compute.list_parent_indices(texts).to_numpy(zero_copy_only=False)
                texts = compute.struct_field(compute.list_flatten(texts), "content")
            characters = compute.fill_null(compute.utf8_length(texts), 0).to_numpy(zero_copy_only=False)
            sizes.append(numpy.bincount(row, characters, minlength=count))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError):
        return None
    return numpy.concatenate(sizes)


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


# --- rewards ----------------------------------------------------------------------------------------------


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


def check_weights(reward_funcs: Sequence[object], reward_weights: Sequence[float] | None, where: str) -> None:
    """Check that there are as many weights as rewards, all finite and not all zero; None weighs all alike.

    Raises:
        RewardError: they do not match.
    """
    if reward_weights is None:
        return
    is_list = not isinstance(reward_weights, str) and hasattr(reward_weights, "__len__")
    if not is_list or len(reward_weights) != len(reward_funcs):
        given = (
            f"{len(reward_weights)} reward_weights" if is_list else f"reward_weights of {reward_weights!r}"
        )
        what = f"there are {given} for {len(reward_funcs)} reward functions"
    elif not all(map(math.isfinite, reward_weights)) or not any(reward_weights):
        what = "reward_weights must be finite and not all 0"
    else:
        return
    todo = "give a list with one weight per function, in the same order: [1.0, 0.5]"
    raise RewardError(what, where=f"{where}(reward_weights={reward_weights!r})", todo=todo)


def check_thoughts(reward_funcs: Sequence[object], tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Check that rewards of the thought, also within others, look for tokens that the policy can write.

    One that reads the answer alone needs none: a policy that never thinks answers with all that it writes.

    Args:
        tokenizer: the policy's; None where TRL will load it.

    Raises:
        RewardError: names the reward and the ids.
    """
    if tokenizer is None:
        return
    vocabulary = getattr(tokenizer, "tokenizer", tokenizer).get_vocab
    for reward in itertools.chain.from_iterable(map(members, reward_funcs)):
        tokens = getattr(reward, "tokens", None)
        if not isinstance(tokens, ThinkTokens) or said_by(reward, "aim") != "thought":
            continue
        ids = (tokens.open_id, tokens.close_id)
        written = {name for name, number in vocabulary().items() if number in ids}
        if len(written) < 2 or (tokens == QWEN3 and written != {OPEN, CLOSE}):
            name = reward_name(reward)  # type: ignore[arg-type]
            raise RewardError(
                f"'{name}' looks for a thought between the tokens {ids[0]} and {ids[1]}, which the policy's tokenizer "
                "does not have, so it scores all completions alike",
                where=f"RLOOTrainer(reward_funcs=...), tokens={tokens}",
                todo=f"{name}(tokens=rewards.ThinkTokens.from_tokenizer(policy.tokenizer)); leave it out where the "
                "policy does not think",
            )


def reward_columns(dataset: Dataset | IterableDataset) -> list[str] | None:
    """The columns that rewards receive besides TRL's own keywords; None where the dataset does not tell."""
    columns = dataset.column_names
    if columns is None:
        columns = list(next(iter(itertools.islice(dataset, 1)), {})) or None
    return None if columns is None else [column for column in columns if column not in UNSEEN]


def distinct(names: Sequence[str]) -> list[str]:
    """The same names, numbered from their second occurrence on: right, right_2."""
    return [name if (n := names[: i + 1].count(name)) == 1 else f"{name}_{n}" for i, name in enumerate(names)]
