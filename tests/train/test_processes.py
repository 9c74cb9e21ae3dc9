"""Two processes make the same update as one process with the same global batch.

The first settings stand for the others, which run only among the long tests.
"""

import json

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
for name in sys.argv[2:]:
    for processes in (1, 2):
        place = Path(sys.argv[1], f"{name} {processes}")
        engines.forked(policy, place, processes, "ddp", {"max_steps": 1, "learning_rate": 0.0, **SETTINGS[name]})
"""
FIRST = ["live rows only", "seq-mean-token-sum-norm"]
OTHERS = ["rloo", "grpo", "dr_grpo", "reinforce", "own", "live groups only", "token-mean"]
OTHERS += ["seq-mean-token-mean"]


@pytest.mark.parametrize("names", [FIRST, pytest.param(OTHERS, marks=pytest.mark.long)], ids=["first", "others"])
def test_two_processes_find_the_gradient_of_one(names, script, tmp_path):
    script(RUN, str(tmp_path), *names, PYTHONPATH=str(ROOT), ACCELERATE_USE_CPU="true")
    for name in names:
        runs = [tmp_path / f"{name} {processes}" for processes in (1, 2)]
        alone, shared = (torch.load(run / "gradient.pt", weights_only=True) for run in runs)
        assert alone.keys() == shared.keys(), name
        one, two = (torch.cat([gradient.flatten() for gradient in run.values()]) for run in (alone, shared))
        assert one.norm() > 0, name
        assert (one - two).norm() <= 1e-5 * one.norm(), name
        (figures,), of_two = (json.loads((run / "figures.json").read_text()) for run in runs)
        assert of_two == [pytest.approx(figures, rel=1e-4, abs=1e-6)], name
        assert 0 < figures["zero_variance_groups"] < 1, name
        assert {"reward", "entropy"} <= figures.keys(), name
