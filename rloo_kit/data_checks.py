"""Check datasets and reward functions before GPU time is spent; changes nothing.

Used for training and evaluation.  Each check raises a DatasetError or a RewardError that names the row or argument and
what to do.  ``rewards.guarded`` checks a reward's scores; :mod:`rloo_kit.train.check_config` checks a configuration.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

from rewards.thinking import CLOSE, OPEN, QWEN3, ThinkTokens
from rewards.trl_interface import members, passed_columns, reward_name, said_by
from rloo_kit.errors import DatasetError, RewardError
from rloo_kit.policy.thinking import check_thinking

if TYPE_CHECKING:
    import trl
    from transformers import PreTrainedTokenizerBase

LOOKED_AT = 10_000  # rows that are checked before training; later rows are checked as they are sampled
TRAINED_ON = "train_dataset"
AS_MESSAGES = "[{'role': 'user', 'content': text}]"


def check_dataset(
    dataset: object, args: trl.RLOOConfig, tokenizer: PreTrainedTokenizerBase | None, name: str = TRAINED_ON
) -> None:
    """Check that a dataset fills a generation batch, or has a row to evaluate, and that its first 10,000 prompts (of a
    stream, the first) are valid.  The tokenizer must render conversations whole; None means that TRL will load it."""
    if not isinstance(dataset, Dataset | IterableDataset):
        raise not_a_dataset(dataset, name, where="RLOOTrainer")
    trains, stream = name == TRAINED_ON, isinstance(dataset, IterableDataset)
    needed = args.generation_batch_size // args.num_generations if trains else 1
    first = list(dataset.take(needed)) if stream else dataset
    _check_columns(dataset.column_names or (list(first[0]) if len(first) else []), name)
    if len(first) < needed:
        what = f"one generation batch takes {needed} prompts and the dataset has {len(first)}, so no step would run"
        what = what if trains else "there is nothing to evaluate: the dataset has no rows"
        where = f"{name}, a stream, which yields nothing more once it was read to its end" if stream else name
        todo = "give more prompts (rows may repeat), or a smaller batch or accumulation"
        raise DatasetError(what, where=where, todo=todo)
    prompts = [row.get("prompt") for row in first[:1]] if stream else dataset["prompt"][:LOOKED_AT]
    check_prompts(prompts, tokenizer, name)
    check_rendered(prompts, tokenizer, args.chat_template_kwargs or {}, name)


def check_rows(dataset: object, where: str) -> None:
    """Check that this is a dataset (no stream) with prompts, and has rows."""
    if not isinstance(dataset, Dataset):
        raise not_a_dataset(dataset, TRAINED_ON, where)
    _check_columns(dataset.column_names, TRAINED_ON)
    if not len(dataset):
        raise DatasetError("the dataset has no rows", where=where, todo="give the prompts to train on")


def not_a_dataset(given: object, name: str, where: str) -> DatasetError:
    """The error for something that is not a dataset, with what to pass instead."""
    todo = "datasets.Dataset.from_list(rows) of dicts with a 'prompt', or .from_pandas(frame)"
    if hasattr(given, "held_out"):  # a Task
        todo = f"pass task.{'train' if name == TRAINED_ON else 'held_out'}"
    elif isinstance(given, DatasetDict | IterableDatasetDict):
        todo = f"pass one of its splits: dataset[{next(iter(given), 'train')!r}]"
    elif isinstance(given, str):
        todo = f"read a file with tasks.from_file({given!r}), or the hub with load_dataset({given!r}, split='train')"
    return DatasetError(f"{name} is a {type(given).__name__}, not a datasets.Dataset", where=where, todo=todo)


def _check_columns(columns: Sequence[str], name: str) -> None:
    where = f"{name}, whose columns are {sorted(columns)}"
    if columns and "prompt" not in columns:
        todo = "rename the column that holds the prompts: dataset.rename_column(name, 'prompt')"
        raise DatasetError("the dataset has no column 'prompt'", where=where, todo=todo)
    if taken := {"prompts", "completions"} & set(columns):
        what = f"the dataset has a column {taken.pop()!r}, and TRL passes each reward an argument of that name"
        raise DatasetError(what, where=where, todo="rename it: dataset.rename_column(name, other)")
    if {"image", "images"} & set(columns):  # they would be left out silently
        todo = "drop the column with dataset.remove_columns, or train with trl.RLOOTrainer"
        raise DatasetError("the dataset has images, and rloo_kit trains text policies", where=where, todo=todo)


def check_prompts(prompts: Sequence[Any], tokenizer: PreTrainedTokenizerBase | None, name: str) -> None:
    """Check that prompts are texts or conversations, all of one kind, and that none is empty."""
    renders = tokenizer is None or tokenizer.chat_template is not None
    for index, prompt in enumerate(prompts):
        what, todo = _fault(prompt)
        if not what and isinstance(prompt, str) != isinstance(prompts[0], str):
            what, todo = "some prompts are texts and others are conversations", f"make all {AS_MESSAGES}"
        if not what and not isinstance(prompt, str) and not renders:
            what = "the prompts are conversations and the tokenizer has no chat template"
            todo = "use an instruct or chat checkpoint, or give plain strings as prompts"
        if what:
            raise DatasetError(what, where=_place(name, index, prompt), todo=todo)


def _place(name: str, index: int, prompt: object) -> str:
    return f"{name}[{index}]['prompt'] = {str(prompt)[:60]!r}"


def _fault(prompt: Any) -> tuple[str, str]:
    """Return what is wrong with a prompt by itself and what to do; two empty strings if it is valid."""
    is_text = isinstance(prompt, str)
    if not is_text and not (isinstance(prompt, list) and prompt and isinstance(prompt[0], dict)):
        what = f"a prompt must be a string or a list of messages, not a {type(prompt).__name__}"
        return what, f"give text, or {AS_MESSAGES}; for a formatted dataset, dataset.with_format(None)"
    for message in [] if is_text else prompt:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return "a message has no role", f"give each a role and a content: {AS_MESSAGES}"
        content = message.get("content")
        calls_a_tool = content is None and message["role"] == "assistant"
        if not isinstance(content, str) and not calls_a_tool:
            what = f"the content of a message must be text, and one is a {type(content).__name__}"
            return what, "write it as text; join one in parts: ''.join(part['text'] for part in content)"
    return ("", "") if _text_of(prompt).strip() else ("a prompt is empty", "drop such rows with dataset.filter")


def _text_of(prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else "".join(message.get("content") or "" for message in prompt)


def check_rendered(
    prompts: Sequence[Any], tokenizer: PreTrainedTokenizerBase | None, template_kwargs: dict[str, Any], name: str
) -> None:
    """Check that the chat template renders the last message of each of the first 16 prompts: a template may leave a
    message out silently, as Qwen3's does if its role is unknown.  A policy loaded with thinking off is not to think."""
    if tokenizer is None or isinstance(prompts[0], str):
        return
    check_thinking(tokenizer, template_kwargs)
    how = {"tokenize": False, "add_generation_prompt": True, **template_kwargs}
    for index, prompt in enumerate(prompts[:16]):
        last, what = prompt[-1], ""
        said = str(last.get("content") or "").rpartition(CLOSE)[2]  # a template may change a thought's whitespace
        try:
            if said.strip()[:40] not in tokenizer.apply_chat_template(prompt, **how):
                what = f"leaves out the prompt's last message, of role {last.get('role')!r}"
        except Exception as error:  # a template may raise any error
            what = f"cannot render a prompt: {error}"
        if what:
            todo = "use a role that tokenizer.chat_template knows, such as 'user', or correct the template"
            raise DatasetError(f"the tokenizer's chat template {what}", where=_place(name, index, prompt), todo=todo)


def longest_prompts(dataset: Dataset | IterableDataset, count: int = 16) -> tuple[list[int], list[Any]]:
    """Return rows and prompts with the most characters, and so likely the most tokens; of a stream, the first."""
    stream = isinstance(dataset, IterableDataset)
    prompts = [row["prompt"] for row in dataset.take(1)] if stream else dataset["prompt"][:]
    sizes = [len(_text_of(prompt)) for prompt in prompts]
    rows = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)[:count]
    return rows, [prompts[row] for row in rows]


def check_lengths(
    prompt_ids: Sequence[Sequence[int]], completion: int, limit: int | None, rows: Sequence[int] | None = None
) -> None:
    """Check that prompt + completion, in tokens, fit ``max_seq_length``: unsloth cuts longer sequences inside the
    forward pass, and shapes break.  ``rows`` are the prompts' rows in the dataset; None means a generation batch."""
    lengths = [len(ids) for ids in prompt_ids]
    total, index = max(lengths) + completion, lengths.index(max(lengths))
    if limit is not None and total > limit:
        place = f"prompt {index} of the batch" if rows is None else f"train_dataset[{rows[index]}]"
        what = f"prompt + completion can reach {total} tokens, and the policy was loaded for {limit}"
        where = f"{place} has {lengths[index]} tokens, max_completion_length is {completion}"
        todo = f"load_policy(max_seq_length={total}), a smaller max_completion_length, or drop the long prompts"
        raise DatasetError(what, where=where, todo=todo)


def check_weights(reward_funcs: Sequence[object], reward_weights: Sequence[float] | None, where: str) -> None:
    """Check that there are as many weights as rewards, all finite and not all zero; None means equal weights."""
    if reward_weights is None:
        return
    weights, what = [] if isinstance(reward_weights, str | dict) else list(reward_weights), ""
    if len(weights) != len(reward_funcs):
        what = f"there are {len(weights)} reward_weights for {len(reward_funcs)} reward functions"
    elif not any(weights) or not all(map(math.isfinite, weights)):
        what = "reward_weights must be finite and not all 0"
    if what:
        todo = "give a list with one weight per function, in the same order: [1.0, 0.5]"
        raise RewardError(what, where=f"{where}(reward_weights={reward_weights!r})", todo=todo)


def check_thoughts(reward_funcs: Sequence[object], tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Check that rewards for the thought, also inside composed rewards, look for tokens that the policy can write."""
    vocabulary = {} if tokenizer is None else getattr(tokenizer, "tokenizer", tokenizer).get_vocab()
    for reward in itertools.chain.from_iterable(map(members, reward_funcs)) if vocabulary else ():
        tokens = getattr(reward, "tokens", None)
        if not isinstance(tokens, ThinkTokens) or said_by(reward, "aim") != "thought":
            continue  # a reward for the answer needs no markers: without a thought, all is answer
        ids = (tokens.open_id, tokens.close_id)
        written = {text for text, token_id in vocabulary.items() if token_id in ids}
        if len(written) < 2 or (tokens == QWEN3 and written != {OPEN, CLOSE}):
            name = reward_name(reward)  # type: ignore[arg-type]
            what = f"'{name}' looks for a thought between tokens {ids[0]} and {ids[1]} that the tokenizer does not have"
            todo = f"{name}(tokens=rewards.ThinkTokens.from_tokenizer(policy.tokenizer)), or leave it out"
            raise RewardError(what, where=f"RLOOTrainer(reward_funcs=...), tokens={tokens}", todo=todo)


def reward_columns(dataset: Dataset | IterableDataset) -> list[str] | None:
    """Return the columns that rewards receive besides TRL's own keywords; None if the dataset's are unknown."""
    columns = dataset.column_names or list(next(iter(itertools.islice(dataset, 1)), {}))
    return passed_columns(columns) if columns else None


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with repeated ones numbered.

    >>> distinct(["right", "right", "right_2"])
    ['right', 'right_2', 'right_2_2']
    """
    given: list[str] = []
    for name in names:
        numbered = (f"{name}_{n}" for n in itertools.count(2))
        given.append(next(one for one in itertools.chain([name], numbered) if one not in given))
    return given
