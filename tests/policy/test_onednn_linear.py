"""Products of frozen float32 matrices by oneDNN: equal to float64, and used only where nothing rules them out."""

import rloo_kit  # isort: skip - unsloth first

import copy
from typing import Any

import pytest
import torch

from rloo_kit.policy import onednn_linear
from rloo_kit.policy.generate import head_in_one_product
from rloo_kit.policy.onednn_linear import FrozenLinear, by_onednn, product


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """oneDNN's calls; here it is used on every processor that has it, fast or not."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    seen: list[Any] = []
    onednn = onednn_linear._onednn
    monkeypatch.setattr(onednn_linear, "_onednn", lambda *given: seen.append(given) or onednn(*given))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    return seen


def frozen(bias: bool = False) -> torch.nn.Linear:
    model: Any = torch.nn.Sequential(torch.nn.Linear(24, 40, bias=bias)).requires_grad_(False)
    model.get_output_embeddings = lambda: None
    onednn_linear.use(model)
    layer: torch.nn.Linear = model[0]
    return layer


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (2, 5, 24), (3, 24, 2)], ids=str)
def test_the_product_and_its_gradient_are_those_of_float64(shape, bias, calls):
    layer = frozen(bias)
    drawn = torch.randn(shape).requires_grad_()
    given = drawn if shape[-1] == 24 else drawn.transpose(1, 2)  # not contiguous
    out = layer(given)
    slopes = torch.randn(out.shape)
    (gradient,) = torch.autograd.grad(out, drawn, slopes)

    exact = copy.deepcopy(layer).double()
    drawn64 = drawn.detach().double().requires_grad_()
    out64 = exact(drawn64 if shape[-1] == 24 else drawn64.transpose(1, 2))
    (gradient64,) = torch.autograd.grad(out64, drawn64, slopes.double())
    torch.testing.assert_close(out.double(), out64, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), gradient64, rtol=1e-5, atol=1e-5)
    assert len(calls) == 2, "the product, and its gradient's"


def test_what_it_cannot_do_or_does_slower_is_left_to_torch(calls, monkeypatch):
    rows, layer = torch.randn(3, 24), frozen()
    with torch.autocast("cpu"):
        assert layer(rows).dtype == torch.bfloat16
    assert layer.double()(rows.double()).dtype == torch.float64
    trained = frozen().requires_grad_()
    trained(rows).sum().backward()
    assert trained.weight.grad is not None
    assert frozen()(rows[:0]).shape == (0, 40)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        frozen()(rows[:, 1:])
    with torch.backends.mkldnn.flags(enabled=False):
        assert not by_onednn(rows)
    assert not by_onednn(rows.to("meta"))
    with monkeypatch.context() as without_avx512:
        without_avx512.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
        assert torch.equal(product(rows, matrix := torch.randn(40, 24)), rows @ matrix.t())
        assert type(frozen()) is torch.nn.Linear
    assert not calls
    with torch.no_grad():
        trained(rows)
    assert len(calls) == 1, "without a gradient a trained matrix is like a frozen one"


def test_only_frozen_layers_of_a_policy_are_changed():
    policy = rloo_kit.load_policy("tiny", load_in_4bit=False)
    if next(policy.model.parameters()).dtype != torch.float32:
        pytest.skip("this CPU computes in bfloat16")
    layers = {n: m for n, m in policy.model.named_modules() if isinstance(m, torch.nn.Linear)}
    for name, layer in layers.items():
        assert (type(layer) is FrozenLinear) == ("lora_" not in name and "lm_head" not in name), name
    head = policy.model.get_output_embeddings()
    with head_in_one_product(policy.model):
        assert type(head) is FrozenLinear
    assert type(head) is torch.nn.Linear, "unsloth computes a loss in chunks for this class alone"


def test_torch_still_has_onednns_product():
    signature = str(torch.ops.mkldnn._linear_pointwise.default._schema)
    arguments = "Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, str? algorithm"
    assert signature == f"mkldnn::_linear_pointwise({arguments}) -> Tensor Y"
