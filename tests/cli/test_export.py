"""What a notebook trained is written as a file that ``train`` repeats, to the same rewards."""

from __future__ import annotations

import dataclasses
import functools
import json
import linecache
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import rewards
import rloo_kit
from rewards.made import made_by
from rloo_kit.train import recipe, sources
from rloo_kit.watch.run_folder import RECIPE
from tests.cli.conftest import Command
from tests.conftest import SMALL, as_loaded

CELL = """\
length = 8
weight = 0.5
half = math.ldexp(1, -1)
task, secret_key, table = object(), "open sesame", {"a": [1, 2]}

def shorter(ids):
    return float(len(ids) < length)

def in_time(completion_ids, **kwargs):
    return [shorter(ids) + weight * math.fsum(ids) / 1e6 for ids in completion_ids]

in_time.judges = "length"

def asks_the_task(completions, **kwargs):
    return [task.score(one) for one in completions]

def asks_a_service(completions, **kwargs):
    return [len(secret_key) for one in completions]

def asks_nothing_known(completions, **kwargs):
    return [unheard_of for one in completions]

def made(least):
    def long_enough(completion_ids, **kwargs):
        return [float(len(ids) >= least) for ids in completion_ids]
    return long_enough

def made_otherwise(length):
    def shorter_than_others(completion_ids, **kwargs):
        return [float(len(ids) < length) for ids in completion_ids]
    return shorter_than_others

long_enough, clashing = made(3), made_otherwise(7)
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
    defined: dict[str, Any] = {"__name__": "__main__", "math": math}
    exec(compile(CELL, name, "exec"), defined)
    return defined


def log_of(run: Path) -> list[dict[str, float]]:
    """Rewards, KL and lengths of each step, without seconds."""
    log = json.loads((run / "trainer_state.json").read_text())["log_history"]
    steps = [entry for entry in log if "reward" in entry]
    return [{n: v for n, v in step.items() if "time" not in n and "memory" not in n} for step in steps]


def test_a_run_of_notebook_07_is_exported_and_repeated_to_the_same_rewards(
    folder: Path,
    command: Command,
    cell: dict[str, Any],
    loaded_once: Any,
    shared: rloo_kit.Policy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems = [{"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(7) for b in range(5)]
    Path("sums.jsonl").write_text("\n".join(map(json.dumps, problems)))
    task = rloo_kit.tasks.from_file("sums.jsonl", system="Add.", policy=shared, max_new_tokens=8)
    both = [
        task.correct,
        cell["in_time"],
        rewards.gated(by=cell["long_enough"], reward=cell["in_time"], above=-1),
    ]
    reward = rewards.weighted(both, [0.5, 0.5, 0.25], name="right_in_time")
    settings = {
        **SMALL,
        "max_steps": 2,
        "learning_rate": 1e-3,
        "beta": 0.05,
        "seed": 3,
        "output_dir": "first",
    }
    config = rloo_kit.RLOOConfig(**settings)
    rloo_kit.RLOOTrainer(
        model=shared, reward_funcs=[reward, task.correct], args=config, train_dataset=task.train
    ).train()
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
    assert later["rewards"][0]["rewards.weighted"]["rewards"][1] == f"{folder / 'again_rewards.py'}:in_time"


def test_the_notebooks_functions_have_what_they_need_and_say_what_they_judge(cell: dict[str, Any]) -> None:
    found = sources.Sources()
    assert found.add(cell["in_time"]) == "in_time"
    assert found.add(cell["in_time"]) == "in_time", "twice is once"
    defined: dict[str, Any] = {}
    exec(found.text(), defined)
    ids = [[1, 2], list(range(9))]
    assert defined["in_time"](completion_ids=ids) == cell["in_time"](completion_ids=ids)
    assert defined["in_time"].judges == "length"
    assert (defined["length"], defined["weight"]) == (8, 0.5)
    assert "half" not in defined
    with pytest.raises(sources.CannotBeWrittenError, match="two functions use 'length', each another one"):
        found.add(cell["clashing"])


REFUSED: dict[str, tuple[str, str]] = {
    "asks_the_task": ("asks_the_task uses 'task', a object", "put asks_the_task into a .py file"),
    "asks_a_service": ("'secret_key', which may be a secret", "read it from os.environ"),
    "asks_nothing_known": ("'unheard_of', which is not defined", "define unheard_of"),
    "unnamed": ("a lambda, which has no name", "put it into a .py file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_function_that_cannot_be_written_down_is_refused_by_name(name: str, cell: dict[str, Any]) -> None:
    what, todo = REFUSED[name]
    with pytest.raises(sources.CannotBeWrittenError) as refused:
        sources.Sources().add(cell[name])
    assert what in refused.value.what
    assert todo in refused.value.todo


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


@pytest.mark.parametrize("given", ["nowhere", "."])
def test_a_folder_of_no_run_is_refused(given: str, folder: Path, command: Command) -> None:
    result = command("export", given)
    assert result.exit_code == 2
    assert "this is no folder of a run that can be exported" in result.stderr
    assert "What to do: name the output_dir of a run" in result.stderr


def test_a_file_that_is_there_is_kept_unless_force(folder: Path, command: Command) -> None:
    Path("ran").mkdir()
    config = {
        "policy": {"name": "tiny"},
        "task": {"addition": {}},
        "rewards": ["task.correct"],
        "trainer": {},
    }
    Path("ran", RECIPE).write_text(
        json.dumps({"config": config, "cannot": [], "notes": ["a callback"], "functions": ""})
    )
    Path("ran.yaml").write_text("mine")
    assert "the file is there already" in command("export", "ran").stderr
    assert command("export", "ran", "--force").exit_code == 0
    assert "# Not in it: a callback." in Path("ran.yaml").read_text()


def test_every_factory_of_rewards_remembers_its_call(cell: dict[str, Any]) -> None:
    tokens = rewards.ThinkTokens(1, 2, eos_ids=(3,))
    made = rewards.only_for(rewards.guarded(rewards.answer_reward("exact", tokens=tokens)), level=[1, 2])
    entry: Any = recipe._reward(recipe.Recipe(), made, None)
    inner = {"kind": "exact", "tokens": {"open_id": 1, "close_id": 2, "eos_ids": [3], "prompt_opens": False}}
    assert entry == {"rewards.only_for": {"reward": {"rewards.answer_reward": inner}, "level": [1, 2]}}
    factories = [
        "cached",
        "clipped",
        "gated",
        "guarded",
        "length_reward",
        "overlong_reward",
        "repetition_reward",
    ]
    factories += ["reward_model", "rubric_reward", "scaled", "sentence_reward", "thinking_reward", "weighted"]
    for name in [*factories, "answer_reward", "only_for", "thought_then_answer"]:
        assert hasattr(getattr(rewards, name), "__wrapped__"), name
    assert made_by(functools.partial(made)) is None


def test_settings_are_those_that_were_given_or_set_since_and_hold_as_yaml() -> None:
    given: dict[str, Any] = {
        "num_generations": 2,
        "reward_clip_range": (-1.0, 1.0),
        "steps_per_generation": 1,
    }
    given |= {
        "kl_placement": "loss",
        "lr_scheduler_type": "cosine",
        "save_strategy": "no",
        "hub_token": "hf_none",
    }
    args, notes = rloo_kit.RLOOConfig(**given, response_length=9), list[str]()
    args.learning_rate = 2e-5
    found = recipe.settings_of(args, notes)
    assert set(found) == {*given, "max_completion_length", "learning_rate"} - {"hub_token"}
    assert notes == ["hub_token, which belongs into .env"]
    again = rloo_kit.RLOOConfig(**yaml.safe_load(yaml.safe_dump(found)))
    names = [field.name for field in dataclasses.fields(args)]
    assert [name for name in names if getattr(again, name) != getattr(args, name)] == ["hub_token"]
    assert not {"_given", "_as_made"} & set(pickle.loads(pickle.dumps(args)).__dict__)


def test_settings_of_which_nothing_is_known_are_refused() -> None:
    import trl

    for args in (trl.RLOOConfig("out"), pickle.loads(pickle.dumps(rloo_kit.RLOOConfig("out")))):
        with pytest.raises(sources.CannotBeWrittenError, match="it is not known which settings"):
            recipe.settings_of(args, [])
