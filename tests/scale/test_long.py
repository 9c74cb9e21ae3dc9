"""What `make scale` adds: processes that die, runs resumed with another number of them, two machines, DeepSpeed."""

import importlib.util
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.conftest import ROOT, python
from tests.scale.conftest import finish, problems, seen, start
from tests.scale.engines import free_port

pytestmark = pytest.mark.long

STEPS = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="the extra deepspeed is not installed"
)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The problems of each step of an uninterrupted run in one process with the same global batch."""
    folder = tmp_path_factory.mktemp("alone")
    finish(start(folder, 1, **STEPS, per_device_train_batch_size=4, use_cpu=True))
    return problems(seen(folder, 1))


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """Two processes; the second raises in its third step."""
    folder = tmp_path_factory.mktemp("broken")
    _, err = finish(start(folder, 2, **STEPS, dies={"rank": 1, "step": 3}), fails=True)
    return folder, err


def test_an_error_ends_the_run_is_shown_and_torchrun_names_its_rank(broken):
    folder, err = broken
    assert "ZeroDivisionError: the reward broke" in err
    assert "rank      : 1" in err.partition("Root Cause")[2]
    assert (folder / "run/checkpoint-2/rloo_kit_manifest.json").is_file()


def test_a_run_goes_on_in_one_process_with_the_prompts_that_it_would_have_taken(broken, alone):
    folder, _ = broken
    asked = {**STEPS, "per_device_train_batch_size": 4, "use_cpu": True, "resume": True}
    out, _ = finish(start(folder, 1, **asked))
    assert "resuming from" in out
    assert "checkpoint-2" in out
    assert problems(seen(folder, 1)) == {step: texts for step, texts in alone.items() if step > 2}


def test_two_machines_meet(alone, tmp_path):
    """Two launchers on this machine, each with one process, as on two machines that share a disk."""
    meet = f"--nnodes 2 --master_addr 127.0.0.1 --master_port {free_port()} --node_rank".split()
    started = [start(tmp_path, 1, *meet, rank, **STEPS) for rank in "01"]
    outs = [finish(one)[0] for one in started]
    told = seen(tmp_path, 2)
    assert [one["processes"] for one in told] == [2, 2]
    assert problems(told) == alone
    assert ["1/4" in out for out in outs] == [True, False]


def launched(folder: Path, engine: str, *arguments: str) -> str:
    """What `rloo-kit train` prints of the tiny run in two processes."""
    changed = {"trainer.output_dir": folder / "run", "trainer.save_steps": 1, "save": folder / "adapter"}
    changed |= {"evaluate.n": 2, "task.addition.n_train": 32, "task.addition.n_held_out": 8}
    if engine != "ddp":  # with the variable accelerate has no DeepSpeed
        file = f"configs/accelerate/deepspeed_{engine}.json"
        changed |= {"trainer.use_cpu": "true", "trainer.deepspeed": file}
    settings = [part for name, value in changed.items() for part in ("--set", f"{name}={value}")]
    command = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "-m", "rloo_kit", "train"]
    on_cpu = {"ACCELERATE_USE_CPU": "true"} if engine == "ddp" else {}
    words = [*command, "configs/tiny.yaml", *settings, *arguments]
    return python(*words, cwd=ROOT, HF_HUB_OFFLINE="1", **on_cpu).stdout


@pytest.mark.parametrize("engine", ["ddp", *(pytest.param(z, marks=needs_deepspeed) for z in ("zero2", "zero3"))])
def test_the_command_line_launches_a_run_from_a_file_and_goes_on_with_it(engine, tmp_path):
    said = launched(tmp_path, engine, "--set", "trainer.max_steps=1")
    assert [said.count(line) for line in ("\nbefore\n", "\nafter\n", "adapter: ")] == [1, 1, 1]
    assert (tmp_path / "run/_run.yaml").is_file()
    weights = load_file(tmp_path / "adapter/adapter_model.safetensors")
    assert all(tensor.numel() and tensor.any() for tensor in weights.values())  # gathered, and trained
    again = launched(tmp_path, engine, "--set", "trainer.max_steps=3", "--resume")
    assert "resuming from" in again
    assert "3/3" in again, "a line a batch, and a batch serves two updates"


def assert_equal(alone: list[dict[str, float]], several: list[dict[str, float]]) -> None:
    assert len(alone) == len(several) == 2
    for one, many in zip(alone, several, strict=True):
        assert one.keys() == many.keys() >= {"reward", "grad_norm"}
        assert one["grad_norm"] > 0
        assert many == pytest.approx(one, rel=1e-3, abs=1e-5)


@needs_deepspeed
@pytest.mark.parametrize(("processes", "settings"), [("2", []), ("4", ["rloo"])])
def test_every_engine_takes_the_steps_of_one_process(processes, settings, tmp_path):
    python("-m", "tests.scale.engines", str(tmp_path), processes, *settings, cwd=ROOT, HF_HUB_OFFLINE="1")
    found = json.loads((tmp_path / "figures.json").read_text())
    if not settings:
        assert {"rloo", "grpo", "dr_grpo", "reinforce"} <= found.keys()
    for runs in found.values():
        assert runs.keys() == {"one process", "ddp", "zero2", "zero3"}
        for engine in runs.keys() - {"one process"}:
            assert_equal(runs["one process"], runs[engine])
