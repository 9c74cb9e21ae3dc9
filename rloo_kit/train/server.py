"""Whether completions can be sampled by vLLM: its version, weights that it can be sent, and settings that agree.

For the trainer, before it connects.  Server, client, engine and the sending of weights are vLLM's, TRL's and unsloth's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packaging.version import Version

from rloo_kit.errors import ConfigError, VersionError
from rloo_kit.memory.hardware import sleeps
from rloo_kit.session.versions import version_of

if TYPE_CHECKING:
    import torch
    import trl

OLDEST, NEWEST = "0.21.0", "0.31.0"
"""What TRL 1.15 takes (its import_utils.py); the extra ``vllm`` is the newest, whose pins are this stack's."""


def check(args: trl.RLOOConfig, model: torch.nn.Module) -> None:
    """Works around: TRL warns of a vLLM that it does not know, and sends a 4-bit policy's packed bytes as its weights;
    unsloth switches ``use_vllm`` on for a policy of ``fast_inference``, and aligns the rest for GRPO alone.

    Raises:
        VersionError: vLLM is of another release than TRL takes.
        ConfigError: vLLM would be sent packed weights, or the policy's own cannot be used.
    """
    engine = getattr(model, "vllm_engine", None)
    if engine is not None:
        _align(args, engine)
        return
    if not args.use_vllm:
        return
    check_version(version_of("vllm"))
    packed = [name for name, p in model.named_parameters() if hasattr(p, "quant_state")]
    if packed:
        raise ConfigError(
            f"vLLM would be sent packed bytes of 4-bit weights, {len(packed)} tensors, and sample from them",
            where=f"RLOOConfig(use_vllm=True, vllm_mode={args.vllm_mode!r}), first {packed[0]}",
            todo="load_policy(..., load_in_4bit=False), or remove use_vllm",
        )


def _align(args: trl.RLOOConfig, engine: Any) -> None:
    """The trainer's settings as a policy's own engine has them.  Unsloth 2026.10.9 does this where "grpo" is in the
    trainer's file name (models/rl.py); without it TRL never wakes an engine in standby, nor puts it to sleep."""
    if args.fsdp:
        raise ConfigError(
            "unsloth's vLLM, which the policy samples with, does not work under FSDP2",
            where="load_policy(fast_inference=True), RLOOConfig(fsdp=...)",
            todo="load_policy(..., fast_inference=False), or launch with --engine ddp",
        )
    if args.use_vllm and args.vllm_mode == "server":
        raise ConfigError(
            "the policy has a vLLM of its own, and a server is asked for too",
            where="load_policy(fast_inference=True), RLOOConfig(use_vllm=True, vllm_mode='server')",
            todo="load_policy(..., fast_inference=False), or remove use_vllm and vllm_mode",
        )
    args.use_vllm, args.vllm_mode = True, "colocate"
    args.vllm_enable_sleep_mode = sleeps(engine)


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
