"""Whether completions can be sampled by a vLLM server: its version, and weights that it can be sent.

For the trainer, before it connects.  The server, the client and the sending of weights are vLLM's and TRL's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from rloo_kit.errors import ConfigError, VersionError
from rloo_kit.session.imports import version_of

if TYPE_CHECKING:
    import torch
    import trl

OLDEST, NEWEST = "0.21.0", "0.31.0"
"""What TRL 1.15 takes (its import_utils.py); the extra ``vllm`` is the newest, whose pins are this stack's."""


def check(args: trl.RLOOConfig, model: torch.nn.Module) -> None:
    """Works around: TRL warns of a vLLM that it does not know, and sends a 4-bit policy's packed bytes as its weights.

    Raises:
        VersionError: vLLM is of another release than TRL takes.
        ConfigError: the server would be sent packed weights.
    """
    if not args.use_vllm:
        return
    check_version(version_of("vllm"))
    if args.vllm_mode != "server":
        return
    packed = [name for name, p in model.named_parameters() if hasattr(p, "quant_state")]
    if packed:
        raise ConfigError(
            f"a vLLM server would be sent packed bytes of 4-bit weights, {len(packed)} tensors, and sample from them",
            where=f"RLOOConfig(use_vllm=True, vllm_mode='server'), first {packed[0]}",
            todo="load_policy(..., load_in_4bit=False), or remove use_vllm",
        )


def check_version(installed: str) -> None:
    """Refuse a vLLM that TRL does not take; one that is missing is TRL's to refuse.

    >>> check_version("0.31.0")

    Raises:
        VersionError: it is older or newer.
    """
    if installed == "missing" or Version(OLDEST) <= Version(Version(installed).base_version) <= Version(
        NEWEST
    ):
        return
    raise VersionError(
        f"TRL 1.15 takes vLLM {OLDEST} to {NEWEST}",
        where=f"vllm {installed}",
        todo="pip install 'rloo-kit[vllm]', and restart the process",
    )
