"""A run's files are whole and finite, and files that it did not write are left alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from transformers import TrainerCallback

import rloo_kit
from rloo_kit.errors import ConfigError, NonFiniteError, RunFolderError
from rloo_kit.train import checkpoints
from rloo_kit.train.checkpoints import WRITING, fault, is_ours, newest_whole, run_lock, seal
from rloo_kit.watch.read_run import MANIFEST, STATE
from tests.conftest import contents, random_rewards

SAVING = {"save_strategy": "steps", "save_steps": 1, "reward_funcs": random_rewards}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_what_a_user_keeps_beside_checkpoints_survives_resuming_saving_and_a_limit(make_trainer, run, tmp_path):
    """A folder with a checkpoint's exact name is moved out of the way, and nothing is deleted."""
    elsewhere, named = tmp_path / "elsewhere", run / "checkpoint-400"
    for folder in (run / "checkpoint-notes-2024", run / "checkpoint-2024-notes", named, elsewhere):
        folder.mkdir(parents=True)
        (folder / "mine.txt").write_text("mine")
    (run / "checkpoint-2").symlink_to(elsewhere)
    (run / "README.md").write_text("my notes")
    (run / WRITING / "checkpoint-1").mkdir(parents=True)  # as a killed run leaves it
    settings = {**SAVING, "save_total_limit": 1}
    with pytest.warns(UserWarning, match=r"passed over checkpoint-400: trainer_state.json is missing"):
        make_trainer(max_steps=2, **settings).train(resume_from_checkpoint=True)
    make_trainer(max_steps=3, **settings).train(resume_from_checkpoint=True)
    make_trainer(max_steps=1, **settings).train()
    assert [path.name for path in run.glob("checkpoint-?")] == ["checkpoint-1"]
    for folder in (run / "checkpoint-notes-2024", run / "checkpoint-2024-notes", elsewhere):
        assert contents(folder) == {"mine.txt": b"mine"}
    assert contents(run / "_earlier-1" / "checkpoint-400") == {"mine.txt": b"mine"}
    assert (run / "_earlier-1" / "checkpoint-2").readlink() == elsewhere
    assert json.loads((run / "_earlier-2" / STATE).read_text())["global_step"] == 3, "the log beside its checkpoints"
    assert (run / "README.md").read_text() == "my notes"
    assert not (run / WRITING).exists()


@pytest.mark.parametrize(("limit", "best", "left"), [(0, 1, [1, 2, 10, 11]), (3, 11, [2, 10, 11]), (1, 1, [1, 11])])
def test_the_limit_counts_the_kits_checkpoints_and_keeps_the_best_and_the_newest(tmp_path, limit, best, left):
    for step in (1, 2, 10, 11):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}" / MANIFEST).touch()
    (tmp_path / "checkpoint-5").mkdir()
    checkpoints.keep_newest(tmp_path, limit, protected=tmp_path / f"checkpoint-{best}")
    found = [int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*")]
    assert sorted(found) == sorted([*left, 5])


def test_a_best_step_that_was_never_saved_leaves_the_best_of_those_that_were(make_trainer, run, task):
    def scored(completions: Any, trainer_state: Any, **kwargs: Any) -> list[float]:
        return [(0.0, 0.0, 5.0, 6.0, 1.0)[trainer_state.global_step]] * len(completions)

    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1, "save_total_limit": 1}
    best |= {"eval_dataset": task.held_out.select(range(2)), "reward_funcs": scored}
    trainer = make_trainer(max_steps=4, **{**SAVING, "save_steps": 2, **best})
    trainer.train()
    assert trainer.state.best_global_step == 3
    assert Path(trainer.state.best_model_checkpoint) == run / "checkpoint-2"
    assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}


def checkpoint(folder: Path, step: int = 4) -> Path:
    """Write a checkpoint like plain TRL's, with only the files needed."""
    folder.mkdir(parents=True)
    (folder / STATE).write_text(f'{{"global_step": {step}}}')
    for name in ("adapter_model.safetensors", "optimizer.pt", "README.md"):
        (folder / name).write_bytes(bytes(100))
    return folder


def sealed(folder: Path, step: int = 4) -> Path:
    """Write a checkpoint as a run of the kit leaves it."""
    seal(checkpoint(folder, step), {"step": step})
    return folder


def only_the_model(folder: Path) -> None:
    (folder / "optimizer.pt").unlink()
    seal(folder, {})


def edited(name: str, text: str) -> Any:
    return lambda folder: (folder / name).write_text(text)


FAULTS: dict[str, tuple[Any, str]] = {
    "none": (lambda folder: None, ""),
    "none, of plain TRL": (lambda folder: (folder / MANIFEST).unlink(), ""),
    "a card of the user's": (edited("README.md", "my own words"), ""),
    "removed": (lambda folder: (folder / "optimizer.pt").unlink(), "optimizer.pt is missing"),
    "cut": (edited("optimizer.pt", "x"), "optimizer.pt has 1 bytes of 100"),
    "changed": (edited("optimizer.pt", "x" * 100), "optimizer.pt is not what was saved"),
    "state cut": (edited(STATE, '{"global_step": 4'), f"{STATE} is missing or was cut off"),
    "another state": (edited(STATE, "[4]"), f"{STATE} is missing or was cut off"),
    "of another step": (edited(STATE, '{"global_step": 3}'), f"its {STATE} is of step 3"),
    "no manifest's text": (edited(MANIFEST, ""), f"{MANIFEST} or a file that it names cannot be read"),
    "another manifest": (edited(MANIFEST, "[]"), f"{MANIFEST} or a file that it names cannot be read"),
    "save_only_model": (only_the_model, "it has no optimizer state (save_only_model?)"),
}


@pytest.mark.parametrize("damage", FAULTS)
def test_what_is_wrong_with_a_checkpoint_is_said(tmp_path, damage):
    whole, folder = checkpoint(tmp_path / "checkpoint-2", 2), sealed(tmp_path / "checkpoint-4")
    make, message = FAULTS[damage]
    make(folder)
    assert fault(folder) == message
    assert newest_whole(tmp_path)[0] == (whole if message else folder)
    assert is_ours(folder) == (damage != "none, of plain TRL")


def test_only_an_exact_name_with_a_manifest_inside_and_no_link_is_a_runs_to_delete(tmp_path):
    assert is_ours(sealed(tmp_path / "checkpoint-4"))
    (tmp_path / "checkpoint-6").symlink_to(sealed(tmp_path / "copied", 6))
    (tmp_path / "checkpoint-7").write_text("a file")
    (tmp_path / "checkpoint-8").symlink_to(tmp_path / "nowhere")
    checkpoint(tmp_path / "checkpoint-10", 9)
    sealed(tmp_path / "checkpoint-notes-2024", 11)
    assert [path.name for path in tmp_path.iterdir() if is_ours(path)] == ["checkpoint-4"]
    found, passed_over = newest_whole(tmp_path)
    assert found == tmp_path / "checkpoint-6", "a link is as good as what it leads to"
    assert [folder.name for folder, _ in passed_over] == ["checkpoint-10", "checkpoint-8", "checkpoint-7"]


def test_a_path_that_is_no_checkpoint_is_refused_with_those_that_there_are(tmp_path):
    run = tmp_path / "run"
    with pytest.raises(ConfigError, match=r"(?s)does not exist.*call train\(\) without it to start at"):
        checkpoints.check_whole(tmp_path / "checkpoint-2", run)
    for step in (2, 10):
        checkpoint(run / f"checkpoint-{step}", step)
    with pytest.raises(ConfigError, match=r"(?s)run is not a checkpoint .*run: checkpoint-2, checkpoint-10\."):
        checkpoints.check_whole(run, run)


def test_a_folder_of_another_run_or_one_that_cannot_be_written_to_is_refused_before_the_first_step(
    make_trainer, tmp_path, run, monkeypatch
):
    trainer = make_trainer()
    with run_lock(run), pytest.raises(RunFolderError, match="another run is using this folder"):
        trainer.train()
    trainer.train()
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"could not be written: Not a directory[\s\S]*file/run"):
        make_trainer(output_dir=str(tmp_path / "file" / "run"))

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system", str(run))

    monkeypatch.setattr(FileLock, "acquire", read_only)
    with pytest.raises(RunFolderError, match="the run's folder could not be written: Read-only file system"):
        trainer.train()


def test_a_disk_that_fills_up_is_named_and_the_last_whole_checkpoint_is_untouched(make_trainer, run, small_files):
    trainer = make_trainer(max_steps=3, **{**SAVING, "save_total_limit": 1})
    save = trainer.save_model

    def fills_up(*args: Any, **kwargs: Any) -> None:
        if trainer.state.global_step == 2:
            kept.update(contents(run / "checkpoint-1"))
            small_files((run / "checkpoint-1" / "optimizer.pt").stat().st_size - 1000)
        save(*args, **kwargs)

    kept: dict[str, Any] = {}
    trainer.save_model = fills_up
    with pytest.raises(RunFolderError, match=r"checkpoint-2 could not be written[\s\S]*free disk space"):
        trainer.train()
    small_files(None)
    assert contents(run / "checkpoint-1") == kept
    assert fault(run / "checkpoint-1") == ""
    assert not (run / WRITING).exists(), "half a checkpoint would take the room that is missing"


def test_the_last_whole_checkpoint_before_the_weights_were_nan_is_named(make_trainer, run):
    class Spoil(TrainerCallback):  # a callback, since a configuration with NaN is refused
        def on_step_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **_: Any) -> None:
            for group in optimizer.param_groups:
                group["weight_decay"] = float("nan")

    make_trainer(model=rloo_kit.load_policy("tiny", seed=0), **SAVING).train()
    trainer = make_trainer(max_steps=3, callbacks=[Spoil()], **SAVING)
    with pytest.raises(NonFiniteError, match="trained tensors are not finite") as caught:
        trainer.train(resume_from_checkpoint=True)
    assert f"resume_from_checkpoint='{run / 'checkpoint-1'}'" in caught.value.todo
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-1"]
    assert fault(run / "checkpoint-1") == ""


def test_weights_that_are_not_finite_are_saved_by_nothing(make_trainer, fresh_policy, tmp_path):
    trainer = make_trainer(model=fresh_policy, **SAVING)
    trainer.train()
    lora = [p for p in fresh_policy.model.parameters() if p.requires_grad]
    with torch.no_grad():
        lora[3].view(-1)[0] = float("inf")
    target = tmp_path / "saved"
    checkpoint = lambda _: trainer._save_checkpoint(trainer.model, trial=None)  # noqa: E731
    for save in (fresh_policy.save, trainer.save_model, checkpoint):
        with pytest.raises(NonFiniteError, match=f"1 of {len(lora)} trained tensors"):
            save(str(target))
    assert not target.exists()
    assert fault(tmp_path / "run" / "checkpoint-1") == "", "the whole one of the same step is still there"
