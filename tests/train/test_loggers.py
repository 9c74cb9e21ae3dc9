"""``report_to``: what reaches trackio, which needs no account; tests/conftest.py sets the folder it writes to."""

import os
from pathlib import Path

import pytest

from rloo_kit import redact
from tests.conftest import random_rewards

FIGURES = {"reward", "kl", "entropy", "zero_variance_groups", "grad_norm", "rewards/random_rewards/mean"}
TOKEN = "hf_" + "a" * 24


def test_trackio_gets_the_kits_figures_and_no_secret(make_trainer, monkeypatch):
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    monkeypatch.setitem(redact._values, "SECRET", "of-a-env-file")
    settings = {"report_to": "trackio", "project": "tests", "run_name": "a name", "max_steps": 2, "beta": 0.05}
    settings |= {"hub_token": TOKEN, "vllm_server_base_url": "http://of-a-env-file:1"}
    trainer = make_trainer(reward_funcs=random_rewards, **settings)
    trainer.train()
    (run,) = trackio.Api().runs("tests")
    assert run.config["advantage_estimator"] == "rloo"
    logs = SQLiteStorage.get_logs("tests", "a name")
    steps = [log for log in logs if "train/reward" in log]
    assert [log["train/global_step"] for log in steps] == [1, 2]
    assert all({f"train/{name}" for name in FIGURES} <= log.keys() for log in steps)
    files = [path for path in Path(os.environ["TRACKIO_DIR"]).rglob("*") if path.is_file()]
    written = b"".join(map(Path.read_bytes, files))
    assert b"a name" in written
    assert TOKEN.encode() not in written
    assert b"of-a-env-file" not in written
