"""An RTX 3090: bfloat16.  Every estimator, placement of the KL term and short cut is compared here."""

import pytest

from benchmarks.gpu.correct import SETTINGS
from benchmarks.gpu.runner import Figure
from tests.gpu_path.against_plain import AgainstPlain, assert_close


class TestBfloat16(AgainstPlain):
    CARD = "rtx 3090"

    @pytest.mark.parametrize("name", SETTINGS)
    def test_gradients_of_every_estimator_and_short_cut(self, figures: dict[str, Figure], name: str) -> None:
        assert_close(figures[f"16 bit, {name}: gradient off by"])
