"""The kit on Unsloth's GPU path beside plain transformers and PEFT in float32: the figures of benchmarks/gpu/plain.py.

Each limit is three times what plain PEFT itself is off when it rounds to the card's 16 bits.
"""

from typing import ClassVar

import pytest

from benchmarks.gpu.runner import PASSED, Figure
from tests.gpu_path.conftest import Rehearsed

BASES = pytest.mark.parametrize("base", ["4 bit", "16 bit"])


def assert_close(figure: Figure) -> None:
    """Off by something, and by no more than the yardstick, which must be one."""
    assert figure.high is not None
    assert 0 < figure.value <= figure.high < 0.5, figure


class AgainstPlain:
    """Tests of one card; one command computes what they all read."""

    CARD: ClassVar[str]
    DTYPE: ClassVar[str]

    @pytest.fixture(scope="class")
    def figures(self, request: pytest.FixtureRequest, rehearsed: Rehearsed) -> dict[str, Figure]:
        outcomes = rehearsed(request.cls.CARD, "correct/update", "correct/against plain PEFT")
        assert outcomes["correct/update"].status == PASSED, "on the GPU path, over Unsloth's trainer"
        beside_plain = outcomes["correct/against plain PEFT"]
        assert beside_plain.status == PASSED, "every figure within its limits, also those that no test names"
        return beside_plain.figures

    @BASES
    def test_prompts_padded_on_the_left_have_plain_log_probabilities_and_a_dropped_mask_is_seen(
        self, figures: dict[str, Figure], base: str
    ) -> None:
        def off(how: str) -> Figure:
            return figures[f"{base}, {self.DTYPE}, left padding, {how}: log-probabilities off by, nats"]

        for how in ("with gradient", "without"):
            assert_close(off(how))
        for how in ("pads seen", "flag unset"):
            assert off(how).value >= off(how).low > 0, how

    def test_tokens_are_plain_greedy_searchs_and_drawn_from_the_policys_distribution(
        self, figures: dict[str, Figure]
    ) -> None:
        assert figures["32 bit, greedy tokens: less probable than the best by, nats"].value == 0.0
        for base in (f"4 bit, {self.DTYPE}", f"16 bit, {self.DTYPE}", "32 bit"):
            assert figures[f"{base}, greedy tokens: less probable than the best by, nats"].holds
            assert figures[f"{base}, first tokens: entropy, nats"].holds, "one token says nothing"
            assert figures[f"{base}, first tokens: surprise off by, standard errors"].holds
