"""``rloo-kit launch`` composes a command, prints it, and runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rloo_kit.cli import launch
from rloo_kit.cli.app import app
from rloo_kit.cli.launch import ENGINES, command, deepspeed_file
from rloo_kit.session.multi_process import CONFIGS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def ran(monkeypatch: Any) -> list[launch.Command]:
    """Commands that were run, none of which is started."""
    found: list[launch.Command] = []
    monkeypatch.setattr(launch.Command, "run", lambda self: found.append(self) or 7)
    return found


def said(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["launch", *arguments])


def test_it_prints_the_command_and_gives_its_status(ran: list[launch.Command]) -> None:
    words = f"run.yaml --resume --processes 4 --set trainer.seed=1 --configs {ROOT / CONFIGS}"
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


REFUSED = {
    "--configs nowhere": "name its folder",
    f"--engine zero3 --configs {ROOT / CONFIGS}": "rloo-kit[deepspeed]",
    "--engine zero4": "there is no such engine",
    "--engine fsdp2 --cpu": "FSDP2 needs GPUs",
}


@pytest.mark.parametrize("options", REFUSED)
def test_what_cannot_run_is_said_before_it_is_started(
    options: str, ran: list[launch.Command], monkeypatch: Any
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = said("run.yaml", "--processes", "2", *options.split())
    assert (done.exit_code, len(done.stderr.strip().splitlines()), ran) == (2, 3, [])
    assert REFUSED[options] in done.stderr


@pytest.mark.parametrize("engine", ENGINES)
def test_accelerate_takes_every_engines_configuration_and_the_command(engine: str) -> None:
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    config = ClusterConfig.from_yaml_file(yaml_file=str(ROOT / CONFIGS / f"{engine}.yaml"))
    assert config.distributed_type == {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}.get(engine, "DEEPSPEED")
    if own := deepspeed_file(engine):
        assert config.deepspeed_config["deepspeed_config_file"] == own
        assert engine == f"zero{json.loads((ROOT / own).read_text())['zero_optimization']['stage']}"
    made = command(engine, 4, ["-m", "rloo_kit", "train", "run.yaml"])
    given = launch_command_parser().parse_args(made.arguments)
    assert (given.num_processes, given.training_script) == (4, "rloo_kit")
    assert given.training_script_args == ["train", "run.yaml"]
