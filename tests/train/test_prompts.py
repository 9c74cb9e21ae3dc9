"""The order of prompts: each once an epoch, and a resumed run draws what the run that was not stopped would have."""

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rloo_kit.watch.run_folder import last_whole_checkpoint
from tests.conftest import as_loaded


class Pays:
    """Every second completion is paid; keeps the prompts of each call's groups."""

    __name__ = "pays"

    def __init__(self, k: int) -> None:
        self.k = k
        self.prompts: list[list[str]] = []

    def __call__(self, prompts: Any, completion_ids: Any, **kwargs: Any) -> list[float]:
        self.prompts.append([prompt[-1]["content"] for prompt in prompts[:: self.k]])
        return [float(index % 2) for index in range(len(prompts))]


@pytest.fixture(scope="module")
def eight(task: Any) -> Any:
    """Eight prompts."""
    return task.train.select(range(8))


def logged(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


SMALL = {"num_generations": 2, "per_device_train_batch_size": 4, "max_completion_length": 2}


def test_an_epoch_draws_each_prompt_once_and_the_next_in_another_order(make_trainer: Any, eight: Any) -> None:
    reward = Pays(k=2)
    make_trainer(reward_funcs=reward, train_dataset=eight, max_steps=8, **SMALL).train()
    epochs = [[*itertools.chain(*reward.prompts[start : start + 4])] for start in (0, 4)]
    assert [set(Counter(epoch).values()) for epoch in epochs] == [{1}, {1}]
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("steps", "settings", "why"),
    [
        (6, {}, "a generation batch for each step; the second epoch begins at the fifth"),
        (
            6,
            {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "per_device_train_batch_size": 2},
            "two generation batches for each step",
        ),
        (
            8,
            {"gradient_accumulation_steps": 1, "steps_per_generation": 2, "per_device_train_batch_size": 2},
            "a generation batch for two steps",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_that_was_stopped_draws_the_prompts_of_one_that_was_not(
    make_trainer: Any, eight: Any, loaded_once: Any, tmp_path: Path, steps: int, settings: Any, why: str
) -> None:
    def run(folder: str, until: int, resume: bool = False) -> tuple[list[list[str]], list[float]]:
        reward = Pays(k=2)
        arguments = {**SMALL, **settings, "learning_rate": 1e-2, "logging_steps": 1}
        trainer = make_trainer(
            model=as_loaded(loaded_once),
            reward_funcs=reward,
            train_dataset=eight,
            output_dir=str(tmp_path / folder),
            save_strategy="steps",
            save_steps=until,
            max_steps=until,
            **arguments,
        )
        trainer.train(resume_from_checkpoint=resume)
        return reward.prompts, logged(trainer, "reward")

    prompts, rewards = run("whole", steps)
    first, _ = run("stopped", steps // 2)
    then, resumed_rewards = run("stopped", steps, resume=True)
    assert first + then == prompts, why
    assert resumed_rewards == rewards
    assert len({tuple(batch) for batch in prompts}) > 2


def test_a_batch_that_was_sampled_and_not_trained_on_is_drawn_again(
    make_trainer: Any, eight: Any, tmp_path: Path
) -> None:
    """Stopped by hand in the loss of the third step of five."""

    def trainer_and_reward(folder: str) -> tuple[Any, Pays]:
        reward = Pays(k=2)
        trainer = make_trainer(
            reward_funcs=reward,
            train_dataset=eight,
            output_dir=str(tmp_path / folder),
            save_strategy="steps",
            save_steps=50,
            max_steps=5,
            **SMALL,
        )
        return trainer, reward

    whole, in_one_go = trainer_and_reward("whole")
    whole.train()
    stopped, before = trainer_and_reward("stopped")
    loss = stopped._compute_loss

    def stop(*args: Any) -> Any:
        if stopped.state.global_step == 2:
            raise KeyboardInterrupt
        return loss(*args)

    stopped._compute_loss = stop
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    assert last_whole_checkpoint(tmp_path / "stopped") == tmp_path / "stopped" / "checkpoint-2"
    resumed, after = trainer_and_reward("stopped")
    resumed.train(resume_from_checkpoint=True)
    assert len(before.prompts) == 3
    assert before.prompts[2] == after.prompts[0]
    assert before.prompts[:2] + after.prompts == in_one_go.prompts
