"""load_policy: what a loaded policy is, which arguments it takes, and its error if the policy does not fit."""

import copy
import weakref
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig

import rloo_kit
from rloo_kit import models
from rloo_kit.errors import ArgumentError, ConfigError, OutOfMemoryError
from rloo_kit.policy import load as loading
from rloo_kit.policy import resolve
from rloo_kit.policy.bundled import TINY
from rloo_kit.policy.policy import complete
from rloo_kit.session import prepare
from tests.conftest import random_rewards
from tests.memory.conftest import fake_cuda
from tests.policy.conftest import moved

SHORT: Any = {"greedy": True, "max_new_tokens": 24}

# --- what a policy is -------------------------------------------------------------------------------------


def test_without_a_gpu_the_bundled_policy_is_loaded_in_4_bit_with_lora_and_every_eos_id(policy):
    trained = {name.split(".")[-4] for name, p in policy.model.named_parameters() if p.requires_grad}
    config = policy.model.peft_config["default"]
    assert policy.checkpoint.name == "tiny"
    assert "Linear4bit" in {type(module).__name__ for module in policy.model.modules()}
    assert trained == set(models.PROJECTIONS)
    assert (config.r, config.lora_alpha, config.lora_dropout) == (16, 16, 0.0)
    assert policy.tokenizer.pad_token_id not in (None, policy.tokenizer.eos_token_id)
    assert set(policy.eos_ids) == {151645, 151643}
    assert tuple(policy) == (policy.model, policy.tokenizer), "as unsloth returns them"


def test_a_pad_is_never_the_eos_token_and_a_tokenizer_without_either_is_refused(policy):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.pad_token = tokenizer.eos_token
    model: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=151645), config=SimpleNamespace())
    complete(model, tokenizer)
    assert tokenizer.pad_token == "<|vision_pad|>"
    assert (model.generation_config.eos_token_id, model.config.pad_token_id) == ([151645, 151643], 151654)
    assert model.generation_config.max_length is None, "else each call warns of it, on a GPU"
    tokenizer.pad_token, tokenizer.get_vocab = None, dict
    with pytest.raises(ConfigError, match="no end-of-sequence token, or no pad token"):
        complete(model, tokenizer)


def by_hand(dropout: float) -> tuple[Any, Any]:
    """Load and wrap a model as Unsloth's notebooks do."""
    from unsloth import FastLanguageModel

    how: Any = {"max_seq_length": 1024, "load_in_4bit": True, "dtype": torch.float32}
    model, tokenizer = FastLanguageModel.from_pretrained(model_name=str(TINY.checkpoint()), **how)
    of_lora: Any = {"r": 8, "target_modules": list(models.PROJECTIONS), "lora_alpha": 16, "bias": "none"}
    return FastLanguageModel.get_peft_model(model, lora_dropout=dropout, **of_lora), tokenizer


def test_a_model_made_by_hand_is_a_policy_and_the_trainer_takes_either(make_trainer, task):
    with pytest.warns(UserWarning, match=r"dropout of 0\.1 is switched off"):
        policy = rloo_kit.Policy(*by_hand(dropout=0.1))
    assert policy.checkpoint.name == "tiny"
    assert set(policy.eos_ids) == {151645, 151643}
    assert rloo_kit.plan(policy).settings.lora_rank == 8
    assert policy.generate(task.held_out["prompt"][:2], max_new_tokens=4, greedy=True)
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters() if p.requires_grad}
    make_trainer(random_rewards, model=policy, max_steps=1, learning_rate=1e-3).train()
    assert any(not torch.equal(before[name], policy.model.get_parameter(name)) for name in before)
    make_trainer(random_rewards, model=policy.model, processing_class=policy.tokenizer, max_steps=1)


def test_a_tuned_adapter_is_the_start_and_the_reference(policy, make_trainer, tmp_path):
    """Its folder is the only argument: the KL term then holds the policy near the adapter, not near the base."""
    folder = moved(policy, 0.02).save(tmp_path / "tuned")
    config = LoraConfig.from_pretrained(folder)
    config.lora_dropout = 0.05  # as in supervised recipes
    config.save_pretrained(folder)
    with pytest.warns(UserWarning, match=r"dropout of 0\.05 is switched off"):
        start = rloo_kit.load_policy(folder)
    tuned = {name: p.detach().clone() for name, p in start.model.named_parameters() if "lora_" in name}
    trainer = make_trainer(random_rewards, model=start, beta=0.05, max_steps=2, learning_rate=1e-2)
    trainer.train()
    reference = {name: p for name, p in start.model.named_parameters() if ".ref." in name}
    assert len(reference) == len(tuned)
    assert all(torch.equal(p, tuned[name.replace(".ref.", ".default.")]) for name, p in reference.items())
    kl = [entry["kl"] for entry in trainer.state.log_history[:2]]
    assert kl[0] == pytest.approx(0, abs=1e-5)
    assert kl[1] != pytest.approx(0, abs=1e-5)


def test_a_saved_adapter_reads_back_with_its_bases_length(policy, task, tmp_path):
    """Beyond that length unsloth rescales the position embedding on a GPU, which makes another policy."""
    prompts = task.held_out["prompt"][:8]
    base = policy.generate(prompts, **SHORT)
    saved = moved(policy).generate(prompts, **SHORT)
    assert saved != base, "the step changed nothing, so the comparison would say nothing"
    with pytest.warns(UserWarning, match="max_seq_length is 4096, not 1000000"):
        reloaded = rloo_kit.load_policy(folder := policy.save(tmp_path / "adapter"), max_seq_length=10**6)
    assert reloaded.generate(prompts, **SHORT) == saved
    assert reloaded.model.max_seq_length == policy.model.config.max_position_embeddings
    with pytest.warns(UserWarning, match=r"the saved adapter keeps its own r=16\."):
        rloo_kit.load_policy(folder, lora_rank=8)
    with pytest.raises(ConfigError, match="full_finetuning trains the weights below it"):
        rloo_kit.load_policy(folder, full_finetuning=True)


# --- what is asked for ------------------------------------------------------------------------------------

RECIPE: dict[str, Any] = {"max_seq_length": 512, "dtype": None, "load_in_4bit": True, "load_in_8bit": False}
RECIPE |= {"full_finetuning": False, "use_gradient_checkpointing": "unsloth", "random_state": 3407}
RECIPE |= {"fast_inference": False, "max_lora_rank": 8, "gpu_memory_utilization": 0.6}
RECIPE |= {"r": 8, "lora_alpha": 16, "lora_dropout": 0, "target_modules": ["v_proj", "q_proj"]}
RECIPE |= {"bias": "none", "use_rslora": True, "loftq_config": None}


def test_a_published_recipes_arguments_load_what_they_say_and_are_planned():
    policy = rloo_kit.load_policy(model_name="tiny", **RECIPE)
    lora = policy.model.peft_config["default"]
    assert (lora.r, lora.lora_alpha, lora.use_rslora) == (8, 16, True)
    assert set(lora.target_modules) == {"q_proj", "v_proj"}
    assert policy.model.max_seq_length == 512
    trained = sum(4 * p.numel() for p in policy.model.parameters() if p.requires_grad)
    assert rloo_kit.plan(policy).parts["LoRA"] == trained


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"r": 16, "lora_rank": 8}, "two names of one setting"),
        ({"r": 0}, "lora_rank must be greater than or equal to 1"),
        ({"load_in_4bit": "yes"}, "write load_in_4bit=True"),
        ({"max_sequence_length": 4096}, "did you mean max_seq_length"),
        ({"lora_dropout": 0.1}, "lora_dropout must be[\\s\\S]*on-policy ratio would differ"),
        ({"target_modules": ["q_proj", "lm_head"]}, "target_modules must be"),
        ({"target_modules": "q_proj"}, "a list of some of"),
        ({"load_in_8bit": True}, "load_in_8bit must be False"),
        ({"load_in_4bit": True, "load_in_16bit": True}, "one precision"),
        ({"full_finetuning": True, "load_in_4bit": True}, "load_in_4bit is for a LoRA"),
        ({"full_finetuning": True, "r": 4}, "lora_rank is for a LoRA"),
        ({"thinking": 0}, "thinking must be a valid boolean or greater than or equal to 1"),
    ],
)
def test_what_cannot_be_is_refused_in_three_parts_before_anything_is_loaded(given, says, monkeypatch):
    monkeypatch.setattr(loading, "import_unsloth", pytest.fail)
    with pytest.raises(ConfigError, match=says) as caught:
        rloo_kit.load_policy(**{"name": "tiny", **given})
    assert len(str(caught.value).splitlines()) == 3


def test_arguments_of_unsloths_own_pass_and_are_not_taken_for_slips():
    given = {"rope_scaling": None, "tokenizer_revision": "v2", "fast_inference": True}
    assert loading.settled(given).further == given


def test_a_token_is_in_no_message_whatever_it_looks_like():
    loading.settled({"token": "secret-of-mine"})
    assert "secret-of-mine" not in str(ConfigError("x", where="token secret-of-mine", todo="y"))
    with pytest.raises(ArgumentError, match=r"did you mean token\?") as caught:
        loading.settled({"tokens": "secret-of-mine"})
    assert "secret-of-mine" not in str(caught.value)


def test_without_a_dtype_a_cpu_gets_that_of_prepare_also_where_unsloth_came_first(monkeypatch):
    import unsloth

    def dtype_of(on_gpu: bool, **given: Any) -> Any:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
        loading._load("folder", 128, True, loading.settled(given))
        return from_pretrained.call_args.kwargs.get("dtype")

    from_pretrained = Mock(return_value=(SimpleNamespace(), None))
    monkeypatch.setattr(prepare, "compute_dtype", lambda: "float32")
    monkeypatch.setattr(unsloth.FastLanguageModel, "from_pretrained", from_pretrained)
    assert dtype_of(on_gpu=False) == dtype_of(on_gpu=False, dtype=None) == torch.float32
    assert dtype_of(on_gpu=False, torch_dtype="auto") == "auto"
    assert dtype_of(on_gpu=True, dtype="bfloat16") == dtype_of(on_gpu=True, dtype=torch.bfloat16)
    assert dtype_of(on_gpu=True) is dtype_of(on_gpu=True, dtype="auto") is None


# --- where it does not fit --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raised", [torch.OutOfMemoryError("CUDA"), *(ValueError(f"Unsloth: the model {text}") for text in loading.SPILLED)]
)
def test_running_out_of_memory_names_smaller_checkpoints(raised, monkeypatch):
    monkeypatch.setattr(resolve, "trained_length", lambda *args: 40960)
    monkeypatch.setattr(resolve, "check_hub", lambda *args: False)
    monkeypatch.setattr(loading, "_load", Mock(side_effect=raised))
    with pytest.raises(OutOfMemoryError, match=r"qwen3-4b.*qwen3-0\.6b") as caught:
        rloo_kit.load_policy("qwen3-8b")
    assert str(models.CATALOGUE["qwen3-8b"].weight_bytes()) in str(caught.value)


def test_a_model_partly_in_the_computers_memory_is_an_error_that_does_not_keep_it(monkeypatch):
    """In 16 bit transformers offloads layers silently.  A notebook keeps its last error, and loads a smaller model."""
    import unsloth

    loaded: list[weakref.ref[Any]] = []

    def from_pretrained(**kwargs: Any) -> Any:
        model: Any = torch.nn.Module()
        model.hf_device_map = {"model.layers.0": 0, "model.layers.1": "cpu"}
        loaded.append(weakref.ref(model))
        return model, None

    monkeypatch.setattr(unsloth.FastLanguageModel, "from_pretrained", from_pretrained)
    fake_cuda(monkeypatch, empty_cache=None)
    with pytest.raises(OutOfMemoryError) as kept:
        rloo_kit.load_policy(TINY.checkpoint(), load_in_4bit=False)
    assert kept.value.__cause__ is not None
    assert loaded[0]() is None


def test_a_policy_is_loaded_whole_where_a_configuration_of_zero_3_was_made_before(monkeypatch):
    """transformers refuses unsloth's device_map as long as such a configuration exists."""
    from transformers.integrations import deepspeed

    made = Mock(is_zero3=lambda: True)
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", None)
    deepspeed.set_hf_deepspeed_config(made)
    assert rloo_kit.load_policy("tiny", seed=0).model is not None
    assert deepspeed.is_deepspeed_zero3_enabled()
