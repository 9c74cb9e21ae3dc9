"""load_policy: what a loaded policy is, and what the error says where it does not fit."""

import warnings
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

import rloo_kit
from rloo_kit import catalogue
from rloo_kit.errors import ConfigError, OutOfMemoryError, PolicyNotFoundError
from rloo_kit.policy import load as loading
from rloo_kit.policy import options, resolve
from rloo_kit.policy.bundled import TINY
from rloo_kit.policy.tokenizer import complete
from rloo_kit.session import environment

SHORT: Any = {"greedy": True, "max_new_tokens": 24}


def test_without_a_gpu_the_bundled_policy_is_loaded_in_4_bit_with_lora_and_every_eos_id(policy: Any) -> None:
    trained = {name.split(".")[-4] for name, p in policy.model.named_parameters() if p.requires_grad}
    config = policy.model.peft_config["default"]
    assert policy.checkpoint.name == "tiny"
    assert "Linear4bit" in {type(module).__name__ for module in policy.model.modules()}
    assert trained == set(catalogue.PROJECTIONS)
    assert (config.r, config.lora_alpha, config.lora_dropout) == (16, 16, 0.0)
    assert policy.tokenizer.pad_token_id not in (None, policy.tokenizer.eos_token_id)
    assert set(policy.eos_ids) == {151645, 151643}


class Tokenizer:
    """A tokenizer whose pad is its eos, until another is set."""

    bos_token_id = None

    def __init__(self, *words: str, eos: str | None = "<|im_end|>") -> None:
        self.ids = {word: index for index, word in enumerate(words, 1)}
        self.get_vocab, self.eos_token, self.pad_token = lambda: self.ids, eos, eos

    pad_token_id = property(lambda self: self.ids.get(self.pad_token))
    eos_token_id = property(lambda self: self.ids.get(self.eos_token))


def test_a_rank_below_one_is_refused_and_so_is_a_tokenizer_whose_pad_stays_its_eos() -> None:
    with pytest.raises(ConfigError, match="lora_rank=0"):
        rloo_kit.load_policy("tiny", lora_rank=0)
    tokenizer: Any = Tokenizer("<|endoftext|>", "<|im_end|>", "<|vision_pad|>")
    model: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=2), config=SimpleNamespace())
    complete(model, tokenizer)
    assert tokenizer.pad_token == "<|vision_pad|>"
    assert model.generation_config.eos_token_id == [2, 1]
    assert model.config.pad_token_id == 3
    model.generation_config.eos_token_id = None
    for without, missing in (
        (Tokenizer("a", eos=None), "no end-of-sequence"),
        (Tokenizer("<|im_end|>"), "no pad"),
    ):
        with pytest.raises(ConfigError, match=f"{missing} token"):
            complete(model, without)  # type: ignore[arg-type]


def _step(policy: Any) -> None:
    """Move the LoRA away from zero, as training would."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2, generator=generator)


def test_a_saved_adapter_reads_back_with_its_bases_length(policy: Any, task: Any, tmp_path: Path) -> None:
    """Beyond that length unsloth rescales the position embedding on a GPU: another policy."""
    prompts = task.held_out["prompt"][:8]
    base = policy.generate(prompts, **SHORT)
    _step(policy)
    saved = policy.generate(prompts, **SHORT)
    assert saved != base, "the step changed nothing, so the comparison would say nothing"
    with pytest.warns(UserWarning, match="max_seq_length is 4096, not 1000000"):
        reloaded = rloo_kit.load_policy(policy.save(tmp_path / "adapter"), max_seq_length=10**6)
    assert reloaded.generate(prompts, **SHORT) == saved
    assert reloaded.model.max_seq_length == policy.model.config.max_position_embeddings


def test_a_saved_adapter_that_is_asked_for_another_rank_says_that_it_keeps_its_own(
    policy: Any, tmp_path: Path
) -> None:
    folder = policy.save(tmp_path / "adapter")
    with pytest.warns(UserWarning, match=r"lora_rank of load_policy: no effect.*: lora_rank=16\.") as said:
        assert rloo_kit.load_policy(folder, lora_rank=8).model.peft_config["default"].r == 16
    assert said[0].filename == __file__
    own = policy.model.peft_config["default"].lora_alpha
    same = {"lora_rank": 16, "lora_alpha": own, "use_rslora": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        rloo_kit.load_policy(folder, **same)
        rloo_kit.load_policy(folder)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"lora_rank": "16"}, "write lora_rank=16"),
        ({"lora_rank": 0}, "lora_rank must be greater than or equal to 1"),
        ({"max_seq_length": 4096.5}, "max_seq_length must be a valid integer"),
        ({"lora_alpha": 0}, "lora_alpha must be"),
        ({"load_in_4bit": "yes"}, "write load_in_4bit=True"),
        ({"gradient_checkpointing": "unsloht"}, "gradient_checkpointing='unsloth'\\?"),
        ({"seed": -1}, "seed must be"),
        ({"max_sequence_length": 4096}, "did you mean max_seq_length"),
    ],
)
def test_what_load_policy_cannot_take_is_refused_before_anything_is_loaded(
    given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        rloo_kit.load_policy("tiny", **given)
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize("file", ["config.json", "adapter_config.json"])
def test_a_configuration_in_another_encoding_is_named(tmp_path: Path, file: str, encoding: str) -> None:
    (tmp_path / file).write_text("{}", encoding=encoding)
    with pytest.raises(PolicyNotFoundError, match=f"{file} is not a JSON object in UTF-8"):
        rloo_kit.load_policy(tmp_path)


def test_a_checkpoint_merged_in_16_bit_reads_back_as_base_plus_lora(tmp_path: Path) -> None:
    policy = rloo_kit.load_policy("tiny", load_in_4bit=False)
    _step(policy)
    folder = str(tmp_path / "merged")
    policy.model.save_pretrained_merged(folder, policy.tokenizer, save_method="merged_16bit")
    merged = rloo_kit.load_policy(folder, load_in_4bit=False)
    for name in catalogue.PROJECTIONS:
        part = "self_attn" if name[0] in "qkvo" else "mlp"
        place = f"base_model.model.model.layers.1.{part}.{name}"
        before, after = (each.model.get_submodule(place) for each in (policy, merged))
        expected = before.base_layer.weight.float() + before.get_delta_weight("default").float()
        torch.testing.assert_close(after.base_layer.weight.float(), expected, rtol=2**-6, atol=2**-8)


def test_bfloat16_on_a_cpu_works_where_it_is_asked_for_and_is_silent(capfd: Any, task: Any) -> None:
    policy = rloo_kit.load_policy("tiny", dtype=torch.bfloat16)
    assert policy.model.dtype == torch.bfloat16
    assert policy.generate(task.held_out["prompt"][:2], **SHORT)
    assert capfd.readouterr() == ("", "")


def test_without_a_dtype_a_cpu_gets_that_of_prepare_also_where_unsloth_came_first(monkeypatch: Any) -> None:
    import unsloth

    def load(on_gpu: bool, **given: Any) -> dict[str, Any]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
        asked = options.settled(given)
        return loading._load("folder", 128, True, asked)[0].asked

    def from_pretrained(**kwargs: Any) -> Any:
        return SimpleNamespace(asked={name: kwargs[name] for name in kwargs if "dtype" in name}), None

    monkeypatch.setattr(environment, "compute_dtype", lambda: "float32")
    monkeypatch.setattr(unsloth.FastLanguageModel, "from_pretrained", from_pretrained)
    assert load(on_gpu=False) == {"dtype": torch.float32}
    assert load(on_gpu=False, dtype=None) == {"dtype": torch.float32}, "as unsloth's recipes write it"
    assert load(on_gpu=False, torch_dtype="auto") == {"dtype": "auto"}
    assert load(on_gpu=False, dtype="bfloat16") == load(on_gpu=False, dtype=torch.bfloat16)
    assert load(on_gpu=True) == load(on_gpu=True, dtype="auto") == {}


@pytest.mark.parametrize(
    "raised",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        ValueError("Unsloth: this model does not fit in GPU memory"),
        ValueError("Some modules are dispatched on the CPU or the disk."),
        RuntimeError("CUDA error: out of memory"),
    ],
)
def test_running_out_of_memory_names_smaller_checkpoints(raised: Exception, monkeypatch: Any) -> None:
    monkeypatch.setattr(resolve, "trained_length", lambda *args: 40960)
    monkeypatch.setattr(resolve, "check_hub", lambda *args: False)
    monkeypatch.setattr(loading, "_load", Mock(side_effect=raised))
    with pytest.raises(OutOfMemoryError, match=r"qwen3-4b.*qwen3-0\.6b") as caught:
        rloo_kit.load_policy("qwen3-8b")
    assert str(catalogue.CATALOGUE["qwen3-8b"].weight_bytes()) in str(caught.value)


def test_a_model_partly_in_the_computers_memory_is_an_error_that_does_not_keep_it(monkeypatch: Any) -> None:
    """transformers puts them there silently in 16 bit.  A notebook keeps its last error, and loads a smaller one."""
    import unsloth

    loaded: list[weakref.ref[Any]] = []
    Model = type("Model", (SimpleNamespace,), {})  # unlike its base, it can be referred to weakly

    def from_pretrained(**kwargs: Any) -> Any:
        model = Model(hf_device_map={"model.layers.0": 0, "model.layers.1": "cpu"})
        loaded.append(weakref.ref(model))
        return model, None

    monkeypatch.setattr(unsloth.FastLanguageModel, "from_pretrained", from_pretrained)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 8 * 2**30))
    monkeypatch.setattr(resolve, "trained_length", lambda *args: None)
    loading._check_on_gpu(SimpleNamespace(hf_device_map={"": 0}))  # type: ignore[arg-type]
    with pytest.raises(OutOfMemoryError) as kept:
        rloo_kit.load_policy(TINY.checkpoint(), load_in_4bit=False)
    assert kept.value.__cause__ is not None
    assert loaded[0]() is None


def test_a_policy_is_loaded_whole_where_a_configuration_of_zero_3_was_made_before(monkeypatch: Any) -> None:
    """transformers refuses unsloth's device_map from then on, until the configuration is gone."""
    from transformers import AutoModelForCausalLM
    from transformers.integrations import deepspeed

    class Configured:
        def is_zero3(self) -> bool:
            return True

    made = Configured()
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", None)
    deepspeed.set_hf_deepspeed_config(made)
    with pytest.raises(ValueError, match="not compatible with passing a `device_map`"):
        AutoModelForCausalLM.from_pretrained(TINY.checkpoint(), device_map="cpu")
    assert rloo_kit.load_policy("tiny", seed=0).model is not None
    assert deepspeed.is_deepspeed_zero3_enabled()
