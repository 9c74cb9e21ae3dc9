"""What a run says when memory is short: a warning before the first step, and an error that names phase and mend.

For the trainer.  It measures nothing itself (:mod:`.meter` does), and frees what the failed step held; the
policy is for ``rloo_kit.release()``.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rloo_kit.errors import OutOfMemoryError
from rloo_kit.memory.planning import Plan
from rloo_kit.session.release import clear_frames


def warn_if_too_large(planned: Plan) -> None:
    """Before the first step: warn where the plan does not fit, with the first change that would make it."""
    if planned.fits == "does not fit":
        todo = str(planned.changes[0]) if planned.changes else "take a smaller model"
        warnings.warn(
            f"This run will probably not fit: it takes {planned.takes} ({planned.device.name}). "
            f"What to do: {todo}. print(rloo_kit.plan(policy, config)) shows where it goes.",
            stacklevel=3,
        )


@contextlib.contextmanager
def phase(trainer: Any, name: str) -> Iterator[None]:
    """A phase of a trainer's run: its peak goes to ``trainer.memory``, and running out of memory is explained.

    Phases may lie inside each other, so that ``train()`` as a whole can be "optimizer": what no inner phase claims.

    Args:
        trainer: has ``memory``, a :class:`.meter.Meter`, and ``memory_plan``, a :class:`Plan` or a callable
            that gives one; both may be missing.
        name: "generate", "log-probs", "train" or "optimizer".
    """
    meter = getattr(trainer, "memory", None)
    counted = meter.phase(name) if meter is not None else contextlib.nullcontext()
    planned = getattr(trainer, "memory_plan", None)
    with explain_out_of_memory(name, planned), counted:
        yield


@contextlib.contextmanager
def explain_out_of_memory(name: str, planned: Plan | Callable[[], Plan] | None = None) -> Iterator[None]:
    """Turn the device's out-of-memory error into one that says where, how much and what to do.

    Args:
        name: the phase, for the message.
        planned: the plan, or what makes it.

    Raises:
        OutOfMemoryError: the phase, the plan's table, and the change to make.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, OutOfMemoryError) or not is_out_of_memory(error):
            raise
        let_go(error)
        raise _explained(name, planned() if callable(planned) else planned, error) from error


RAN_OUT = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)
"""What torch's plain RuntimeErrors say where memory has run out.  The assertion is the caching allocator's, which asks
NVML how much was free and may not, in a container for instance."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is torch's, CUDA's or the system's way of saying that memory has run out.

    On a CPU torch raises a plain RuntimeError, told by its text (c10's ``DefaultCPUAllocator``).
    """
    text = str(error)
    named = type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch")
    return named or isinstance(error, MemoryError) or any(part in text for part in RAN_OUT)


def _explained(name: str, planned: Plan | None, error: BaseException) -> OutOfMemoryError:
    where = f"{name}; {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    if planned is not None:
        where += f"\n\n{planned}"
    return OutOfMemoryError(f"memory ran out in the phase {name!r}", where=where, todo=_mend(planned))


def _mend(planned: Plan | None) -> str:
    if planned is None:
        return "lower per_device_train_batch_size or max_completion_length; rloo_kit.plan says by how much"
    if planned.changes:
        return f"first {planned.changes[0]}"
    return (
        "by the plan it should have fitted, so something else holds the memory: other programs (nvidia-smi), or an "
        "earlier policy (rloo_kit.release()). Then lower per_device_train_batch_size"
    )


def with_way_on(error: OutOfMemoryError, kept: Path | None) -> OutOfMemoryError:
    """The error of a run that has stopped, with the checkpoint that the run goes on from, where there is one."""
    way_on = "No checkpoint was written: rloo_kit.release(), load the policy anew and start again"
    if kept is not None:
        way_on = (
            f"{kept} is kept: rloo_kit.release(), load the policy anew, and train(resume_from_checkpoint=True) goes "
            "on from there"
        )
    return OutOfMemoryError(error.what, where=error.where, todo=f"{error.todo}. {way_on}")


def let_go(error: BaseException) -> None:
    """Free what an error's finished frames hold, the key-value cache for instance: a notebook keeps its last error, and
    a smaller run in the next cell would run out of memory too."""
    import torch

    clear_frames(error)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
