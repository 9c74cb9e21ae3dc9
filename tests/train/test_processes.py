"""Two processes make the update that one makes with the same global batch: by its figures, and the weights after it."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.conftest import ROOT
from tests.scale.engines import SETTINGS

RUN = """
import sys
from pathlib import Path
import rloo_kit
from tests.scale import engines
from tests.train.test_processes import CASES

def batch_mean(rewards):
    return rewards - rewards.nanmean()

engines.METRICS += ("entropy",)
policy = rloo_kit.load_policy("tiny", seed=0)
for name, settings in (CASES | {"own": {"advantage_estimator": batch_mean, "beta": 0.0}}).items():
    for processes in (1, 2):
        folder = Path(sys.argv[1], name, str(processes))
        engines.forked(policy, folder, processes, "ddp", {"max_steps": 1, **settings})
"""
CASES: dict[str, dict[str, Any]] = SETTINGS | {
    "token-mean": {"beta": 0.05, "kl_placement": "loss", "loss_aggregation": "token-mean"},
    "seq-mean-token-mean": {"beta": 0.05, "kl_estimator": "k3", "loss_aggregation": "seq-mean-token-mean"},
    "seq-mean-token-sum-norm": {
        **{"beta": 0.05, "kl_placement": "loss", "kl_estimator": "k3", "skip_zero_variance_groups": True},
        **{"loss_aggregation": "seq-mean-token-sum-norm", "mask_truncated_completions": True},
    },
}


@pytest.fixture(scope="module")
def folder(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("processes")
    script(RUN, str(made), PYTHONPATH=str(ROOT), ACCELERATE_USE_CPU="true")
    return made


@pytest.mark.parametrize("name", [*CASES, "own"])
def test_two_processes_take_the_step_of_one(folder: Path, name: str) -> None:
    runs = [folder / name / processes for processes in "12"]
    (alone,), (shared,) = (json.loads((run / "figures.json").read_text()) for run in runs)
    assert alone.keys() >= {"reward", "entropy", "grad_norm", "zero_variance_groups"}
    assert shared == pytest.approx(alone, rel=1e-4, abs=1e-6)
    assert 0 < alone["zero_variance_groups"] < 1
    one, two = (load_file(next(run.glob("adapter of ddp ?/adapter_model.safetensors"))) for run in runs)
    for weight in one:
        assert_close(two[weight], one[weight], rtol=1e-4, atol=1e-6)
