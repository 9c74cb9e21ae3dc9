"""A run that is killed at random moments, its checkpoints damaged in between, is the run that was left alone.

killed_runs.py does it; benchmarks/results/faults.md has what a longer form found.
"""

import json
from typing import Any

import pytest

from tests.conftest import ROOT

KILLED = """
import json
from tests.train import killed_runs
print(json.dumps(killed_runs.tried(kills=3, terms=1, seed=3)))
"""


@pytest.fixture(scope="module")
def tried(script: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(script(KILLED, PYTHONPATH=str(ROOT)).stdout.splitlines()[-1])
    return found


def test_a_run_that_was_killed_and_damaged_comes_out_the_same_to_the_bit(tried: dict[str, Any]) -> None:
    stops = tried["kills"]
    assert [stop["status"] for stop in stops] == [137] * 3
    assert any(stop["damage"] != "none" for stop in stops)
    assert (tried["failed"], tried["different"]) == ([], [])


def test_sigterm_ends_the_process_with_143(tried: dict[str, Any]) -> None:
    assert [stop["status"] for stop in tried["terms"]] == [143]
