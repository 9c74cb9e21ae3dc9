"""``report_to``: what arrives at a logger, and what is said where it is not installed.

trackio is local and needs no account, so a real one is asked.  The folder it writes to is set in tests/conftest.py,
since it is read once, at import.
"""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rloo_kit
from rloo_kit import redact
from tests.conftest import random_rewards

Made = Callable[..., rloo_kit.RLOOTrainer]

FIGURES = {
    "reward",
    "kl",
    "entropy",
    "dead_groups",
    "grad_norm",
    "rewards/random_rewards/mean",
    "clip_ratio/low_mean",
}
TOKEN = "hf_" + "a" * 24


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Addresses that the process tried to reach; none is reached."""
    tried: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        tried.append(address)
        raise OSError("offline")

    monkeypatch.setattr(socket.socket, "connect", connect)
    return tried


def train(make_trainer: Made, **settings: Any) -> None:
    given = {"run_name": "a name", "hub_token": TOKEN, "max_steps": 2, "beta": 0.05, **settings}
    make_trainer(reward_funcs=random_rewards, log_completions=True, **given).train()


def test_trackio_gets_the_metrics_the_completions_and_the_kits_figures_offline(
    make_trainer: Made, offline: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setitem(redact._values, "SECRET", "of-a-env-file")
    train(make_trainer, report_to="trackio", project="tests", vllm_server_base_url="http://of-a-env-file:1")
    (run,) = trackio.Api().runs("tests")
    assert run.name == "a name"
    assert run.config["advantage_estimator"] == "rloo"
    logs = SQLiteStorage.get_logs("tests", run.name)
    steps = [log for log in logs if "train/reward" in log]
    assert [log["train/global_step"] for log in steps] == [1, 2]
    assert all({f"train/{name}" for name in FIGURES} <= log.keys() for log in steps)
    tables = [log["completions"]["_value"] for log in logs if "completions" in log]
    assert {"prompt", "completion", "random_rewards", "advantage"} <= tables[0][0].keys()
    assert len(tables[0]) == 4
    written = b"".join(
        path.read_bytes() for path in Path(os.environ["TRACKIO_DIR"]).rglob("*") if path.is_file()
    )
    assert b"a name" in written
    assert TOKEN.encode() not in written
    assert b"of-a-env-file" not in written
    assert offline == []
