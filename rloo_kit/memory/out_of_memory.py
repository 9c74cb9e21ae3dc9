"""Explain where memory ran out: a warning before the first step, and an error that names the phase and a change."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rewards.errors import RewardValueError
from rloo_kit.errors import OutOfMemoryError
from rloo_kit.memory.plan import Plan
from rloo_kit.session import output
from rloo_kit.session.release import clear_frames


def warn_if_too_large(planned: Plan) -> None:
    """Warn before the first step, with the first change that would help; also if the plan cannot count the model."""
    if unknown := planned.model.checkpoint.uncounted:
        output.warn(f"The memory plan does not know {unknown}: what it says of activations is a guess.")
    if planned.fits == "does not fit":
        todo = str(planned.changes[0]) if planned.changes else "take a smaller model"
        output.warn(
            f"This run will probably not fit: it takes {planned.takes} ({planned.device.name}). "
            f"What to do: {todo}. print(rloo_kit.plan(policy, config)) shows where it goes."
        )


@contextlib.contextmanager
def explained(name: str, planned: Plan) -> Iterator[None]:
    """Turn an out-of-memory error of the device, in a phase, into one with the plan's table and the change to make."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        # A RewardValueError already names the reward.
        if isinstance(error, (OutOfMemoryError, RewardValueError)) or not is_out_of_memory(error):
            raise
        let_go(error)
        cause = (str(error) or type(error).__name__).splitlines()[0]
        todo = (
            "the plan fits, so something else holds the memory: other programs (nvidia-smi), or an earlier policy "
            "(rloo_kit.release()). Then lower per_device_train_batch_size"
        )
        raise OutOfMemoryError(
            f"memory ran out in the phase {name!r}",
            where=f"{name}; {cause}\n\n{planned}",
            todo=f"first {planned.changes[0]}" if planned.changes else todo,
        ) from error


RAN_OUT = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED",  # from the allocator, if it cannot ask NVML, as in a container
    "DefaultCPUAllocator: can't allocate memory",
    "could not create a primitive",  # from oneDNN, on a CPU
)
"""Messages of torch's plain RuntimeErrors that mean out of memory."""


def is_out_of_memory(error: BaseException) -> bool:
    named = type(error).__name__ == "OutOfMemoryError" and type(error).__module__.startswith("torch")
    return named or isinstance(error, MemoryError) or any(part in str(error) for part in RAN_OUT)


def naming_checkpoint(error: OutOfMemoryError, kept: Path | None) -> OutOfMemoryError:
    """Return the error with the way to resume from the checkpoint ``kept``.  None means that none was written."""
    anew = "rloo_kit.release(), load the policy anew"
    way_on = f"{kept} is kept: {anew}, and train(resume_from_checkpoint=True) goes on from there"
    way_on = way_on if kept else f"No checkpoint was written: {anew} and start again"
    return OutOfMemoryError(error.what, where=error.where, todo=f"{error.todo}. {way_on}")


def let_go(error: BaseException) -> None:
    """Free what an error's frames hold, such as the key-value cache: a notebook keeps its last error."""
    import torch

    clear_frames(error)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
