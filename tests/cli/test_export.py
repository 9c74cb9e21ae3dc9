"""``export`` writes a notebook's run as a file with which ``train`` repeats it, to the same rewards."""

import dataclasses
import functools
import json
import linecache
import textwrap
from pathlib import Path

import pytest
import yaml

import rewards
import rloo_kit
from rewards.factory_calls import Call, made_by
from rloo_kit.cli import reward_entries
from rloo_kit.errors import ConfigError
from rloo_kit.train import run_record
from rloo_kit.train.run_record import LEFT_OUT
from rloo_kit.watch.read_run import RECIPE
from tests.conftest import SMALL, as_loaded
from tests.test_redact import KINDS

CELL = """\
def in_time(completion_ids, **kwargs):
    return [float(len(ids) < 8) + 0.5 * sum(ids) / 1e6 for ids in completion_ids]

def long_enough(completion_ids, **kwargs):
    return [float(len(ids) >= 3) for ids in completion_ids]

def made_of_another_text():
    def in_time(completion_ids, **kwargs):
        return [0.0 for ids in completion_ids]
    return in_time

unnamed = lambda completions, **kwargs: [0.0 for _ in completions]
"""


def run_in_a_cell(text, name):
    """Return what a notebook's cell defines; Python knows the cell's source as under Jupyter."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    defined = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), defined)
    return defined


@pytest.fixture(scope="module")
def cell():
    return run_in_a_cell(CELL, "<ipykernel cell>")


def log_of(run):
    """Return each step's log, without times and memory."""
    log = json.loads((run / "trainer_state.json").read_text())["log_history"]
    steps = [entry for entry in log if "reward" in entry]
    return [{n: v for n, v in step.items() if "time" not in n and "memory" not in n} for step in steps]


def test_a_run_of_notebook_07_is_exported_and_repeated_to_the_same_rewards(
    folder, command, cell, loaded_once, shared, monkeypatch
):
    problems = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(7) for b in range(5)]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, problems)))
    task = rloo_kit.tasks.from_file("sums.jsonl", system="Add.", policy=shared, max_new_tokens=8)
    gated = rewards.gated(by=cell["long_enough"], reward=cell["in_time"], above=-1)
    three = [task.correct, cell["in_time"], gated]
    reward = rewards.weighted(three, [0.5, 0.5, 0.25], name="right_in_time")
    settings = {**SMALL, "max_steps": 2, "learning_rate": 1e-3, "beta": 0.05, "seed": 3}
    config = rloo_kit.RLOOConfig(**settings, output_dir="first")
    rloo_kit.RLOOTrainer(shared, [reward, task.correct], config, task.train).train()
    as_loaded(loaded_once)

    monkeypatch.chdir(folder.parent)  # the command may be called from anywhere
    result = command("export", folder / "first", "--out", folder / "again.yaml")
    assert result.stdout.split() == [str(folder / "again.yaml"), str(folder / "again_rewards.py")]
    assert result.stderr.startswith("not in it: imports and names that in_time, long_enough may use")
    command("train", folder / "again.yaml")
    first = log_of(folder / "first")
    assert len(first) == 2
    assert first[0]["reward"] != first[1]["reward"]
    assert log_of(folder / "first-again") == first

    written = yaml.safe_load((folder / "again.yaml").read_text())
    assert written["policy"] == {"name": "tiny", "seed": 0}
    assert written["task"]["from_file"]["system"] == "Add."
    assert written["rewards"][1] == "task.correct"
    recipe = json.loads((folder / "first-again" / RECIPE).read_text())  # its functions now come from a file
    weighted = recipe["config"]["rewards"][0]["rewards.weighted"]
    assert weighted["rewards"][1] == f"{folder}/again_rewards.py:in_time"


def test_two_functions_of_one_name_are_refused(cell):
    recipe = run_record.Recipe()
    assert recipe.value([cell["in_time"], cell["in_time"]]) == ["notebook.py:in_time"] * 2
    assert recipe.as_json().count("def in_time") == 1
    with pytest.raises(ConfigError, match="two functions are called 'in_time'"):
        recipe.value(cell["made_of_another_text"]())


def test_what_looks_as_if_it_held_a_secret_is_left_out_and_said_to_be():
    secret = KINDS["Hugging Face"]
    text = f"def judged(completions, **kwargs):\n{textwrap.indent(secret, '    ')}\n    return [0.0]\n"
    recipe = run_record.Recipe()
    recipe.section("rewards", recipe.value, run_in_a_cell(text, "<ipykernel secret>")["judged"])
    assert recipe.cannot == [["rewards", f"the source of judged is left out: {LEFT_OUT}", "read it from os.environ"]]
    with pytest.raises(ConfigError, match=r"api_key of rewards\.judge is left out"):
        recipe.arguments(Call("rewards.judge", {"api_key": "0123456789", "reward": [1]}))
    with pytest.raises(ConfigError, match=r"where of rewards\.judge is left out"):
        recipe.arguments(Call("rewards.judge", {"where": [secret]}))
    assert secret.split("\n")[0] not in recipe.as_json()


def test_what_cannot_be_exported_is_named_with_what_to_do_and_costs_no_run(folder, command, cell, make_trainer, task):
    make_trainer(cell["unnamed"], train_dataset=task.train.select(range(8)), output_dir="ran").train()
    task_fault, reward_fault = command("export", "ran", status=2).stderr.split("\n\n")
    assert "train_dataset is not the unchanged train side of a task" in task_fault
    assert "make tasks.from_file(file)" in task_fault
    assert "a reward is a lambda" in reward_fault
    assert "Where: ran, rewards" in reward_fault
    assert not Path("ran.yaml").exists()


def test_a_policy_that_was_trained_before_the_run_is_refused(policy):
    recipe = run_record.Recipe()
    assert recipe.policy(policy.model, resumed=False) == {"name": "tiny", "seed": 0}
    next(p for name, p in policy.model.named_parameters() if "lora_B" in name).data += 1
    with pytest.raises(ConfigError, match=r"the policy had been trained before[\s\S]*policy\.save\(folder\)"):
        recipe.policy(policy.model, resumed=False)


def test_a_folder_of_no_run_is_refused_and_a_file_that_is_there_is_kept_unless_force(folder, command):
    assert "this is no folder of a run that can be exported" in command("export", "nowhere", status=2).stderr
    Path("ran").mkdir()
    config = {"task": {"addition": {}}, "rewards": ["task.correct"], "trainer": {}}
    recipe = {"config": config, "cannot": [], "notes": ["a callback"], "functions": ""}
    Path("ran", RECIPE).write_text(json.dumps(recipe))
    Path("ran.yaml").write_text("mine")
    assert "the file is there already" in command("export", "ran", status=2).stderr
    command("export", "ran", "--force")
    assert "# Not in it: a callback." in Path("ran.yaml").read_text()


def test_every_factory_of_rewards_remembers_its_call():
    tokens = rewards.ThinkTokens(1, 2, eos_ids=(3,))
    made = rewards.only_for(rewards.guarded(rewards.answer_reward("exact", tokens=tokens)), level=[1, 2])
    entry = run_record.Recipe().value(made)
    inner = {"kind": "exact", "tokens": {"open_id": 1, "close_id": 2, "eos_ids": [3], "prompt_opens": False}}
    assert entry == {"rewards.only_for": {"reward": {"rewards.answer_reward": inner}, "level": [1, 2]}}
    for name in reward_entries.FACTORIES:
        assert hasattr(reward_entries.FACTORIES[name], "__wrapped__"), name
    assert made_by(functools.partial(made)) is None


def test_settings_are_those_that_were_given_or_set_since_and_hold_as_yaml():
    given = {"num_generations": 2, "reward_clip_range": (-1.0, 1.0), "kl_placement": "loss"}
    given |= {"lr_scheduler_type": "cosine", "save_strategy": "no", "hub_token": "hf_none"}
    args, notes = rloo_kit.RLOOConfig(**given, response_length=9), list[str]()
    args.learning_rate = 2e-5
    found = run_record.settings_of(args, notes)
    assert set(found) == {*given, "max_completion_length", "learning_rate"} - {"hub_token"}
    assert notes == ["hub_token, which belongs into .env"]
    again = rloo_kit.RLOOConfig(**yaml.safe_load(yaml.safe_dump(found)))
    names = [field.name for field in dataclasses.fields(args)]
    assert [name for name in names if getattr(again, name) != getattr(args, name)] == ["hub_token"]
