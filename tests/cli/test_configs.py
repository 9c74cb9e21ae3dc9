"""The committed configurations fit the cards they are for, and the commands in the docs run."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

import rloo_kit
from rloo_kit.cli import config as configuration
from rloo_kit.cli import run
from rloo_kit.memory import model_choice
from tests.conftest import ROOT

CARDS = {"8gb": "8GB", "12gb": "12GB", "16gb": "16GB", "24gb": "24GB"}


@pytest.mark.parametrize("name", CARDS)
def test_a_configuration_of_a_card_fits_it(name):
    largest = rloo_kit.fit(CARDS[name]).model.checkpoint.name
    for given, policy in (([], model_choice.first_run(CARDS[name])[0]), (["policy.name=largest"], largest)):
        config = configuration.load_config(ROOT / "configs" / f"{name}.yaml", given)
        planned = run.planned(config, CARDS[name], prompt_tokens=512)
        assert (planned.model.checkpoint.name, planned.fits) == (policy, "fits"), planned.takes
        config.within_reach = {"n_prompts": 200}  # 200 x 8 completions, beside 100 x 2 of the evaluations
        assert run.planned(config, CARDS[name]).settings.evaluations[-1] == (1, {"n": 200, "samples": 8})


def test_without_a_policys_name_a_run_is_planned_with_the_thinking_it_is_loaded_with():
    given = [f"policy.{name}" for name in ("name=null", "thinking=null", "max_seq_length=8192")]
    config = configuration.load_config(ROOT / "configs/8gb.yaml", given)
    planned = run.planned(config, "6GB")  # qwen3-1.7b with thinking off
    assert planned.settings.max_completion_length == model_choice.FIT_COMPLETION_TOKENS


PAGE = (ROOT / "docs/command-line.md").read_text()
COMMANDS = re.findall(r"^\$ rloo-kit (.*)$", PAGE, re.MULTILINE)
SHORTER = "trainer.max_completion_length=8 trainer.per_device_train_batch_size=8 trainer.gradient_accumulation_steps=1"
SHORTER += " trainer.steps_per_generation=1 trainer.save_steps=1"


def test_the_pages_commands_run_one_after_the_other_and_say_what_a_notebook_would(command, folder, shared):
    shutil.copytree(ROOT / "configs", "configs")
    shorter = [word for setting in SHORTER.split() for word in ("--set", setting)]
    said = {}
    for line in COMMANDS:
        verb, *arguments = shlex.split(line)
        more = shorter if "configs/tiny.yaml" in arguments and verb in ("train", "evaluate") else []
        done = command(verb, *arguments, *more, status=None)
        assert done.exit_code in ((0, 1) if verb in ("diagnose", "doctor") else (0,)), (line, done.stderr)
        said[verb, "--resume" in arguments] = done.output
    assert {"doctor", "cards", "plan", "audit", "evaluate"} <= {verb for verb, _ in said}
    trained = said["train", False]
    order = ["fits: ", "\nbefore\n", "step ", "\nafter\n", "adapter: out/tiny/adapter"]
    assert sorted(order, key=trained.index) == order
    assert "resuming from out/tiny/run/checkpoint-2" in said["train", True]
    assert "steps 1 to " in said["diagnose", False]
    assert Path("out/tiny/adapter/adapter_model.safetensors").is_file()
    for card in (Path("out/tiny/adapter"), max(Path("out/tiny/run").glob("checkpoint-*"))):
        assert "| before | 4, greedy |" in (card / "README.md").read_text()
    assert "| after | 4, greedy |" in Path("out/tiny/adapter/README.md").read_text()
    assert configuration.load_config("out/tiny/run/_run.yaml").settings["save_steps"] == 1
    assert configuration.load_config("out/tiny/run.yaml").args.max_steps == 4


@pytest.mark.long
def test_smollm2_trains(command, folder):
    pytest.importorskip("gguf", reason="the weights are an extra: real-cpu")
    settings = ["trainer.max_steps=1", "evaluate.n=2", "task.word_sums.n_train=16"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    command("train", ROOT / "configs/smollm2.yaml", *arguments)
    assert Path("out/smollm2/adapter/adapter_model.safetensors").is_file()
