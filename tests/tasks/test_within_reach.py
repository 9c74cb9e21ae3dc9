"""Problems within reach: selected by samples, sampled only once, and resumed after an interruption."""

import functools
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset

from rloo_kit import tasks
from rloo_kit.errors import ConfigError, DatasetError, RLOOKitError
from rloo_kit.models import CATALOGUE
from rloo_kit.policy.policy import Completion, Policy
from rloo_kit.tasks.reward_calls import solved

ROWS = Dataset.from_list([{"prompt": f"{k} + 0 =", "answer": str(k)} for k in range(9)])
HOW = {"max_new_tokens": 16}


class Counting(Policy):
    """Solves prompt k in k of 8 completions; ``stops`` is the number of the call that is interrupted."""

    base = "counting"
    thinking = True
    stops = 0

    def __post_init__(self):
        object.__setattr__(self, "calls", [])

    def tokenize(self, prompts, **template):
        return [list(map(ord, prompt)) for prompt in prompts]

    def generate(self, prompts, *, n=1, **how):
        self.calls.append((list(prompts), how))
        if len(self.calls) == self.stops:
            raise KeyboardInterrupt
        said = [(prompt, prompt[0] if i < int(prompt[0]) else "77") for prompt in prompts for i in range(n)]
        return [Completion(prompt, text, tuple(map(ord, text)), True) for prompt, text in said]


def counting(stops=0):
    tokenizer = SimpleNamespace(decode=lambda ids, **how: "".join(map(chr, ids)))
    policy = Counting(SimpleNamespace(named_parameters=list), tokenizer, CATALOGUE["smollm2-135m"])
    object.__setattr__(policy, "stops", stops)
    return policy


def right(completions, answer, also="", **kwargs):
    return [float(text in (gold, also)) for text, gold in zip(completions, answer, strict=True)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def lines_of(table):
    return [json.loads(line) for line in table.read_text().splitlines() if line.endswith("}")]


def kept(dataset):
    return [int(answer) for answer in dataset["answer"]]


def test_what_is_solved_sometimes_is_kept_and_the_histogram_shows_both(capsys):
    policy = counting()
    assert kept(tasks.within_reach(ROWS, policy, right, **HOW)) == [2, 3, 4, 5, 6]
    shown = capsys.readouterr().out
    assert "5 of 9 prompts were solved in 20% to 80% of 8 completions, 0% cut (out/within_reach/" in shown
    assert "\n   1 of 8          1      0  ###" in shown
    assert "\n   2 of 8          1      1  ###" in shown
    assert all(how["temperature"] == 0.6 for _, how in policy.calls), "the checkpoint's own"
    # With other bounds or another reward, in another cell, nothing is sampled again.
    assert kept(tasks.within_reach(ROWS, counting(stops=1), right, 0.5, 1.0, **HOW)) == [4, 5, 6, 7, 8]
    one_of = functools.partial(right, also="77")
    assert kept(tasks.within_reach(ROWS, counting(stops=1), one_of, 1.0, 1.0, **HOW)) == list(range(9))


def test_it_goes_on_where_it_was_interrupted_with_the_same_draws_and_a_look_at_few_is_its_beginning():
    rows, whole = ROWS, counting()
    tasks.within_reach(rows, whole, right, n=32, folder="whole", **HOW)
    with pytest.raises(KeyboardInterrupt):
        tasks.within_reach(rows, counting(stops=3), right, n=32, folder="part", **HOW)
    with next(Path("part").iterdir()).open("a") as table:
        table.write('\n{"prompt": "half a li')
    again = counting()
    tasks.within_reach(rows, again, right, n=32, folder="part", **HOW)
    assert again.calls == whole.calls[2:]
    (part,), (table,) = Path("part").iterdir(), Path("whole").iterdir()
    assert lines_of(part) == lines_of(table)
    part.write_text(f"{part.read_text()}\n{part.read_text()}")  # as if two calls wrote at once
    tasks.within_reach(rows, counting(stops=1), right, n=32, folder="part", **HOW)
    few = counting()
    tasks.within_reach(rows, few, right, n=32, n_prompts=4, folder="few", low=0, **HOW)
    assert few.calls == whole.calls[:2]
    tasks.within_reach(rows, few, right, n=32, folder="few", **HOW)
    assert few.calls == whole.calls


CHANGED = [{"temperature": 0.9}, {"max_new_tokens": 17}, {"n": 4}]


@pytest.mark.parametrize("changed", CHANGED, ids=list)
def test_other_sampling_has_a_table_of_its_own(changed):
    tasks.within_reach(ROWS, counting(), right, **HOW, n_prompts=100)
    (table,) = Path("out/within_reach").iterdir()
    head, *lines = lines_of(table)
    said = {"policy", "weights", "n", "seed", "max_new_tokens", "temperature", "thinking"}
    assert set(head) == said
    assert [line["completions"].count([f"{ord(str(k))}", True]) for k, line in enumerate(lines)] == list(range(9))
    anew = counting()
    tasks.within_reach(ROWS, anew, right, **{**HOW, **changed}, low=0, high=1)
    assert len(anew.calls) > 0
    assert len(list(Path("out/within_reach").iterdir())) == 2


def test_where_nothing_is_kept_the_error_says_what_to_change():
    with pytest.raises(DatasetError, match=r"0 of 3 prompts[\s\S]*0% cut[\s\S]*give easier problems"):
        tasks.within_reach(ROWS.select([0, 0, 8]), counting(), right, **HOW)


@pytest.mark.parametrize(
    ("dataset", "how", "error"),
    [
        (ROWS, {"low": 0.9}, "no count of 8 completions lies between"),
        (ROWS, {"n": 1}, "no count of 1 completions"),
        (list(ROWS), {}, "a list, not a datasets.Dataset"),
        (ROWS.remove_columns("prompt"), {}, "no column 'prompt'"),
        (ROWS.select([]), {}, "no rows"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_sampled(dataset, how, error):
    with pytest.raises(RLOOKitError, match=error):
        tasks.within_reach(dataset, counting(stops=1), right, **HOW, **how)


def test_several_processes_read_the_table_of_one(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="call it in one process first"):
        tasks.within_reach(ROWS, counting(), right, **HOW)
    monkeypatch.setenv("WORLD_SIZE", "1")
    tasks.within_reach(ROWS, counting(), right, **HOW)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert kept(tasks.within_reach(ROWS, counting(stops=1), right, **HOW)) == [2, 3, 4, 5, 6]


def test_the_tiny_policy_keeps_some_of_its_task_and_after_training_the_table_is_another(task, policy, capsys):
    found = task.within_reach(policy, n_prompts=16, n=4, max_new_tokens=24)
    assert 0 < len(found.train) < 16
    assert set(found.train["problem"]) <= set(task.train["problem"][:16])
    assert found.held_out is task.held_out
    assert f"{len(found.train)} that were solved in 20% to 80% of 4 completions" in found.description
    assert "16 of 16 prompts sampled" in capsys.readouterr().out
    weights = dict(policy.model.named_parameters())
    next(weight for name, weight in weights.items() if "lora_B" in name).data += 0.01
    task.within_reach(policy, 0, 1, n_prompts=16, n=4, max_new_tokens=24)
    assert len(list(Path("out/within_reach").iterdir())) == 2
    norm = next(weight for name, weight in weights.items() if "norm" in name and not weight.requires_grad)
    before = norm.detach().clone()
    norm.data *= 1.01  # another base in the same folder, such as a merged one
    task.within_reach(policy, 0, 1, n_prompts=16, n=4, max_new_tokens=24)
    norm.data = before
    assert len(list(Path("out/within_reach").iterdir())) == 3


def test_a_plain_reward_that_pays_more_than_one_is_said_to_count_as_right_from_one_on(recwarn):
    def two_for_right(completions, **kwargs):
        return [2.0 * ("4" in text) for text in completions]

    made = [Completion("2 + 2?", text, (1,), True) for text in ("4", "5")]
    rows = [{"prompt": "2 + 2?"}] * 2
    assert solved(two_for_right, rows, made) == [True, False]
    assert ["two_for_right pays more than 1" in str(one.message) for one in recwarn] == [True]
    two_for_right.right = 2.0
    assert solved(two_for_right, rows, made) == [True, False]
    assert len(recwarn) == 1
