"""A run that is killed at random moments, its checkpoints damaged in between, is the run that was left alone.

The longer form is benchmarks/faults.py, and its results are in benchmarks/results/faults.md.
"""

import json
from typing import Any

import pytest

from tests.conftest import ROOT

FAULTS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import faults
print(json.dumps(faults.tried(kills=3, terms=1, seed=3)))
"""


@pytest.fixture(scope="module")
def tried(script: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(script(FAULTS, str(ROOT / "benchmarks")).stdout.splitlines()[-1])
    return found


def test_a_run_that_was_killed_and_damaged_comes_out_the_same_to_the_bit(tried: dict[str, Any]) -> None:
    stops = tried["kills"]
    assert [stop["status"] for stop in stops] == [137] * 3
    assert any(stop["damage"] != "none" for stop in stops)
    assert (tried["failed"], tried["different"]) == ([], [])


def test_sigterm_ends_the_process_with_143(tried: dict[str, Any]) -> None:
    assert [stop["status"] for stop in tried["terms"]] == [143]
