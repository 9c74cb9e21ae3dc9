"""A T4: float16, with a loss scaler.  Every estimator, placement of the KL term and short cut is compared here."""

import pytest

from benchmarks.gpu.correct import IN_FLOAT32, SETTINGS
from benchmarks.gpu.runner import Figure
from tests.gpu_path.against_plain import BASES, AgainstPlain, assert_close

pytestmark = (
    pytest.mark.long
)  # two minutes; the formulas are also compared without a card, in tests/train/test_update.py


class TestFloat16(AgainstPlain):
    CARD, DTYPE = "t4", "float16"

    @pytest.mark.parametrize("name", SETTINGS)
    def test_gradients_of_every_estimator_and_short_cut(self, figures: dict[str, Figure], name: str) -> None:
        base = "32 bit" if name in IN_FLOAT32 else "16 bit, float16"
        assert_close(figures[f"{base}, {name}: gradient off by"])

    def test_gradients_of_a_4_bit_policy_without_gradient_checkpointing(
        self, figures: dict[str, Figure]
    ) -> None:
        assert_close(figures["4 bit, float16, rloo: gradient off by"])

    @BASES
    def test_a_wrong_reference_is_seen(self, figures: dict[str, Figure], base: str) -> None:
        figure = figures[f"{base}, float16, rloo, reference the policy itself: gradient off by"]
        assert figure.low is not None
        assert figure.value >= figure.low > 0, figure
