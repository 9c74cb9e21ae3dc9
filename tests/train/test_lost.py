"""Odd things done to a run's folder between a stop and a resume: nothing is lost, and nothing is wrong in silence."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import EarlyStoppingCallback

import rloo_kit
from rloo_kit.errors import ConfigError, RunFolderError
from rloo_kit.train import checkpoints
from rloo_kit.watch import run_folder
from tests.conftest import random_rewards

MakeTrainer = Callable[..., rloo_kit.RLOOTrainer]


@pytest.mark.parametrize("asked", ["", 4, 0, 2.0, ["checkpoint-4"], b""])
def test_what_names_no_checkpoint_is_refused(asked: object) -> None:
    with pytest.raises(ConfigError, match="named by its folder") as refused:
        run_folder.check_asked(asked)
    assert "resume_from_checkpoint" in str(refused.value)


@pytest.mark.parametrize("asked", [None, True, False, "out/run/checkpoint-4", Path("checkpoint-4")])
def test_what_names_a_checkpoint_is_taken(asked: object) -> None:
    run_folder.check_asked(asked)


def test_a_link_to_a_disk_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path / "unmounted")
    with pytest.raises(RunFolderError, match="a link to one that does not exist") as refused:
        checkpoints.make(tmp_path / "run")
    assert "unmounted" in str(refused.value)
    (tmp_path / "unmounted").mkdir()
    checkpoints.make(tmp_path / "run")


def test_a_moved_run_goes_on_and_ends_with_its_best_weights(
    make_trainer: MakeTrainer,
    tmp_path: Path,
    task: rloo_kit.tasks.Task,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moved, with callbacks and settings it did not have before, and the best checkpoint in its new place."""
    settings: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps"}
    settings |= {"eval_steps": 1, "load_best_model_at_end": True, "metric_for_best_model": "eval_reward"}
    settings |= {"eval_dataset": task.held_out.select(range(2)), "save_total_limit": 1}
    first = make_trainer(random_rewards, max_steps=1, **settings)
    first.train()
    assert first.state.best_model_checkpoint == str(tmp_path / "run" / "checkpoint-1")
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    again = make_trainer(
        random_rewards,
        max_steps=2,
        output_dir=str(moved),
        callbacks=[EarlyStoppingCallback(5)],
        temperature=0.9,
        **settings,
    )
    # As if the step to come were worse, so that the best one is the one that was moved.
    monkeypatch.setattr(again, "_determine_best_metric", lambda metrics, trial: False)
    with pytest.warns(UserWarning, match=r"temperature=0.9 \(it was 1.0\)"):
        again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 2
    assert again.state.best_model_checkpoint == str(moved / "checkpoint-1")
    assert not os.path.lexists(tmp_path / "run")
    said = capsys.readouterr()
    assert "Could not locate the best model" not in said.out + said.err
    assert [one.name for one in run_folder.checkpoints(moved)] == ["checkpoint-1"]
    again.state.best_model_checkpoint, again.state.best_global_step = None, 7
    with pytest.warns(UserWarning, match="of step 7, is not in"):
        again._find_best_again()
    assert again.state.best_metric is None
