"""load_policy, generate and save: what a policy is, and what is said where it is not to be had."""

from __future__ import annotations

import json
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

import rloo_kit
from rloo_kit import catalogue
from rloo_kit.errors import ConfigError, OutOfMemoryError, PolicyNotFoundError
from rloo_kit.policy import load as loading
from rloo_kit.policy import source, tiny

QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]


def test_without_a_gpu_the_bundled_policy_is_loaded_in_4_bit_with_lora(policy: Any) -> None:
    kinds = {type(module).__name__ for module in policy.model.modules()}
    trained = {name.split(".")[-4] for name, p in policy.model.named_parameters() if p.requires_grad}
    config = policy.model.peft_config["default"]
    assert policy.checkpoint.name == "tiny"
    assert "Linear4bit" in kinds
    assert trained == set(catalogue.PROJECTIONS)
    assert (config.r, config.lora_alpha, config.lora_dropout) == (16, 16, 0.0)


def test_pad_differs_from_eos_and_every_eos_id_ends_a_completion(policy: Any) -> None:
    assert policy.tokenizer.pad_token_id not in (None, policy.tokenizer.eos_token_id)
    assert set(policy.eos_ids) == {151645, 151643}


class ThreeTokens:
    """A tokenizer whose pad is its eos, until somebody sets another."""

    eos_token, eos_token_id, bos_token_id, pad_token = "<|im_end|>", 2, None, "<|im_end|>"

    def get_vocab(self) -> dict[str, int]:
        return {"<|im_end|>": 2, "<|endoftext|>": 1, "<|vision_pad|>": 3}

    @property
    def pad_token_id(self) -> int:
        return self.get_vocab()[self.pad_token]


def test_a_tokenizer_whose_pad_is_its_eos_gets_another() -> None:
    tokenizer = ThreeTokens()
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=2), config=SimpleNamespace())
    loading._complete_tokens(model, tokenizer)
    assert tokenizer.pad_token == "<|vision_pad|>"
    assert model.generation_config.eos_token_id == [2, 1]
    assert model.config.pad_token_id == 3


def test_loading_prints_nothing_but_real_notices(capfd: pytest.CaptureFixture[str]) -> None:
    rloo_kit.load_policy("tiny")
    assert capfd.readouterr() == ("", "")


def test_n_completions_of_a_prompt_stand_side_by_side(policy: Any) -> None:
    other = [{"role": "user", "content": "What is 1 + 2?"}]
    completions = policy.generate([QUESTION, other], n=3, max_new_tokens=8, seed=0)
    assert [c.prompt for c in completions] == [QUESTION] * 3 + [other] * 3
    for completion in completions:
        assert len(completion.ids) <= 8
        assert completion.finished == (completion.ids[-1] in policy.eos_ids)


def test_a_seed_repeats_the_samples_and_leaves_the_random_state_alone(policy: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = policy.generate([QUESTION], n=4, max_new_tokens=8, seed=5)
    assert torch.rand(1) == expected
    assert first == policy.generate([QUESTION], n=4, max_new_tokens=8, seed=5)


def test_a_padded_row_gives_the_completion_of_the_row_alone(policy: Any) -> None:
    longer = [{"role": "user", "content": "What is 17 + 25 + 13 + 12 + 11 + 10?"}]
    together = policy.generate([QUESTION, longer], greedy=True, max_new_tokens=16)
    alone = policy.generate([QUESTION], greedy=True, max_new_tokens=16)
    assert together[0] == alone[0]


def test_the_thought_can_be_switched_off_through_the_template(policy: Any) -> None:
    thinking = policy.tokenize([QUESTION])[0]
    switched_off = policy.tokenize([QUESTION], enable_thinking=False)[0]
    assert switched_off[: len(thinking)] == thinking
    assert 151668 in switched_off[len(thinking) :]


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ("What is 1 + 1?", {}, "a list of prompts"),
        (QUESTION, {}, "a list of prompts"),
        ([], {}, "a list of prompts"),
        ([QUESTION], {"n": 0}, "at least 1"),
        ([QUESTION], {"batch_size": -1}, "at least 1"),
        ([QUESTION], {"temperature": 0.0}, "greedy=True"),
    ],
)
def test_generate_says_what_it_takes(policy: Any, prompts: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy.generate(prompts, **options)


def _step(policy: Any) -> None:
    """Move the LoRA away from zero, as training would."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=generator)


def test_a_saved_adapter_reads_back_with_the_same_greedy_output(
    fresh_policy: Any, task: Any, tmp_path: Path
) -> None:
    _step(fresh_policy)
    prompts = task.held_out["prompt"]
    base = rloo_kit.load_policy("tiny").generate(prompts, greedy=True, max_new_tokens=24)
    saved = fresh_policy.generate(prompts, greedy=True, max_new_tokens=24)
    reloaded = rloo_kit.load_policy(fresh_policy.save(tmp_path / "adapter"))
    assert saved != base, "the step changed nothing, so the comparison would say nothing"
    assert reloaded.generate(prompts, greedy=True, max_new_tokens=24) == saved


def test_a_checkpoint_merged_in_16_bit_reads_back_with_the_same_greedy_output(
    task: Any, tmp_path: Path
) -> None:
    policy = rloo_kit.load_policy("tiny", load_in_4bit=False)
    _step(policy)
    options: Any = {"greedy": True, "max_new_tokens": 24}
    expected = policy.generate(task.held_out["prompt"], **options)
    policy.model.save_pretrained_merged(
        str(tmp_path / "merged"), policy.tokenizer, save_method="merged_16bit"
    )
    merged = rloo_kit.load_policy(tmp_path / "merged", load_in_4bit=False)
    assert merged.generate(task.held_out["prompt"], **options) == expected


def test_saving_leaves_out_the_reference_and_replaces_an_earlier_folder_whole(
    fresh_policy: Any, tmp_path: Path
) -> None:
    fresh_policy.model.add_adapter("ref", fresh_policy.model.peft_config["default"])
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "leftover").touch()
    fresh_policy.save(folder)
    names = {path.name for path in folder.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert not {"ref", "leftover"} & names
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_an_adapter_of_the_tiny_policy_loads_on_another_machine(fresh_policy: Any, tmp_path: Path) -> None:
    file = fresh_policy.save(tmp_path / "adapter") / "adapter_config.json"
    config = json.loads(file.read_text())
    elsewhere = "/home/somebody/.cache/rloo-kit/tiny-qwen3-0123456789ab"
    file.write_text(json.dumps({**config, "base_model_name_or_path": elsewhere}))
    assert (
        rloo_kit.load_policy(tmp_path / "adapter").checkpoint.parameters == fresh_policy.checkpoint.parameters
    )


def test_a_wrong_name_gets_the_nearest_ones() -> None:
    with pytest.raises(PolicyNotFoundError, match="did you mean qwen3-4b-thinking"):
        rloo_kit.load_policy("qwen3-4b-thinkin")


@pytest.mark.parametrize(
    "name",
    ["{}/run/checkpoint-25", "./adaptor", "~/adaptor", "my runs/adaptor", "out/run/checkpoint-25", "a/b/"],
)
def test_what_no_hub_could_have_is_a_folder_that_is_not_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "adapter").mkdir()
    name = name.format(tmp_path)
    with pytest.raises(PolicyNotFoundError, match=rf"there is no folder '{name}'") as caught:
        rloo_kit.load_policy(name)
    assert f"{tmp_path} holds adapter." in str(caught.value)


def test_a_path_object_is_a_folder_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PolicyNotFoundError, match=r"no folder 'somebody/something'"):
        rloo_kit.load_policy(Path("somebody/something"))


def test_a_folder_in_the_users_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "config.json").touch()
    assert source.resolve("~/adapter", True, None).path == str(tmp_path / "adapter")


def test_without_a_network_a_hub_id_fails_at_once_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    started = time.monotonic()
    with pytest.raises(PolicyNotFoundError, match="cannot be reached") as caught:
        rloo_kit.load_policy("qwen3-4b")
    assert time.monotonic() - started < 10
    assert "nor is there a folder of that name" in str(caught.value)


def test_a_hub_that_takes_the_connection_and_says_nothing_fails_soon_after_its_time(script: Any) -> None:
    """Its time is cut to a second: what is above is this machine's load."""
    code = """
import socket, time
import rloo_kit, rloo_kit.errors, rloo_kit.policy.load
rloo_kit.policy.load.HUB_SECONDS = 1.0
silent = socket.create_server(("127.0.0.1", 0))
import os; os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
rloo_kit.prepare(dotenv=None, offline=False)
started = time.monotonic()
try:
    rloo_kit.load_policy("somebody/something")
except rloo_kit.errors.PolicyNotFoundError as error:
    print(error)
print("seconds", time.monotonic() - started)
"""
    said = script(code)
    assert "cannot be reached" in said.stdout
    assert float(said.stdout.split("seconds")[-1]) < 10


def test_the_batch_fills_half_of_the_free_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    card = catalogue.CATALOGUE["qwen3-4b"]
    row = card.kv_bytes_per_token * 1024
    policy = rloo_kit.Policy(
        SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda"))])), None, card
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (20 * row, 40 * row))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 6 * row)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2 * row)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda: 1.0)
    assert policy.fitting_batch_size(1024) == 12, "what torch holds unused counts as free"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 40 * row))
    assert policy.fitting_batch_size(8192) == 1


def test_a_folder_without_a_checkpoint_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PolicyNotFoundError, match=r"no config\.json"):
        rloo_kit.load_policy(tmp_path)


def test_a_rank_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="lora_rank=0"):
        rloo_kit.load_policy("tiny", lora_rank=0)


@pytest.mark.parametrize(
    "raised",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        ValueError("Unsloth: this model does not fit in GPU memory"),
        ValueError("Some modules are dispatched on the CPU or the disk."),
        RuntimeError("CUDA error: out of memory"),
    ],
    ids=["torch", "unsloth", "transformers", "CUDA"],
)
def test_running_out_of_memory_gives_bytes_and_smaller_choices(
    raised: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "trained_length", lambda *args: 40960)

    def load(*args: Any) -> Any:
        raise raised

    monkeypatch.setattr(loading, "_load", load)
    monkeypatch.setattr(source, "_check_hub", lambda *args: False)
    with pytest.raises(OutOfMemoryError, match=r"qwen3-4b.*qwen3-0\.6b") as caught:
        rloo_kit.load_policy("qwen3-8b")
    assert str(catalogue.CATALOGUE["qwen3-8b"].weight_bytes()) in str(caught.value)


@pytest.mark.parametrize("name", ["somebody/else", "qwen3-8b"])
@pytest.mark.parametrize(
    ("error", "said"), [("RepositoryNotFoundError", "no repository"), ("GatedRepoError", "is gated")]
)
def test_a_missing_repository_and_a_gated_one_are_told_apart(
    name: str, error: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import constants, errors

    def refused(*args: Any, **kwargs: Any) -> Any:
        response = SimpleNamespace(headers={}, request=None, status_code=404)
        raise getattr(errors, error)("refused", response=response)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "model_info", refused)
    with pytest.raises(PolicyNotFoundError, match=said):
        rloo_kit.load_policy(name)


@pytest.mark.parametrize(("file", "adapter"), [("config.json", False), (source.ADAPTER_CONFIG, True)])
def test_a_repository_that_is_there_is_known_for_a_model_or_an_adapter(
    file: str, adapter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    there = SimpleNamespace(siblings=[SimpleNamespace(rfilename=file)])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "model_info", lambda *args, **kwargs: there)
    assert source._check_hub("somebody/else", None) is adapter


def test_layers_that_a_loader_put_into_the_computers_memory_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """transformers does so in silence with a model in 16 bit."""
    spilled = SimpleNamespace(hf_device_map={"model.layers.0": 0, "model.layers.1": "cpu"})
    whole = SimpleNamespace(hf_device_map={"": 0})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(torch.OutOfMemoryError):
        loading._check_on_card(spilled)
    loading._check_on_card(whole)


def test_the_length_is_cut_to_what_the_base_was_trained_for_an_adapters_too(
    fresh_policy: Any, tmp_path: Path
) -> None:
    """Beyond it unsloth stretches the position embedding on a GPU: another policy."""
    folder = fresh_policy.save(tmp_path / "adapter")
    base = fresh_policy.model.config._name_or_path
    trained = fresh_policy.model.config.max_position_embeddings
    assert source.trained_length(base, False, {}) == trained
    assert source.trained_length(str(folder), True, {"revision": "of the adapter"}) == trained
    assert rloo_kit.load_policy(folder, max_seq_length=10 * trained).model.max_seq_length == trained


def test_a_prompt_as_long_as_the_policy_was_loaded_for_is_refused(policy: Any, monkeypatch: Any) -> None:
    tokens = len(policy.tokenize(["What is 1 + 2?"])[0])
    monkeypatch.setattr(policy.model, "max_seq_length", tokens, raising=False)
    with pytest.raises(ConfigError, match=rf"prompts\[0\] has {tokens} tokens"):
        policy.generate(["What is 1 + 2?"], max_new_tokens=1)
    monkeypatch.setattr(policy.model, "max_seq_length", tokens + 1, raising=False)
    assert policy.generate(["What is 1 + 2?"], max_new_tokens=1)


def test_an_adapter_whose_base_is_gone_says_which_and_where_it_is_named(
    fresh_policy: Any, tmp_path: Path
) -> None:
    file = fresh_policy.save(tmp_path / "adapter") / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": "/gone/base"}))
    with pytest.raises(PolicyNotFoundError, match=r"no folder '/gone/base'[\s\S]*base_model_name_or_path"):
        rloo_kit.load_policy(tmp_path / "adapter")


def test_a_model_that_spilled_is_let_go_before_the_error_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook keeps its last error, and the next cell loads a smaller one."""
    import unsloth

    loaded: list[weakref.ref[Any]] = []

    class Spilled:
        hf_device_map: ClassVar = {"model.layers.1": "cpu"}

    def from_pretrained(**kwargs: Any) -> Any:
        model = Spilled()
        loaded.append(weakref.ref(model))
        return model, None

    monkeypatch.setattr(unsloth.FastLanguageModel, "from_pretrained", from_pretrained)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 8 * 2**30))
    monkeypatch.setattr(source, "trained_length", lambda *args: None)
    with pytest.raises(OutOfMemoryError) as kept:
        rloo_kit.load_policy(tiny.checkpoint(), load_in_4bit=False)
    assert kept.value.__cause__ is not None
    assert loaded[0]() is None
