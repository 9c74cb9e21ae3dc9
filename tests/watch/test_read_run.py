"""Reading a run's log and settings from a trainer, a file or a folder."""

import json

import pandas as pd
import pytest

import rloo_kit
from rloo_kit.errors import ConfigError
from rloo_kit.watch.callbacks import HealthCallback
from rloo_kit.watch.read_run import MANIFEST, RECIPE, read_run
from tests.watch.logs import LOG, history, play, terms, trainer_of, trl_config


def checkpoint(folder, state):
    """Write a checkpoint like plain TRL's, with only the files that are read."""
    folder.mkdir(parents=True)
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    return folder


def read(source):
    run = read_run(source, "plot")
    return run.history, run.folder


def test_a_trainer_a_state_file_and_a_folder_give_the_same_log(tmp_path):
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": LOG}), encoding="utf-8-sig")
    for source in (trainer_of(LOG, tmp_path), tmp_path, tmp_path / "trainer_state.json"):
        assert read(source) == (LOG, tmp_path)


def test_of_a_stock_run_the_newest_readable_checkpoint_is_read(tmp_path):
    for number in (5, 10):  # "10" sorts before "5" as text
        state = {"global_step": number, "log_history": LOG[:number]}
        checkpoint(tmp_path / f"checkpoint-{number}", json.dumps(state))
    assert read(str(tmp_path)) == (LOG[:10], tmp_path)
    assert read(tmp_path / "checkpoint-5") == (LOG[:5], tmp_path / "checkpoint-5")
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text('{"global_step": 10, "log_his')  # cut off
    assert read(tmp_path) == (LOG[:5], tmp_path)
    (tmp_path / RECIPE).touch()
    for ended, latest in ((3, 5), (7, 7)):  # a run that was killed after resuming, and a run that has ended
        (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": ended, "log_history": LOG[:ended]}))
        assert read(tmp_path) == (LOG[:latest], tmp_path)
    (tmp_path / RECIPE).unlink()  # plain TRL leaves an earlier run's checkpoints where they are
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 3, "log_history": LOG[:3]}))
    assert read(tmp_path) == (LOG[:3], tmp_path)


WRONG = {
    None: "no log of a run",
    "not json": "no log of a run",
    '{"log_history": [{"step": 1, "loss": 0.1}]}': "no training step",  # another trainer's
    '{"log_history": {}}': "a log history is a list of entries",
    '{"log_history": [7]}': "a log history is a list of entries",
}


def test_a_folder_without_a_run_is_named(tmp_path):
    for place, (content, message) in enumerate(WRONG.items()):
        folder = checkpoint(tmp_path / f"run{place}", content)
        with pytest.raises(ConfigError, match=rf"(?s){message}.*run{place}"):
            read(folder)


def test_a_table_of_pandas_is_the_log_that_it_was_made_of():
    entries = [*history(30), {"step": 30, "train_runtime": 9.0, "train_loss": 0.1}]
    report = rloo_kit.diagnose(pd.DataFrame(entries).to_dict("records"))
    assert report.healthy
    assert str(report) == str(rloo_kit.diagnose(entries))


def test_what_is_no_figure_in_a_log_is_left_out_and_entries_without_a_step_are_numbered():
    entries = history(30, completions__clipped_ratio=0.6)
    report = rloo_kit.diagnose([{**entry, "kl": None, "note": "warm", "tags": ["a"]} for entry in entries])
    assert [finding.symptom for finding in report.findings] == ["truncation"]
    two = [{"reward": 0.1, "reward_std": 0.3}, {"reward": 0.2, "reward_std": 0.3}]
    assert [entry["step"] for entry in read_run(two, "diagnose").log.entries] == [1, 2]


def test_batch_k_and_weights_are_read_from_a_checkpoint_and_what_is_not_known_is_said(tmp_path):
    """30 % cut is clearly above a fifth for 256 completions per step; for the 8 assumed otherwise it may be chance."""
    entries = history(12, zero_variance_groups=None, completions__clipped_ratio=lambda step: (0.2, 0.4)[step % 2])
    place = checkpoint(tmp_path / "checkpoint-12", json.dumps({"global_step": 12, "log_history": entries}))
    alone = rloo_kit.diagnose(tmp_path)
    assert alone.healthy
    assert "assumed, by the log alone: 8 completions a step" in str(alone)
    batch = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 8, "num_generations": 8}
    batch |= {"steps_per_generation": 8, "num_iterations": 1, "generation_batch_size": 256}  # two processes
    told = {"run": {"settings": batch, "rewards": ["right x 0.8", "form x 0.2"]}, "files": {}}
    (place / MANIFEST).write_text(json.dumps(told))
    for source in (tmp_path, place, place / "trainer_state.json"):
        report = rloo_kit.diagnose(source)
        assert [finding.symptom for finding in report.findings] == ["truncation"], source
        assert "assumed" not in str(report)
    known = read_run(tmp_path, "plot").log.known
    assert (known.completions, known.groups, known.batches, known.updates) == (256, 32, 1, 1)
    assert known.weights == {"right": 0.8, "form": 0.2}


def test_weights_belong_to_the_rewards_they_were_given_for_although_a_state_on_disk_has_its_names_sorted(tmp_path):
    """By the order of the file, the spread of ``brevity`` would drown that of ``right``."""
    entries = history(30, **terms(right=(0.4, 0.5), brevity=(20.0, 6.0)))
    weights = {"right": 1.0, "brevity": 0.01}
    state = json.dumps({"global_step": 30, "log_history": entries}, sort_keys=True)
    of_disk = json.loads(state)["log_history"]
    (checkpoint(tmp_path / "checkpoint-30", state) / MANIFEST).write_text(
        json.dumps({"run": {"settings": vars(trl_config()), "rewards": [f"{n} x {w}" for n, w in weights.items()]}})
    )
    trainer = trainer_of(of_disk, reward_funcs=[print, print], reward_func_names=list(weights))
    trainer.args.reward_weights = list(weights.values())
    for source in (tmp_path, trainer):
        assert read_run(source, "plot").log.weights() == weights
        assert rloo_kit.diagnose(source).healthy
    found = []
    play(HealthCallback(found.append), [*of_disk[:20], *entries[20:]], seen=20, reward_weights=[1.0, 0.01])
    play(HealthCallback(found.append, rewards=list(weights)), of_disk, reward_weights=[1.0, 0.01])
    assert found == []
