"""GSM8K: a task's columns from its own two files, and an error that names the files if the hub is not reachable."""

import json
from types import SimpleNamespace

import pytest
from datasets import Dataset

from rewards import instruction
from rloo_kit import tasks
from rloo_kit.errors import ConfigError, DatasetError
from rloo_kit.models import CATALOGUE
from rloo_kit.tasks.gsm8k import _from_folder

SOLUTION = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nIn all 48+24 = <<48+24=72>>72.\n#### {n}"


@pytest.fixture
def folder(tmp_path):
    for split, first in (("train", 0), ("test", 100)):
        rows = [{"question": f"How many clips {first + n}?", "answer": SOLUTION.format(n=n)} for n in range(20)]
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_folder_gives_the_published_split_with_the_number_as_answer(folder):
    task = tasks.gsm8k(folder=folder)
    assert (task.name, len(task.train), len(task.held_out)) == ("gsm8k", 20, 20)
    assert task.train[7]["answer"] == "7"
    assert task.held_out["problem"][0] == "How many clips 100?"
    assert task.train[0]["prompt"] == [{"role": "user", "content": "How many clips 0?"}]
    assert task.correct(completions=["so #### 7", "8"], answer=["7", "7"]) == [1.0, 0.0]


def test_a_policy_is_asked_in_its_form_and_a_part_is_drawn_by_the_seed(folder):
    policy = SimpleNamespace(checkpoint=CATALOGUE["qwen3-4b"])
    parts = [tasks.gsm8k(policy, n_train=5, n_held_out=3, folder=folder, seed=seed) for seed in (0, 0, 1)]
    problems = [tuple(part.train["problem"]) for part in parts]
    assert problems[0] == problems[1] != problems[2]
    assert len(set(problems[0])) == 5
    assert parts[0].train[0]["prompt"][0]["content"].endswith(instruction("boxed"))
    with pytest.raises(DatasetError, match=r"n_train=21[\s\S]*1 to 20"):
        tasks.gsm8k(n_train=21, folder=folder)
    with pytest.raises(ConfigError, match=r"n_held_out must be a valid integer[\s\S]*write n_held_out=5"):
        tasks.gsm8k(n_held_out="5", folder=folder)


def test_a_folder_without_the_files_or_their_columns_is_told_their_form(folder, tmp_path):
    (folder / "test.jsonl").write_text('{"prompt": "a", "answer": "1"}\n')
    with pytest.raises(DatasetError, match=r"no column 'question'[\s\S]*columns are prompt, answer"):
        tasks.gsm8k(folder=folder)
    with pytest.raises(DatasetError, match=r"no such file[\s\S]*train.jsonl"):
        tasks.gsm8k(folder=tmp_path / "elsewhere")


def test_without_the_hub_its_cache_is_read_else_a_local_files_form_is_named(folder, tmp_path, monkeypatch):
    import datasets
    import huggingface_hub

    def no_route(*args, **kwargs):
        raise OSError("no route")

    def never(*args, **kwargs):
        pytest.fail("it would try for minutes")

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "dataset_info", no_route)
    monkeypatch.setattr(datasets, "load_dataset", never)
    with pytest.raises(DatasetError, match=r"cannot be reached[\s\S]*offline mode is off[\s\S]*folder=..."):
        tasks.gsm8k()
    (tmp_path / "openai___gsm8k").mkdir()
    rows = lambda repository, configuration, split: Dataset.from_list(_from_folder(folder, split))  # noqa: E731
    monkeypatch.setattr(datasets, "load_dataset", rows)
    assert len(tasks.gsm8k().held_out) == 20
