"""Rewards leave torch's random numbers to the trainer; what else they change is in bad_inputs/functions.py."""

import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from rloo_kit.errors import RunFolderError
from rloo_kit.train.undisturbed import undisturbed

MODEL = torch.nn.Linear(1, 1)


@pytest.mark.parametrize("seed", [7, 42])
def test_a_reward_that_seeds_is_found_out_also_with_the_runs_own_seed(seed: int) -> None:
    """TRL seeds with ``args.seed``, 42 by default, and a reward that seeds often does so with that number."""
    torch.manual_seed(42)
    expected = torch.rand(2)
    torch.manual_seed(42)
    drawn = []
    for _ in range(2):
        drawn.append(torch.rand(1))
        said = pytest.warns(UserWarning, match="'seeds' seeded torch, so that every step")
        with said, undisturbed(MODEL, ["seeds"], set()):
            torch.manual_seed(seed)
    assert torch.cat(drawn).equal(expected)


def test_a_reward_that_draws_changes_nothing_and_draws_anew_at_each_step() -> None:
    def run(seed: int) -> tuple[list[float], list[float]]:
        torch.manual_seed(seed)
        mine, theirs = [], []
        for _ in range(3):
            mine.append(torch.rand(1).item())
            with undisturbed(MODEL, ["draws"], set()):
                theirs.append(torch.rand(1).item())
        return mine, theirs

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (mine, theirs), again, other = run(0), run(0), run(1)
    torch.manual_seed(0)
    assert mine == [torch.rand(1).item() for _ in range(3)], "as if no reward had drawn"
    assert len({*mine, *theirs}) == 6
    assert again == (mine, theirs), "a run can be repeated"
    assert set(other[1]).isdisjoint(theirs)


def test_a_reward_that_seeds_in_a_fork_is_left_alone() -> None:
    with warnings.catch_warnings(), undisturbed(MODEL, ["forks"], set()), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("error")
        torch.manual_seed(42)


def with_two_adapters() -> Any:
    """A model that computes with its adapter "default"; the other one is a judge's."""
    lora = LoraConfig(target_modules=["0"], r=2, init_lora_weights=False)
    model = get_peft_model(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()), lora)
    model.add_adapter("judge", lora)
    model.base_model.model[1].eval()  # one part of it is never trained with dropout
    return model


def leave_for_a_deleted_folder() -> None:
    """As a sandbox that cleans up behind itself."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda model: model.eval(), "switched the model to evaluation"),
        (lambda model: model.base_model.model[0].eval(), "switched the model to evaluation"),
        (lambda model: model.train(), "switched the model to training"),
        (lambda model: model.base_model.disable_adapter_layers(), "adapters"),
        (lambda model: model.set_adapter("judge"), "adapters"),
        (lambda model: model.requires_grad_(False), "which of the model's parameters are trained"),
        (lambda model: torch.set_grad_enabled(False), "is_grad_enabled"),
        (lambda model: torch.set_default_dtype(torch.float64), "get_default_dtype"),
        (lambda model: torch.set_default_device("meta"), "get_default_device"),
        (lambda model: torch.set_num_threads(torch.get_num_threads() + 1), "get_num_threads"),
        (lambda model: os.chdir("/"), "the process's folder to /"),
        (lambda model: leave_for_a_deleted_folder(), "folder to one that was deleted"),
    ],
)
def test_what_a_reward_switches_is_switched_back_and_said_once(
    act: Callable[[Any], object], said: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    model, told = with_two_adapters(), set[str]()
    readers = (
        torch.is_grad_enabled,
        torch.get_default_dtype,
        torch.get_default_device,
        torch.get_num_threads,
    )

    def state() -> list[object]:
        modules = [
            (m.training, getattr(m, "active_adapters", ""), getattr(m, "disable_adapters", ""))
            for m in model.modules()
        ]
        return [
            *modules,
            *(p.requires_grad for p in model.parameters()),
            *(read() for read in readers),
            Path.cwd(),
        ]

    before, answer = state(), model(torch.ones(4))
    with pytest.warns(UserWarning, match=said), undisturbed(model, ["judge"], told):
        act(model)
    assert state() == before
    assert model(torch.ones(4)).equal(answer)
    with warnings.catch_warnings(), undisturbed(model, ["judge"], told):
        warnings.simplefilter("error")
        act(model)
    assert state() == before


def test_a_judge_that_switches_the_adapter_off_for_a_moment_is_left_alone() -> None:
    model = with_two_adapters()
    with warnings.catch_warnings(), undisturbed(model, ["judge"], set()), model.disable_adapter():
        warnings.simplefilter("error")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_working_directory_that_was_deleted_is_named(when: str, tmp_path: Path, monkeypatch: Any) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    if when == "before":
        folder.rmdir()
    with pytest.raises(RunFolderError, match="was deleted"), undisturbed(MODEL, ["cleans"], set()):
        folder.rmdir()
