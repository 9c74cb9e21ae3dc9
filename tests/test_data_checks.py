"""Each check by itself that refuses a dataset, a prompt length or a reward function before a GPU is used."""

import math
import types
from typing import Any

import pytest
import torch
from datasets import Dataset, DatasetDict, IterableDataset

import rewards
from rloo_kit import data_checks
from rloo_kit.errors import DatasetError, RewardError
from rloo_kit.tasks import Task

CHAT = [{"role": "user", "content": "What is 1 + 2?"}]
TWO_PROMPTS: Any = types.SimpleNamespace(generation_batch_size=8, num_generations=4, chat_template_kwargs=None)
CHAT_TOKENIZER: Any = types.SimpleNamespace(
    chat_template="{{ messages }}",
    apply_chat_template=lambda prompt, **how: str([one for one in prompt if one["role"] != "unknown"]),
)
BASE_TOKENIZER: Any = types.SimpleNamespace(chat_template=None)


def prompts(*given: object) -> Dataset:
    return Dataset.from_list([{"prompt": prompt, "answer": "3"} for prompt in given])


def stream(dataset: Dataset) -> IterableDataset:
    """Return a stream that knows neither its length nor its columns."""
    return IterableDataset.from_generator(lambda: iter(dataset))


TWO = prompts(CHAT, CHAT)
TASK = Task("addition", TWO, TWO, str, 0, "sums")

# why: what is passed as train_dataset, what the message names
BAD_DATASETS: dict[str, tuple[object, tuple[str, ...]]] = {
    "a list of rows": (list(TWO), ("is a list", "Dataset.from_list(rows)")),
    "all splits at once": (DatasetDict(test=TWO), ("is a DatasetDict", "dataset['test']")),
    "a name": ("openai/gsm8k", ("is a str", "load_dataset('openai/gsm8k', split='train')")),
    "a whole task": (TASK, ("is a Task", "pass task.train")),
    "no prompt column": (TWO.rename_column("prompt", "x"), ("no column 'prompt'", "['answer', 'x']", "rename")),
    "a name of TRL's": (TWO.add_column("completions", [1, 2]), ("a column 'completions'", "rename_column")),
    "images": (TWO.add_column("image", [1, 2]), ("has images", "remove_columns")),
    "too few rows": (prompts("one"), ("takes 2 prompts and the dataset has 1", "no step would run")),
    "an empty prompt": (prompts("a", " "), ("a prompt is empty", "train_dataset[1]['prompt'] = ' '")),
    "no text": (prompts("a", None), ("not a NoneType", "train_dataset[1]")),
    "no role": (prompts([{"content": "a"}], CHAT), ("has no role", "train_dataset[0]")),
    "no content": (prompts([{"role": "user", "content": None}], CHAT), ("content of a message must be text",)),
    "an unknown role": (prompts([{"role": "unknown", "content": "a"}], CHAT), ("of role 'unknown'",)),
}  # fmt: skip


@pytest.mark.parametrize(("dataset", "names"), BAD_DATASETS.values(), ids=BAD_DATASETS)
def test_a_bad_dataset_is_refused_with_row_or_column_and_todo(dataset, names):
    with pytest.raises(DatasetError, match=r"train_dataset(.|\n)*What to do:") as caught:
        data_checks.check_dataset(dataset, TWO_PROMPTS, CHAT_TOKENIZER)
    assert [name for name in names if name not in str(caught.value)] == []
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("make", [str, lambda text: [{"role": "user", "content": text}]])
def test_the_longest_prompts_are_found_by_their_text_the_earliest_first(make):
    given = [make("\u00e9" * size) for size in [3, 9, 1, 9, 4, 4, 8, 2, 9, 30, 5]]
    dataset = Dataset.from_dict({"prompt": given})
    rows = [9, 1, 3, 8]
    assert data_checks.longest_prompts(dataset, count=4) == (rows, [given[row] for row in rows])
    assert data_checks.longest_prompts(dataset.select([9, 0, 6]), count=2)[0] == [0, 2], "in its own order"
    upper = dataset.with_transform(lambda rows: {"prompt": [one * 2 for one in rows["prompt"]]})
    assert data_checks.longest_prompts(upper, count=1) == ([9], [given[9] * 2]), "as a format makes them"


def test_conversations_need_a_chat_template_and_strings_do_not():
    with pytest.raises(DatasetError, match="conversations and the tokenizer has no chat template"):
        data_checks.check_dataset(TWO, TWO_PROMPTS, BASE_TOKENIZER)
    with pytest.raises(DatasetError, match="some prompts are texts and others are conversations"):
        data_checks.check_prompts(["a", CHAT], CHAT_TOKENIZER, "dataset")
    data_checks.check_dataset(prompts("a", "b"), TWO_PROMPTS, BASE_TOKENIZER)
    data_checks.check_dataset(TWO, TWO_PROMPTS, None)  # TRL will load the tokenizer by the model's name


def test_an_evaluation_set_may_be_small_and_is_named_in_the_error():
    data_checks.check_dataset(prompts("one"), TWO_PROMPTS, CHAT_TOKENIZER, "eval_dataset")
    with pytest.raises(DatasetError, match=r"eval_dataset\['bad'\] is a Task(.|\n)*pass task.held_out"):
        data_checks.check_dataset(TASK, TWO_PROMPTS, CHAT_TOKENIZER, "eval_dataset['bad']")


@pytest.mark.parametrize("form", [stream, Dataset.to_iterable_dataset])
def test_only_the_first_row_of_a_stream_is_read(form):
    streamed = form(prompts("a", " "))
    data_checks.check_dataset(streamed, TWO_PROMPTS, CHAT_TOKENIZER)
    assert data_checks.longest_prompts(streamed) == ([0], ["a"])
    assert data_checks.reward_columns(streamed) == ["answer"]


def test_prompt_and_completion_must_fit_the_policys_length_and_the_longest_is_named():
    ids = [[1] * 10, [1] * 30]
    data_checks.check_lengths(ids, 34, 64)
    data_checks.check_lengths(ids, 1000, None)
    with pytest.raises(DatasetError, match=r"reach 65 tokens(.|\n)*prompt 1 of the batch has 30 tokens"):
        data_checks.check_lengths(ids, 35, 64)
    says = r"train_dataset\[8\] has 30(.|\n)*load_policy\(max_seq_length=65\)"
    with pytest.raises(DatasetError, match=says):
        data_checks.check_lengths(ids, 35, 64, rows=[5, 8])


def test_rewards_need_as_many_finite_weights_not_all_0():
    for right in ([1.0, 0.0], None):
        data_checks.check_weights([min, max], right, where="RLOOConfig")
    for wrong, says in (([1.0], "1 reward_weights for 2"), ([math.inf, 1], "finite"), ([0, 0], "not all 0")):
        with pytest.raises(RewardError, match=says):
            data_checks.check_weights([min, max], wrong, where="RLOOConfig")


THOUGHT = rewards.thinking_reward()
NESTED = rewards.weighted([rewards.answer_reward(), rewards.clipped(rewards.cached(THOUGHT))])
QWEN = {"<think>": 151667, "</think>": 151668, "hm": 7}
NEITHER, OTHER_WORDS, ONE_OF_TWO = {"hm": 7}, {"so": 151667, "then": 151668}, {"<think>": 151667}


def a_tokenizer(vocabulary: dict[str, int]) -> Any:
    return types.SimpleNamespace(get_vocab=lambda: vocabulary)


@pytest.mark.parametrize("reward", [THOUGHT, NESTED])
def test_a_reward_of_a_thought_that_the_policy_cannot_write_is_refused(reward):
    said = r"tokens 151667 and 151668(.|\n)*ThinkTokens.from_tokenizer\(policy.tokenizer\)"
    for vocabulary in (NEITHER, OTHER_WORDS, ONE_OF_TWO):
        with pytest.raises(RewardError, match=said) as caught:
            data_checks.check_thoughts([rewards.answer_reward(), reward], a_tokenizer(vocabulary))
        assert len(str(caught.value).splitlines()) == 3
    data_checks.check_thoughts([reward], a_tokenizer(QWEN))
    data_checks.check_thoughts([reward], None)  # TRL will load the tokenizer by the model's name


def test_a_reward_that_needs_no_tokens_of_a_thought_or_has_the_policys_is_taken():
    taken = [len, rewards.answer_reward(), torch.nn.Linear(1, 1)]
    data_checks.check_thoughts(taken, a_tokenizer(NEITHER))
    other = rewards.thinking_reward(rewards.ThinkTokens(3, 4))
    data_checks.check_thoughts([other], a_tokenizer({"[open]": 3, "[close]": 4}))
