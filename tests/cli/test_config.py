"""A configuration is checked as a whole: each fault is reported with its file, its key and the nearest valid key."""

import json
import operator
import re
import sys
from pathlib import Path

import pytest

import rewards
from rewards.thinking import ThinkTokens
from rloo_kit.cli import config as configuration
from rloo_kit.cli import reward_entries
from rloo_kit.cli import run as running
from rloo_kit.errors import ConfigError
from tests.cli.conftest import CONFIG, MINE


def faults(*settings):
    try:
        assert configuration.load_config("mine.yaml", settings).args
    except ExceptionGroup as found:
        return [str(one) for one in found.exceptions]
    except ConfigError as one:
        return [str(one)]
    return []


def test_what_holds_has_the_trainers_settings_and_resolves_to_what_holds(folder):
    settings = ["trainer.max_steps=5", "evaluate.n=3", "rewards.0=task.correct"]
    config = configuration.load_config("mine.yaml", settings)
    assert (config.args.max_steps, config.args.learning_rate) == (5, 1e-3)
    assert config.evaluate == {"n": 3}, "the rest is as in training"
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "again.yaml").write_text(config.resolved())
    again = configuration.load_config(elsewhere / "again.yaml")
    assert again.resolved() == config.resolved()
    assert again.rewards[1] == f"{folder / 'mine.py'}:in_time"


def test_only_an_argument_that_may_name_a_path_becomes_one_and_a_catalogue_name_no_empty_folder(folder):
    for name in ("tiny", "number", "countdown", "mine"):
        (folder / name).mkdir()
    (folder / "sums.csv").touch()
    for task in ("{from_file: {path: sums.csv, kind: number, held_out: mine}}", "{reasoning_gym: {name: countdown}}"):
        config = configuration.load_config("mine.yaml", [f"task={task}"])
        assert config.policy == {"name": "tiny"}
        from_file = {"path": str(folder / "sums.csv"), "kind": "number", "held_out": str(folder / "mine")}
        assert config.task in ({"from_file": from_file}, {"reasoning_gym": {"name": "countdown"}})
    (folder / "tiny/config.json").touch()
    for name in ("tiny", "mine"):
        assert configuration.load_config("mine.yaml", [f"policy={name}"]).policy == {"name": str(folder / name)}


def test_a_file_of_a_task_is_looked_for_beside_the_configuration_then_here_and_recorded_whole(folder, monkeypatch):
    home, beside = folder / "home", folder / "conf"
    for place in (home, beside):
        place.mkdir()
    (beside / "mine.yaml").write_text(Path("mine.yaml").read_text())
    (beside / "mine.py").write_text(Path("mine.py").read_text())
    monkeypatch.setenv("HOME", str(home))
    for place, path in ((folder, "here.csv"), (beside, "beside.csv"), (home, "~/at_home.csv")):
        (place / Path(path).name).touch()
        found = configuration.load_config(beside / "mine.yaml", [f"task={path}"])
        assert found.task["from_file"]["path"] == str(place / Path(path).name)
    (beside / "here.csv").touch()
    found = configuration.load_config(beside / "mine.yaml", ["task=here.csv"])
    assert found.task["from_file"]["path"] == str(beside / "here.csv")


WRONG = {
    "trainer.learning_rte=1": ("learning_rte is no argument", "did you mean learning_rate?"),
    "trainer.total_episodes=9": ("total_episodes has no counterpart", "set max_steps"),
    "trainer.max_steps='5'": ("max_steps must be", "write max_steps=5"),
    "trainer.optim=adamw_trch": ("adamw_trch is not a valid OptimizerNames", "change what the message names"),
    "trainer.suggested=no": ("suggested must be a valid boolean", "write suggested=False"),
    "trainer.num_generations=3": ("", "a multiple of 3"),
    "policy.lora_rnk=4": ("load_policy takes no lora_rnk", "did you mean lora_rank?"),
    "policy.lora_rank=many": ("lora_rank must be", ""),
    "policy={full_finetuning: true, lora_rank: 4}": ("for a LoRA", "leave one of them out"),
    "policy=[tiny]": ("policy must be a valid dictionary", "write a name, 'policy: qwen3-1.7b'"),
    "task={adition: {}}": ("there is no task adition", "did you mean addition?"),
    "task={addition: {n_trin: 3}}": ("tasks.addition takes no n_trin", "did you mean n_train?"),
    "task={addition: {n_train: x}}": ("n_train must be a valid integer", "leave n_train out"),
    "task={reasoning_gym: {}}": ("missing a required argument: 'name'", "write tasks.reasoning_gym"),
    "task=[addition]": ("task must be a valid dictionary", "write one task: 'task: questions.csv'"),
    "task=mien.csv": ("there is no such file", "from the folder of this file"),
    "rewards=task.correct": ("rewards must be a valid list", "write a list"),
    "rewards=": ("rewards must be a valid list", "write a list"),
    "rewards=[rewards.answer_reward]": ("answer_reward makes rewards", "write 'rewards.answer_reward: {}'"),
    "rewards=[{rewards.answer_reward: {form: box}}]": ("form must be", "did you mean form='boxed'?"),
    "rewards=[{rewards.gated: {by: task.correct, reward: mine.py:in_tim}}]": ("no in_tim", "mean in_time?"),
    "rewards=[{rewards.gated: {by: task.corect, reward: task.correct}}]": ("there is no task.corect", "task.correct?"),
    "rewards=[{rewards.gated: , by: task.correct}]": ("the arguments of rewards.gated are beside it", "indent them"),
    "rewards=[{mine.py:in_time: {limit: 3}}]": ("a function of a file takes no arguments", "functools.partial"),
    "rewards=[quits.py:in_time]": ("quits.py cannot be run: SystemExit: 0", "repair it"),
    "trainer.top_p=95": ("top_p must be", "leave top_p out"),
    "trainer.top_k=-1": ("top_k must be", "0 takes all tokens"),
    "trainer.top_k=null": ("top_k must be a valid integer", "0 takes all tokens"),
    "trainer.max_steps=2.5": ("max_steps must be", "a whole number of steps"),
    "save=": ("the section is empty", "write save: FOLDER"),
    "rewards=[nowhere.reward]": ("there is no reward", "a file's function: FILE.py:NAME"),
    "rewards=[your.py:in_time]": ("your.py cannot be run: FileNotFoundError", "correct its name"),
    "evaluate={sample: 3}": ("evaluate takes no sample", "did you mean samples?"),
    "evaluate={samples: 8}": ("so 8 samples of a prompt would be one", "greedy=False"),
    "within_reach={n_prompts: '5'}": ("n_prompts must be", "write n_prompts=5"),
    "within_reach={top_p: 3}": ("top_p must be", "leave top_p out"),
    "evalute.n=4": ("there is no section evalute", "did you mean evaluate?"),
    "trainer.max_steps": ("there is no place for this setting", "SECTION.NAME=VALUE"),
    "rewards.7=task.correct": ("there is no place for this setting", "an entry's number"),
    "x=[1": ("this is no YAML", "indent with spaces"),
}


@pytest.mark.parametrize("setting", WRONG)
def test_a_fault_is_said_in_three_lines_with_its_place_and_what_is_meant(setting, folder):
    what, todo = WRONG[setting]
    Path("quits.py").write_text("import sys\nsys.exit(0)\n")
    (said,) = faults(setting)
    lines = said.splitlines()
    assert len(lines) <= 3
    assert (what in lines[0], todo in lines[-1]) == (True, True), said
    assert lines[1].startswith((f"Where: --set {setting}", "Where: mine.yaml, ")), "file and key"


def test_all_faults_of_a_file_are_said_at_once_before_its_functions_are_run(folder):
    text = CONFIG.replace("learning_rate", "learning_rte").replace("n_train", "n_trin")
    text += "within_reach:\n"
    Path("mine.yaml").write_text(text.replace("task.correct", "task.corect").replace("beta: 0", "beta: low"))
    Path("mine.py").write_text("open('ran', 'w')\n" + MINE)
    places = [one.splitlines()[1].partition(":")[2].rstrip(".") for one in faults()]
    assert [place.partition(":")[0] for place in places] == [
        " mine.yaml, within_reach",
        " mine.yaml, task.addition",
        " mine.yaml, rewards[0]",
        " mine.yaml, trainer.learning_rte",
        " mine.yaml, trainer.beta",
    ]
    assert not Path("ran").exists()


def test_a_secret_is_in_no_resolved_configuration(folder):
    reward = {"rewards.only_for": {"reward": "task.correct", "api_key": "open sesame"}}
    settings = ["trainer.hub_token=hf_" + "a1" * 17, f"rewards=[{json.dumps(reward)}]"]
    resolved = configuration.parsed(configuration.load_config("mine.yaml", settings).resolved(), "")
    assert "hub_token" not in resolved["trainer"]
    assert resolved["trainer"]["max_steps"] == 1
    (arguments,) = resolved["rewards"][0].values()
    assert arguments == {"reward": "task.correct", "api_key": "(not shown)"}


def test_scalars_are_yaml_1_2s():
    read = configuration.parsed("[1e-3, 1E5, -.5, true, no, on, 1:30, null]", "")
    assert read == [1e-3, 1e5, -0.5, True, "no", "on", "1:30", None]
    assert configuration.parsed(configuration.written({"read": read}), "") == {"read": read}


NO_CONFIGURATION = {
    "policy: [tiny": ("this is no YAML", "line 1"),
    "policy: tiny\n\ttask: x": ("this is no YAML", "line 2"),
    "policy: tiny\npolicy: other": ('found duplicate key "policy"', "line 2"),
    "": ("a configuration must have names and values", "mine.yaml"),
    "policy: tiny\ntask: \0x": ("special characters are not allowed", "mine.yaml"),
    "rewards: !!python/name:os.system": ("could not determine a constructor for the tag", "line 1"),
    "policy: tiny\n---\ntask: x": ("but found another document", "line 2"),
}


@pytest.mark.parametrize("text", NO_CONFIGURATION)
def test_what_is_no_configuration_is_said_with_its_line(text, folder):
    Path("mine.yaml").write_text(text)
    (said,) = faults()
    what, place = NO_CONFIGURATION[text]
    assert what in said.splitlines()[0]
    assert place in said.splitlines()[1]


PAYLOADS = configuration.read(Path(__file__).with_name("payloads.yaml"))
FILE = """\
import os
from os import system
from shutil import rmtree
run, remove = os.system, rmtree
def in_time(completion_ids, **kwargs):
    return [0.0 for ids in completion_ids]
"""


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_configuration_alone_runs_no_code(name, folder, command, shared):
    given, marker = PAYLOADS[name], folder / "marker"
    Path("mine.py").write_text(FILE)
    evil = f"open({str(marker)!r}, 'w').close()\ndef reward(completions, **kwargs): ...\n"
    Path("evil.py").write_text(evil)
    setting = [] if isinstance(given, dict) else ["--set", given.replace("MARKER", str(marker))]
    if isinstance(given, dict):
        nested = "[" * 5000 + "]" * 5000
        Path("mine.yaml").write_text(given["file"].replace("MARKER", str(marker)).replace("NESTED", nested))
    result = command("train", "mine.yaml", "--dry-run", *setting, status=2)
    assert not marker.exists()
    for fault in result.stderr.strip().split("\n\n"):
        _, where, todo = fault.splitlines()
        assert where.startswith("Where: ")
        assert todo.startswith("What to do: ")


def test_what_a_payload_takes_from_rewards_is_there():
    texts = [given for given in PAYLOADS.values() if isinstance(given, str)]
    taken = {name for text in texts for name in re.findall(r"\brewards\.[\w.]+", text)}
    assert len(taken) > 5
    for name in taken:
        operator.attrgetter(name.removeprefix("rewards."))(rewards)


HONEST = """\
import functools
import rewards

class Scored:
    __name__ = "scored"
    def __call__(self, completion_ids, **kwargs):
        return [1.0 for ids in completion_ids]

scored, exact = Scored(), rewards.answer_reward("exact")
partly = functools.partial(scored, limit=3)
"""


def test_what_a_file_defines_is_a_reward(folder, shared):
    Path("mine.py").write_text(HONEST)
    names = [f"mine.py:{name}" for name in ("scored", "exact", "partly")]
    settings = [f"rewards=[{', '.join(names)}]", "trainer.reward_weights=[1, 1, 1]"]
    made = running.assembled(configuration.load_config("mine.yaml", settings))
    assert [type(reward).__name__ for reward in made.rewards] == ["Scored", "_AnswerReward", "partial"]


def test_a_file_imports_what_is_beside_it(folder, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "own").mkdir()
    (folder / "own/beside_mine.py").write_text(MINE)
    (folder / "own/mine.py").write_text("from beside_mine import in_time\n")
    assert reward_entries.function_of("own/mine.py:in_time")(completion_ids=[[1]]) == [1.01]


def test_names_of_other_recipes_are_taken_in_a_file_as_in_python(folder):
    Path("mine.yaml").write_text(CONFIG.replace("  beta: 0\n", "  kl_coef: 0.1\n"))
    with pytest.warns(FutureWarning, match="kl_coef is now beta"):
        assert configuration.load_config("mine.yaml").args.beta == 0.1


def test_suggested_settings_go_around_what_is_given_and_leave_prompts_their_room(folder, shared, monkeypatch):
    monkeypatch.setattr(shared.model, "max_seq_length", 256)
    Path("sums.csv").write_text("question,answer\n" + "".join(f"What is {n} + 3?,{n + 3}\n" for n in range(40)))
    settings = ["task=sums.csv", "trainer={suggested: true, rloo_k: 6}"]
    with pytest.warns(FutureWarning, match="rloo_k is now num_generations"):
        made = running.assembled(configuration.load_config("mine.yaml", settings))
    assert made.args.num_generations == 6
    assert len(made.task.train) + len(made.task.held_out) == 40, "none is too long"
    settings[1] = "trainer={suggested: true, num_generations: 6, generation_batch_size: 8}"
    with pytest.raises(ConfigError, match=r"Where: mine.yaml, trainer.suggested"):
        running.assembled(configuration.load_config("mine.yaml", settings))


def test_tokens_and_tokenizer_may_be_the_policys_or_written_out():
    known = {"task.correct": max, "policy.tokenizer": "tokenizer", "policy.tokens": ThinkTokens(1, 2)}
    entry = {"rewards.answer_reward": {"tokens": "policy.tokens", "tokenizer": "policy.tokenizer"}}
    made = reward_entries.made(entry, known)
    assert (made.tokens, made.tokenizer) == (ThinkTokens(1, 2), "tokenizer")
    written = {"open_id": 3, "close_id": 4, "eos_ids": [5]}
    entry = {"rewards.thought_then_answer": {"tokens": written, "correct": "task.correct"}}
    other = reward_entries.made(entry, known)
    assert other.rewards[0] is max
    assert other.rewards[1].tokens.eos_ids == (5,)
