"""When memory is short: a warning before the first step, and an error that names phase, mend and checkpoint."""

from __future__ import annotations

import itertools
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rloo_kit
from rloo_kit.errors import OutOfMemoryError
from rloo_kit.memory import shortage
from rloo_kit.memory.meter import Meter, Peak
from rloo_kit.memory.shortage import explain_out_of_memory

LARGE = SimpleNamespace(
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    num_generations=8,
    max_completion_length=3072,
    beta=0.05,
)


def test_a_run_that_will_not_fit_is_warned_of_with_what_to_change() -> None:
    planned = rloo_kit.plan("qwen3-4b", LARGE, "8GB")
    with pytest.warns(UserWarning, match=r"will probably not fit: it takes \d+\.\d\d of \d") as caught:
        shortage.warn_if_too_large(planned)
    assert str(planned.changes[0]) in str(caught[0].message)


def test_a_run_that_fits_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    shortage.warn_if_too_large(rloo_kit.plan("qwen3-0.6b", card="24GB"))
    assert not recwarn.list


OUT = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "torch's own"),
    (RuntimeError("CUDA error: out of memory"), "the driver, through torch"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "cuBLAS"),
    (
        RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
        "full before",
    ),
    (RuntimeError("NVML_SUCCESS == r INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp"), "a container"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "a CPU"),
    (MemoryError(), "Python"),
]


@pytest.mark.parametrize(("error", "why"), OUT, ids=[why for _, why in OUT])
def test_running_out_of_memory_names_the_phase_the_table_and_the_change(error: Exception, why: str) -> None:
    planned = rloo_kit.plan("qwen3-4b", LARGE, "8GB")
    with pytest.raises(OutOfMemoryError) as caught, explain_out_of_memory("generate", planned):
        raise error
    text = str(caught.value)
    assert "memory ran out in the phase 'generate'" in text
    assert str(planned) in text
    assert f"What to do: first {planned.changes[0]}" in text
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, MemoryError)


def test_the_checkpoint_to_go_on_from_is_the_last_whole_one(tmp_path: Path) -> None:
    error = OutOfMemoryError("memory ran out", where="generate", todo="less")
    assert "less. No checkpoint was written" in str(shortage.with_way_on(error, str(tmp_path)))
    for step, state in ((25, '{"global_step": 25}'), (100, '{"global_step": 100}'), (125, '{"global')):
        (folder := tmp_path / f"checkpoint-{step}").mkdir()
        (folder / "trainer_state.json").write_text(state)
    assert "less. " + str(tmp_path / "checkpoint-100 is kept") in str(
        shortage.with_way_on(error, str(tmp_path))
    )


def test_a_real_allocation_that_fails_is_recognised() -> None:
    with pytest.raises(OutOfMemoryError), explain_out_of_memory("train"):
        torch.empty(2**52)


def test_what_the_failed_step_held_is_free_while_its_error_is_kept() -> None:
    """A notebook keeps the last error, and with it every frame that it went through."""
    held: list[weakref.ref[torch.Tensor]] = []

    def starve() -> None:
        cache = torch.ones(10)
        held.append(weakref.ref(cache))
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OutOfMemoryError) as kept, explain_out_of_memory("generate"):
        starve()
    assert kept.value.__cause__ is not None
    assert held[0]() is None


def test_other_errors_pass_unchanged_and_an_explained_one_is_not_explained_twice() -> None:
    for error in (RuntimeError("shapes differ"), OutOfMemoryError("already", where="x", todo="y")):
        with pytest.raises(type(error)) as caught, explain_out_of_memory("train"):
            raise error
        assert caught.value is error


def test_where_the_plan_fitted_something_else_holds_the_memory() -> None:
    planned = rloo_kit.plan("qwen3-0.6b", card="24GB")
    caught = pytest.raises(OutOfMemoryError, match="something else holds the memory")
    with caught as error, explain_out_of_memory("train", lambda: planned):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    assert "nvidia-smi" in str(error.value)


def test_a_run_that_starves_while_generating_keeps_its_last_step_and_names_it(
    fresh_policy: Any, make_trainer: Any, tmp_path: Path
) -> None:
    bound, calls = fresh_policy.model.generate, itertools.count(1)

    def generate(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return bound(*args, **kwargs)

    fresh_policy.model.generate = generate
    trainer = make_trainer(model=fresh_policy, max_steps=3, save_strategy="steps", save_steps=100)
    with pytest.raises(OutOfMemoryError, match="phase 'generate'") as caught:
        trainer.train()
    assert "checkpoint-1 is kept" in str(caught.value)
    assert "log-probability tile" in str(caught.value)
    assert (tmp_path / "run" / "checkpoint-1" / "adapter_model.safetensors").is_file()


class FiveBytes:
    """A gauge that has seen five bytes."""

    def restart(self) -> None:
        pass

    def read(self) -> Peak:
        return Peak(5)


def test_a_trainers_phase_is_metered_and_explained(tmp_path: Path) -> None:
    planned = rloo_kit.plan("qwen3-4b", LARGE, "8GB")
    trainer = SimpleNamespace(
        memory=Meter(FiveBytes()),
        memory_plan=lambda: planned,
        args=SimpleNamespace(output_dir=str(tmp_path)),
    )
    with (
        pytest.raises(OutOfMemoryError, match="phase 'log-probs'"),
        shortage.phase(trainer, "log-probs"),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    assert trainer.memory.peaks["log-probs"].allocated_bytes == 5
    with shortage.phase(SimpleNamespace(), "log-probs"):
        pass
