"""``rloo-kit launch`` composes a command, prints it, and runs it."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rloo_kit.cli.app import app
from rloo_kit.session import launch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ran(monkeypatch: Any) -> list[launch.Command]:
    """Commands that were run, none of which is started."""
    found: list[launch.Command] = []

    def run(self: launch.Command) -> int:
        found.append(self)
        return 7

    monkeypatch.setattr(launch.Command, "run", run)
    return found


def said(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["launch", *arguments])


def test_it_prints_the_command_and_gives_its_status(ran: list[launch.Command]) -> None:
    words = f"run.yaml --resume --processes 4 --set trainer.seed=1 --configs {ROOT / launch.CONFIGS}"
    done = said(*words.split())
    assert done.exit_code == 7
    assert str(ran[0]) == done.output.strip()
    assert done.output.startswith("accelerate launch --config_file")
    assert done.output.strip().endswith("-m rloo_kit train run.yaml --resume --set trainer.seed=1")


def test_a_dry_run_starts_nothing(ran: list[launch.Command]) -> None:
    done = said("run.yaml", "--processes", "2", "--engine", "zero2", "--cpu", "--dry-run")
    assert (done.exit_code, ran) == (0, [])
    assert done.output.strip() == (
        "torchrun --nproc_per_node 2 -m rloo_kit train run.yaml --set trainer.use_cpu=true "
        "--set trainer.deepspeed=configs/accelerate/deepspeed_zero2.json"
    )


def test_what_cannot_run_is_said_before_it_is_started(ran: list[launch.Command], monkeypatch: Any) -> None:
    done = said("run.yaml", "--processes", "2", "--configs", "nowhere")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 3)
    assert "name its folder" in done.stderr
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = said("run.yaml", "--processes", "2", "--engine", "zero3", "--configs", str(ROOT / launch.CONFIGS))
    assert done.exit_code == 2
    assert "rloo-kit[deepspeed]" in done.stderr
    assert ran == []
