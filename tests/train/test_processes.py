"""Two processes make the update that one makes with the same global batch."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.conftest import ROOT

RUN = """
import sys
from pathlib import Path
import rloo_kit
from tests.scale import engines

def batch_mean(rewards):
    return rewards - rewards.nanmean()

SETTINGS = {
    **engines.SETTINGS,
    "own": {"advantage_estimator": batch_mean, "beta": 0.0},
    "token-mean": {"beta": 0.05, "kl_placement": "loss", "loss_aggregation": "token-mean"},
    "seq-mean-token-mean": {"beta": 0.05, "kl_estimator": "k3", "loss_aggregation": "seq-mean-token-mean"},
    "seq-mean-token-sum-norm": {
        "beta": 0.05, "kl_placement": "loss", "kl_estimator": "k3", "loss_aggregation": "seq-mean-token-sum-norm",
        "skip_zero_variance_groups": True, "mask_truncated_completions": True},
}
engines.METRICS += ("entropy",)
policy = rloo_kit.load_policy("tiny", seed=0)
for name, settings in SETTINGS.items():
    for processes in (1, 2):
        place = Path(sys.argv[1], f"{name} {processes}")
        engines.forked(policy, place, processes, "ddp", {"max_steps": 1, "learning_rate": 0.0, **settings})
"""
NAMES = ["rloo", "grpo", "dr_grpo", "reinforce", "own", "live rows only", "live groups only", "two passes"]
NAMES += ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


@pytest.fixture(scope="module")
def folder(script: Any, tmp_path_factory: Any) -> Path:
    made: Path = tmp_path_factory.mktemp("processes")
    script(RUN, str(made), PYTHONPATH=str(ROOT), ACCELERATE_USE_CPU="true")
    return made


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_find_the_gradient_of_one(folder, name):
    runs = [folder / f"{name} {processes}" for processes in (1, 2)]
    alone, shared = (torch.load(run / "gradient.pt", weights_only=True) for run in runs)
    assert alone.keys() == shared.keys()
    one, two = (torch.cat([gradient.flatten() for gradient in run.values()]) for run in (alone, shared))
    assert one.norm() > 0
    assert (one - two).norm() <= 1e-5 * one.norm()
    (figures,), of_two = (json.loads((run / "figures.json").read_text()) for run in runs)
    assert of_two == [pytest.approx(figures, rel=1e-4, abs=1e-6)]
    assert 0 < figures["zero_variance_groups"] < 1
    assert {"reward", "entropy"} <= figures.keys()
