"""Which checkpoint is whole, and what is said of a path that is none."""

from pathlib import Path

import pytest

from rloo_kit.errors import ConfigError
from rloo_kit.train import checkpoint_integrity
from rloo_kit.train.checkpoint_integrity import fault, is_ours, seal
from rloo_kit.watch.run_folder import MANIFEST

PARTS = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")


def checkpoint(folder: Path, state: str | None) -> Path:
    """As plain TRL leaves it, with the least that is in it."""
    folder.mkdir(parents=True)
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    for name in PARTS:
        (folder / name).write_bytes(bytes(100))
    return folder


def sealed(folder: Path, step: int) -> Path:
    """As a run of the kit's leaves it."""
    seal(checkpoint(folder, f'{{"global_step": {step}}}'), {"step": step})
    return folder


STATES = [None, "", '{"global_step": 4', "[4]", '{"global_step": null}', '{"global_step": 3}']


@pytest.mark.parametrize("state", STATES)
def test_a_checkpoint_is_whole_where_its_state_is_that_of_its_step(tmp_path: Path, state: str | None) -> None:
    whole = checkpoint(tmp_path / "checkpoint-2", '{"global_step": 2}')
    broken = checkpoint(tmp_path / "checkpoint-4", state)
    assert checkpoint_integrity.last_whole_checkpoint(tmp_path) == whole
    with pytest.raises(ConfigError, match="checkpoint-4 is not a checkpoint that can be resumed from: "):
        checkpoint_integrity.check(broken, tmp_path)


DAMAGE = {
    "removed": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "a bit flipped": lambda file: file.write_bytes(b"\1" + file.read_bytes()[1:]),
}


@pytest.mark.parametrize("part", [*PARTS, "trainer_state.json"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_checkpoint_with_a_damaged_file_is_named_with_that_file(
    tmp_path: Path, part: str, damage: str
) -> None:
    folder = sealed(tmp_path / "checkpoint-4", 4)
    assert fault(folder) == ""
    DAMAGE[damage](folder / part)
    assert fault(folder).startswith(part)


@pytest.mark.parametrize(
    ("part", "what"), zip(PARTS, ("weights", "optimizer", "scheduler", "random"), strict=True)
)
def test_of_plain_trl_what_a_resumed_run_would_miss_without_a_word_is_named(
    tmp_path: Path, part: str, what: str
) -> None:
    folder = checkpoint(tmp_path / "checkpoint-4", '{"global_step": 4}')
    assert fault(folder) == ""
    (folder / part).unlink()
    assert fault(folder).startswith(f"it has no {what}")


def test_a_card_that_the_user_has_edited_or_deleted_damages_no_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint-4", '{"global_step": 4}')
    (folder / "README.md").write_text("ours")
    seal(folder, {})
    (folder / "README.md").write_text("my own words")
    assert fault(folder) == ""
    (folder / "README.md").unlink()
    assert fault(folder) == ""


def test_a_large_file_of_an_older_step_is_told_by_its_ends(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "checkpoint-4", '{"global_step": 4}')
    (folder / "optimizer.pt").write_bytes(bytes(3 * 2**20))
    seal(folder, {})
    (folder / "optimizer.pt").write_bytes(bytes(3 * 2**20 - 1) + b"1")
    assert fault(folder) == "optimizer.pt is not what was saved"


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"a": 1}}'])
def test_a_damaged_manifest_makes_a_checkpoint_damaged_and_no_one_elses(tmp_path: Path, text: str) -> None:
    folder = sealed(tmp_path / "checkpoint-4", 4)
    (folder / MANIFEST).write_text(text)
    assert MANIFEST in fault(folder) or "missing" in fault(folder)
    assert is_ours(folder)


def test_only_an_exact_name_with_a_manifest_inside_and_no_link_is_a_runs_to_delete(tmp_path: Path) -> None:
    assert is_ours(sealed(tmp_path / "checkpoint-4", 4))
    (tmp_path / "checkpoint-6").symlink_to(sealed(tmp_path / "copied", 6))
    (tmp_path / "checkpoint-7").write_text("a file")
    (tmp_path / "checkpoint-8").symlink_to(tmp_path / "nowhere")
    checkpoint(tmp_path / "checkpoint-10", '{"global_step": 9}')
    sealed(tmp_path / "checkpoint-notes-2024", 11)
    assert [path.name for path in tmp_path.iterdir() if is_ours(path)] == ["checkpoint-4"]
    found, passed_over = checkpoint_integrity.newest_whole(tmp_path)
    assert found == tmp_path / "checkpoint-6", "a link is as good as what it leads to"
    assert [folder.name for folder, _ in passed_over] == ["checkpoint-10", "checkpoint-8", "checkpoint-7"]


def test_a_path_that_is_not_there_is_said_not_to_be_there_with_those_that_are(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for step in (2, 10):
        checkpoint(run / f"checkpoint-{step}", f'{{"global_step": {step}}}')
    there = r"take one of those in .*run: checkpoint-2, checkpoint-10\."
    for folder, said in (
        (run / "checkpoint-9", f"-9 does not exist.*{there}"),
        (run, f"run is not a checkpoint .*{there}"),
        (tmp_path / "rum" / "checkpoint-2", there),
    ):
        with pytest.raises(ConfigError, match=f"(?s){said}"):
            checkpoint_integrity.check(folder, run)
    with pytest.raises(ConfigError, match=r"call train\(\) without it to start at step 0"):
        checkpoint_integrity.check(tmp_path / "checkpoint-2", tmp_path)
