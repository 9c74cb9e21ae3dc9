"""Saving keeps what a user already has: files beside the save, an earlier adapter, and secrets."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import rloo_kit
from rloo_kit.errors import ConfigError, NonFiniteError, PolicyNotFoundError, RunFolderError
from rloo_kit.models import CATALOGUE
from rloo_kit.policy.policy import Policy
from rloo_kit.policy.resolve import ADAPTER_CONFIG, WEIGHTS
from tests.conftest import contents, random_rewards


@pytest.fixture
def adapter(policy: Policy, tmp_path: Path) -> Path:
    return policy.save(tmp_path / "saved" / "adapter")


ADAPTER_FILES = (ADAPTER_CONFIG, WEIGHTS)


@pytest.mark.parametrize(
    ("place", "files"),
    [
        ("a file", ()),
        ("file.gguf", ()),
        ("notes", ("thesis.txt",)),
        ("a model of another", ("config.json", "model.safetensors")),
        ("a README alone", ("README.md",)),
        ("a model beside an adapter", (*ADAPTER_FILES, "model.safetensors")),
        ("a checkpoint of a run", (*ADAPTER_FILES, "rng_state.pth")),
        ("Jupyter's copies alone", (".ipynb_checkpoints/thesis-checkpoint.ipynb",)),
        ("an adapter with a folder", (*ADAPTER_FILES, "more/notes.md")),
    ],
)
def test_a_save_over_what_is_no_adapter_is_refused(place, files, policy, tmp_path):
    for file in files or ("",):
        (tmp_path / place / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / place / file).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"would be replaced[\s\S]*choose a place of its own"):
        policy.save(tmp_path / place)
    assert contents(tmp_path) == before


def test_a_merge_and_an_adapter_do_not_replace_each_other(policy, tmp_path):
    adapter, merge = policy.save(tmp_path / "adapter"), policy.save_merged(tmp_path / "merge")
    policy.save_merged(policy.save(adapter).with_name("merge"))
    before = contents(tmp_path)
    for save, place, there in ((policy.save, merge, "checkpoint"), (policy.save_merged, adapter, "adapter")):
        with pytest.raises(ConfigError, match=f"another kind of save .* would be replaced: {there}"):
            save(place)
    assert contents(tmp_path) == before


def test_a_policy_of_which_all_weights_are_trained_is_saved_whole(tmp_path):
    policy = rloo_kit.load_policy("tiny", full_finetuning=True)
    policy.model.model.norm.weight.data.mul_(1.5)
    folder = policy.save(policy.save(tmp_path / "whole"))
    back = rloo_kit.load_policy(folder, full_finetuning=True).model.state_dict()
    assert all(torch.equal(weight, back[name]) for name, weight in policy.model.state_dict().items())
    with pytest.raises(ConfigError, match=r"nothing to merge[\s\S]*policy\.save\(folder\)"):
        policy.save_merged(tmp_path / "merged")


@pytest.fixture
def on_merged(policy: Policy, tmp_path: Path) -> tuple[Policy, Path]:
    """A policy on a base that the kit wrote, and so would replace; and that base."""
    base = policy.save_merged(tmp_path / "disk" / "base")
    return rloo_kit.load_policy(base, load_in_4bit=False), base


def test_a_whole_save_and_what_is_trained_on_it_are_asked_as_the_policy_was(on_merged, policy, make_trainer, tmp_path):
    merged, base = on_merged
    whole = rloo_kit.load_policy("tiny", full_finetuning=True)
    make_trainer(random_rewards, model=whole, save_strategy="steps", save_steps=1).train()
    saved = [base, merged.save(tmp_path / "on merged"), merged.save_merged(tmp_path / "again")]
    saved += [whole.save(tmp_path / "whole"), tmp_path / "run/checkpoint-1"]
    for folder in saved:
        loaded = rloo_kit.load_policy(folder, full_finetuning=folder not in saved[:3]).checkpoint
        assert (loaded.form, loaded.four_bit, loaded.license) == ("whole", True, "apache-2.0"), folder
        assert loaded.name not in CATALOGUE, "its weights are its own"
        assert str(tmp_path) not in repr(rloo_kit.plan(folder)), "places of this machine are private"
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "vocab_size": 152_000}))
    assert rloo_kit.plan(base).model.checkpoint.vocabulary == 152_000, "its user has added tokens"


def test_a_policys_own_base_is_never_replaced(on_merged, tmp_path):
    policy, base = on_merged
    (tmp_path / "link").symlink_to(base)
    before = contents(tmp_path / "disk")
    for place in ("disk/base", "disk/../disk/base", "link", "disk"):
        for save in (policy.save, policy.save_merged):
            with pytest.raises(ConfigError, match="would be replaced"):
                save(tmp_path / place)
    assert contents(tmp_path / "disk") == before


def test_a_card_that_the_user_wrote_stays(policy, tmp_path):
    adapter = policy.save(tmp_path / "adapter")
    (adapter / "README.md").write_text("my own words")
    assert (policy.save(adapter) / "README.md").read_text() == "my own words"


def test_the_home_a_link_and_a_relative_path_are_where_they_say(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert policy.save("~/adapter") == tmp_path / "home" / "adapter"
    (tmp_path / "link").symlink_to(tmp_path / "large disk")
    policy.save("link")
    policy.save("link")
    assert (tmp_path / "link").is_symlink()
    assert policy.save("out/adapter") == Path("out/adapter")
    for folder in ("home/adapter", "large disk", "out/adapter"):
        assert (tmp_path / folder / WEIGHTS).is_file()
    with pytest.raises(ConfigError, match="the working directory of this process"):
        policy.save("")


def test_a_full_disk_leaves_the_adapter_before_it(policy, adapter, small_files):
    before = contents(adapter.parent)
    small_files(3000)
    with pytest.raises(RunFolderError, match=r"what was there before is unchanged[\s\S]*still in memory"):
        policy.save(adapter)
    with pytest.raises(RunFolderError, match=r"(?!.*as it was)cannot be written"):
        policy.save(adapter.parent / "new")
    assert contents(adapter.parent) == before


@pytest.mark.parametrize("move", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_save_interrupted_while_it_moves_leaves_the_adapter_before_it(move, error, policy, adapter, monkeypatch):
    before, moves, really = contents(adapter.parent), iter(range(1, 9)), Path.replace

    def replace(self: Path, target: Path) -> Path:
        if next(moves) == move:
            raise error
        return really(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises((error, RunFolderError)):
        policy.save(adapter)
    assert contents(adapter.parent) == before


def test_an_adapter_over_a_folder_names_it_whole(on_merged, tmp_path, monkeypatch):
    """A relative path to the base would be looked up from wherever the adapter is loaded."""
    _, base = on_merged
    monkeypatch.chdir(base.parent)
    folder = rloo_kit.load_policy("base", load_in_4bit=False).save(tmp_path / "adapter")
    monkeypatch.chdir(tmp_path)
    assert json.loads((folder / ADAPTER_CONFIG).read_text())["base_model_name_or_path"] == str(base)
    assert str(tmp_path) not in (folder / "README.md").read_text(), "places of this machine are private"
    again = rloo_kit.load_policy("adapter", load_in_4bit=False)
    assert again.base == str(base)
    assert again.save(folder) == folder, "over its own"


def _configured(**changes: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        file = folder / ADAPTER_CONFIG
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def _weighed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], object]:
    return lambda folder: save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (lambda f: os.truncate(f / WEIGHTS, 5000), "cannot be read[\\s\\S]*git lfs pull"),
    "gone": (lambda f: (f / WEIGHTS).unlink(), "No such file"),
    "of older PEFT": (
        lambda f: (f / WEIGHTS).rename(f / "adapter_model.bin"),
        r"save_file\(torch\.load\('adapter_model",
    ),
    "NaN": (_weighed(lambda w: {n: t * float("nan") for n, t in w.items()}), "not finite"),
    "half": (_weighed(lambda w: dict(list(w.items())[:21])), "21 are missing, and 0 would be dropped"),
    "fewer layers": (_configured(target_modules=["q_proj"]), "0 are missing, and 36 would be dropped"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_adapter_that_is_damaged_or_would_be_loaded_in_part_is_refused(name, adapter):
    change, says = DAMAGED[name]
    change(adapter)
    with pytest.raises((PolicyNotFoundError, NonFiniteError), match=says) as raised:
        rloo_kit.load_policy(adapter)
    assert str(adapter) in str(raised.value)
