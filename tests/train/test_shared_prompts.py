"""A prompt computed once for all its completions gives the plain pass's log-probabilities, entropies and gradients."""

import rloo_kit  # isort: skip - unsloth first

from typing import Any

import pytest
import torch

from rloo_kit.memory.hardware import Device
from rloo_kit.train import cpu_logprobs, microbatches
from tests.conftest import SMALL, random_rewards
from tests.train.weights import leave_the_reference


@pytest.fixture(scope="module")
def unchecked() -> rloo_kit.Policy:
    """A policy in float32, without gradient checkpointing, whose LoRA differs from 0."""
    policy = rloo_kit.load_policy("tiny", load_in_4bit=False, gradient_checkpointing=False, dtype="float32")
    torch.manual_seed(0)
    leave_the_reference(policy.model, std=0.1)
    return policy


@pytest.fixture
def trainer(unchecked: rloo_kit.Policy, make_trainer: Any) -> Any:
    made = make_trainer(model=unchecked, gradient_checkpointing=False, temperature=0.7)
    made.model.train()
    return made


@pytest.fixture
def passed(unchecked: rloo_kit.Policy) -> Any:
    """The shapes (rows, tokens) of the inputs that went through the layers."""
    shapes: list[tuple[int, ...]] = []
    (backbone,) = (module for module in unchecked.model.modules() if hasattr(module, "embed_tokens"))
    hook = backbone.layers[0].register_forward_pre_hook(lambda _, given: shapes.append((*given[0].shape[:2],)))
    yield shapes
    hook.remove()


def batch_of(trainer: Any, prompts: list[int], completions: list[list[int]]) -> dict[str, torch.Tensor]:
    """Return prompts, and the completions of each, with these lengths."""
    drawn = [torch.randint(1, 400, (length,)).tolist() for length in prompts]
    rows = [(prompt, length) for prompt, lengths in zip(drawn, completions, strict=True) for length in lengths]
    answers = [torch.randint(1, 400, (length,)).tolist() for _, length in rows]
    batch: dict[str, torch.Tensor] = trainer._padded([prompt for prompt, _ in rows], answers)
    return batch


def found(trainer: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return log-probabilities, entropies, and the LoRA's gradient of a weighted sum of log-probabilities."""
    given = microbatches.model_inputs(batch)
    logps, entropies, _ = trainer._get_per_token_logps_and_entropies(trainer.model, *given, compute_entropy=True)
    weights = torch.linspace(-1, 1, logps.numel()).view_as(logps) * batch["completion_mask"]
    trained = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad((logps * weights).sum(), trained)
    return logps.detach(), entropies, torch.cat([gradient.flatten() for gradient in gradients])


ALL = [[5, 8, 2, 8], [3, 8, 4, 1]]
CASES: dict[str, tuple[list[int], list[list[int]], list[int], list[tuple[int, int]]]] = {
    "prompts of one length": ([7, 7], ALL, [*range(8)], [(2, 6), (8, 8)]),
    "padding on the left": ([3, 12], ALL, [*range(8)], [(2, 11), (8, 8)]),
    "a prompt of one token beside a long one": ([1, 9], ALL, [*range(8)], [(2, 8), (8, 8)]),
    "sorted by length, dead rows left out": ([3, 12], ALL, [7, 2, 4, 0, 1], [(2, 11), (5, 8)]),
    "one group alone, cut to its own width": ([12, 4], ALL, [4, 6, 7], [(1, 3), (3, 4)]),
    "one row a prompt": ([3, 12], [[5], [3]], [0, 1], [(2, 17)]),
    "prompts of one token": ([1, 1], ALL, [*range(8)], [(8, 9)]),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_plain_pass(name, trainer, passed, monkeypatch):
    """Within float32's rounding."""
    prompts, completions, chosen, expected = CASES[name]
    batch = microbatches.select(batch_of(trainer, prompts, completions), chosen)
    logps, entropies, gradient = found(trainer, batch)
    assert passed == expected
    monkeypatch.setattr(cpu_logprobs, "fits", lambda *given: False)
    plain_logps, plain_entropies, plain_gradient = found(trainer, batch)
    torch.testing.assert_close(logps, plain_logps, rtol=0, atol=1e-4)
    torch.testing.assert_close(entropies, plain_entropies, rtol=0, atol=1e-4)
    assert (gradient - plain_gradient).norm() < 1e-4 * plain_gradient.norm()


def test_where_a_cache_cannot_be_gone_on_from_the_plain_pass_is_taken(trainer, passed, monkeypatch):
    (backbone,) = trainer._backbones
    for thing, name, value in (
        (backbone.config, "_attn_implementation_internal", "flex_attention"),
        (backbone.config, "layer_types", ["sliding_attention"] * 3),
        (type(backbone).forward, "__module__", "unsloth.models.llama"),
        (backbone.layers[1], "gradient_checkpointing", True),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(thing, name, value)
            assert not cpu_logprobs.fits(trainer.model, backbone), name
    monkeypatch.setattr(backbone.layers[1], "gradient_checkpointing", True)
    backbone.layers[1]._gradient_checkpointing_func = lambda function, *given: function(*given)
    found(trainer, batch_of(trainer, [4, 9], ALL))
    assert len(passed) == 1


def test_on_a_cpu_the_trainer_keeps_to_what_the_policy_was_loaded_with(tmp_path):
    task = rloo_kit.tasks.addition(n_train=8, n_held_out=2)
    for asked in (True, False):
        policy = rloo_kit.load_policy("tiny", gradient_checkpointing=asked)
        config = rloo_kit.RLOOConfig(str(tmp_path), **SMALL)
        trainer = rloo_kit.RLOOTrainer(policy, task.correct, config, task.train)
        assert trainer.args.gradient_checkpointing is asked
        assert trainer.memory_plan.settings.checkpointing is asked
        assert config.gradient_checkpointing, "the user's own is left as it was"


def test_on_a_cpu_the_plan_decides_whether_layers_are_computed_again_and_the_gradient_is_the_same(
    fresh_policy, make_trainer, monkeypatch
):
    """Anew for each trainer: a second trainer of the policy may find less memory."""
    leave_the_reference(fresh_policy.model)  # otherwise the LoRA's A has no gradient
    norms: list[float] = []
    for usable_bytes, recomputed in ((2**40, False), (1, True), (2**40, False)):
        device = Device("this CPU", usable_bytes, on_gpu=False)
        monkeypatch.setattr("rloo_kit.memory.plan.device_of", lambda card, device=device: device)
        config = rloo_kit.RLOOConfig("out", **SMALL)
        planned = rloo_kit.plan(fresh_policy, config)
        still = {"learning_rate": 0.0, "generation_rows": 8, "gradient_accumulation_steps": 2}
        trainer = make_trainer(random_rewards, model=fresh_policy, **still)
        assert bool(planned.settings.checkpointing) is trainer.args.gradient_checkpointing is recomputed
        assert fresh_policy.model.is_gradient_checkpointing is recomputed
        trainer.train()
        norms.append(trainer.state.log_history[0]["grad_norm"])
    assert norms == [pytest.approx(norms[0], rel=1e-4)] * 3
    assert norms[0] > 0
