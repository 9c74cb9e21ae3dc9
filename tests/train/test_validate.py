"""Every input that stock TRL takes without a word or rejects cryptically gets an error that names it.

The inputs of :mod:`tests.train.bad_inputs`: for each the part of the message that names the culprit, and where it
comes; that what was mended trains, and that no weight is NaN after any of them.
"""

import json
import warnings
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset, IterableDataset

import rloo_kit
import rloo_kit.errors
import tests.conftest
from rewards import RewardValueError
from rloo_kit.errors import ConfigError, DatasetError, RLOOKitError
from tests.conftest import SMALL, random_rewards
from tests.train.bad_inputs import INPUTS, arguments, of
from tests.train.bad_inputs.case import Bad
from tests.train.bad_inputs.data import LONG, QUESTION, dataset
from tests.train.bad_inputs.functions import gives
from tests.train.bad_inputs.newcomer import RIGHT

TWO = dataset(QUESTION, QUESTION)


def check(error: BaseException, case: Bad) -> None:
    """Three parts, which name the culprit."""
    said = str(error)
    assert [part for part in (case.culprit, *case.says) if part not in said] == []
    assert len(said.splitlines()) == 3
    assert "\nWhere: " in said
    assert "\nWhat to do: " in said


@pytest.mark.parametrize("name", of("config"))
def test_a_bad_setting_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rloo_kit.RLOOConfig(**{"output_dir": "out", **SMALL, **INPUTS[name].config})
    check(caught.value, INPUTS[name])


@pytest.mark.parametrize("name", of("trainer"))
def test_a_bad_argument_is_refused_before_a_completion_is_sampled(
    name: str, make_trainer: Any, policy: Any
) -> None:
    case = INPUTS[name]
    try:
        with pytest.raises((RLOOKitError, RewardValueError)) as caught:
            refuses(make_trainer, case, policy)
    finally:
        restored(policy)
    check(caught.value, case)


@pytest.mark.parametrize("name", of("step"))
def test_a_bad_value_stops_the_step_that_it_comes_in(name: str, make_trainer: Any, policy: Any) -> None:
    case = INPUTS[name]
    trainer = make_trainer(**SMALL | case.config, **arguments(case, policy))
    with pytest.raises((RLOOKitError, RewardValueError)) as caught:
        trainer.train()
    check(caught.value, case)
    assert all(parameter.isfinite().all() for parameter in policy.model.parameters())


@pytest.mark.parametrize("name", [*of("warned"), *of("mended")])
def test_what_can_be_mended_trains_and_is_spoken_of_where_it_matters(
    name: str, make_trainer: Any, policy: Any, recwarn: Any
) -> None:
    case = INPUTS[name]
    trainer = make_trainer(**{"reward_funcs": random_rewards} | case.config | arguments(case, policy))
    trainer.train()
    said = "\n".join(str(one.message) for one in recwarn)
    if case.when == "warned":
        assert [part for part in (case.culprit, *case.says) if part not in said] == []
    assert trainer.state.global_step > 0
    assert policy.model.training
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert any(one["grad_norm"] > 0 for one in trainer.state.log_history if "grad_norm" in one)
    assert all(parameter.isfinite().all() for parameter in policy.model.parameters())


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_odd_and_right_trains_without_a_word(
    name: str, make_trainer: Any, policy: Any, recwarn: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    case = RIGHT[name]
    trainer = make_trainer(**{"reward_funcs": random_rewards} | case.config | arguments(case, policy))
    trainer.train()
    # A configuration warns at the line that makes it, which is conftest's.
    ours = (__file__, tests.conftest.__file__)
    assert [str(one.message) for one in recwarn if "rloo_kit" in one.filename or one.filename in ours] == []
    assert trainer.state.global_step == 1
    json.loads(trainer.args.to_json_string())


def refuses(make_trainer: Any, case: Bad, policy: Any) -> None:
    given = arguments(case, policy)
    if "reward_function" in given:  # make_trainer takes what it does not know for a setting
        rloo_kit.RLOOTrainer(policy, train_dataset=TWO, **given)
    make_trainer(**SMALL | case.config, **given)


def restored(policy: Any) -> None:
    for name, parameter in policy.model.named_parameters():
        parameter.requires_grad_(".default." in name)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"top_p": 0.95, "top_k": 20},
            "top_p=0.95, top_k=20: completions are sampled from another distribution",
        ),
        ({"min_p": 0.1}, "min_p=0.1"),
        ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
        ({"learning_rate": 5.0}, "learning_rate=5: adamw_torch_fused moves each weight by about that much"),
    ],
)
def test_what_is_legal_and_hardly_meant_is_spoken_of(settings: dict[str, Any], said: str) -> None:
    with pytest.warns(UserWarning, match=said):
        rloo_kit.RLOOConfig(**settings)


@pytest.mark.parametrize("settings", [{"learning_rate": 0.1}, {"learning_rate": 1.0, "optim": "sgd"}])
def test_a_high_learning_rate_that_may_be_meant_is_taken_without_a_word(settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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
