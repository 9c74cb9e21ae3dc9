"""Each term of the footprint, against real tensors on a CPU, in float32 and in bfloat16."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

import rloo_kit
from rloo_kit.memory import formulas, specs
from rloo_kit.memory.formulas import Step
from rloo_kit.memory.hardware import device_of
from rloo_kit.memory.meter import Meter, TensorGauge, optimizer_tensors
from rloo_kit.memory.plan import Plan
from rloo_kit.memory.specs import Model, Settings
from rloo_kit.models import CATALOGUE, PROJECTIONS, Checkpoint
from rloo_kit.session.import_order import CPU_TILE_LOGITS
from rloo_kit.train import cpu_logprobs
from tests.memory.conftest import CPU, tiny_plan, tiny_step


def batch(rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Token ids and a mask with padding on both sides, as the trainer's batches have."""
    ids = torch.randint(0, 400, (rows, tokens), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    mask[1:, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def test_the_tiny_policys_parts_are_planned_to_the_byte_before_it_is_loaded(policy: Any) -> None:
    load = rloo_kit.plan("tiny", card=CPU).phases["load"]
    assert (load[formulas.WEIGHTS], load[formulas.REST]) == specs.weight_bytes(policy.model)
    assert load[formulas.LORA] == specs.bytes_of(p for p in policy.model.parameters() if p.requires_grad)


def test_the_optimizers_state_is_planned_to_the_byte(policy: Any) -> None:
    from bitsandbytes.optim import AdamW8bit

    sizes = (4096, 256 * 3 + 1, 65536, 5000)
    parameters = [torch.nn.Parameter(torch.ones(size, dtype=torch.float32)) for size in sizes]
    model = Model(CATALOGUE["tiny"], 0, 0, sizes)
    full = torch.optim.AdamW(parameters, fused=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    full.step()
    planned = Step(model, Settings(optimizer="adamw_torch_fused")).optimizer
    assert planned == specs.bytes_of(optimizer_tensors(full))

    small = AdamW8bit(parameters)
    for index, parameter in enumerate(parameters):
        small.init_state(small.param_groups[0], parameter, 0, index)
    planned = Step(model, Settings(optimizer="adamw_8bit")).optimizer
    assert planned == specs.bytes_of(optimizer_tensors(small))
    assert tiny_plan(policy, optim="adamw_8bit").parts == tiny_plan(policy).parts, "unsloth's choice on a CPU"


def test_the_cache_of_a_generation_batch_is_planned_to_the_byte(policy: Any) -> None:
    policy.model.for_inference()
    with torch.no_grad():
        sampling = {"max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": policy.tokenizer.pad_token_id}
        output = policy.model.generate(**batch(4, 40), **sampling, return_dict_in_generate=True)
    step = tiny_step(policy, generation_rows=4, completion_tokens=8)
    held = [tensor for layer in output.past_key_values.layers for tensor in (layer.keys, layer.values)]
    assert step.cache(step.cached_tokens) == specs.bytes_of(held)


@pytest.mark.parametrize(
    ("rows", "dtype", "copies", "why"),
    [
        (20, torch.float32, 2, "logits and probabilities"),
        (20, torch.bfloat16, 2.5, "and lm_head's output beside its float32 copy"),
        (100, torch.float32, 4, "and those of the previous tile"),
        (100, torch.bfloat16, 4, "by when lm_head's output is gone"),
    ],
)
def test_unsloths_log_probability_tile_is_planned_to_the_byte(
    policy: Any, rows: int, dtype: torch.dtype, copies: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken in 16 bit, and where lm_head is trained."""
    monkeypatch.setenv(CPU_TILE_LOGITS, str(30 * policy.checkpoint.vocabulary))
    peak, largest = bytes_of_a_head(policy, rows, dtype)
    size = {"micro_rows": 1, "completion_tokens": rows, "dtype_bytes": dtype.itemsize}
    step = tiny_step(policy, **size, full_finetuning=True)
    assert step.tile() == copies * largest, why
    assert peak == pytest.approx(step.tile(), rel=0.01)


@pytest.mark.parametrize(("rows", "gradient"), [(600, True), (20, True), (20, False)])
def test_the_kits_log_probability_tile_is_planned_to_a_tenth(policy: Any, rows: int, gradient: bool) -> None:
    with cpu_logprobs.in_tiles(entropy=gradient), torch.set_grad_enabled(gradient):
        peak, _ = bytes_of_a_head(policy, rows, torch.float32)
    step = tiny_step(policy, micro_rows=1, completion_tokens=rows, dtype_bytes=4)
    kept = rows * 64 * 4 if gradient else 0  # the gradient is among the final hidden states
    assert peak - kept == pytest.approx(step.tile(with_gradient=gradient), rel=0.1)


def bytes_of_a_head(policy: Any, rows: int, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes held at the peak of TRL's fused head, and of the largest tensor."""
    from trl.trainer import utils

    weight = policy.model.get_output_embeddings().weight.to(dtype)
    hidden = torch.randn(rows, 64, dtype=dtype, requires_grad=torch.is_grad_enabled())
    gauge = TensorGauge([hidden, weight])
    before = gauge.live_bytes
    outputs = ("log_probs", "entropy")
    with gauge:
        utils._ChunkedLogProbFunction.apply(
            hidden, weight, None, torch.zeros(rows, dtype=torch.long), 1.0, 32768, None, 1.0, outputs
        )
    return gauge.peak_bytes - before, gauge.largest_bytes


@pytest.mark.parametrize(
    ("fast", "asked"),
    [
        (True, {}),
        (True, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        (True, {"min_p": 0.05}),
        (False, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}),
        (False, {"repetition_penalty": 1.1}),
    ],
)
def test_sampling_is_planned_to_a_hundredth(fast: bool, asked: dict[str, float], make_trainer: Any) -> None:
    trainer = make_trainer(fast_sampling=fast, per_device_train_batch_size=8, **asked)
    trainer.memory = Meter.for_model(trainer.model, count_tensors=True)
    trainer.train()
    (generate,) = (row for row in trainer.memory_plan.compare(trainer).phases if "generate" in row.name)
    assert generate.measured_bytes <= generate.planned_bytes
    later = trainer.memory_plan.phases["generate"][formulas.OPTIMIZER]  # the first step has none yet
    assert generate.planned_bytes - later == pytest.approx(generate.measured_bytes, rel=0.01)


def peak_of_a_pass(model: Any, rows: int, tokens: int, backward: bool = True) -> int:
    """Bytes beyond what is always held, at the peak of a forward and backward pass of the layers."""
    for parameter in model.parameters():
        parameter.grad = None
        if parameter.requires_grad:
            parameter.data = parameter.data.to(model.dtype)  # one precision for the LoRA and its base
    gauge = TensorGauge(specs.standing_tensors(model))
    before = gauge.live_bytes
    with gauge, torch.set_grad_enabled(backward):
        hidden = model.get_base_model().model(**batch(rows, tokens), use_cache=False).last_hidden_state
        if backward:
            hidden.sum().backward()
    return gauge.peak_bytes - before


def activations(step: Step) -> int:
    return sum(step.backward()[part] for part in (formulas.CHECKPOINTS, formulas.LAYER, formulas.BUFFER))


@pytest.mark.parametrize(("rows", "tokens"), [(4, 128), (2, 512), (8, 256)])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_activations_within_a_tenth(policy: Any, rows: int, tokens: int, checkpointing: bool) -> None:
    policy.model.for_training(use_gradient_checkpointing=checkpointing)
    lengths = {"micro_rows": rows, "prompt_tokens": tokens - 8, "completion_tokens": 8}
    step = tiny_step(policy, **lengths, checkpointing=checkpointing)
    try:
        measured = peak_of_a_pass(policy.model, rows, tokens)
    finally:
        policy.model.for_training(use_gradient_checkpointing=True)
    assert activations(step) == pytest.approx(measured, rel=0.1)


def test_a_pass_without_gradient_is_planned_within_a_tenth(policy: Any) -> None:
    planned = tiny_step(policy).layer_without_gradient(4, 256)
    assert planned == pytest.approx(peak_of_a_pass(policy.model, 4, 256, backward=False), rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "shape",
    [
        (96, 5, 4, 2, 32, 256),  # attention wider than the model, two heads a key
        (128, 2, 4, 4, 16, 512),  # attention narrower than the model, a key per head
        (64, 8, 2, 1, 64, 192),  # many layers
    ],
)
def test_activations_of_other_shapes(shape: tuple[int, ...], dtype: torch.dtype, qwen3_config: Any) -> None:
    from transformers import Qwen3ForCausalLM

    card = Checkpoint("other", "other", *shape, True, "never", 512)
    model = Qwen3ForCausalLM(qwen3_config(card)).to(dtype)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    peft_model = get_peft_model(model, LoraConfig(r=8, target_modules=list(PROJECTIONS))).train()
    size = {"prompt_tokens": 248, "completion_tokens": 8, "lora_rank": 8, "dtype_bytes": dtype.itemsize}
    settings = Settings(**size, four_bit=False, checkpointing=True, on_gpu=False)
    step = Step(specs.model_of(card, 8, False, dtype.itemsize), settings)
    assert activations(step) == pytest.approx(peak_of_a_pass(peft_model, 4, 256), rel=0.1)


@pytest.mark.parametrize(
    ("setting", "values"),  # most first
    [
        ("batch_rows", (16, 8)),
        ("generation_rows", (6, 3)),
        ("completion_tokens", (4096, 1024)),
        ("micro_rows", (8, 2)),
        ("checkpointing", (False, True, "unsloth")),
        ("four_bit", (False, True)),
        ("lora_rank", (64, 16)),
        ("optimizer", ("adamw_torch_fused", "adamw_8bit")),
    ],
)
def test_on_a_gpu_more_of_anything_takes_more(setting: str, values: tuple[Any, ...]) -> None:
    totals = []
    for value in values:
        settings = Settings(**{"batch_rows": 8, "micro_rows": 4, setting: value})
        model = specs.model_of(CATALOGUE["qwen3-4b"], settings.lora_rank, settings.four_bit)
        totals.append(sum(Plan.of(model, settings, device_of(2**40)).totals.values()))
    assert totals == sorted(set(totals), reverse=True)
