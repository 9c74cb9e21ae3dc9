"""Run the command line in this process, on the shared tiny policy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer.testing

import rloo_kit
from rloo_kit.cli import run
from rloo_kit.cli.app import app

CONFIG = """\
policy:
  name: tiny
task:
  addition: {n_train: 16, n_held_out: 4}
rewards:
  - task.correct
  - mine.py:in_time
trainer:
  output_dir: run
  max_steps: 1
  num_generations: 2
  per_device_train_batch_size: 4
  gradient_accumulation_steps: 1
  max_completion_length: 8
  learning_rate: 1e-3
  reward_weights: [1, 0.5]
  beta: 0
  save_strategy: no
"""

MINE = """\
def in_time(completion_ids, **kwargs):
    return [float(len(ids) < 8) + len(set(ids)) / 100 for ids in completion_ids]
"""

Result = typer.testing.Result
Command = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a configuration and a reward in a file."""
    (tmp_path / "mine.yaml").write_text(CONFIG)
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@pytest.fixture
def command() -> Command:
    """``command("plan", "mine.yaml")``: what ``rloo-kit plan mine.yaml`` prints; 0 or ``status`` is its exit status."""

    def call(*arguments: str, status: int | None = 0) -> Result:
        result = typer.testing.CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert status in (None, result.exit_code), result.output + result.stderr
        return result

    return call


@pytest.fixture
def shared(policy: rloo_kit.Policy, monkeypatch: pytest.MonkeyPatch) -> rloo_kit.Policy:
    """The tiny policy as loaded, which the command line uses instead of loading one."""
    monkeypatch.setattr(run, "load_policy", lambda **given: policy)
    return policy
