"""Which checkpoint is whole, and what is said of a path that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from rloo_kit.errors import ConfigError
from rloo_kit.watch import run_folder


def checkpoint(folder: Path, state: str | None) -> Path:
    folder.mkdir(parents=True)
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    return folder


@pytest.mark.parametrize(
    "state",
    [None, "", '{"global_step": 4', "[4]", "4", "null", "{}", '{"global_step": null}', '{"global_step": 3}'],
)
def test_a_checkpoint_is_whole_where_its_state_is_that_of_its_step(tmp_path: Path, state: str | None) -> None:
    whole = checkpoint(tmp_path / "checkpoint-2", '{"global_step": 2}')
    broken = checkpoint(tmp_path / "checkpoint-4", state)
    assert run_folder.last_whole_checkpoint(tmp_path) == whole
    with pytest.raises(ConfigError, match="checkpoint-4 is not a checkpoint that was written to its end"):
        run_folder.check(broken)
    run_folder.remove_broken(tmp_path)
    assert [folder.name for folder in tmp_path.iterdir()] == ["checkpoint-2"]


def test_a_path_that_is_not_there_is_said_not_to_be_there_with_those_that_are(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (2, 10):
        checkpoint(run / f"checkpoint-{step}", f'{{"global_step": {step}}}')
    beside = r"(?s)checkpoint-9 does not exist\..*one of those beside it: checkpoint-2, checkpoint-10\."
    with pytest.raises(ConfigError, match=beside):
        run_folder.check(run / "checkpoint-9")
    with pytest.raises(ConfigError, match="run/nope does not exist"):
        run_folder.check(run / "nope")
    with pytest.raises(ConfigError, match="call train\\(\\) without it to start at step 0"):
        run_folder.check(tmp_path / "rum" / "checkpoint-2")
    with pytest.raises(ConfigError, match=r"one of those in .*run: checkpoint-2, checkpoint-10"):
        run_folder.check(tmp_path / "rum" / "checkpoint-2", run)


def test_the_folder_of_a_run_is_answered_with_the_checkpoints_inside_it(tmp_path: Path) -> None:
    checkpoint(tmp_path / "checkpoint-2", '{"global_step": 2}')
    with pytest.raises(ConfigError, match="one of those inside it: checkpoint-2"):
        run_folder.check(tmp_path)
