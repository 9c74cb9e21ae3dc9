"""Which checkpoint is whole, what is said of a path that is none, and where the log is read from."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from rloo_kit.errors import ConfigError
from rloo_kit.watch import run_folder
from rloo_kit.watch.run_folder import read_history
from tests.watch.logs import LOG


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
    misspelt = tmp_path / "rum" / "checkpoint-2"
    for folder, output_dir, said in (
        (
            run / "checkpoint-9",
            None,
            r"-9 does not exist\..*beside it: checkpoint-2, checkpoint-10\.",
        ),
        (run, None, "run is not a checkpoint .*one of those inside it: checkpoint-2, checkpoint-10"),
        (misspelt, None, r"call train\(\) without it to start at step 0"),
        (misspelt, run, "one of those in .*run: checkpoint-2, checkpoint-10"),
    ):
        with pytest.raises(ConfigError, match=f"(?s){said}"):
            run_folder.check(folder, output_dir)


def test_a_trainer_a_state_file_and_a_folder_give_the_same_log(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": LOG}))
    state, args = SimpleNamespace(log_history=LOG), SimpleNamespace(output_dir=tmp_path)
    for source in (SimpleNamespace(state=state, args=args), tmp_path, tmp_path / "trainer_state.json"):
        assert read_history(source, "plot") == (LOG, tmp_path)


def test_of_a_stock_run_the_newest_whole_checkpoint_is_read(tmp_path: Path) -> None:
    for number in (5, 10):  # "10" sorts before "5" as text
        state = {"global_step": number, "log_history": LOG[:number]}
        checkpoint(tmp_path / f"checkpoint-{number}", json.dumps(state))
    assert read_history(str(tmp_path), "plot") == (LOG[:10], tmp_path)
    assert read_history(tmp_path / "checkpoint-5", "plot") == (LOG[:5], tmp_path / "checkpoint-5")
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text('{"global_step": 10, "log_his')  # cut off
    assert read_history(tmp_path, "plot") == (LOG[:5], tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no log of a run"),
        ("not json", "no log of a run"),
        ('{"log_history": [{"step": 1, "loss": 0.1}]}', "no training step"),  # another trainer's
    ],
)
def test_a_folder_without_a_run_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    folder = checkpoint(tmp_path / "run", content)
    with pytest.raises(ConfigError, match=rf"(?s){message}.*run"):
        read_history(folder, "plot")
