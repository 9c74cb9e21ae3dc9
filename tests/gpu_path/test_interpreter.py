"""The pretended card's kernels: Triton's language over all programs at once, beside torch."""

from tests.conftest import ROOT
from tests.gpu_path.conftest import Pretended


def test_kernels_compute_what_torch_computes_in_every_precision(on_card: Pretended) -> None:
    done = on_card("t4", str(ROOT / "tests/gpu_path/run_kernels.py"))
    assert done.stdout.split() == ["float32", "float16", "bfloat16", "branches", "blocks"]
