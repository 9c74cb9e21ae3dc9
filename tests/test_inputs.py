"""Datasets, prompt lengths and reward functions, refused before a GPU is used.

Each case of the tables is given to the check itself, without a trainer or a policy.
"""

import math
import types
from collections.abc import Callable
from typing import Any

import pytest
from datasets import Dataset, DatasetDict, IterableDataset

from rloo_kit import inputs
from rloo_kit.errors import DatasetError, RewardError
from rloo_kit.tasks import Task

CHAT = [{"role": "user", "content": "What is 1 + 2?"}]
ARGS = types.SimpleNamespace(generation_batch_size=8, num_generations=4)  # two prompts a generation batch
EMPTY = [{"role": "user", "content": ""}]
CHAT_TOKENIZER = types.SimpleNamespace(
    chat_template="{{ messages }}", apply_chat_template=lambda prompt, **how: str(prompt)
)
BASE_TOKENIZER = types.SimpleNamespace(chat_template=None)


def prompts(*given: object) -> Dataset:
    return Dataset.from_list([{"prompt": prompt, "answer": "3"} for prompt in given])


def stream(dataset: Dataset) -> IterableDataset:
    """A stream that knows neither its length nor its columns."""
    return IterableDataset.from_generator(lambda: iter(dataset))


TWO = prompts(CHAT, CHAT)
TASK = Task("addition", TWO, TWO, str, 0, "sums")

# why: what is passed as train_dataset, what the message names
BAD_DATASETS: dict[str, tuple[object, tuple[str, ...]]] = {
    "a list of rows": (list(TWO), ("is a list", "Dataset.from_list(rows)")),
    "a DataFrame": (TWO.to_pandas(), ("is a DataFrame", "Dataset.from_pandas(frame)")),
    "all splits at once": (DatasetDict(test=TWO), ("is a DatasetDict", "dataset['test']")),
    "a whole task": (TASK, ("is a Task", "pass task.train")),
    "no prompt column": (TWO.rename_column("prompt", "x"), ("no column 'prompt'", "['answer', 'x']", "its name")),
    "prompts under a usual name": (TWO.rename_column("prompt", "problem"), ("rename_column('problem', 'prompt')",)),
    "images": (TWO.add_column("image", [1, 2]), ("has images", "remove_columns")),
    "too few rows": (prompts("one"), ("takes 2 prompts and the dataset has 1", "no step would run")),
    "an empty prompt": (prompts("a", " "), ("a prompt is empty", "train_dataset[1]['prompt'] = ' '")),
    "an empty conversation": (prompts(CHAT, EMPTY), ("a prompt is empty", "train_dataset[1]")),
    "a number": (prompts(1, 2), ("a string or a list of messages", "train_dataset[0]['prompt'] = '1'")),
    "an empty first row of a stream": (stream(prompts("", "b")), ("a prompt is empty", "train_dataset[0]")),
}  # fmt: skip


@pytest.mark.parametrize(("dataset", "names"), BAD_DATASETS.values(), ids=BAD_DATASETS)
def test_a_bad_dataset_is_refused_with_row_or_column_and_todo(
    dataset: object, names: tuple[str, ...]
) -> None:
    with pytest.raises(DatasetError, match=r"train_dataset(.|\n)*What to do:") as caught:
        inputs.check_dataset(dataset, ARGS, CHAT_TOKENIZER)
    assert [name for name in names if name not in str(caught.value)] == []
    assert len(str(caught.value).splitlines()) == 3


def test_conversations_need_a_chat_template_and_strings_do_not() -> None:
    with pytest.raises(DatasetError, match="conversations and the tokenizer has no chat template"):
        inputs.check_dataset(TWO, ARGS, BASE_TOKENIZER)
    inputs.check_dataset(prompts("a", "b"), ARGS, BASE_TOKENIZER)
    inputs.check_dataset(TWO, ARGS, None)  # TRL will load the tokenizer by the model's name


def test_an_evaluation_set_may_be_small_and_is_named_in_the_error() -> None:
    inputs.check_dataset(prompts("one"), ARGS, CHAT_TOKENIZER, "eval_dataset")
    with pytest.raises(DatasetError, match=r"eval_dataset\['bad'\] is a Task(.|\n)*pass task.held_out"):
        inputs.check_dataset(TASK, ARGS, CHAT_TOKENIZER, "eval_dataset['bad']")


@pytest.mark.parametrize("form", [stream, Dataset.to_iterable_dataset])
def test_only_the_first_row_of_a_stream_is_read(form: Callable[[Dataset], IterableDataset]) -> None:
    streamed = form(prompts("a", " "))
    inputs.check_dataset(streamed, ARGS, CHAT_TOKENIZER)
    assert inputs.longest_prompts(streamed) == ([0], ["a"])
    assert inputs.reward_columns(streamed) == ["answer"]


def test_prompt_and_completion_must_fit_the_policys_length_and_the_longest_is_named() -> None:
    assert inputs.longest_prompts(prompts("aa", "a", "aaa"), count=2) == ([2, 0], ["aaa", "aa"])
    ids = [[1] * 10, [1] * 30]
    inputs.check_lengths(ids, max_completion_length=34, max_seq_length=64)
    inputs.check_lengths(ids, max_completion_length=1000, max_seq_length=None)
    with pytest.raises(DatasetError, match=r"reach 65 tokens(.|\n)*prompt 1 of the batch has 30 tokens"):
        inputs.check_lengths(ids, max_completion_length=35, max_seq_length=64)
    with pytest.raises(
        DatasetError, match=r"train_dataset\[8\] has 30(.|\n)*load_policy\(max_seq_length=65\)"
    ):
        inputs.check_lengths(ids, 35, 64, rows=[5, 8])


@pytest.mark.parametrize(
    ("funcs", "weights", "says"),
    [
        ([], None, "no reward function"),
        ([min], [1.0, 1.0], "2 reward_weights for 1 reward functions"),
        ([min], [math.inf], "finite and not all 0"),
        ([min, max], [0.0, 0.0], "finite and not all 0"),
    ],
)
def test_rewards_need_as_many_finite_weights_not_all_0(funcs: list[Any], weights: Any, says: str) -> None:
    inputs.check_rewards([min, max], [1.0, 0.0], where="RLOOConfig")
    inputs.check_rewards([min, max], None, where="RLOOConfig")
    with pytest.raises(RewardError, match=says):
        inputs.check_rewards(funcs, weights, where="RLOOConfig")
