"""A T4: float16, with a loss scaler."""

from tests.gpu_path.against_plain import AgainstPlain


class TestFloat16(AgainstPlain):
    CARD = "t4"
