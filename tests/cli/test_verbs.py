"""Every verb runs, and prints what a notebook would."""

import functools
import json
from pathlib import Path

import pytest

import rloo_kit
from rloo_kit.cli import run
from rloo_kit.cli.config import load_config
from tests.conftest import ROOT


def test_help_names_every_verb_in_a_line_each_and_imports_nothing_heavy(command, script):
    said = command("--help").output
    for verb in ("doctor", "cards", "plan", "audit", "train", "evaluate", "diagnose", "export"):
        assert f"\n  {verb} " in said
        command(verb, "--help")
    assert "..." not in said.partition("Commands:")[2], "each fits on its line"
    heavy = "import sys, rloo_kit.cli.app; print({'torch', 'trl', 'rich', 'datasets'} & set(sys.modules))"
    assert script(heavy).stdout.strip() == "set()"


def test_doctor_cards_and_plan_say_what_the_machine_takes_and_whether_a_run_fits(command, folder):
    said = command("doctor", status=None).output  # 1 if it warns
    for line in ("device     cpu", "policy     tiny", "TOKENIZERS_PARALLELISM=false"):
        assert line in said
    assert command("cards").output.strip() in (ROOT / "docs/cards.md").read_text()
    assert command("cards", "12GB").output.startswith("qwen3-8b in 4 bit")
    command("cards", "rtx 9999", status=2)
    said = command("plan", "mine.yaml", "--set", "policy.max_seq_length=20").output
    assert " 12 + 8 tokens," in said, "no longer prompt can be trained on"
    (folder / "run").mkdir()
    said = command("plan", "mine.yaml", "--set", "policy.name=run", status=2).stderr
    assert "did you mean a run's checkpoint-N inside it?" in said
    too_large = command("plan", "mine.yaml", "--card", "8GB", "--set", "policy.name=qwen3-14b", status=1)
    assert "to make it fit, cheapest in quality first" in too_large.output


def test_a_dry_run_shows_plan_configuration_and_first_prompt_and_writes_nothing(command, folder, shared):
    before = sorted(folder.rglob("*"))
    result = command("train", "mine.yaml", "--set", "trainer.max_steps=3", "--dry-run")
    assert "fits: " in result.output
    assert "max_steps: 3" in result.output
    assert "<|im_start|>user\nWhat is " in result.output
    assert sorted(file for file in folder.rglob("*") if "__pycache__" not in str(file)) == before


THINKING_OFF = "trainer.chat_template_kwargs={enable_thinking: false}"
SAMPLED = ("temperature=0.7", "top_p=0.9", "top_k=20", "min_p=0.1")
WARM = [word for setting in SAMPLED for word in ("--set", f"trainer.{setting}")]


@pytest.fixture
def asked(shared, monkeypatch):
    calls = []
    generate = rloo_kit.Policy.generate

    @functools.wraps(generate)
    def noted(policy, prompts, **how):
        calls.append(how)
        return generate(policy, prompts, **how)

    monkeypatch.setattr(rloo_kit.Policy, "generate", noted)
    return calls


def test_what_is_evaluated_is_what_is_trained(command, folder, asked):
    measured = "evaluate={n: 2, greedy: false, samples: 2, top_k: 5}"
    command("train", "mine.yaml", "--set", THINKING_OFF, *WARM, "--set", measured)
    as_trained = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "max_new_tokens": 8, "n": 2}
    as_trained["chat_template_kwargs"] = {"enable_thinking": False}
    assert len(asked) == 2
    for how in asked:
        assert as_trained.items() <= how.items(), "top_k is the evaluation's own"


def test_a_run_trains_on_problems_within_reach_sampled_as_in_training(command, folder, asked):
    reach = "within_reach={n_prompts: 4, n: 2, low: 0, high: 1}"
    settings = (THINKING_OFF, reach, "trainer.save_strategy=steps")
    result = command("train", "mine.yaml", *(word for one in settings for word in ("--set", one)))
    assert "4 of 4 prompts" in result.output
    as_trained = {"temperature": 1.0, "max_new_tokens": 8, "chat_template_kwargs": {"enable_thinking": False}}
    assert as_trained.items() <= asked[0].items()
    state = json.loads((folder / "run/checkpoint-1/trainer_state.json").read_text())
    assert state["epoch"] == 2 / 4, "two prompts of four, not of sixteen"


def test_greedy_evaluation_takes_the_template_and_the_weights_alone(command, folder, asked):
    command("evaluate", "mine.yaml", "-n", "1", "--set", THINKING_OFF, *WARM)
    (how,) = asked
    assert how["chat_template_kwargs"] == {"enable_thinking": False}
    assert "temperature" not in how
    measured = run.assembled(load_config("mine.yaml")).measure(n=1)
    assert list(measured.settings["rewards"].values()) == [1, 0.5], "weighed as in training"


def test_a_run_keeps_its_configuration_also_where_it_ends_by_an_error(command, folder, shared):
    command("train", "mine.yaml")
    Path("other.py").write_text("def broken(completions, **kwargs):\n    raise OSError('a service is down')\n")
    command("train", "mine.yaml", "--set", "trainer.seed=7", "--set", "rewards.1=other.py:broken", status=2)
    assert load_config("run/_run.yaml").args.seed == 7, "not the earlier run's"


TIRES = """
calls = []
def tires(completions, **kwargs):
    calls.append(1)
    if len(calls) > 2:
        raise OSError("a service is down")
    return [0.0] * len(completions)
"""


def test_an_adapter_is_saved_also_where_the_evaluation_after_it_fails(command, folder, shared):
    Path("tires.py").write_text(TIRES)
    settings = ["rewards.1=tires.py:tires", "evaluate={n: 2}", "save=kept", "trainer.max_steps=1"]
    result = command("train", "mine.yaml", *(word for one in settings for word in ("--set", one)), status=2)
    assert "a service is down" in result.stderr
    assert Path("kept/adapter_model.safetensors").is_file()


SMALL = ["evaluate={n: 2}", "task.addition.n_train=1"]
LOW = ["rewards=[task.correct, {rewards.clipped: {reward: task.correct, low: 2}}]"]
# settings; the message, and the place that it names
REFUSED = {
    "a task too small": (SMALL, "takes 2 prompts and the dataset has 1", ""),
    "a reward's arguments": (LOW, "low must be below high", "Where: mine.yaml, rewards[1]"),
    "what is within reach": (["within_reach={low: 2}"], "low must be", "Where: mine.yaml, within_reach"),
    "a reward's file": (["rewards=[broken.py:it]"], "cannot be run: ModuleNotFoundError", "broken.py"),
    "too few weights": (["trainer.reward_weights=[1.0]"], "1 reward_weights for 2", "Where: mine.yaml, trainer"),
    "a misspelt logger": (["trainer.report_to=wnadb"], "did you mean wandb?", "mine.yaml, trainer.report_to"),
    "a logger": (["trainer.report_to=dvclive"], "pip install dvclive", "mine.yaml, trainer.report_to"),
    "a file as adapter": (["save=mine.py"], "a file or a device is there", "Where: mine.yaml, save"),
    "the run as adapter": (["save=run"], "writes its checkpoints into", "Where: mine.yaml, save"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trained_is_said_before_anything_is_measured(case, command, folder, asked):
    Path("broken.py").write_text("import nowhere\nit = nowhere.reward\n")
    settings, says, place = REFUSED[case]
    result = command("train", "mine.yaml", *(word for one in settings for word in ("--set", one)), status=2)
    assert (says in result.stderr, place in result.stderr) == (True, True), result.stderr
    assert "Traceback" not in result.output + result.stderr
    assert asked == []


OWN_REWARDS = """
def constant(completions, **kwargs):
    return [0.0 for _ in completions]
def broken(completions, **kwargs):
    return [completion["text"] for completion in completions]
"""


@pytest.mark.parametrize(
    ("reward", "status", "says"),
    [
        ("task.correct", 0, "no exploit among"),
        ("{rewards.thinking_reward: {}}", 1, "thinking_reward pays"),
        ("own.py:constant", 1, "Every score is equal: nothing to learn from"),
        ("own.py:broken", 1, "broken raised TypeError: list indices"),
    ],
)
def test_audit_fails_where_a_trick_is_paid_and_where_nothing_can_be_learned(
    reward, status, says, command, folder, shared
):
    Path("own.py").write_text(OWN_REWARDS)
    result = command("audit", "mine.yaml", "--set", f"rewards=[{reward}]", status=status)
    assert says in result.output, result.output + result.stderr
