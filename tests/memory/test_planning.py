"""The memory plan: its terms against real tensors, what it says, and what it advises."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit.catalogue import CATALOGUE, Checkpoint, nf4_bytes
from rloo_kit.errors import ConfigError, PolicyNotFoundError
from rloo_kit.memory import changes, footprint, hardware, planning, reading
from rloo_kit.memory.footprint import Step
from rloo_kit.memory.hardware import device_of
from rloo_kit.memory.meter import CudaGauge, Meter, Peak, TensorGauge
from rloo_kit.memory.planning import Plan
from rloo_kit.session.show import GIB

CPU = hardware.Device("a CPU", 16 * GIB, on_gpu=False)
REAL = [CATALOGUE[f"qwen3-{size}"] for size in ("0.6b", "1.7b", "4b", "8b", "14b")]


def config(**values: Any) -> SimpleNamespace:
    """Attributes of a configuration; what is missing takes the plan's defaults."""
    return SimpleNamespace(**values)


def tiny_plan(policy: Any, **values: Any) -> Plan:
    return rloo_kit.plan(policy, config(gradient_checkpointing=True, **values), CPU, prompt_tokens=40)


def tiny_step(policy: Any, **values: Any) -> Step:
    planned = tiny_plan(policy)
    return Step(planned.model, dataclasses.replace(planned.settings, **values))


def batch(rows: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and a mask with padding on both sides, as the trainer's batches have."""
    ids = torch.randint(0, 400, (rows, tokens), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    mask[1:, -3:] = 0
    return ids, mask


# --- weights, LoRA, optimizer -----------------------------------------------------------------------------


def test_a_trainers_plan_names_its_model_and_not_where_it_lies(make_trainer: Any, policy: Any) -> None:
    title = make_trainer().memory_plan.title
    assert title.startswith("tiny-qwen3-")
    assert str(Path(policy.model.name_or_path).parent) not in title


def test_the_tiny_policys_parts_are_planned_to_the_byte_before_it_is_loaded(fresh_policy: Any) -> None:
    planned = rloo_kit.plan("tiny", card=CPU)
    linear, rest = reading.weight_bytes(fresh_policy.model)
    assert planned.phases["load"][footprint.WEIGHTS] == linear
    assert planned.phases["load"][footprint.REST] == rest
    lora = [p for p in fresh_policy.model.parameters() if p.requires_grad]
    assert planned.phases["load"][footprint.LORA] == reading.bytes_of(lora)


def test_a_loaded_policy_counts_itself(policy: Any) -> None:
    by_name, loaded = rloo_kit.plan("tiny", card=CPU), rloo_kit.plan(policy, card=CPU)
    assert (loaded.model, loaded.settings.lora_rank) == (by_name.model, 16)
    assert loaded.settings.four_bit
    assert rloo_kit.plan(policy.model, card=CPU).model.linear_bytes == by_name.model.linear_bytes


@pytest.mark.parametrize("card", REAL, ids=lambda card: card.name)
def test_real_sizes_take_what_bitsandbytes_would_store_of_each_matrix(
    card: Checkpoint, qwen3_config: Any
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3ForCausalLM

    from rloo_kit.catalogue import PROJECTIONS

    with torch.device("meta"):
        model = Qwen3ForCausalLM(qwen3_config(card))
        quantised = [p for name, p in model.named_parameters() if "_proj" in name]
        rest = sum(p.numel() for name, p in model.named_parameters() if "_proj" not in name)
        peft_model = get_peft_model(model, LoraConfig(r=16, target_modules=list(PROJECTIONS)))
    planned = rloo_kit.plan(card, card="rtx 4090").model
    assert planned.linear_bytes == sum(nf4_bytes(p.numel()) for p in quantised)
    assert planned.rest_bytes == 2 * rest
    trained = [p.numel() for p in peft_model.parameters() if p.requires_grad]
    assert sorted(planned.lora_sizes) == sorted(trained)


@pytest.mark.parametrize("sizes", [(4096, 256 * 3 + 1, 65536, 5000)])
def test_the_optimizers_state_is_planned_to_the_byte(sizes: tuple[int, ...]) -> None:
    from bitsandbytes.optim import AdamW8bit

    parameters = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
    model = footprint.Model(CATALOGUE["tiny"], 0, 0, sizes)
    assert {parameter.dtype for parameter in parameters} == {torch.float32}, "as on a GPU"
    full = torch.optim.AdamW(parameters, fused=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    full.step()
    settings = footprint.Settings(optimizer="adamw_torch_fused")
    assert Step(model, settings).optimizer == reading.bytes_of(reading.optimizer_tensors(full))

    small = AdamW8bit(parameters)
    for index, parameter in enumerate(parameters):
        small.init_state(small.param_groups[0], parameter, 0, index)
    settings = footprint.Settings(optimizer="adamw_8bit")
    assert Step(model, settings).optimizer == reading.bytes_of(reading.optimizer_tensors(small))


def test_on_a_cpu_an_8_bit_optimizer_counts_as_the_32_bit_one_that_unsloth_puts_there(policy: Any) -> None:
    assert tiny_plan(policy, optim="adamw_8bit").parts == tiny_plan(policy).parts


# --- cache, tile, activations -----------------------------------------------------------------------------


def test_the_cache_of_a_generation_batch_is_planned_to_the_byte(policy: Any) -> None:
    ids, mask = batch(4, 40)
    policy.model.for_inference()
    with torch.no_grad():
        output = policy.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=8,
            min_new_tokens=8,
            return_dict_in_generate=True,
            pad_token_id=policy.tokenizer.pad_token_id,
        )
    step = tiny_step(policy, generation_rows=4, completion_tokens=8)
    held = reading.bytes_of(
        [t for layer in output.past_key_values.layers for t in (layer.keys, layer.values)]
    )
    assert step.cache(step.cached_tokens) == held


@pytest.mark.parametrize(
    ("rows", "tiles", "why"),
    [(20, 2, "logits and probabilities"), (100, 4, "and those of the tile before")],
)
def test_the_log_probability_tile_is_planned_to_the_byte(
    policy: Any, rows: int, tiles: int, why: str
) -> None:
    from trl.trainer import utils

    hidden = torch.randn(rows, 64, requires_grad=True)
    head = policy.model.get_output_embeddings().weight
    gauge = TensorGauge([hidden, head])
    before = gauge.live_bytes
    with gauge:
        utils._ChunkedLogProbFunction.apply(
            hidden, head, None, torch.zeros(rows, dtype=torch.long), 1.0, 32768, None, 1.0, ("entropy",)
        )
    step = tiny_step(policy, micro_rows=1, completion_tokens=rows)
    assert step.tile == tiles * gauge.largest_bytes, why
    assert gauge.peak_bytes - before == pytest.approx(step.tile, rel=0.01)


def peak_of_a_pass(model: Any, rows: int, tokens: int) -> int:
    """Bytes beyond what stands, at the peak of a forward and backward pass of the layers."""
    for parameter in model.parameters():
        parameter.grad = None
    ids, mask = batch(rows, tokens)
    gauge = TensorGauge(reading.standing_tensors(model))
    before = gauge.live_bytes
    with gauge:
        layers = model.get_base_model().model
        layers(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state.sum().backward()
    return gauge.peak_bytes - before


@pytest.mark.parametrize(("rows", "tokens"), [(4, 128), (2, 512), (8, 256)])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_activations_are_planned_within_a_tenth(
    policy: Any, rows: int, tokens: int, checkpointing: bool
) -> None:
    policy.model.for_training(use_gradient_checkpointing=checkpointing)
    step = tiny_step(
        policy, micro_rows=rows, prompt_tokens=tokens - 8, completion_tokens=8, checkpointing=checkpointing
    )
    try:
        measured = peak_of_a_pass(policy.model, rows, tokens)
    finally:
        policy.model.for_training(use_gradient_checkpointing=True)
    assert step.activations == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((96, 5, 4, 2, 32, 256), "attention wider than the model, two heads a key"),
        ((128, 2, 4, 4, 16, 512), "attention narrower than the model, a key per head"),
        ((64, 8, 2, 1, 64, 192), "many layers"),
    ],
)
def test_activations_of_other_shapes_too(shape: tuple[int, ...], why: str) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from rloo_kit.catalogue import PROJECTIONS

    hidden, layers, heads, kv_heads, head_dim, ffn = shape
    card = Checkpoint("other", "other", hidden, layers, heads, kv_heads, head_dim, ffn, True, "never", 512)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=512,
            hidden_size=hidden,
            intermediate_size=ffn,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            tie_word_embeddings=True,
        )
    )
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    peft_model = get_peft_model(model, LoraConfig(r=8, target_modules=list(PROJECTIONS))).train()
    settings = footprint.Settings(
        prompt_tokens=248,
        completion_tokens=8,
        lora_rank=8,
        four_bit=False,
        checkpointing=True,
        on_gpu=False,
        dtype_bytes=4,
    )
    step = Step(reading.model_of(card, 8, False, 4), settings)
    assert step.activations == pytest.approx(peak_of_a_pass(peft_model, 4, 256), rel=0.1), why


def test_a_pass_without_gradient_is_planned_within_a_tenth(policy: Any) -> None:
    ids, mask = batch(4, 256)
    layers = policy.model.get_base_model().model
    gauge = TensorGauge(reading.standing_tensors(policy.model))
    before = gauge.live_bytes
    with torch.no_grad(), gauge:
        layers(input_ids=ids, attention_mask=mask, use_cache=False)
    planned = tiny_step(policy).layer_without_gradient(4, 256)
    assert planned == pytest.approx(gauge.peak_bytes - before, rel=0.1)


# --- a whole run ------------------------------------------------------------------------------------------


def even_length(completions: Any, **kwargs: Any) -> list[float]:
    return [float(len(completion[0]["content"]) % 2) for completion in completions]


def test_a_runs_peaks_by_phase_stand_within_a_tenth_of_the_plan(
    fresh_policy: Any, task: Any, tmp_path: Path
) -> None:
    config = rloo_kit.RLOOConfig(
        output_dir=str(tmp_path),
        num_generations=4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        max_completion_length=24,
        max_steps=2,
        beta=0.05,
        save_strategy="no",
    )
    trainer = rloo_kit.RLOOTrainer(
        model=fresh_policy, reward_funcs=even_length, args=config, train_dataset=task.train
    )
    longest = max(len(ids) for ids in fresh_policy.tokenize(task.train["prompt"]))
    planned = rloo_kit.plan(fresh_policy, config, CPU, prompt_tokens=longest)
    trainer.memory = Meter.for_model(trainer.model, count_tensors=True)
    trainer.train()
    found = planned.compare(trainer)
    parts = {row.name: row.off_by for row in found.parts}
    assert parts == dict.fromkeys(
        (footprint.WEIGHTS, footprint.REST, footprint.LORA, footprint.OPTIMIZER), 0
    ), found
    for row in found.phases:
        assert row.planned_bytes == pytest.approx(row.measured_bytes, rel=0.1), f"{row.name}\n{found}"
    assert {row.name for row in found.phases} == {
        f"peak in {name}" for name in ("generate", "log-probs", "train", "optimizer")
    }
    assert "not measured" in str(found).splitlines()[-1], "no driver counts a process on a CPU"


@pytest.mark.parametrize(
    ("fast", "asked"),
    [
        (True, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        (True, {"min_p": 0.05}),
        (False, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        (False, {"repetition_penalty": 1.1}),
    ],
)
def test_what_sampling_holds_is_planned_within_a_hundredth(
    fast: bool, asked: dict[str, float], make_trainer: Any
) -> None:
    trainer = make_trainer(fast_sampling=fast, per_device_train_batch_size=8, **asked)
    trainer.memory = Meter.for_model(trainer.model, count_tensors=True)
    trainer.train()
    phases = {row.name: row for row in trainer.memory_plan.compare(trainer).phases}
    generate = phases["peak in generate"]
    assert generate.measured_bytes <= generate.planned_bytes
    assert generate.planned_bytes == pytest.approx(generate.measured_bytes, rel=0.01)


def test_without_a_meter_standing_parts_are_compared_and_phases_are_said_to_be_unmeasured(
    policy: Any,
) -> None:
    trainer = SimpleNamespace(model=policy.model, optimizer=None)
    found = tiny_plan(policy).compare(trainer)
    assert found.parts[0].off_by == 0
    assert all(row.measured_bytes is None for row in found.phases)
    assert "<table>" in found._repr_html_()


# --- configurations ---------------------------------------------------------------------------------------


def test_the_configuration_decides() -> None:
    settings = reading.settings_of(
        rloo_kit.RLOOConfig(
            per_device_train_batch_size=2,
            gradient_accumulation_steps=8,
            steps_per_generation=4,
            num_generations=4,
            max_completion_length=300,
            beta=0.0,
        ),
        prompt_tokens=100,
    )
    assert (settings.micro_rows, settings.generation_rows, settings.accumulation) == (2, 8, 8)
    assert (settings.num_generations, settings.row_tokens, settings.optimizer) == (
        4,
        400,
        "adamw_torch_fused",
    )
    assert not settings.passes.before_update, "one pass: old log-probabilities are the new ones"


@pytest.mark.parametrize(
    ("values", "apart", "why"),
    [
        ({"beta": 0.05}, True, "the reference's log-probabilities"),
        ({"beta": 0.0}, False, "they are the new ones"),
        ({"beta": 0.0, "single_pass": False}, True, "TRL takes them anyway"),
        ({"beta": 0.0, "iterations": 2}, True, "the policy moves before the second use"),
        ({"beta": 0.0, "accumulation": 2, "generation_rows": 12}, True, "the policy moves within the batch"),
    ],
)
def test_a_phase_of_log_probs_is_planned_where_there_is_one(
    values: dict[str, Any], apart: bool, why: str
) -> None:
    settings = footprint.Settings(**values)
    assert ("log-probs" in Plan.of(rloo_kit.fit("8GB").model, settings, CPU).phases) == apart, why


def test_a_continued_policy_keeps_a_copy_of_its_lora_as_reference(fresh_policy: Any) -> None:
    before = tiny_plan(fresh_policy)
    assert footprint.REFERENCE not in before.parts, "the base is the reference of a fresh LoRA"
    with torch.no_grad():
        next(p for name, p in fresh_policy.model.named_parameters() if "lora_B" in name).add_(1.0)
    after = tiny_plan(fresh_policy)
    assert after.parts[footprint.REFERENCE] == before.phases["optimizer"][footprint.LORA]
    assert after.parts[footprint.OPTIMIZER] == before.parts[footprint.OPTIMIZER]
    assert footprint.REFERENCE not in tiny_plan(fresh_policy, beta=0.0).parts


@pytest.mark.parametrize(
    ("values", "fast", "why"),
    [
        ({"fast_sampling": True}, True, "the kit's own loop"),
        ({"fast_sampling": True, "generation_kwargs": {"top_k": 5}}, False, "the trainer then leaves it out"),
        ({}, False, "TRL's own configuration does not know it"),
    ],
)
def test_sampling_is_planned_as_the_trainer_samples(values: dict[str, Any], fast: bool, why: str) -> None:
    assert reading.settings_of(config(**values)).fast_sampling == fast, why


def test_a_prompt_leaves_room_for_the_completion() -> None:
    assert reading.settings_of(config(max_completion_length=900), None, 1024).prompt_tokens == 124
    assert reading.settings_of(config(), None, 32768).prompt_tokens == planning.DEFAULT_PROMPT_TOKENS


def test_a_length_below_1_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="completion_tokens must be at least 1"):
        rloo_kit.plan("qwen3-4b", config(max_completion_length=0), "8GB")


GPU_KNOBS = [
    ({"generation_rows": 16}, {"generation_rows": 8}),
    ({"completion_tokens": 4096}, {"completion_tokens": 1024}),
    ({"micro_rows": 8}, {"micro_rows": 2}),
    ({"checkpointing": True}, {"checkpointing": "unsloth"}),
    ({"checkpointing": False}, {"checkpointing": True}),
    ({"four_bit": False}, {"four_bit": True}),
    ({"lora_rank": 64}, {"lora_rank": 16}),
    ({"optimizer": "adamw_torch_fused"}, {"optimizer": "adamw_8bit"}),
]


@pytest.mark.parametrize(("more", "less"), GPU_KNOBS)
def test_more_of_anything_takes_more(more: dict[str, Any], less: dict[str, Any]) -> None:
    def total(values: dict[str, Any]) -> int:
        settings = footprint.Settings(**{"generation_rows": 8, "micro_rows": 4, **values})
        model = reading.model_of(CATALOGUE["qwen3-4b"], settings.lora_rank, settings.four_bit)
        return sum(Plan.of(model, settings, device_of("8GB")).totals.values())

    assert total(more) > total(less)


# --- where a shape comes from -----------------------------------------------------------------------------


def write_config(folder: Path, **more: Any) -> Path:
    card = CATALOGUE["qwen3-0.6b"]
    shape = {
        "model_type": "qwen3",
        "vocab_size": card.vocabulary,
        "hidden_size": card.hidden_size,
        "intermediate_size": card.ffn_size,
        "num_hidden_layers": card.layers,
        "num_attention_heads": card.heads,
        "num_key_value_heads": card.kv_heads,
        "head_dim": card.head_dim,
        "tie_word_embeddings": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**shape, **more}))
    return folder


def test_a_folder_is_planned_from_its_config_alone(tmp_path: Path) -> None:
    planned = rloo_kit.plan(write_config(tmp_path / "mine"), card="8GB")
    assert planned.model.linear_bytes == rloo_kit.plan("qwen3-0.6b", card="8GB").model.linear_bytes


@pytest.mark.parametrize("base", ["qwen3-4b", "Qwen/Qwen3-4B", "unsloth/Qwen3-4B-unsloth-bnb-4bit"])
def test_a_saved_adapter_is_planned_from_its_base_with_a_copy_as_reference(tmp_path: Path, base: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base, "r": 32}))
    planned = rloo_kit.plan(tmp_path, card="8GB")
    assert planned.model.checkpoint is CATALOGUE["qwen3-4b"]
    assert planned.settings.lora_rank == 32
    assert planned.parts[footprint.REFERENCE] == planned.parts[footprint.LORA]


def test_a_policy_loaded_on_a_cpu_is_planned_for_a_gpu_as_it_would_be_loaded_there(policy: Any) -> None:
    assert rloo_kit.plan(policy, card="8GB").phases == rloo_kit.plan("tiny", card="8GB").phases


def test_a_name_without_a_shape_gets_its_neighbours() -> None:
    with pytest.raises(PolicyNotFoundError, match="did you mean qwen3-8b"):
        rloo_kit.plan("qwen3-8", card="8GB")
    with pytest.raises(PolicyNotFoundError, match="downloads nothing"):
        rloo_kit.plan("somebody/unknown", card="8GB")


def test_layers_that_a_checkpoint_keeps_in_16_bit_are_counted_where_its_config_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = CATALOGUE["qwen3-0.6b"]
    plain = card.linear_bytes()
    unknown = reading.model_of(card, 16, four_bit=True)
    assert unknown.linear_bytes == plain
    assert unknown.kept_bytes == int(footprint.KEPT_SHARE * (plain + unknown.rest_bytes))

    skipped = ["lm_head", "model.layers.3.mlp", "model.layers.5.self_attn.q_proj"]
    folder = write_config(tmp_path, quantization_config={"llm_int8_skip_modules": skipped})
    monkeypatch.setattr(reading, "_config_file", lambda name: folder / "config.json")
    known = reading.model_of(card, 16, four_bit=True)
    kept = [card.projections[name] for name in ("gate_proj", "up_proj", "down_proj", "q_proj")]
    extra = sum(2 * rows * columns - nf4_bytes(rows * columns) for rows, columns in kept)
    assert (known.linear_bytes, known.kept_bytes) == (plain + extra, 0)


# --- the card ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("rtx 3060 12GB", 12288),
        ("NVIDIA GeForce RTX 4090", 24564),
        ("4090", 24564),
        ("T4", 15360),
        ("Tesla T4", 15360),
        ("rtx 4060", 8188),
        ("8GB", 8192),
        ("24 GiB", 24576),
    ],
)
def test_a_card_is_known_by_its_names(name: str, mib: int) -> None:
    assert device_of(name).usable_bytes == mib * 2**20 - hardware.RESERVED_BYTES


def test_bytes_are_taken_as_they_are() -> None:
    assert device_of(7 * GIB).usable_bytes == 7 * GIB


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rtx 3060", "several cards.*12gb or rtx 3060 8gb|several cards.*8gb or rtx 3060 12gb"),
        ("rtx 4095", "did you mean.*rtx 4090"),
        ("voodoo 2", "give its memory: '12GB'"),
    ],
)
def test_an_unknown_card_is_refused_with_its_neighbours(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        device_of(name)
    assert re.search(message, str(caught.value), re.DOTALL)


def fake_cuda(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """A GPU that answers as told."""
    answers = {
        "is_available": True,
        "mem_get_info": (6 * GIB, 8 * GIB),
        "memory_reserved": 0,
        "memory_allocated": 0,
        "get_per_process_memory_fraction": 1.0,
        "get_device_name": "a fake card",
        **values,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *args, answer=answer: answer)


@pytest.mark.parametrize(
    ("reserved", "by_nvml", "fraction", "usable", "why"),
    [
        (0, None, 1.0, 6, "nothing is loaded"),
        (1, None, 1.0, 7, "what torch holds is the run's own"),
        (1, 2, 1.0, 8, "NVML counts the context too"),
        (1, None, 0.5, 4, "the process is held to half of the card"),
        (1, 2, 0.5, 5, "and its context is not torch's"),
    ],
)
def test_this_machines_card_lends_what_is_free_and_what_the_process_holds(
    monkeypatch: pytest.MonkeyPatch,
    reserved: int,
    by_nvml: int | None,
    fraction: float,
    usable: int,
    why: str,
) -> None:
    fake_cuda(monkeypatch, memory_reserved=reserved * GIB, get_per_process_memory_fraction=fraction)
    monkeypatch.setattr(hardware, "nvml_process_bytes", lambda: by_nvml and by_nvml * GIB)
    assert device_of() == hardware.Device("a fake card", usable * GIB), why


def test_a_model_is_where_it_computes_and_not_where_its_embedding_lies() -> None:
    """unsloth's ``offload_embedding`` keeps the first parameter in the computer's memory."""
    model = torch.nn.Sequential(torch.nn.Embedding(4, 2), torch.nn.Linear(2, 2, device="meta"))
    assert hardware.where_computed(model).type == "meta"
    assert hardware.where_computed(model[0]).type == "cpu"


def test_without_a_gpu_the_machines_own_memory_counts() -> None:
    device = device_of()
    assert not device.on_gpu
    assert device.usable_bytes > GIB
    assert rloo_kit.plan("tiny").fits == "fits"


# --- what it says -----------------------------------------------------------------------------------------


def test_parts_phases_and_peak_agree() -> None:
    planned = rloo_kit.plan("qwen3-4b", config(max_completion_length=2048), "8GB")
    assert planned.peak_bytes == max(planned.totals.values()) == planned.totals[planned.peak_phase]
    for parts in planned.phases.values():
        assert all(0 < size <= planned.parts[part] for part, size in parts.items())


@pytest.mark.parametrize(
    ("usable", "verdict"),
    [(0, "tight"), (-1, "does not fit")],
)
def test_the_verdict_is_set_by_the_peak(usable: int, verdict: str) -> None:
    planned = rloo_kit.plan("qwen3-4b", card="24GB")
    exact = dataclasses.replace(planned, device=hardware.Device("exact", planned.peak_bytes + usable))
    assert exact.fits == verdict
    roomy = planned.peak_bytes + planned.estimated_bytes
    assert dataclasses.replace(planned, device=hardware.Device("roomy", roomy)).fits == "fits"


def test_the_table_names_every_part_and_marks_what_is_estimated() -> None:
    planned = rloo_kit.plan("qwen3-8b", config(max_completion_length=4096), "8GB")
    text = str(planned)
    for part in planned.parts:
        assert part in text
    for part in planning.ESTIMATED:
        assert f"{part} *" in text
    assert "no figure has been measured on a GPU" in text
    assert "does not fit" in text
    assert repr(planned) == f"Plan(qwen3-8b on a card of 8 GiB: {planned.summary})"
    assert planned._repr_html_().count("<tr>") == len(planned.rows())


def test_the_picture_tells_phases_parts_and_the_limit(tmp_path: Path) -> None:
    planned = rloo_kit.plan("qwen3-4b", card="8GB")
    figure = planned.picture(tmp_path / "plan.png")
    (axis,) = figure.axes
    assert [label.get_text() for label in axis.get_xticklabels()] == list(planned.phases)
    assert {text.get_text() for text in axis.get_legend().get_texts()} == set(planned.parts)
    assert axis.get_ylabel() == "GiB, computed"
    looks = {(bar[0].get_facecolor(), bar[0].get_hatch()) for bar in axis.containers}
    assert len(looks) == len(planned.parts), "two parts look alike"
    assert (tmp_path / "plan.png").stat().st_size > 10_000
    assert figure._repr_png_()[:4] == b"\x89PNG"


# --- what to change ---------------------------------------------------------------------------------------


LARGE = config(
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    num_generations=8,
    max_completion_length=3072,
    beta=0.05,
)


def planned_with(change: changes.Change, before: Plan) -> Plan:
    """The plan that a change's arguments lead to, through the public door."""
    values = {**vars(LARGE), **change.config}
    return rloo_kit.plan(
        change.policy.get("name", before.model.checkpoint.name), config(**values), before.device
    )


@pytest.mark.parametrize("card", ["8GB", "rtx 3060 12GB", "t4", "rtx 4090"])
def test_every_change_that_is_advised_makes_it_fit(card: str) -> None:
    planned = rloo_kit.plan("qwen3-4b", LARGE, card)
    assert (planned.fits == "fits") == (not planned.changes)
    for change in planned.changes:
        after = planned_with(change, planned)
        assert after.fits == change.fits != "does not fit", change
        assert after.peak_bytes == change.peak_bytes


def test_advice_holds_where_steps_per_generation_follows_the_accumulation() -> None:
    """Answers: where it was 1 because nothing was accumulated, TRL makes it as many as there are now."""
    whole = {**vars(LARGE), "per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
    planned = rloo_kit.plan("qwen3-4b", rloo_kit.RLOOConfig(**whole), "12GB")
    assert {change.knob for change in planned.changes} >= {"generation batch", "K"}
    for change in planned.changes:
        changed = rloo_kit.RLOOConfig(**{**whole, **change.config})
        after = rloo_kit.plan(change.policy.get("name", "qwen3-4b"), changed, "12GB")
        assert (after.peak_bytes, after.fits) == (change.peak_bytes, change.fits), change


def test_changes_come_in_the_order_that_costs_least_quality() -> None:
    order = [name for name, _ in changes.KNOBS]
    seen = set()
    for model, card in itertools.product(("qwen3-1.7b", "qwen3-4b", "qwen3-8b"), ("8GB", "12GB", "24GB")):
        knobs = [change.knob for change in rloo_kit.plan(model, LARGE, card).changes]
        assert knobs == sorted(knobs, key=order.index)
        seen |= set(knobs)
    assert seen == set(order) - {"gradient checkpointing"}, "it is on by default"
    kept = rloo_kit.plan("qwen3-1.7b", LARGE, "24GB", gradient_checkpointing=False)
    assert kept.changes[0].knob == "gradient checkpointing"


def test_the_generation_batch_is_cut_without_changing_an_update() -> None:
    planned = rloo_kit.plan("qwen3-4b", LARGE, "12GB")
    change = planned.changes[0]
    assert change.knob == "generation batch"
    values = {**vars(LARGE), "steps_per_generation": 4, **change.config}
    assert values["per_device_train_batch_size"] * values["gradient_accumulation_steps"] == 32
    rows = values["per_device_train_batch_size"] * values["steps_per_generation"]
    assert rows % LARGE.num_generations == 0
    assert 32 % rows == 0
    assert values["gradient_accumulation_steps"] % values["steps_per_generation"] == 0


def test_the_advised_length_is_the_longest_that_fits() -> None:
    planned = rloo_kit.plan("qwen3-1.7b", LARGE, "12GB")
    change = next(change for change in planned.changes if change.knob == "completion length")
    longer = {**vars(LARGE), **change.config}
    longer["max_completion_length"] += 64
    assert rloo_kit.plan("qwen3-1.7b", config(**longer), planned.device).fits != "fits"


def test_what_is_not_enough_alone_comes_with_what_was_advised_before() -> None:
    planned = rloo_kit.plan("qwen3-4b", LARGE, 7 * GIB)
    length = next(change for change in planned.changes if change.knob == "completion length")
    assert {"max_completion_length", "per_device_train_batch_size"} <= set(length.config)


def test_what_can_never_fit_is_said_so() -> None:
    planned = rloo_kit.plan("qwen3-14b", LARGE, 2**30)
    assert planned.changes == ()
    assert "no model, batch or length of the catalogue fits" in str(planned)


# --- fit --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card", "name"),
    [
        (GIB, "qwen3-0.6b"),
        ("8GB", "qwen3-4b"),
        ("rtx 3060 12GB", "qwen3-8b"),
        ("t4", "qwen3-8b"),
        ("rtx 4080", "qwen3-14b"),
        ("rtx 4090", "qwen3-14b"),
    ],
)
def test_fit_gives_the_largest_model_that_fits(card: Any, name: str) -> None:
    assert rloo_kit.fit(card).model.checkpoint.name == name


def test_a_larger_model_than_fit_gives_does_not_fit() -> None:
    names = [name for name in CATALOGUE if name != "tiny"]
    for card in ("8GB", "12GB"):
        best = rloo_kit.fit(card)
        larger = [
            CATALOGUE[name] for name in names if CATALOGUE[name].parameters > best.model.checkpoint.parameters
        ]
        for found in larger:
            model = reading.model_of(found, 16, four_bit=True)
            assert Plan.of(model, best.settings, best.device).fits != "fits"


def test_fit_cuts_the_generation_batch_where_nothing_else_is_left() -> None:
    small = rloo_kit.fit(int(2.6 * GIB))
    assert (small.fits, small.model.checkpoint.name) == ("fits", "qwen3-0.6b")
    assert small.settings.generation_rows < footprint.Settings().generation_rows


def test_load_policy_without_a_name_takes_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from rloo_kit.policy import source

    fake_cuda(monkeypatch, mem_get_info=(int(11.5 * GIB), 12 * GIB))
    monkeypatch.setattr(hardware, "nvml_process_bytes", lambda: None)
    assert source._default_name(four_bit=True) == "qwen3-8b"
    assert source._default_name(four_bit=False) == "qwen3-4b"


def test_the_longest_completion_is_found_by_halving() -> None:
    planned = rloo_kit.plan("qwen3-4b", card="12GB")
    longest = planning.longest_completion(planned)

    def fits(tokens: int) -> bool:
        settings = dataclasses.replace(planned.settings, completion_tokens=tokens)
        return Plan.of(planned.model, settings, planned.device).fits == "fits"

    assert fits(longest)
    assert not fits(longest + 64)


# --- the meter --------------------------------------------------------------------------------------------


class FakeGauge:
    """Gives the peaks it was told, one per reading."""

    def __init__(self, peaks: list[int]) -> None:
        self.peaks = iter(peaks)

    def restart(self) -> None:
        pass

    def read(self) -> Peak:
        return Peak(next(self.peaks))


def test_a_moment_counts_for_the_innermost_phase_and_the_largest_visit_is_kept() -> None:
    meter = Meter(FakeGauge([10, 70, 20, 30, 5]))
    with meter.phase("train"), meter.phase("generate"):
        pass
    with meter.phase("train"):
        pass
    with meter.phase("generate"):
        pass
    assert {name: peak.allocated_bytes for name, peak in meter.peaks.items()} == {"train": 30, "generate": 70}


def test_a_meter_without_a_gauge_keeps_nothing() -> None:
    meter = Meter()
    with meter.phase("train"):
        pass
    assert meter.peaks == {}


def test_on_a_gpu_the_allocator_and_the_driver_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cuda(monkeypatch, max_memory_allocated=3, max_memory_reserved=4, reset_peak_memory_stats=None)
    monkeypatch.setattr(hardware, "nvml_process_bytes", lambda: None)
    meter = Meter(CudaGauge())
    with meter.phase("generate"):
        pass
    assert meter.peaks == {"generate": Peak(3, 4, 2 * GIB)}


@pytest.mark.parametrize(("pids", "expected"), [((1, 0), 7 * GIB), ((0,), 7 * GIB), ((1,), None)])
def test_nvml_is_asked_for_this_process_alone(
    monkeypatch: pytest.MonkeyPatch, pids: tuple[int, ...], expected: int | None
) -> None:
    mine = {0: os.getpid(), 1: -1}
    rows = [
        SimpleNamespace(pid=mine[pid], usedGpuMemory=7 * GIB if mine[pid] > 0 else 9 * GIB) for pid in pids
    ]
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: rows,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    fake_cuda(monkeypatch, current_device=0, get_device_properties=SimpleNamespace(uuid="1-2"))
    assert hardware.nvml_process_bytes() == expected


def test_tensors_are_counted_once_from_birth_to_death() -> None:
    standing = torch.zeros(1000)
    gauge = TensorGauge([standing, standing.view(10, 100)])
    assert gauge.live_bytes == 4000
    with gauge:
        a = torch.zeros(500)
        b = a.view(5, 100) + 1
        del a
        c = b.t()
    assert gauge.live_bytes == 4000 + 2000
    assert gauge.read() == Peak(8000)
    del b, c
    assert gauge.live_bytes == 4000


# --- light ------------------------------------------------------------------------------------------------


def test_planning_by_name_imports_neither_torch_nor_trl(script: Any) -> None:
    said = script(
        "import sys, rloo_kit; str(rloo_kit.plan('qwen3-4b', card='8GB')); rloo_kit.fit('t4');"
        "print([name for name in ('torch', 'trl', 'transformers', 'unsloth') if name in sys.modules])"
    ).stdout
    assert said.strip() == "[]"


def test_every_card_of_the_table_can_be_planned() -> None:
    for name, model in itertools.product(hardware.CARD_MIB, ("qwen3-0.6b", "qwen3-14b")):
        assert rloo_kit.plan(model, card=name).peak_bytes > 0
