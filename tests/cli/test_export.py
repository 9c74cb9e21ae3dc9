"""What a notebook trained is written as a file that ``train`` repeats, to the same rewards."""

from __future__ import annotations

import dataclasses
import functools
import json
import linecache
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from trl.rewards import think_format_reward

import rewards
import rloo_kit
from rewards.call_records import made_by
from rloo_kit.cli import reward_entries
from rloo_kit.cli.config import load_config
from rloo_kit.train import run_record
from rloo_kit.train.run_record import LEFT_OUT
from rloo_kit.watch.run_folder import RECIPE
from tests.cli.conftest import Command
from tests.conftest import SMALL, as_loaded
from tests.test_redact import KINDS

CELL = """\
task, length = object(), 8

def in_time(completion_ids, **kwargs):
    return [float(len(ids) < 8) + 0.5 * sum(ids) / 1e6 for ids in completion_ids]

in_time.judges = "length"

def asks_the_task(completions, **kwargs):
    return [task.score(one) for one in completions]

def long_enough(completion_ids, **kwargs):
    return [float(len(ids) >= 3) for ids in completion_ids]

def made_of_another_text():
    def in_time(completion_ids, **kwargs):
        return [float(len(ids) < length) for ids in completion_ids]
    return in_time

clashing = made_of_another_text()
unnamed = lambda completions, **kwargs: [0.0 for _ in completions]

class Judge:
    def __call__(self, completions, **kwargs):
        return [0.0 for _ in completions]
"""


@pytest.fixture(scope="module")
def cell() -> dict[str, Any]:
    """What a notebook's cell defines: its text is known to Python as Jupyter makes it known."""
    name = "<ipykernel cell>"
    linecache.cache[name] = (len(CELL), None, CELL.splitlines(keepends=True), name)
    defined: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(CELL, name, "exec"), defined)
    return defined


def log_of(run: Path) -> list[dict[str, float]]:
    """Rewards, KL and lengths of each step, without seconds."""
    log = json.loads((run / "trainer_state.json").read_text())["log_history"]
    steps = [entry for entry in log if "reward" in entry]
    return [{n: v for n, v in step.items() if "time" not in n and "memory" not in n} for step in steps]


def test_a_run_of_notebook_07_is_exported_and_repeated_to_the_same_rewards(
    folder: Path, command: Command, cell: Any, loaded_once: Any, shared: rloo_kit.Policy, monkeypatch: Any
) -> None:
    problems = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(7) for b in range(5)]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, problems)))
    task = rloo_kit.tasks.from_file("sums.jsonl", system="Add.", policy=shared, max_new_tokens=8)
    gated = rewards.gated(by=cell["long_enough"], reward=cell["in_time"], above=-1)
    three = [task.correct, cell["in_time"], gated]
    reward = rewards.weighted(three, [0.5, 0.5, 0.25], name="right_in_time")
    settings = {
        **SMALL,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "beta": 0.05,
        "seed": 3,
        "output_dir": "first",
    }
    config = rloo_kit.RLOOConfig(**settings)
    rloo_kit.RLOOTrainer(shared, [reward, task.correct], config, task.train).train()
    as_loaded(loaded_once)

    monkeypatch.chdir(folder.parent)  # where the command is called from does not matter
    result = command("export", folder / "first", "--out", folder / "again.yaml")
    assert result.exit_code == 0, result.stderr
    assert result.output.split() == [str(folder / "again.yaml"), str(folder / "again_rewards.py")]
    repeated = command("train", folder / "again.yaml")
    assert repeated.exit_code == 0, repeated.stderr
    first = log_of(folder / "first")
    assert len(first) == 2
    assert first[0]["reward"] != first[1]["reward"]
    assert log_of(folder / "first-again") == first

    written = yaml.safe_load((folder / "again.yaml").read_text())
    assert written["policy"] == {"name": "tiny", "seed": 0}
    assert written["task"]["from_file"]["system"] == "Add."
    assert written["rewards"][1] == "task.correct"
    as_loaded(loaded_once)
    once_more = command("export", folder / "first-again", "--out", folder / "once_more.yaml")
    assert once_more.exit_code == 0, once_more.stderr
    later = yaml.safe_load((folder / "once_more.yaml").read_text())
    assert later["rewards"][0]["rewards.weighted"]["rewards"][1] == f"{folder}/again_rewards.py:in_time"


def test_the_notebooks_functions_are_written_once_and_say_what_they_judge(cell: dict[str, Any]) -> None:
    found = run_record.Recipe()
    assert found.add(cell["in_time"]) == "in_time"
    assert found.add(cell["in_time"]) == "in_time", "twice is once"
    defined: dict[str, Any] = {}
    exec(json.loads(found.as_json())["functions"], defined)
    ids = [[1, 2], list(range(9))]
    assert defined["in_time"](completion_ids=ids) == cell["in_time"](completion_ids=ids)
    assert defined["in_time"].judges == "length"
    with pytest.raises(run_record.CannotBeWrittenError, match="two functions are called 'in_time'"):
        found.add(cell["clashing"])


def test_what_is_not_defined_in_an_exported_file_is_said_on_the_screen(
    folder: Path, command: Command, cell: dict[str, Any]
) -> None:
    recipe = run_record.Recipe({"task": {"addition": {}}, "rewards": [], "trainer": {}})
    recipe.add(cell["asks_the_task"])
    Path("ran").mkdir()
    Path("ran", RECIPE).write_text(recipe.as_json())
    said = command("export", "ran")
    assert said.stderr == "not in it: task, which asks_the_task needs: define it beside asks_the_task\n"
    above = "# asks_the_task also needs task: define them above.\ndef asks_the_task("
    assert above in Path("ran_rewards.py").read_text()


@pytest.mark.parametrize("kind", ["Hugging Face"])
def test_a_source_that_looks_as_if_it_held_a_secret_is_left_out_and_said_to_be(
    kind: str, tmp_path: Path
) -> None:
    body = textwrap.indent(KINDS[kind], "    ")
    name, text = "<ipykernel secret>", f"def judged(completions, **kwargs):\n{body}\n    return [0.0]\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    defined: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, name, "exec"), defined)
    found = run_record.Recipe()
    found.section("rewards", lambda: run_record._reward(found, defined["judged"], None))
    assert found.cannot == [
        ("rewards", f"the source of judged is left out: {LEFT_OUT}", "read it from os.environ")
    ]
    assert KINDS[kind].split("\n")[0] not in found.as_json()


def test_what_cannot_be_exported_is_named_with_what_to_do_and_costs_no_run(
    folder: Path, command: Command, cell: dict[str, Any], make_trainer: Callable[..., Any], task: Any
) -> None:
    make_trainer(cell["unnamed"], train_dataset=task.train.select(range(8)), output_dir="ran").train()
    result = command("export", "ran")
    assert result.exit_code == 2
    said = result.stderr.split("\n\n")
    assert len(said) == 2
    assert "train_dataset is no task's train side as it was made" in said[0]
    assert "make tasks.from_file(file)" in said[0]
    assert "a reward is a lambda" in said[1]
    assert "Where: ran, rewards" in said[1]
    assert not Path("ran.yaml").exists()


def test_a_policy_that_was_trained_before_the_run_is_refused(
    make_trainer: Callable[..., Any], folder: Path
) -> None:
    trainer = make_trainer(output_dir="ran", learning_rate=1e-2, beta=0.0)
    trainer.train()
    assert json.loads(Path("ran", RECIPE).read_text())["cannot"] == []
    trainer.model.get_parameter(
        next(n for n, _ in trainer.model.named_parameters() if "lora_B" in n)
    ).data += 1
    trainer.train()
    ((section, what, todo),) = json.loads(Path("ran", RECIPE).read_text())["cannot"]
    assert (section, what) == ("policy", "the policy had been trained before this run")
    assert "policy.save(folder)" in todo


def test_a_reward_of_an_installed_package_is_imported_in_the_file_of_functions(
    folder: Path, command: Command
) -> None:
    recipe = run_record.Recipe({"task": {"addition": {}}, "trainer": {}})
    both = rewards.weighted([think_format_reward, rewards.answer_reward()])
    recipe.section("rewards", lambda: [run_record._reward(recipe, both, None)])
    Path("ran").mkdir()
    Path("ran", RECIPE).write_text(recipe.as_json())
    assert command("export", "ran").exit_code == 0
    written = load_config("ran.yaml")
    (inner,) = written.rewards[0].values()
    assert inner["rewards"][0] == f"{folder / 'ran_rewards.py'}:think_format_reward"
    assert written.args


def test_a_folder_of_no_run_is_refused_and_a_file_that_is_there_is_kept_unless_force(
    folder: Path, command: Command
) -> None:
    result = command("export", "nowhere")
    assert result.exit_code == 2
    assert "this is no folder of a run that can be exported" in result.stderr
    Path("ran").mkdir()
    config = {"task": {"addition": {}}, "rewards": ["task.correct"], "trainer": {}}
    recipe = {"config": config, "cannot": [], "notes": ["a callback"], "functions": ""}
    Path("ran", RECIPE).write_text(json.dumps(recipe))
    Path("ran.yaml").write_text("mine")
    assert "the file is there already" in command("export", "ran").stderr
    assert command("export", "ran", "--force").exit_code == 0
    assert "# Not in it: a callback." in Path("ran.yaml").read_text()


def test_every_factory_of_rewards_remembers_its_call(cell: dict[str, Any]) -> None:
    tokens = rewards.ThinkTokens(1, 2, eos_ids=(3,))
    made = rewards.only_for(rewards.guarded(rewards.answer_reward("exact", tokens=tokens)), level=[1, 2])
    entry: Any = run_record._reward(run_record.Recipe(), made, None)
    inner = {"kind": "exact", "tokens": {"open_id": 1, "close_id": 2, "eos_ids": [3], "prompt_opens": False}}
    assert entry == {"rewards.only_for": {"reward": {"rewards.answer_reward": inner}, "level": [1, 2]}}
    for name in reward_entries.FACTORIES:
        assert hasattr(reward_entries.FACTORIES[name], "__wrapped__"), name
    assert made_by(functools.partial(made)) is None


def test_settings_are_those_that_were_given_or_set_since_and_hold_as_yaml() -> None:
    given: dict[str, Any] = {"num_generations": 2, "reward_clip_range": (-1.0, 1.0), "kl_placement": "loss"}
    given |= {"lr_scheduler_type": "cosine", "save_strategy": "no", "hub_token": "hf_none"}
    args, notes = rloo_kit.RLOOConfig(**given, response_length=9), list[str]()
    args.learning_rate = 2e-5
    found = run_record.settings_of(args, notes)
    assert set(found) == {*given, "max_completion_length", "learning_rate"} - {"hub_token"}
    assert notes == ["hub_token, which belongs into .env"]
    again = rloo_kit.RLOOConfig(**yaml.safe_load(yaml.safe_dump(found)))
    names = [field.name for field in dataclasses.fields(args)]
    assert [name for name in names if getattr(again, name) != getattr(args, name)] == ["hub_token"]
