"""An RTX 3090: bfloat16, which rounds so coarsely that formulas are compared in test_float16.py."""

from benchmarks.gpu.runner import Figure
from tests.gpu_path.against_plain import BASES, AgainstPlain, assert_close


class TestBfloat16(AgainstPlain):
    CARD, DTYPE = "rtx 3090", "bfloat16"

    @BASES
    def test_gradients(self, figures: dict[str, Figure], base: str) -> None:
        assert_close(figures[f"{base}, bfloat16, rloo, beta 0: gradient off by"])
