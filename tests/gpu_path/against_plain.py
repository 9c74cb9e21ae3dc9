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
    @pytest.mark.parametrize("how", ["with gradient", "without"])
    def test_log_probabilities_of_prompts_padded_on_the_left(
        self, figures: dict[str, Figure], base: str, how: str
    ) -> None:
        figure = figures[f"{base}, {self.DTYPE}, left padding, {how}: log-probabilities off by, nats"]
        assert_close(figure)

    @BASES
    @pytest.mark.parametrize("how", ["pads seen", "flag unset"])
    def test_a_mask_that_is_dropped_is_seen(self, figures: dict[str, Figure], base: str, how: str) -> None:
        figure = figures[f"{base}, {self.DTYPE}, left padding, {how}: log-probabilities off by, nats"]
        assert figure.value >= figure.low > 0, figure

    def test_greedy_search_of_eight_rows_is_plain_greedy_search_in_float32(
        self, figures: dict[str, Figure]
    ) -> None:
        assert figures["32 bit, greedy tokens: less probable than the best by, nats"].value == 0.0

    @BASES
    def test_greedy_search_takes_what_rounding_cannot_tell_from_the_best(
        self, figures: dict[str, Figure], base: str
    ) -> None:
        assert figures[f"{base}, {self.DTYPE}, greedy tokens: less probable than the best by, nats"].holds

    def test_first_tokens_are_sampled_from_the_policys_distribution(self, figures: dict[str, Figure]) -> None:
        for base in (f"4 bit, {self.DTYPE}", f"16 bit, {self.DTYPE}", "32 bit"):
            assert figures[f"{base}, first tokens: entropy, nats"].holds, "one token says nothing"
            assert figures[f"{base}, first tokens: surprise off by, standard errors"].holds
