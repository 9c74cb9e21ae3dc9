"""When memory is short: a warning before the first step, and an error that names phase, remedy and checkpoint."""

import itertools
import weakref
from typing import Any

import pytest
import torch

import rloo_kit
from rewards.errors import RewardCallError
from rloo_kit.errors import OutOfMemoryError
from rloo_kit.memory import out_of_memory
from rloo_kit.memory.out_of_memory import explained
from rloo_kit.memory.plan import Plan
from tests.memory.conftest import LARGE


@pytest.fixture(scope="module")
def too_large() -> Plan:
    return rloo_kit.plan("qwen3-4b", LARGE, "8GB")


def test_only_a_run_that_will_not_fit_is_warned_of(too_large, recwarn):
    out_of_memory.warn_if_too_large(rloo_kit.plan("qwen3-0.6b", card="24GB"))
    out_of_memory.warn_if_too_large(too_large)
    (warned,) = recwarn.list
    assert "will probably not fit: it takes 8.70 of 7.50 GiB, at its peak in backward" in str(warned.message)
    assert str(too_large.changes[0]) in str(warned.message)


OF_CUDA_AND_TORCH = [
    "CUDA error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",  # if memory was full before
    "NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp",  # in a container
    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried",
    "could not create a primitive",
]


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), *map(RuntimeError, OF_CUDA_AND_TORCH)],
    ids=repr,
)
def test_running_out_of_memory_names_phase_table_and_change(error, too_large):
    with pytest.raises(OutOfMemoryError) as caught, explained("generate", too_large):
        raise error
    text = str(caught.value)
    for part in ("in the phase 'generate'", str(too_large), f"What to do: first {too_large.changes[0]}"):
        assert part in text
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, MemoryError)


def test_where_the_plan_fits_a_failed_allocation_is_laid_to_something_else():
    caught = pytest.raises(OutOfMemoryError, match=r"something else holds the memory.*nvidia-smi")
    with caught, explained("train", rloo_kit.plan("qwen3-0.6b", card="24GB")):
        torch.empty(2**52)


def test_what_the_failed_step_held_is_free_while_its_error_is_kept(too_large):
    """A notebook keeps its last error, and with it every frame that the error passed."""
    held: list[weakref.ref[torch.Tensor]] = []

    def starve() -> None:
        cache = torch.ones(10)
        held.append(weakref.ref(cache))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OutOfMemoryError) as kept, explained("generate", too_large):
        starve()
    assert kept.value.__cause__ is not None
    assert held[0]() is None


def test_other_errors_and_explained_ones_pass_unchanged(too_large):
    kept = OutOfMemoryError("explained", where="x", todo="y")
    of_a_judge = RewardCallError("The reward raised OutOfMemoryError: CUDA out of memory", reward_name="judge")
    for error in (RuntimeError("shapes differ"), kept, of_a_judge):
        with pytest.raises(type(error)) as caught, explained("train", too_large):
            raise error
        assert caught.value is error


def test_a_run_that_starves_keeps_its_last_step(fresh_policy, make_trainer, tmp_path):
    bound, calls = fresh_policy.model.generate, itertools.count(1)

    def generate(*args: Any, **kwargs: Any) -> Any:
        if next(calls) >= 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return bound(*args, **kwargs)

    fresh_policy.model.generate = generate
    trainer = make_trainer(model=fresh_policy, max_steps=3, save_strategy="steps", save_steps=100)
    with pytest.raises(OutOfMemoryError, match="phase 'generate'") as caught:
        trainer.train()
    assert all(part in str(caught.value) for part in ("checkpoint-1 is kept", "log-probability tile"))
    assert (tmp_path / "run" / "checkpoint-1" / "adapter_model.safetensors").is_file()
