"""Every bad input that stock TRL accepts silently or rejects cryptically gets an error that names it.

The 29 inputs of ``REFUSED``: for each the error, the culprit it names, and that no weight is NaN after it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset, IterableDataset
from transformers import TrainerCallback, TrainingArguments

import rloo_kit
import rloo_kit.errors
from rewards import RewardValueError
from rloo_kit.errors import ArgumentError, ConfigError, DatasetError, RewardError, RLOOKitError

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]


def dataset(*prompts: Any) -> Dataset:
    return Dataset.from_list([{"prompt": prompt, "answer": "3"} for prompt in prompts])


def gives(value: Any) -> Callable[..., Any]:
    """A reward function that gives a value for its second sample, and 0 for the others."""

    def reward(completions: Any, **kwargs: Any) -> Any:
        return [value if index == 1 else 0.0 for index in range(len(completions))]

    return reward


def returns(value: Any) -> Callable[..., Any]:
    """A reward function that returns a value as it is."""

    def reward(completions: Any, **kwargs: Any) -> Any:
        return value

    return reward


def without_kwargs(completions: Any) -> Any:
    return [0.0] * len(completions)


def divides(completions: Any, **kwargs: Any) -> Any:
    return [1 / 0 for _ in completions]


@dataclass
class Refused:
    """An input, the error it gets, and what the message has to name."""

    error: type[Exception]
    names: tuple[str, ...]
    config: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)


LONG = [{"role": "user", "content": "What is " + " + ".join(["17"] * 1500) + "?"}]
TWO = dataset(QUESTION, QUESTION)

REFUSED = {
    # the dataset
    "no prompt column": Refused(
        DatasetError,
        ("'prompt'", "question", "rename_column"),
        trainer={"train_dataset": Dataset.from_list([{"question": "1"}] * 4)},
    ),
    "an empty prompt": Refused(
        DatasetError, ("empty", "train_dataset[1]"), trainer={"train_dataset": dataset("a", " ", "b")}
    ),
    "a prompt that is no text": Refused(
        DatasetError,
        ("string or a list of messages", "train_dataset[0]"),
        trainer={"train_dataset": dataset(1, 2, 3)},
    ),
    "fewer prompts than a generation batch": Refused(
        DatasetError, ("takes 4 prompts", "has 2"), {"per_device_train_batch_size": 8}, {"train_dataset": TWO}
    ),
    "a prompt that leaves no room": Refused(
        DatasetError,
        ("train_dataset[1] has", "max_seq_length"),
        {},
        {"train_dataset": dataset(QUESTION, LONG)},
    ),
    # the config
    "one completion per prompt": Refused(
        ConfigError, ("num_generations=1", "leave-one-out"), {"num_generations": 1}
    ),
    "a batch that is no multiple of K": Refused(
        ConfigError,
        ("groups of 4", "num_generations=4"),
        {"num_generations": 4, "per_device_train_batch_size": 6},
    ),
    "a negative beta": Refused(ConfigError, ("beta=-0.1",), {"beta": -0.1}),
    "a beta that is NaN": Refused(ConfigError, ("beta=nan",), {"beta": math.nan}),
    "an inverted clip range of the reward": Refused(
        ConfigError, ("reward_clip_range=(1, -1)", "inverted"), {"reward_clip_range": (1, -1)}
    ),
    "an inverted clip range of the ratio": Refused(ConfigError, ("epsilon=1.5",), {"epsilon": 1.5}),
    "temperature 0": Refused(ConfigError, ("temperature=0.0",), {"temperature": 0.0}),
    "no room for a completion": Refused(
        ConfigError, ("max_completion_length=0",), {"max_completion_length": 0}
    ),
    # the rewards
    "no reward function": Refused(RewardError, ("reward_funcs=[]",), trainer={"reward_funcs": []}),
    "weights of another length": Refused(
        RewardError, ("2 reward_weights for 1",), {"reward_weights": [1.0, 1.0]}
    ),
    "a reward without **kwargs": Refused(
        RewardValueError, ("without_kwargs", "**kwargs"), trainer={"reward_funcs": without_kwargs}
    ),
    "a reward that forgets to return": Refused(
        RewardValueError, ("'reward'", "None"), trainer={"reward_funcs": returns(None)}
    ),
    "a dict": Refused(RewardValueError, ("'reward'", "dict"), trainer={"reward_funcs": returns({"a": 1})}),
    "strings": Refused(
        RewardValueError, ("'reward'", "sample 1", "'1.0'"), trainer={"reward_funcs": gives("1.0")}
    ),
    "nested lists": Refused(
        RewardValueError, ("'reward'", "sample 1", "[1.0]"), trainer={"reward_funcs": gives([1.0])}
    ),
    "complex numbers": Refused(
        RewardValueError, ("'reward'", "sample 1", "1j"), trainer={"reward_funcs": gives(1j)}
    ),
    "a wrong length": Refused(
        RewardValueError, ("'reward'", "4"), trainer={"reward_funcs": returns([0.0] * 3)}
    ),
    "NaN": Refused(
        RewardValueError, ("'reward'", "sample 1", "nan"), trainer={"reward_funcs": gives(math.nan)}
    ),
    "inf": Refused(
        RewardValueError, ("'reward'", "sample 1", "inf"), trainer={"reward_funcs": gives(math.inf)}
    ),
    "-inf": Refused(
        RewardValueError, ("'reward'", "sample 1", "-inf"), trainer={"reward_funcs": gives(-math.inf)}
    ),
    "1e30": Refused(
        RewardValueError, ("'reward'", "sample 1", "1e+30"), trainer={"reward_funcs": gives(1e30)}
    ),
    "a reward that raises": Refused(
        RewardValueError, ("divides", "ZeroDivisionError"), trainer={"reward_funcs": divides}
    ),
    # the trainer's own arguments
    "no dataset": Refused(RLOOKitError, ("train_dataset is missing",), trainer={"train_dataset": None}),
    "a tokenizer without an end": Refused(
        ConfigError, ("end-of-sequence",), trainer={"processing_class": "a tokenizer whose eos token is None"}
    ),
}


def test_there_are_29_of_them() -> None:
    assert len(REFUSED) == 29


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_input_is_refused_by_name_and_leaves_every_weight_finite(
    case: Refused, make_trainer: Any, policy: Any
) -> None:
    arguments = dict(case.trainer)
    if "processing_class" in arguments:
        arguments["processing_class"] = without_eos(policy.tokenizer)
    with pytest.raises(case.error) as caught:
        make_trainer(**case.config, **arguments).train()
    for name in case.names:
        assert name in str(caught.value)
    assert "What to do:" in str(caught.value)
    assert all(parameter.isfinite().all() for parameter in policy.model.parameters())


ROWS = [{"prompt": QUESTION, "answer": "3"}] * 4
REFUSED_TOO = {
    # Not among the 29 of benchmarks/bad_inputs.py: what a newcomer tried.
    "a list for a dataset": Refused(
        DatasetError, ("is a list", "from_list"), trainer={"train_dataset": ROWS}
    ),
    "a dict for the config": Refused(
        ArgumentError,
        ("args cannot be a dict", "args=rloo_kit.RLOOConfig"),
        trainer={"args": {"max_steps": 1}},
    ),
    "another trainer's config": Refused(
        ArgumentError, ("args cannot be a TrainingArguments",), trainer={"args": TrainingArguments("out")}
    ),
    "one callback alone": Refused(
        ArgumentError, ("callbacks=[callback]",), trainer={"callbacks": TrainerCallback()}
    ),
    "a catalogue name": Refused(ConfigError, ("load_policy('qwen3-0.6b')",), trainer={"model": "qwen3-0.6b"}),
    "the lowest loss as the best": Refused(
        ConfigError,
        ("reads about 0", "eval_reward"),
        {"save_strategy": "best", "metric_for_best_model": "loss"},
    ),
    "informative prompts in the dataset's order": Refused(
        ConfigError, ("shuffle_dataset=False",), {"prompt_sampling": "informative", "shuffle_dataset": False}
    ),
    "a batch smaller than a group": Refused(
        ConfigError, ("a multiple of 4: 4.\n",), {"num_generations": 4, "per_device_train_batch_size": 2}
    ),
}


@pytest.mark.parametrize("case", REFUSED_TOO.values(), ids=REFUSED_TOO.keys())
def test_what_a_newcomer_may_give_is_refused_with_what_to_give(case: Refused, make_trainer: Any) -> None:
    with pytest.raises(case.error) as caught:
        make_trainer(**case.config, **case.trainer)
    for name in case.names:
        assert name in f"{caught.value}\n"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"top_p": 0.95, "top_k": 20},
            "top_p=0.95, top_k=20: completions are sampled from another distribution",
        ),
        ({"min_p": 0.1}, "min_p=0.1"),
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
    ],
)
def test_sampling_from_a_part_of_the_policy_is_spoken_of(settings: dict[str, Any], said: str) -> None:
    with pytest.warns(UserWarning, match=said):
        rloo_kit.RLOOConfig(**settings)


def test_a_doubt_is_spoken_of_once_and_at_the_line_that_gave_it(
    make_trainer: Any, policy: Any, task: Any
) -> None:
    with pytest.warns(UserWarning, match="top_p") as caught:
        make_trainer(args=rloo_kit.RLOOConfig(top_p=0.95))
    assert [(str(one.message)[:10], one.filename) for one in caught] == [("top_p=0.95", __file__)]
    plain = trl.RLOOConfig(output_dir="out", top_p=0.95, num_generations=2, bf16=False)
    with pytest.warns(UserWarning, match="top_p") as caught:
        rloo_kit.RLOOTrainer(policy, gives(1.0), plain, task.train)
    assert [one.filename for one in caught if "top_p" in str(one.message)] == [__file__]


def without_eos(tokenizer: Any) -> Any:
    import copy

    other = copy.deepcopy(tokenizer)
    other.eos_token = None
    return other


def test_a_bad_value_in_a_later_step_stops_the_run_there(make_trainer: Any, policy: Any) -> None:
    def turns_bad(completions: Any, trainer_state: Any, **kwargs: Any) -> Any:
        return [math.inf if trainer_state.global_step == 1 else float(i) for i in range(len(completions))]

    trainer = make_trainer(reward_funcs=turns_bad, max_steps=3)
    with pytest.raises(RewardValueError, match="inf"):
        trainer.train()
    assert trainer.state.global_step == 1
    assert all(parameter.isfinite().all() for parameter in policy.model.parameters())


def test_a_bad_part_of_the_evaluation_data_is_named(make_trainer: Any) -> None:
    parts = {"good": TWO, "bad": Dataset.from_list([{"question": "1"}])}
    with pytest.raises(DatasetError, match=r"eval_dataset\['bad'\]"):
        make_trainer(eval_dataset=parts)


def test_a_long_prompt_of_a_stream_is_refused_when_it_comes(make_trainer: Any) -> None:
    def rows() -> Any:
        for index in range(8):
            yield {"prompt": LONG if index >= 4 else QUESTION, "answer": "3"}

    trainer = make_trainer(
        train_dataset=IterableDataset.from_generator(rows), max_steps=4, shuffle_dataset=False
    )
    with pytest.raises(DatasetError, match="max_seq_length"):
        trainer.train()
    assert trainer.state.global_step > 0


def test_a_gradient_that_is_not_finite_never_reaches_a_weight(make_trainer: Any, policy: Any) -> None:
    trainer = make_trainer(reward_funcs=returns([0.0, 1.0, 0.0, 1.0]))
    parameter = next(p for p in policy.model.parameters() if p.requires_grad)
    handle = parameter.register_hook(lambda gradient: gradient * torch.inf)
    try:
        with pytest.raises(rloo_kit.errors.NonFiniteError, match="step 1"):
            trainer.train()
    finally:
        handle.remove()
    assert all(p.isfinite().all() for p in policy.model.parameters())
