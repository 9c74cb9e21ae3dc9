"""A run that is repeated, stopped, killed and resumed."""

import linecache
import os
import pickle
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file

import rloo_kit
from rewards.errors import RewardCallError
from rloo_kit.errors import ConfigError
from rloo_kit.policy.bundled import TINY
from rloo_kit.train.checkpoints import newest_whole, seal
from rloo_kit.watch import read_run
from tests.conftest import random_rewards
from tests.train.weights import leave_the_reference, same, steps, trained

SAVED = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "lr_scheduler_type": "constant"}


def test_a_cell_stopped_within_a_step_goes_on_with_fresh_completions(make_trainer):
    trainer = make_trainer(random_rewards, **{**SAVED, "max_steps": 3}, gradient_accumulation_steps=2)
    events: list[str] = []
    sample, loss = trainer._generate_and_score_completions, trainer._compute_loss

    def stops(model: Any, inputs: Any) -> Any:
        if len(events) == 5:
            events.append("stopped")
            raise KeyboardInterrupt
        events.append("loss")
        return loss(model, inputs)

    def watched(inputs: Any) -> Any:
        events.append("sample")
        return sample(inputs)

    trainer._compute_loss, trainer._generate_and_score_completions = stops, watched
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.train(resume_from_checkpoint=True)
    whole_step = ["sample", "loss", "loss"]
    assert events == [*whole_step, "sample", "loss", "stopped", *whole_step, *whole_step]
    assert trainer.state.global_step == 3


def test_a_resumed_run_takes_the_learning_rate_that_it_is_given(make_trainer):
    """transformers takes it from the checkpoint, so lowering it would have no effect."""
    schedule = {"lr_scheduler_type": "linear", "save_strategy": "steps", "save_steps": 2, "weight_decay": 0.0}
    make_trainer(max_steps=2, learning_rate=4e-3, **schedule).train()
    trainer = make_trainer(max_steps=4, learning_rate=1e-3, **{**schedule, "weight_decay": 0.1})
    with pytest.warns(UserWarning, match=r"learning_rate=0.001 \(it was 0.004\)"):
        trainer.train(resume_from_checkpoint=True)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    # From 4e-3 linearly to 0 over 2 steps, then the last two of 4 steps from 1e-3.
    assert rates == pytest.approx([4e-3, 2e-3, 0.5e-3, 0.25e-3])
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {0.1, 0.0}


def test_resuming_a_run_that_is_done_restores_the_adapter_beside_its_reference_and_trains_nothing(make_trainer):
    """If a checkpoint has adapters in subfolders, transformers loads them and not the one at the top."""
    settings = {**SAVED, "beta": 0.05, "learning_rate": 0.05}
    first, other = (rloo_kit.load_policy("tiny", seed=0) for _ in range(2))
    for policy in (first, other):
        leave_the_reference(policy.model)  # otherwise the reference is the base
    make_trainer(random_rewards, model=first, **settings).train()
    trainer = make_trainer(random_rewards, model=other, **settings)
    assert trainer.train(resume_from_checkpoint=True).global_step == 2
    assert [entry["step"] for entry in steps(trainer)] == [1, 2]
    assert same(trained(other.model), trained(first.model))


def worse_and_worse(completions: Any, trainer_state: Any, **kwargs: Any) -> list[float]:
    return [random - trainer_state.global_step for random in random_rewards(completions, **kwargs)]


def test_a_run_of_a_share_of_an_epoch_is_done_at_its_last_step_and_gives_its_best_weights_again(make_trainer, task):
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1, "num_train_epochs": 0.05}
    best |= {"eval_dataset": task.held_out.select(range(2)), "model": rloo_kit.load_policy("tiny", seed=0)}
    settings = {**SAVED, **best, "max_steps": -1, "learning_rate": 0.05}
    make_trainer(worse_and_worse, **settings).train()
    at_best = trained(best["model"].model)
    again = make_trainer(worse_and_worse, **settings)
    assert again.train(resume_from_checkpoint=True).global_step == 2, "0.05 of 32 steps"
    assert again.state.best_global_step == 1
    assert same(trained(best["model"].model), at_best)
    (again.folder / "checkpoint-1").rename(again.folder / "moved")
    with pytest.warns(UserWarning, match=r"best checkpoint, .*checkpoint-1, is gone"):
        again.train(resume_from_checkpoint=True)
    assert not same(trained(best["model"].model), at_best), "the last ones are others"


def test_a_step_whose_evaluation_fails_is_saved(make_trainer, task):
    settings = {**SAVED, "save_steps": 9, "max_steps": 3}

    def fails(completions: Any, **kwargs: Any) -> list[float]:
        if not stopped.model.training:
            raise ConnectionError
        return random_rewards(completions, **kwargs)

    evaluated = {"eval_dataset": task.held_out.select(range(2)), "eval_strategy": "steps", "eval_steps": 2}
    stopped = make_trainer(fails, **settings, **evaluated)
    with pytest.raises(RewardCallError):
        stopped.train()
    assert newest_whole(stopped.folder)[0] == stopped.folder / "checkpoint-2"


def scaled(factor: float) -> Any:
    def length(completion_ids: Any, **kwargs: Any) -> list[float]:
        return [factor * len(ids) for ids in completion_ids]

    return length


@pytest.fixture
def said(recwarn: pytest.WarningsRecorder) -> Any:
    """Return the warnings since the last call that a resumed run differs from its checkpoint."""

    def said() -> list[str]:
        found = [str(one.message) for one in recwarn if "not as in the checkpoint" in str(one.message)]
        recwarn.clear()
        return found

    return said


def test_changed_code_of_a_reward_is_named_and_the_same_code_is_not(make_trainer, tmp_path, said):
    file = tmp_path / "mine.py"
    code = "def length(completion_ids, **kwargs):\n    return [{} * len(ids) for ids in completion_ids]\n"
    for last, factor, told in ((2, 1, False), (3, 1, False), (4, 2, True)):
        file.write_text(code.format(factor))
        linecache.checkcache(str(file))
        reward = runpy.run_path(str(file))["length"]
        make_trainer([reward], **{**SAVED, "max_steps": last}).train(resume_from_checkpoint=last > 2)
        assert any("reward_code={'length': " in one for one in said()) is told, last


def test_what_is_changed_on_purpose_is_named_once_with_its_old_and_its_new_value(make_trainer, task, said):
    both = {"reward_funcs": [scaled(1.0), random_rewards], "reward_weights": [1.0, 0.5]}
    make_trainer(**both, **SAVED).train()
    rows = Dataset.from_list(list(task.train))  # the same rows, made in another way
    same = make_trainer(**both, train_dataset=rows, **{**SAVED, "max_steps": 3})
    same.train(resume_from_checkpoint=True)
    assert said() == [], "more steps on a constant schedule are no other run"
    other_way = rloo_kit.load_policy("tiny", seed=0, thinking=64)
    make_trainer(**both, model=other_way, **{**SAVED, "max_steps": 4}).train(resume_from_checkpoint=True)
    assert said() == ["not as in the checkpoint's run: thinking=64 (it was True)"]
    changed: dict[str, Any] = {"temperature": 0.9, "beta": 0.05, "normalize_advantages": True, "seed": 7}
    settings = {**SAVED, **changed, "max_steps": 5, "reward_weights": [2.0]}
    other = make_trainer([scaled(2.0)], train_dataset=task.train.select(range(63)), **settings)
    other.train(resume_from_checkpoint=True)
    (told,) = said()
    assert other.state.global_step == 5
    assert "rewards=['length x 2'] (it was ['length x 1', 'random_rewards x 0.5'])" in told
    assert "dataset=[63, " in told
    before = {**vars(rloo_kit.RLOOConfig(output_dir="a")), "beta": 0.0}  # as in make_trainer
    for name, value in changed.items():
        assert f"{name}={value!r} (it was {before[name]!r})" in told


OTHERS: dict[str, Any] = {  # arguments of load_policy, settings, the message
    "lora_alpha": ({"lora_alpha": 7}, {}, r"lora_alpha=7 \(it was 16\)"),
    "modules": ({"target_modules": ["q_proj"]}, {}, r"target_modules=\['q_proj'\] \(it was \['down_proj', "),
    "bits": ({"load_in_4bit": False}, {}, r"bits=16 \(it was 4\)"),
    "optimizer": ({}, {"optim": "sgd"}, r"optim='sgd' \(it was 'adamw_torch_fused'\)"),
}


@pytest.fixture
def stopped(make_trainer: Any, tmp_path: Path) -> Path:
    make_trainer(random_rewards, **SAVED).train()
    return tmp_path / "run" / "checkpoint-1"


@pytest.mark.parametrize("case", OTHERS)
def test_a_policy_or_an_optimizer_of_another_kind_is_refused_and_left_as_it_was(make_trainer, case, stopped):
    arguments, settings, message = OTHERS[case]
    other = rloo_kit.load_policy("tiny", seed=0, **arguments)
    before, trainer = trained(other.model), make_trainer(random_rewards, model=other, **SAVED, **settings)
    with pytest.raises(ConfigError, match=f"(?s){message}.*load the policy"):
        trainer.train(resume_from_checkpoint=str(stopped))
    assert stopped.with_name("checkpoint-2").is_dir(), "nothing is set aside for a run that does not begin"
    assert same(trained(other.model), before)


def test_a_run_that_starts_to_use_its_reference_within_a_batch_samples_that_batch_anew(make_trainer):
    settings = {**SAVED, "num_iterations": 2, "max_steps": 1}
    make_trainer(random_rewards, **settings).train()
    with_reference = {**settings, "max_steps": 2, "beta": 0.1, "kl_placement": "loss"}
    trainer = make_trainer(random_rewards, **with_reference)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 2


@pytest.mark.usefixtures("stopped")
def test_another_base_is_refused_and_the_same_one_in_another_folder_is_taken(make_trainer, tmp_path, said):
    def resume_with(folder: Path) -> None:
        policy = rloo_kit.load_policy(folder, seed=0, load_in_4bit=True)
        trainer = make_trainer(random_rewards, model=policy, **{**SAVED, "max_steps": 3})
        trainer.train(resume_from_checkpoint=True)

    here = shutil.copytree(TINY.checkpoint(), tmp_path / "a copy")
    resume_with(here)
    assert said() == []
    weights = load_file(here / "model.safetensors")
    name = next(name for name in sorted(weights) if "down_proj" in name)
    weights[name] += 0.01 * weights[name].std() * torch.randn_like(weights[name])
    save_file(weights, here / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"base_weights='\w{16}' \(it was '\w{16}'\)"):
        resume_with(here)


def test_each_epoch_has_an_order_of_its_own_also_in_a_run_that_is_resumed_there(make_trainer):
    first, resumed = (make_trainer()._get_train_sampler() for _ in range(2))
    orders = []
    for epoch in (0, 1):
        first.set_epoch(epoch)
        orders.append([*first])
    assert {*orders[0]} == {*orders[1]} == {*range(64)}
    assert orders[0] != orders[1]
    resumed.set_epoch(1)
    assert [*resumed] == orders[1]


def test_nothing_of_a_malicious_pickle_is_run(make_trainer, tmp_path):
    settings = {**SAVED, "max_steps": 1, "num_iterations": 2}  # so that a batch is used again after step 1
    make_trainer(random_rewards, **settings).train()
    folder = tmp_path / "run" / "checkpoint-1"
    assert (folder / "rollout_0.pt").is_file()
    torch.save({"layout": os.mkdir, "batches": []}, folder / "rollout_0.pt")
    seal(folder, read_run.manifest_of(folder))
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        make_trainer(random_rewards, **{**settings, "max_steps": 2}).train(resume_from_checkpoint=True)
