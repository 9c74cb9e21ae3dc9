"""The commands that start a run in several processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from rloo_kit.errors import ConfigError
from rloo_kit.session.engines import CONFIGS, ENGINES, Machines, command, deepspeed_file

ROOT = Path(__file__).parents[2]
TWO_MACHINES = Machines(2, 1, "node0", 29400)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {"engine": "zero3", "processes": 4},
            "accelerate launch --config_file configs/accelerate/zero3.yaml --num_processes 4 "
            "-m rloo_kit train run.yaml",
        ),
        (
            {"engine": "fsdp2", "processes": 8, "machines": TWO_MACHINES},
            "accelerate launch --config_file configs/accelerate/fsdp2.yaml --num_processes 8 --num_machines 2 "
            "--machine_rank 1 --main_process_ip node0 --main_process_port 29400 -m rloo_kit train run.yaml",
        ),
        (
            {"engine": "ddp", "processes": 2, "on_cpu": True},
            "ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m rloo_kit train run.yaml",
        ),
        (
            {"engine": "zero2", "processes": 2, "on_cpu": True},
            "torchrun --nproc_per_node 2 -m rloo_kit train run.yaml",
        ),
        (
            {"engine": "ddp", "processes": 4, "on_cpu": True, "machines": TWO_MACHINES},
            "ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 --nnodes 2 --node_rank 1 --master_addr node0 "
            "--master_port 29400 -m rloo_kit train run.yaml",
        ),
    ],
)
def test_the_command_of_an_engine(given: dict[str, Any], expected: str) -> None:
    assert str(command(target=["-m", "rloo_kit", "train", "run.yaml"], **given)) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"engine": "zero4", "processes": 2}, "one of ddp, zero2, zero3, fsdp2"),
        ({"engine": "fsdp2", "processes": 2, "on_cpu": True}, "FSDP2 needs GPUs"),
        ({"engine": "ddp", "processes": 3, "machines": TWO_MACHINES}, "give 2 processes"),
        ({"engine": "ddp", "processes": 0}, "give 1 processes"),
        ({"engine": "ddp", "processes": 2, "machines": Machines(2, 2)}, "rank from 0 to 1"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        command(target=["train.py"], **given)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_has_a_configuration_that_accelerate_reads(engine: str) -> None:
    from accelerate.commands.config.config_args import ClusterConfig

    file = ROOT / CONFIGS / f"{engine}.yaml"
    config = ClusterConfig.from_yaml_file(yaml_file=str(file))
    kind = {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}.get(engine, "DEEPSPEED")
    assert config.distributed_type == kind
    if own := deepspeed_file(engine):
        assert config.deepspeed_config["deepspeed_config_file"] == own
        stage = json.loads((ROOT / own).read_text())["zero_optimization"]["stage"]
        assert engine == f"zero{stage}"


def test_accelerate_takes_the_command_as_it_is_written() -> None:
    """Its own parser, with our file: a setting that it does not know is an error there."""
    from accelerate.commands.launch import launch_command_parser

    for engine in ENGINES:
        made = command(engine, 4, ["-m", "rloo_kit", "train", "run.yaml"], machines=TWO_MACHINES)
        given = launch_command_parser().parse_args(list(made.arguments))
        assert (given.num_processes, given.num_machines, given.machine_rank) == (4, 2, 1)
        assert (given.module, given.training_script) == (True, "rloo_kit")
        assert given.training_script_args == ["train", "run.yaml"]


def test_the_program_is_this_interpreters(tmp_path: Path) -> None:
    import importlib.util
    import sys

    for on_cpu in (True, False):
        argv = command("ddp", 2, ["train.py"], on_cpu=on_cpu).argv
        assert argv[:2] == [sys.executable, "-m"]
        assert importlib.util.find_spec(argv[2]) is not None
