"""Terms of the footprint by real tensors; the GPU's are checked against unsloth's code in test_trace.py."""

import dataclasses
from typing import Any

import pytest
import torch

from benchmarks.pretended.gauge import TensorGauge
from rloo_kit.memory import policy_tensors
from rloo_kit.memory.formulas import Step
from rloo_kit.memory.hardware import device_of
from rloo_kit.memory.plan import Plan
from rloo_kit.memory.plan_settings import PROCESSORS, Settings
from rloo_kit.memory.policy_tensors import Model
from rloo_kit.models import CATALOGUE
from tests.memory.conftest import tiny_plan


def state_of(optimizer: torch.optim.Optimizer) -> int:
    values = (value for entry in optimizer.state.values() for value in entry.values())
    return policy_tensors.bytes_of(value for value in values if isinstance(value, torch.Tensor))


def test_the_optimizers_state_is_planned_to_the_byte(policy: Any) -> None:
    from bitsandbytes.optim import AdamW8bit

    sizes = (4096, 256 * 3 + 1, 65536, 5000)
    parameters = [torch.nn.Parameter(torch.ones(size, dtype=torch.float32)) for size in sizes]
    model = Model(CATALOGUE["tiny"], 0, 0, sizes)
    full = torch.optim.AdamW(parameters, fused=True)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    full.step()
    assert Step(model, Settings(optim="adamw_torch_fused")).optimizer == state_of(full)

    small = AdamW8bit(parameters)
    for index, parameter in enumerate(parameters):
        small.init_state(small.param_groups[0], parameter, 0, index)
    assert Step(model, Settings(optim="adamw_8bit")).optimizer == state_of(small)
    assert tiny_plan(policy, optim="adamw_8bit").parts == tiny_plan(policy).parts, "unsloth's choice on a CPU"


def test_the_cache_of_a_generation_batch_is_planned_to_the_byte(policy: Any) -> None:
    policy.model.for_inference()
    ids = torch.randint(0, 400, (4, 40), generator=torch.Generator().manual_seed(0))
    sampling = {"max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": policy.tokenizer.pad_token_id}
    with torch.no_grad():
        output = policy.model.generate(ids, **sampling, return_dict_in_generate=True)
    planned = tiny_plan(policy)
    step = Step(
        planned.model, dataclasses.replace(planned.settings, generation_rows=4, max_completion_length=8)
    )
    held = [tensor for layer in output.past_key_values.layers for tensor in (layer.keys, layer.values)]
    assert step.cache(step.cached_tokens) == policy_tensors.bytes_of(held)


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_bytes_of_a_logits_processor_are_those_that_it_holds(name: str) -> None:
    import transformers.generation.logits_process as logits

    value = {"repetition_penalty": 1.1, "temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.05}[name]
    kind = "".join(word.title() for word in name.split("_")) + "LogitsProcessor"
    process = getattr(logits, kind, None) or getattr(logits, kind.replace("Processor", "Warper"))
    ids, scores = torch.zeros(4, 8, dtype=torch.long), torch.randn(4, 50_000)
    gauge = TensorGauge([ids, scores])
    before = gauge.live_bytes
    with gauge:
        process(value)(ids, scores)
    assert gauge.peak_bytes - before == pytest.approx(PROCESSORS[name] * scores.numel(), rel=0.05)


def test_activations_follow_the_type_they_are_computed_in() -> None:
    small, large = (
        Step(Model(CATALOGUE["tiny"], 0, 0, ()), Settings(dtype_bytes=size, padded=False)) for size in (2, 4)
    )
    assert (large.layer_input, large.checkpoints) == (2 * small.layer_input, 2 * small.checkpoints)


@pytest.mark.parametrize(
    ("setting", "values"),  # most first
    [
        ("steps_per_generation", (4, 2)),
        ("generation_rows", (6, 3)),
        ("max_completion_length", (4096, 1024)),
        ("per_device_train_batch_size", (8, 2)),
        ("checkpointing", (False, True, "unsloth")),
        ("four_bit", (False, True)),
        ("lora_rank", (64, 16)),
        ("optim", ("adamw_torch_fused", "adamw_8bit")),
    ],
)
def test_on_a_gpu_more_of_anything_takes_more(setting: str, values: tuple[Any, ...]) -> None:
    totals = []
    for value in values:
        settings = Settings(**{"gradient_accumulation_steps": 4, setting: value})
        model = policy_tensors.model_of(CATALOGUE["qwen3-4b"], settings.lora_rank, settings.four_bit)
        totals.append(sum(Plan.of(model, settings, device_of(2**40)).totals.values()))
    assert totals == sorted(set(totals), reverse=True)
