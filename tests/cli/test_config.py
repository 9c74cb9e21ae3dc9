"""A configuration is checked as a whole: each fault with its file, its line, its key and the nearest right one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewards.thinking import ThinkTokens
from rloo_kit.cli import calls, document, schema
from rloo_kit.errors import ConfigError
from tests.cli.conftest import CONFIG, Command


def faults(file: Path, *settings: str) -> list[str]:
    try:
        schema.load_config(file, settings)
    except ExceptionGroup as found:
        return [str(one) for one in found.exceptions]
    except ConfigError as one:
        return [str(one)]
    return []


def test_a_number_without_a_point_and_words_of_yaml_1_1_are_what_they_look_like(folder: Path) -> None:
    data: dict[str, Any] = document.read(folder / "mine.yaml").data["trainer"]
    assert (data["learning_rate"], data["save_strategy"]) == (1e-3, "no")


def test_what_holds_has_the_trainers_settings_and_resolves_to_what_holds(folder: Path) -> None:
    config = schema.load_config(
        "mine.yaml", ["trainer.max_steps=5", "evaluate.n=3", "rewards.0=task.correct"]
    )
    assert (config.trainer.max_steps, config.trainer.learning_rate) == (5, 1e-3)
    assert config.evaluate == {"n": 3}, "the rest is as in training"
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "again.yaml").write_text(config.resolved())
    again = schema.load_config(elsewhere / "again.yaml")
    assert again.resolved() == config.resolved()
    assert again.rewards[1] == f"{folder / 'mine.py'}:in_time"


WRONG = {
    "trainer.learning_rte=1": ("learning_rte is no argument", "did you mean learning_rate?"),
    "trainer.kl_placement=los": (
        "kl_placement must be 'reward' or 'loss'",
        "did you mean kl_placement='loss'?",
    ),
    "trainer.max_steps='5'": ("max_steps must be", "write max_steps=5"),
    "trainer.num_generations=3": ("", "a multiple of 3"),
    "policy.lora_rnk=4": ("load_policy takes no lora_rnk", "did you mean lora_rank?"),
    "policy.lora_dropout=0.1": ("load_policy takes no lora_dropout", "dropout makes"),
    "policy.lora_rank=many": ("lora_rank must be a whole number of at least 1", "16 is the default"),
    "task={adition: {}}": ("there is no task 'adition'", "did you mean addition?"),
    "task={addition: {n_trin: 3}}": ("tasks.addition takes no n_trin", "did you mean n_train?"),
    "task={addition: {n_train: x}}": ("n_train must be a whole number or None", "leave n_train out"),
    "task={reasoning_gym: {}}": ("tasks.reasoning_gym needs name", "write tasks.reasoning_gym"),
    "task=[addition]": ("a task is one name with its arguments", "write"),
    "rewards=task.correct": ("rewards are a list", "begin each with '- '"),
    "rewards=[]": ("the configuration names no rewards", "add a section 'rewards:'"),
    "rewards=[rewards.answer_reword]": (
        "there is no 'rewards.answer_reword'",
        "did you mean rewards.answer_reward?",
    ),
    "rewards=[answer_reward]": ("there is no reward called", "did you mean rewards.answer_reward?"),
    "rewards=[rewards.answer_reward]": (
        "rewards.answer_reward makes rewards",
        "write 'rewards.answer_reward: {}'",
    ),
    "rewards=[{rewards.answer_reward: {form: box}}]": ("form must be", "did you mean form='boxed'?"),
    "rewards=[{rewards.gated: {by: task.correct, reward: mine.py:in_tim}}]": (
        "mine.py has no in_tim",
        "did you mean mine.py:in_time?",
    ),
    "rewards=[{rewards.weighted: {rewards: [5]}}]": ("this is no reward but 5", "write a name"),
    "rewards=[nowhere.reward]": (
        "there is no 'nowhere.reward': No module named 'nowhere'",
        "install the package",
    ),
    "rewards=[your.py:in_time]": ("there is no file", "did you mean mine.py?"),
    "rewards=[{a: 1, b: 2}]": ("this is no reward", "write a name"),
    "evaluate={sample: 3}": ("evaluate takes no sample", "did you mean samples?"),
    "evaluate=3": ("evaluate is a section", "write them under"),
    "evaluate=false": ("evaluate is a section", "leave it out for none"),
    "policy=0": ("policy is a section", "leave it out for none"),
    "evaluate={n: many}": ("n must be a whole number of at least 1 or None", "leave n out"),
    "evaluate={max_new_tokens: 0}": ("max_new_tokens must be a whole number of at least 1", "leave"),
    "evaluate={samples: 8}": ("so 8 samples of a prompt would be one", "greedy=False"),
    "evaluate={temperature: 0.6}": ("temperature would have no effect", "greedy=False"),
    "evaluate={greedy: false, temperature: 0}": (
        "temperature must be a finite number",
        "leave temperature out",
    ),
    "evaluate={chat_template_kwargs: thinking}": ("chat_template_kwargs must be a dict", "leave"),
    "evaluate={prompts: 3}": ("evaluate takes no prompts", "it takes"),
    "rewards=[{rewards.weighted: {rewards: task.correct}}]": (
        "rewards is a list of rewards, not 'task.correct'",
        "write rewards: [...]",
    ),
    "polcy=tiny": ("there is no section 'polcy'", "did you mean policy?"),
    "save=3": ("save is a folder", "write save: out/adapter"),
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_fault_is_said_in_three_lines_with_its_place_and_what_is_meant(setting: str, folder: Path) -> None:
    what, todo = WRONG[setting]
    (said,) = faults(Path("mine.yaml"), setting)
    lines = said.splitlines()
    assert len(lines) <= 3
    assert what in lines[0]
    assert todo in lines[-1]
    assert f"--set {setting}" in lines[1] or "mine.yaml, line" in lines[1]


def test_all_faults_of_a_file_are_said_at_once_each_with_its_line(folder: Path) -> None:
    text = CONFIG.replace("learning_rate", "learning_rte").replace("n_train", "n_trin")
    Path("mine.yaml").write_text(text.replace("task.correct", "task.corect").replace("beta: 0", "beta: low"))
    places = [one.splitlines()[1] for one in faults(Path("mine.yaml"))]
    assert places == [
        "Where: mine.yaml, line 15, trainer.learning_rte.",
        "Where: mine.yaml, line 17, trainer.beta.",
        "Where: mine.yaml, line 4, task.addition.n_trin.",
        "Where: mine.yaml, line 6, rewards[0].",
    ]


NO_CONFIGURATION = {
    "policy: [tiny": ("this is no YAML", "line 1, column 14"),
    "policy: tiny\n\ttask: x": ("this is no YAML", "line 2, column 1"),
    "policy: tiny\npolicy: other": ("policy is written twice, first on line 1", "line 2"),
    "": ("the file holds no configuration", "line 1"),
    "- policy": ("a configuration has names and values", "line 1"),
}


@pytest.mark.parametrize("text", NO_CONFIGURATION)
def test_what_is_no_configuration_is_said_with_its_line(text: str, folder: Path) -> None:
    Path("mine.yaml").write_text(text)
    (said,) = faults(Path("mine.yaml"))
    what, place = NO_CONFIGURATION[text]
    assert what in said.splitlines()[0]
    assert place in said.splitlines()[1]


@pytest.mark.parametrize(
    "setting", ["trainer.max_steps", "=5", "save.x.y=3", "rewards.7=task.correct", "x=[1"]
)
def test_a_setting_that_cannot_be_put_anywhere_is_refused(setting: str, folder: Path) -> None:
    Path("mine.yaml").write_text(f"{CONFIG}save: out\n")
    (said,) = faults(Path("mine.yaml"), setting)
    assert f"--set {setting}" in said.splitlines()[1]


def test_a_missing_file_names_those_that_are_there(folder: Path, command: Command) -> None:
    result = command("train", "your.yaml")
    assert result.exit_code == 2
    assert "cannot be read: No such file or directory" in result.stderr
    assert "there is mine.yaml" in result.stderr


def test_a_reward_whose_file_fails_says_the_error_and_no_traceback(folder: Path, command: Command) -> None:
    Path("broken.py").write_text("import nowhere\n")
    result = command("plan", "mine.yaml", "--set", "rewards=[broken.py:reward]")
    assert result.exit_code == 2
    assert "broken.py cannot be run: ModuleNotFoundError: No module named 'nowhere'" in result.stderr
    assert "Traceback" not in result.output + result.stderr


def test_tokens_and_tokenizer_may_be_the_policys_or_written_out() -> None:
    known = {"task.correct": max, "policy.tokenizer": "tokenizer", "policy.tokens": ThinkTokens(1, 2)}
    maker = calls.Maker(Path(), known)
    made: Any = maker.reward(
        {"rewards.answer_reward": {"tokens": "policy.tokens", "tokenizer": "policy.tokenizer"}}
    )
    assert (made.tokens, made.tokenizer) == (ThinkTokens(1, 2), "tokenizer")
    written = {"open_id": 3, "close_id": 4, "eos_ids": [5]}
    other: Any = maker.reward({"rewards.thought_then_answer": {"tokens": written, "correct": "task.correct"}})
    assert other.rewards[0] is max
    assert other.rewards[1].tokens.eos_ids == (5,)
