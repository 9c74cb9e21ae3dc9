"""A vLLM server of 0.31 in a stand-in: TRL's client, the kit's trainer, weights over gloo; no vLLM, and no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CLEAN_ENVIRONMENT
from tests.scale.conftest import ROOT, free_port

pytestmark = pytest.mark.long

STANDIN = Path(__file__).with_name("standin")
OFF = -0.25  # the server's log-probabilities are lower by so much


@pytest.fixture(scope="module")
def told(tmp_path_factory: Any) -> dict[str, Any]:
    """What the client wrote: three steps that are rewarded, and a fourth that is not finite."""
    folder, port, group_port = tmp_path_factory.mktemp("served"), str(free_port()), str(free_port())
    paths = [str(STANDIN), str(ROOT), CLEAN_ENVIRONMENT.get("PYTHONPATH", "")]
    env = {**CLEAN_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    how: Any = {
        "env": env,
        "cwd": folder,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    server = subprocess.Popen([sys.executable, str(STANDIN / "server.py"), port, str(OFF)], **how)
    try:
        client = [sys.executable, str(STANDIN / "client.py"), str(folder), port, group_port]
        done = subprocess.run(client, timeout=300, check=False, **how)
        assert done.returncode == 0, done.stdout[-4000:]
    finally:
        server.kill()
        server.communicate()
    found: dict[str, Any] = json.loads((folder / "told.json").read_text())
    return found


def test_every_tensor_is_the_policys_after_each_sync(told: dict[str, Any]) -> None:
    assert len(told["syncs"]) >= 4
    for sync in told["syncs"]:
        assert sync["tensors"] > sync["merged"] > 0
        assert sync["different"] == []


def test_the_kits_guards_are_in_force(told: dict[str, Any]) -> None:
    assert len(told["steps"]) == 3
    assert told["stopped"].startswith("RewardValueError")
