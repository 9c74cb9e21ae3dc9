"""Rewards leave torch's random numbers to the trainer; what else they change is in bad_inputs/functions.py."""

import warnings

import pytest
import torch

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
