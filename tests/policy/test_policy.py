"""Policy: completions, and what generate and save guarantee."""

import pytest
import torch

import rloo_kit
from rloo_kit import models
from rloo_kit.errors import ConfigError
from tests.memory.conftest import fake_cuda
from tests.policy.conftest import watched

QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]


def test_n_completions_of_a_prompt_are_adjacent_and_a_seed_repeats_them_and_leaves_the_random_state(policy):
    other = [{"role": "user", "content": "What is 1 + 2?"}]
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    completions = policy.generate([QUESTION, other], n=3, max_new_tokens=8, seed=0)
    assert torch.rand(1) == expected
    assert completions == policy.generate([QUESTION, other], n=3, max_new_tokens=8, seed=0)
    assert [c.prompt for c in completions] == [QUESTION] * 3 + [other] * 3
    assert all(len(c.ids) <= 8 and c.finished == (c.ids[-1] in policy.eos_ids) for c in completions)


def test_generate_refuses_what_cannot_be_sampled(policy, task, monkeypatch):
    for prompts in ("What?", QUESTION, [], iter([QUESTION]), task.held_out, task.held_out[:2]):
        with pytest.raises(ConfigError, match=r"a list of one or more prompts[\s\S]*dataset\['prompt'\]"):
            policy.generate(prompts)
    with pytest.raises(ConfigError, match=r"a prompt is empty[\s\S]*prompts\[1\]"):
        policy.generate(["What?", ""])
    for name, bad in (("n", 0), ("batch_size", -1), ("temperature", 0.0), ("max_new_tokens", 2.5)):
        with pytest.raises(ConfigError, match=rf"{name} must be[\s\S]*{name}={bad}"):
            policy.generate([QUESTION], **{name: bad})
    monkeypatch.setattr(policy.tokenizer, "chat_template", None)
    with pytest.raises(ValueError, match="chat_template is not set"):
        policy.generate([QUESTION])
    with pytest.raises(ConfigError, match=r"temperature would have no effect[\s\S]*greedy=False"):
        policy.generate([QUESTION], greedy=True, temperature=0.7)


def test_a_prompt_as_long_as_the_policy_was_loaded_for_is_refused(policy, monkeypatch):
    tokens = len(policy.tokenize(["What is 1 + 2?"])[0])
    monkeypatch.setattr(policy.model, "max_seq_length", tokens, raising=False)
    with pytest.raises(ConfigError, match=rf"prompts\[0\] has {tokens} tokens"):
        policy.generate(["What is 1 + 2?"], max_new_tokens=1)
    monkeypatch.setattr(policy.model, "max_seq_length", tokens + 1, raising=False)
    assert policy.generate(["What is 1 + 2?"], max_new_tokens=1)


def test_the_batch_fills_half_of_the_free_memory_of_a_gpu(policy, monkeypatch):
    checkpoint = models.CATALOGUE["qwen3-4b"]
    row = checkpoint.kv_bytes_per_token * 1024
    policy = rloo_kit.Policy(policy.model, policy.tokenizer, checkpoint)
    monkeypatch.setattr(rloo_kit.Policy, "device", torch.device("cuda"))
    in_use = {"memory_reserved": 6 * row, "memory_allocated": 2 * row}
    fake_cuda(monkeypatch, mem_get_info=(20 * row, 40 * row), **in_use)
    assert policy.fitting_batch_size(1024) == 12, "what torch has cached counts as free"
    fake_cuda(monkeypatch, mem_get_info=(0, 40 * row), **in_use)
    assert policy.fitting_batch_size(8192) == 1


def test_where_memory_runs_out_generate_goes_on_with_fewer_at_once(policy, monkeypatch):
    calls = watched(policy.model, monkeypatch, room=2)
    prompts = [f"{number} + 1 =" for number in range(6)]
    with pytest.warns(UserWarning, match=r"with 4 completions sampled at once.*batch_size=2"):
        found = policy.generate(prompts, max_new_tokens=3, batch_size=4, greedy=True)
    assert [completion.prompt for completion in found] == prompts
    assert calls == [4, 2, 2, 2], "the second batch, of two, is not tried larger"


def test_saving_leaves_out_the_reference_and_replaces_an_earlier_folder(policy, tmp_path):
    policy.model.add_adapter("ref", policy.model.peft_config["default"])
    folder = tmp_path / "adapter"
    folder.mkdir()
    for leftover in ("adapter_config.json", "adapter_model.bin", ".DS_Store", ".ipynb_checkpoints/x.json"):
        (folder / leftover).parent.mkdir(exist_ok=True)
        (folder / leftover).touch()
    policy.save(folder)
    names = {path.name for path in folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert not {"ref", "adapter_model.bin"} & names
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]
