"""The kit on Unsloth's GPU path against plain transformers and PEFT in float32: the figures of benchmarks/gpu/plain.py.

Each limit is three times plain PEFT's own error when it rounds to the card's 16 bits.  bfloat16 rounds so coarsely that
estimators, placements of the KL term and short cuts are compared in float16.
"""

import pytest

from benchmarks.gpu.correct import IN_FLOAT32, SETTINGS
from benchmarks.gpu.runner import PASSED, Figure

pytestmark = pytest.mark.long  # make gpu-path; tests/train/test_update.py compares the formulas without a card
CARDS = {"bfloat16": "rtx 3090", "float16": "t4"}  # the T4 uses a loss scaler
BASES = ("4 bit", "16 bit")
GRADIENTS = {
    "bfloat16": [f"{base}, bfloat16, rloo, beta 0" for base in BASES],
    "float16": ["4 bit, float16, rloo"]
    + [f"{'32 bit' if name in IN_FLOAT32 else '16 bit, float16'}, {name}" for name in SETTINGS],
}


@pytest.fixture(scope="module", params=CARDS)
def dtype(request):
    return str(request.param)


@pytest.fixture(scope="module")
def figures(dtype, rehearsed):
    """The figures that one command computes on a card."""
    outcomes = rehearsed(CARDS[dtype], "correct/update", "correct/against plain PEFT")
    assert outcomes["correct/update"].status == PASSED, "on the GPU path, over Unsloth's trainer"
    beside_plain = outcomes["correct/against plain PEFT"]
    assert beside_plain.status == PASSED, "every figure within its limits, also those that no test names"
    return beside_plain.figures


def assert_close(figure: Figure) -> None:
    """The error is above 0 and within its limit, and the limit is small enough to mean something."""
    assert figure.high is not None
    assert 0 < figure.value <= figure.high < 0.5, figure


def assert_seen(figure: Figure) -> None:
    assert figure.low is not None
    assert figure.value >= figure.low > 0, figure


@pytest.mark.parametrize("base", BASES)
def test_prompts_padded_on_the_left_have_plain_log_probabilities_and_a_dropped_mask_is_seen(dtype, figures, base):
    for how in ("with gradient", "without"):
        assert_close(figures[f"{base}, {dtype}, left padding, {how}: log-probabilities off by, nats"])
    for how in ("pads seen", "flag unset"):
        assert_seen(figures[f"{base}, {dtype}, left padding, {how}: log-probabilities off by, nats"])


def test_tokens_are_plain_greedy_searchs_and_drawn_from_the_policys_distribution(dtype, figures):
    exact = ["32 bit"] if dtype == "float16" else []
    assert all(figures[f"{base}, greedy tokens: less probable than the best by, nats"].value == 0.0 for base in exact)
    for base in (f"4 bit, {dtype}", f"16 bit, {dtype}", *exact):
        assert figures[f"{base}, greedy tokens: less probable than the best by, nats"].holds
        assert figures[f"{base}, first tokens: entropy, nats"].holds, "one token says nothing"
        assert figures[f"{base}, first tokens: surprise off by, standard errors"].holds


def test_gradients_are_plain_ones_and_a_wrong_reference_is_seen(dtype, figures):
    for name in GRADIENTS[dtype]:
        assert_close(figures[f"{name}: gradient off by"])
    for base in BASES if dtype == "float16" else ():
        assert_seen(figures[f"{base}, float16, rloo, reference the policy itself: gradient off by"])
