"""Every verb runs, and says what a notebook would."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

import rloo_kit
from rloo_kit.cli import run
from rloo_kit.cli.config import load_config, read
from tests.cli.conftest import CONFIG
from tests.conftest import ROOT


def test_help_names_every_verb_in_a_line_each_and_imports_nothing_heavy(command, script):
    said = command("--help").output
    for verb in ("doctor", "cards", "plan", "audit", "train", "evaluate", "diagnose", "export"):
        assert f"\n  {verb} " in said
        assert command(verb, "--help").exit_code == 0
    assert "..." not in said.partition("Commands:")[2], "each fits on its line"
    heavy = script(
        "import sys, rloo_kit.cli.app; print({'torch', 'trl', 'rich', 'datasets'} & set(sys.modules))"
    )
    assert heavy.stdout.strip() == "set()"


def test_doctor_cards_and_plan_say_what_the_machine_takes_and_whether_a_run_fits(command, folder):
    said = command("doctor").output
    for line in ("device     cpu", "policy     tiny", "TOKENIZERS_PARALLELISM=false"):
        assert line in said
    assert command("cards").output.strip() in (ROOT / "docs/cards.md").read_text()
    assert command("cards", "12GB").output.startswith("qwen3-8b in 4 bit")
    assert command("cards", "rtx 9999").exit_code == 2
    fits = command("plan", "mine.yaml")
    assert fits.exit_code == 0
    assert "fits: " in fits.output
    too_large = command("plan", "mine.yaml", "--card", "8GB", "--set", "policy.name=qwen3-14b")
    assert too_large.exit_code == 1
    assert "to make it fit, cheapest in quality first" in too_large.output


def test_a_dry_run_shows_plan_resolved_configuration_and_first_prompt_and_writes_nothing(
    command, folder, shared
):
    before = sorted(folder.rglob("*"))
    result = command("train", "mine.yaml", "--set", "trainer.max_steps=3", "--dry-run")
    assert result.exit_code == 0, result.stderr
    assert "fits: " in result.output
    assert "max_steps: 3" in result.output
    assert "<|im_start|>user\nWhat is " in result.output
    assert sorted(file for file in folder.rglob("*") if "__pycache__" not in str(file)) == before


def test_train_measures_trains_resumes_and_saves_the_adapter_with_its_configuration(command, folder, shared):
    Path("mine.yaml").write_text(f"{Path('mine.yaml').read_text()}save: adapter\nevaluate: {{n: 2}}\n")
    result = command(
        "train", "mine.yaml", "--set", "trainer.save_strategy=steps", "--set", "trainer.save_steps=1"
    )
    assert result.exit_code == 0, result.stderr
    order = ["fits: ", "\nbefore\n", "step ", "\nafter\n", "adapter: adapter"]
    assert sorted(order, key=result.output.index) == order
    log = json.loads(Path("run/trainer_state.json").read_text())["log_history"]
    assert "rewards/in_time/mean" in log[0]
    assert read("run/_run.yaml")["trainer"]["save_steps"] == 1
    assert (folder / "adapter/adapter_model.safetensors").is_file()

    card = (folder / "adapter/README.md").read_text()
    assert "| before | 2, greedy |" in card
    assert "| after | 2, greedy |" in card
    assert "| before | 2, greedy |" in (folder / "run/checkpoint-1/README.md").read_text()

    more = command("train", "run/_run.yaml", "--resume", "--set", "trainer.max_steps=2", "--set", "evaluate=")
    assert "resuming from run/checkpoint-1" in more.output, more.stderr
    healthy = command("diagnose", "run")
    assert "steps 1 to 2" in healthy.output
    assert healthy.exit_code in (0, 1)


THINKING_OFF = "trainer.chat_template_kwargs={enable_thinking: false}"
SAMPLED = ("temperature=0.7", "top_p=0.9", "top_k=20", "min_p=0.1")
WARM = [word for setting in SAMPLED for word in ("--set", f"trainer.{setting}")]


@pytest.fixture
def asked(shared: rloo_kit.Policy, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the policy is asked to generate."""
    calls: list[dict[str, Any]] = []
    generate = rloo_kit.Policy.generate

    @functools.wraps(generate)
    def noted(policy: rloo_kit.Policy, prompts: Any, **how: Any) -> Any:
        calls.append(how)
        return generate(policy, prompts, **how)

    monkeypatch.setattr(rloo_kit.Policy, "generate", noted)
    return calls


def test_what_is_evaluated_is_what_is_trained(command, folder, asked):
    measured = "evaluate={n: 2, greedy: false, samples: 2, top_k: 5}"
    result = command("train", "mine.yaml", "--set", THINKING_OFF, *WARM, "--set", measured)
    assert result.exit_code == 0, result.stderr
    as_trained = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "max_new_tokens": 8, "n": 2}
    as_trained["chat_template_kwargs"] = {"enable_thinking": False}
    assert len(asked) == 2
    for how in asked:
        assert as_trained.items() <= how.items(), "top_k is the evaluation's own"


def test_greedy_evaluation_takes_the_template_and_the_weights_alone(command, folder, asked):
    result = command("evaluate", "mine.yaml", "-n", "1", "--set", THINKING_OFF, *WARM)
    assert result.exit_code == 0, result.stderr
    (how,) = asked
    assert how["chat_template_kwargs"] == {"enable_thinking": False}
    assert "temperature" not in how
    measured = run.assembled(load_config("mine.yaml")).measure(n=1)
    assert list(measured.settings["rewards"].values()) == [1, 0.5], "weighed as in training"


def test_what_the_trainer_refuses_is_said_before_anything_is_measured(command, folder, asked):
    result = command("train", "mine.yaml", "--set", "evaluate={n: 2}", "--set", "task.addition.n_train=1")
    assert result.exit_code == 2
    assert "one generation batch takes 2 prompts and the dataset has 1" in result.stderr
    assert asked == []


@pytest.mark.parametrize(
    ("place", "says"), [("mine.py", "a file or a device is there"), ("run", "writes its checkpoints into")]
)
def test_a_place_that_the_adapter_cannot_take_is_refused_before_the_run(
    place, says, command, folder, monkeypatch
):
    monkeypatch.setattr(run, "load_policy", lambda **given: pytest.fail("it was loaded"))
    result = command("train", "mine.yaml", "--set", f"save={place}")
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Where: mine.yaml, save" in result.stderr
    assert "out/adapter" in result.stderr


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
    result = command("audit", "mine.yaml", "--set", f"rewards=[{reward}]")
    assert (result.exit_code, says in result.output) == (status, True), result.output + result.stderr


def test_a_reward_that_refuses_its_arguments_says_on_which_line(command, folder, shared):
    clipped = "- rewards.clipped: {reward: task.correct, low: 2}"
    Path("mine.yaml").write_text(CONFIG.replace("- task.correct", clipped))
    result = command("train", "mine.yaml", "--dry-run")
    assert result.exit_code == 2
    assert "low must be below high" in result.stderr
    assert "mine.yaml, rewards[0]" in result.stderr
