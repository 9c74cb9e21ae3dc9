"""Every input that stock TRL takes without a word or rejects cryptically gets an error that names it.

The inputs of :mod:`tests.train.bad_inputs`: for each the part of the message that names the culprit, and where it
comes; that what was mended trains, and that no weight is NaN after any of them.
"""

import json
from typing import Any

import pytest
import trl

import rloo_kit
import tests.conftest
from rewards import RewardValueError
from rloo_kit.errors import ConfigError, RLOOKitError
from tests.conftest import SMALL, random_rewards
from tests.train.bad_inputs import INPUTS, RIGHT, Bad, arguments, of
from tests.train.bad_inputs.functions import gives


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
def test_a_bad_argument_is_refused_before_a_completion_is_sampled(name: str, policy: Any, task: Any) -> None:
    case = INPUTS[name]
    given = {"model": policy, "reward_funcs": random_rewards, "train_dataset": task.train}
    given |= arguments(case, policy)
    given.setdefault("args", rloo_kit.RLOOConfig(**SMALL | case.config))
    with pytest.raises((RLOOKitError, RewardValueError)) as caught:
        rloo_kit.RLOOTrainer(**given)
    check(caught.value, case)


@pytest.mark.parametrize("name", of("step"))
def test_a_bad_value_stops_the_step_that_it_comes_in(name: str, make_trainer: Any, policy: Any) -> None:
    case = INPUTS[name]
    trainer = make_trainer(**SMALL | case.config, **arguments(case, policy))
    with pytest.raises((RLOOKitError, RewardValueError)) as caught:
        trainer.train()
    check(caught.value, case)
    assert all(parameter.isfinite().all() for parameter in policy.model.parameters())


@pytest.mark.parametrize("name", of("mended"))
def test_what_can_be_mended_trains(name: str, make_trainer: Any, policy: Any) -> None:
    trainer = make_trainer(**INPUTS[name].config | arguments(INPUTS[name], policy))
    trainer.train()
    assert trainer.state.global_step > 0
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
