"""No non-finite gradient reaches a weight, and fp16's search for a loss scale ends; tested on a CPU."""

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

from rloo_kit.errors import NonFiniteError
from rloo_kit.train import finite_gradients
from tests.conftest import random_rewards
from tests.train.weights import same, trained


@pytest.fixture
def in_half(make_trainer: Any, fresh_policy: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``in_half(**config)``: a trainer under torch's loss scaler.

    It has a fresh policy, since accelerate wraps its forward in autocast for good.
    """

    def make(**settings: Any) -> Any:
        trainer = make_trainer(model=fresh_policy, reward_funcs=random_rewards, **settings)
        accelerator = trainer.accelerator
        accelerator.scaler = torch.amp.GradScaler("cpu")
        accelerator.native_amp = True
        monkeypatch.setattr(accelerator.state, "_mixed_precision", "fp16")
        monkeypatch.setattr(accelerator, "autocast", lambda *args, **kwargs: contextlib.nullcontext())
        return trainer

    return make


@contextlib.contextmanager
def infinite_gradient(model: Any) -> Any:
    parameter = next(p for p in model.parameters() if p.requires_grad)
    handle = parameter.register_hook(lambda gradient: gradient * torch.inf)
    try:
        yield
    finally:
        handle.remove()


def test_a_gradient_that_is_not_finite_never_reaches_a_weight(make_trainer, policy):
    trainer, before = make_trainer(reward_funcs=random_rewards), trained(policy.model)
    with infinite_gradient(policy.model), pytest.raises(NonFiniteError, match="step 1"):
        trainer.train()
    assert same(trained(policy.model), before)


def test_overflows_halve_the_scale_move_no_weight_and_at_last_end_the_run_which_can_begin_again(in_half, monkeypatch):
    monkeypatch.setattr(finite_gradients, "FIRST_LOSS_SCALE", 2.0)
    trainer = in_half(max_steps=8)
    before = trained(trainer.model)
    with infinite_gradient(trainer.model), pytest.raises(NonFiniteError, match=r"every loss scale down to 0\.5"):
        trainer.train()
    assert trainer.state.global_step == 2, "scales 2 and 1 are skipped by the scaler, 0.5 is not"
    assert same(trained(trainer.model), before)
    trainer.train()
    assert trainer.state.global_step == 8
    assert not same(trained(trainer.model), before)
