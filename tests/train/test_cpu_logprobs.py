"""Log-probabilities and entropies in tiles of the vocabulary, against plain float64 and unsloth's own path."""

import rloo_kit  # isort: skip - unsloth first

from typing import Any

import pytest
import torch

from rloo_kit.session.import_order import import_unsloth
from rloo_kit.train import cpu_logprobs
from rloo_kit.train.cpu_logprobs import in_tiles, is_exact
from tests.train.weights import leave_the_reference

import_unsloth()

import trl  # noqa: E402
from trl.trainer import utils  # noqa: E402

BOTH = ("log_probs", "entropy")
WIDTH = 16


def drawn(rows: int, words: int, spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw hidden states (rows, H), a matrix (words, H) and targets (rows,)."""
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    return hidden, torch.randn(words, WIDTH) * spread, torch.randint(0, words, (rows,))


def fused(hidden: Any, weight: Any, targets: Any, *, slope: tuple[float, float] = (1.0, 1.0), **other: Any) -> Any:
    """Call TRL's fused head as TRL does; ``slope`` is temperature and scale."""
    how = {"bias": None, "softcap": None, "outputs": BOTH, **other}
    return utils._ChunkedLogProbFunction.apply(
        *(hidden, weight, how["bias"], targets, slope[0], 32768, how["softcap"], slope[1], how["outputs"])
    )


def in_float64(hidden: Any, weight: Any, targets: Any, slope: float = 1.0) -> tuple[Any, Any, Any]:
    """Return log-probabilities and entropies by definition, and the float64 hidden states they depend on."""
    hidden = hidden.detach().double().requires_grad_()
    logs = (slope * hidden @ weight.double().T).log_softmax(1)
    return logs.gather(1, targets.unsqueeze(1)).squeeze(1), -(logs.exp() * logs).sum(1), hidden


def close(found: torch.Tensor, exact: torch.Tensor, tolerance: float = 2e-5) -> None:
    """Check equality up to float32's rounding of sums over a vocabulary."""
    torch.testing.assert_close(found.double(), exact.double(), rtol=tolerance, atol=tolerance)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of the head was computed in tiles."""
    seen: list[bool] = []
    monkeypatch.setattr(cpu_logprobs, "is_exact", lambda *given: seen.append(is_exact(*given)) or seen[-1])
    return seen


@pytest.mark.parametrize(
    ("rows", "words", "slope"),
    [(3, 5, (1.0, 1.0)), (7, 512, (0.6, 1.0)), (5, 513, (1.0, 0.5)), (520, 1100, (1.3, 2.0))],
)
def test_values_and_gradients_are_those_of_float64_and_of_unsloth(rows, words, slope, taken):
    hidden, weight, targets = drawn(rows, words, spread=0.3)
    slopes = torch.randn(rows)
    with in_tiles(entropy=True):
        ours = fused(hidden, weight, targets, slope=slope)
    theirs = fused(hidden, weight, targets, slope=slope)
    *exact, hidden64 = in_float64(hidden, weight, targets, slope[1] / slope[0])
    assert taken == [True]
    for mine, other, true in zip(ours[:2], theirs[:2], exact, strict=True):
        close(mine, true)
        close(mine, other)
    (gradient,) = torch.autograd.grad(ours[0], hidden, slopes)
    (expected,) = torch.autograd.grad(exact[0], hidden64, slopes.double())
    close(gradient, expected)
    assert not ours[1].requires_grad, "the entropy is logged"


@pytest.mark.parametrize("lead", [-200.0, 0.0, 25.0, 200.0])
def test_a_token_far_above_or_below_the_others_keeps_its_precision(lead):
    """Neither its log-probability nor its gradient is rounded to 0, and nothing overflows."""
    weight = torch.randn(1500, WIDTH) * 0.1
    weight[:, 0] = 0.0
    weight[700, 0] = lead
    hidden = torch.ones(1, WIDTH, requires_grad=True)
    with in_tiles(entropy=True):
        log_prob, entropy, *_ = fused(hidden, weight, torch.tensor([700]))
    (gradient,) = torch.autograd.grad(log_prob, hidden)
    hidden64 = hidden.detach().double().requires_grad_()
    logits = (hidden64 @ weight.double().T)[0]
    others = torch.cat([logits[:700], logits[701:]])
    exact = -torch.nn.functional.softplus(others.logsumexp(0) - logits[700], threshold=1000.0)
    logs = torch.cat([exact.view(1), others - torch.logaddexp(logits[700], others.logsumexp(0))])
    (expected,) = torch.autograd.grad(exact, hidden64)
    torch.testing.assert_close(log_prob[0].double(), exact, rtol=1e-4, atol=1e-36)
    torch.testing.assert_close(entropy[0].double(), -(logs.exp() * logs).sum(), rtol=1e-4, atol=1e-34)
    torch.testing.assert_close(gradient.double(), expected, rtol=1e-3, atol=1e-34)


def test_one_logit_that_rises_from_tile_to_tile_overflows_nothing():
    weight = torch.zeros(2100, WIDTH)
    weight[:, 0] = torch.arange(2100) / 10
    hidden, targets = torch.eye(WIDTH)[:1].repeat(2, 1).requires_grad_(), torch.tensor([0, 2050])
    with in_tiles(entropy=True):
        log_probs, entropy, *_ = fused(hidden, weight, targets)
    exact, exact_entropy, _ = in_float64(hidden, weight, targets)
    close(log_probs, exact, 1e-5)
    close(entropy, exact_entropy, 1e-3)


CHANGES: dict[str, Any] = {
    "a cap on the logits": lambda h, w: {"softcap": 30.0},
    "a matrix that is trained": lambda h, w: {"weight": w.clone().requires_grad_()},
    "16 bit": lambda h, w: {"weight": w.bfloat16(), "hidden": h.detach().bfloat16()},
    "no position is scored": lambda h, w: {"hidden": h[:0]},
}


@pytest.mark.parametrize("why", CHANGES)
def test_where_tiles_are_not_exact_unsloths_path_is_taken(why, taken):
    hidden, weight, targets = drawn(4, 700)
    given = {"hidden": hidden, "weight": weight} | CHANGES[why](hidden, weight)
    targets = targets[: len(given["hidden"])]
    expected = fused(targets=targets, **given)
    with in_tiles(entropy=True):
        found = fused(targets=targets, **given)
    assert taken == [False]
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)


def test_the_trainers_log_probabilities_and_entropies_are_stock_trls(make_trainer, taken):
    """With padding on both sides and a temperature; also the LoRA's gradients."""
    trainer = make_trainer(temperature=0.7)
    trainer.model.train()
    ids = torch.randint(0, 400, (3, 12))
    mask = torch.ones_like(ids)
    mask[0, :4], mask[1, -3:] = 0, 0
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    leave_the_reference(trainer.model, std=0.1)

    def found(owner: Any) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        method = owner._get_per_token_logps_and_entropies
        log_probs, entropies, _ = method(trainer, trainer.model, ids, mask, 6, compute_entropy=True)
        gradients = torch.autograd.grad((log_probs * torch.arange(6)).sum(), trained)
        return log_probs, entropies, list(gradients)

    ours, expected = found(rloo_kit.RLOOTrainer), found(trl.RLOOTrainer)
    in_float32 = trainer.model.get_output_embeddings().weight.dtype == torch.float32
    assert taken == [in_float32], "in 16 bit it is unsloth's path"
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
