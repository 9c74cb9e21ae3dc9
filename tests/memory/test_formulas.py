"""Terms of the footprint against real tensors, and measured peaks; test_trace.py checks unsloth's GPU code."""

import dataclasses

import pytest
import torch

import rloo_kit
from benchmarks.gpu import memory, peaks
from benchmarks.pretended.gauge import TensorGauge
from rloo_kit.memory import out_of_memory, policy_tensors
from rloo_kit.memory.formulas import Step
from rloo_kit.memory.plan_settings import PROCESSORS, Settings
from rloo_kit.memory.policy_tensors import Model
from rloo_kit.models import CATALOGUE
from tests.conftest import random_rewards
from tests.memory.conftest import tiny_plan


def state_of(optimizer: torch.optim.Optimizer) -> int:
    values = (value for entry in optimizer.state.values() for value in entry.values())
    return policy_tensors.bytes_of(value for value in values if isinstance(value, torch.Tensor))


def test_the_optimizers_state_is_planned_to_the_byte(policy):
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


def test_the_cache_of_a_generation_batch_is_planned_to_the_byte(policy):
    policy.model.for_inference()
    ids = torch.randint(0, 400, (4, 40), generator=torch.Generator().manual_seed(0))
    sampling = {"max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": policy.tokenizer.pad_token_id}
    with torch.no_grad():
        output = policy.model.generate(ids, **sampling, return_dict_in_generate=True)
    planned = tiny_plan(policy)
    sampled = dataclasses.replace(planned.settings, generation_rows=4, max_completion_length=8)
    step = Step(planned.model, sampled)
    held = [tensor for layer in output.past_key_values.layers for tensor in (layer.keys, layer.values)]
    assert step.cache(step.cached_tokens) == policy_tensors.bytes_of(held)


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_bytes_of_a_logits_processor_are_those_that_it_holds(name):
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


def test_activations_follow_the_type_they_are_computed_in():
    small, large = (
        Step(Model(CATALOGUE["tiny"], 0, 0, ()), Settings(dtype_bytes=size, padded=False)) for size in (2, 4)
    )
    assert (large.layer_input, large.checkpoints) == (2 * small.layer_input, 2 * small.checkpoints)


# --- beside what was measured ---


def test_a_peak_counts_for_the_innermost_phase_and_stands_beside_the_plans(monkeypatch):
    seen = iter((10, 70, 20, 30, 5))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: next(seen))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 99)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    plan = rloo_kit.plan("qwen3-4b", card="24GB")
    with peaks.measured() as measured:
        with out_of_memory.explained("train", plan), out_of_memory.explained("generate", plan):
            pass
        for name in ("train", "generate"):
            with out_of_memory.explained(name, plan):
                pass
    assert measured == {"train": peaks.Peak(30, 99), "generate": peaks.Peak(70, 99)}
    planned = peaks.planned(plan)
    assert planned.keys() == {"generate", "log-probs", "train", "optimizer"}
    phases = {
        name: sum(parts.values()) - parts["context"] - parts["fragmentation"]
        for name, parts in plan.phases.items()
        if name in ("forward", "backward")
    }
    assert planned["train"] == max(phases.values())


def test_what_a_run_holds_is_the_plan_to_the_byte(make_trainer):
    trainer = make_trainer(random_rewards, max_steps=1, beta=0.05)
    trainer.train()
    assert memory.held(trainer).items() <= trainer.memory_plan.phases["optimizer"].items()
