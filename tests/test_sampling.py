"""The inverse-CDF draw follows the distribution that torch.multinomial would follow."""

from __future__ import annotations

import math

import pytest
import torch

from rloo_kit.sampling import Draw, draw_by_inverse_cdf

DRAWS, ROWS = 200_000, 20_000
# The 0.9999 quantile of chi-square by degrees of freedom, Wilson and Hilferty's approximation.
Z = 3.719


def chi_square_limit(freedom: int) -> float:
    return freedom * (1 - 2 / (9 * freedom) + Z * math.sqrt(2 / (9 * freedom))) ** 3


def draw(logits: torch.Tensor, how: Draw) -> torch.Tensor:
    """Draw through the processors that generate would apply."""
    counts = torch.zeros(len(logits))
    for _ in range(DRAWS // ROWS):
        scores = logits.repeat(ROWS, 1)
        ids = torch.zeros(ROWS, 1, dtype=torch.long)
        for processor in how.generate_options(torch.device("cpu"))["logits_processor"]:
            scores = processor(ids, scores)
        counts += torch.bincount(scores.argmax(dim=1), minlength=len(logits))
    return counts


@pytest.mark.parametrize(
    "how",
    [Draw(), Draw(temperature=0.6), Draw(temperature=1.7), Draw(top_k=5), Draw(top_p=0.8), Draw(min_p=0.1)],
    ids=str,
)
def test_draws_follow_the_distribution_of_transformers_sampling(how: Draw) -> None:
    from transformers import GenerationConfig
    from transformers.generation import GenerationMixin

    torch.manual_seed(0)
    logits = torch.randn(40) * 2
    settings = GenerationConfig(
        do_sample=True, temperature=how.temperature, top_k=how.top_k, top_p=how.top_p, min_p=how.min_p
    )
    processors = GenerationMixin._get_logits_processor(
        type("Model", (GenerationMixin,), {"config": None, "device": "cpu"})(), settings, 1, None
    )
    warped = processors(torch.zeros(1, 1, dtype=torch.long), logits[None].clone())
    expected = warped.softmax(dim=-1)[0] * DRAWS
    counts = draw(logits, how)
    assert counts[expected == 0].sum() == 0
    common = expected > 5
    statistic = ((counts - expected)[common] ** 2 / expected[common]).sum().item()
    assert statistic < chi_square_limit(int(common.sum()) - 1)


def test_an_entry_of_probability_zero_is_never_drawn() -> None:
    logits = torch.full((1000, 50), -torch.inf)
    logits[:, 49] = 0.0
    assert draw_by_inverse_cdf(torch.empty(0), logits).argmax(dim=1).eq(49).all()


def test_the_largest_uniform_number_still_lies_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, device=None: torch.full(shape, 1.0))
    scores = torch.tensor([[0.0, 0.0, -torch.inf]])
    assert draw_by_inverse_cdf(torch.empty(0), scores).argmax() == 1


def test_on_a_gpu_generate_samples_by_itself() -> None:
    options = Draw(temperature=0.7, top_k=3).generate_options(torch.device("cuda"))
    assert options == {"do_sample": True, "temperature": 0.7, "top_p": 1.0, "top_k": 3, "min_p": None}
