"""Two processes started by torchrun: what prints once, what is drawn independently, what is written whole."""

import pytest

import rloo_kit
from tests.scale.conftest import finish, seen, start

pytestmark = pytest.mark.long  # make scale; tests/train/test_processes.py compares the gradients of two processes


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    out, err = finish(start(folder, 2, level="auto"))
    return folder, out, err


def test_what_all_processes_would_say_is_said_once(two):
    _, out, err = two
    lines = out.splitlines()
    assert sum(line.startswith("stack ") for line in lines) == 1  # prepare's screen
    levels = [line for line in lines if line.startswith("level ")]
    assert len(levels) == len({*levels})
    assert sum("step  reward" in line for line in lines) == 1
    assert [sum(line.strip().startswith(step) for line in lines) for step in ("1/2", "2/2")] == [1, 1]
    assert err.count("top_p=0.9: completions are sampled from another distribution") == 1


def test_each_process_draws_its_own_completions_of_a_shared_prompt(two):
    told = seen(two[0], 2)
    assert [one["processes"] for one in told] == [2, 2]
    first, second = (one["seen"] for one in told)
    # A group of 4 is split between the processes: the same prompt in both, but other draws.
    assert [(step, text) for step, text, _ in first] == [(step, text) for step, text, _ in second]
    assert [ids for *_, ids in first] != [ids for *_, ids in second]


def test_the_adapter_is_whole_when_any_process_goes_on(two):
    folder = two[0]
    for one in seen(folder, 2):
        assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= set(one["adapter"])
    assert (folder / "run/trainer_state.json").is_file()
    assert rloo_kit.load_policy(str(folder / "adapter")).generate(["What is 1 + 1?"], max_new_tokens=4, greedy=True)
