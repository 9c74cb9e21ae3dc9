"""What a launch asked for, what accelerate set up, and what only the main process prints."""

import json
import warnings
from typing import Any

import pytest

from rloo_kit.errors import ConfigError
from rloo_kit.session import distributed, output
from rloo_kit.session.distributed import downgrade
from tests.conftest import ROOT

LAUNCH = {distributed.BY_LAUNCH: "False"}
CPU, DEEPSPEED = {distributed.CPU: "True"}, {"ACCELERATE_USE_DEEPSPEED": "true"}
TWO = {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}

# variables, settings; accelerate's number of processes and distributed type
Launch = tuple[dict[str, str], dict[str, Any], int, str]
GIVEN: dict[str, Launch] = {
    "a process alone": ({}, {}, 1, "NO"),
    "accelerate launch, one process": (LAUNCH | CPU, {}, 1, "NO"),
    "torchrun on CPUs": (TWO | CPU, {}, 2, "MULTI_CPU"),
    "DeepSpeed by the launcher": (TWO | LAUNCH | DEEPSPEED, {}, 2, "DEEPSPEED"),
    "DeepSpeed by the configuration": (TWO, {"deepspeed": "zero2.json"}, 2, "DEEPSPEED"),
    "FSDP by the launcher": (TWO | LAUNCH | {"ACCELERATE_USE_FSDP": "true"}, {}, 2, "FSDP"),
}
ON_CPUS = "ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2"
DOWNGRADED: dict[str, tuple[Launch, tuple[str, ...]]] = {
    "accelerate launch --cpu --num_processes 2 is one process": (
        (LAUNCH | CPU | {"MASTER_ADDR": "127.0.0.1"}, {}, 1, "NO"),
        ("several processes with DDP", "accelerate started 1 with", ON_CPUS, "unset MASTER_ADDR"),
    ),
    "torchrun where accelerate sees no GPU, and was not told of the CPU": (
        (TWO, {}, 1, "NO"),
        ("asked for 2 processes", "accelerate started 1 with", "WORLD_SIZE=2", ON_CPUS),
    ),
    "--use_deepspeed with ACCELERATE_USE_CPU is DDP": (
        (TWO | LAUNCH | CPU | DEEPSPEED, {}, 2, "MULTI_CPU"),
        ("2 processes with DEEPSPEED", "accelerate started 2 with DDP", "without DeepSpeed and FSDP", ON_CPUS),
    ),
    "fsdp=True without a launcher": (
        ({}, {"fsdp": True}, 1, "NO"),
        ("1 process with FSDP, and accelerate started 1 with DDP", "RLOOConfig(fsdp=...)"),
    ),
}


def test_what_was_asked_for_and_given_passes():
    for case, (environment, settings, count, kind) in GIVEN.items():
        assert downgrade(count, kind, on_cpu=True, environment=environment, **settings) is None, case


@pytest.mark.parametrize("case", DOWNGRADED)
def test_what_was_not_given_is_said_in_three_parts(case):
    (environment, settings, count, kind), words = DOWNGRADED[case]
    error = downgrade(count, kind, on_cpu=True, environment=environment, **settings)
    assert len(str(error).splitlines()) == 3
    assert [word for word in words if word not in str(error)] == []
    on_gpu = downgrade(count, kind, on_cpu=False, environment=environment, **settings)
    assert f"accelerate launch --config_file {distributed.CONFIGS}/" in str(on_gpu)


def test_only_the_main_process_speaks(monkeypatch, capsys):
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for environment, speaks in (({}, True), (TWO, True), (TWO | {"RANK": "1"}, False), ({"RANK": "1"}, True)):
        with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for name, value in environment.items():
                patch.setenv(name, value)
            output.say("a screen")
            output.warn("a doubt")
        assert (capsys.readouterr().out == "a screen\n") is speaks
        assert [str(one.message) for one in caught] == ["a doubt"] * speaks
        assert all(one.filename == __file__ for one in caught)


def test_a_trainer_that_was_launched_for_more_stops_before_it_samples(make_trainer, monkeypatch):
    monkeypatch.setenv(distributed.BY_LAUNCH, "False")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(ConfigError, match="the launch asked for several processes"):
        make_trainer()


@pytest.mark.parametrize("number", ["2", "1"])
def test_what_accelerate_launch_leaves_in_one_process(number, monkeypatch):
    """prepare_simple_launcher_cmd_env sets MASTER_ADDR if it drops processes, and no other variable shows it."""
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.launch import prepare_simple_launcher_cmd_env

    for name in ("MASTER_ADDR", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    given = launch_command_parser().parse_args(["--cpu", "--num_processes", number, "train.py"])
    given.use_cpu, given.num_machines, given.mixed_precision, given.dynamo_backend = True, 1, "no", "no"
    _, environment = prepare_simple_launcher_cmd_env(given)
    assert (downgrade(1, "NO", on_cpu=True, environment=environment) is not None) is (number == "2")


@pytest.mark.parametrize("engine", ["ddp", "zero2", "zero3", "fsdp2"])
def test_accelerate_takes_the_configuration_of_every_engine(engine):
    from accelerate.commands.config.config_args import ClusterConfig

    config = ClusterConfig.from_yaml_file(yaml_file=str(ROOT / distributed.CONFIGS / f"{engine}.yaml"))
    assert config.distributed_type == {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}.get(engine, "DEEPSPEED")
    if engine.startswith("zero"):
        own = ROOT / config.deepspeed_config["deepspeed_config_file"]
        assert engine == f"zero{json.loads(own.read_text())['zero_optimization']['stage']}"
