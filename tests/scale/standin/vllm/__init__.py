"""In vLLM's place: the names that TRL 1.15 imports of vLLM 0.31, and weights that travel by gloo in place of NCCL."""

__version__ = "0.31.0"


class LLM:
    """Of colocate mode, which the stand-in does not have."""


class RequestOutput:
    """Of colocate mode."""


class SamplingParams:
    """Of colocate mode."""
