"""In which precision and order tests run, and which of them `make check` leaves out."""

from __future__ import annotations

import gc
import os

import pytest

# Tests and notebooks compute as the kit does unless it is asked; tests/gpu_path/test_user.py asks.
os.environ.pop("UNSLOTH_CPU_BF16", None)
# As make sets it: two OpenMP threads on a busy two-core machine take several times the CPU time of one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

TRAINING = {"policy", "fresh_policy", "loaded_once", "make_trainer", "script"}
"""Fixtures that load a policy or start a process."""

PROCESSES = (
    "tests/gpu_path",
    "tests/policy/test_bundled",
    "tests/policy/test_generate",
    "tests/scale",
    "tests/rewards/test_package",
    "tests/session/test_shutdown_kernel",
    "tests/session/test_release",
    "tests/test_gpu_check",
    "tests/test_written_before",
)
"""Files whose tests start processes, or train, by themselves."""

STEPS, ASKED = "RLOO_KIT_STEPS", os.environ.get("RLOO_KIT_STEPS")
SHORTENED = {"notebooks/06": "1", "notebooks/07": "1"}
"""Notebooks that train a real language model, and the steps that they take under nbval."""

LONGEST_FIRST = (
    "notebooks/05",
    "notebooks/04",
    "notebooks/07",
    "notebooks/06",
    "notebooks/03",
    "notebooks/02",
    "notebooks/01",
    "tests/gpu_path",
    "tests/train/test_update",
    "tests/session/test_shutdown_kernel",
    "tests/train/test_resume",
    "tests/train/test_processes",
    "tests/scale",
    "tests/session",
    "tests/train",
    "tests/test_gpu_check",
)
"""Files run on one worker each, so that a worker is not left alone with a long one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes a policy or a process of its own, and put the longest files first."""
    for item in items:
        if TRAINING & set(getattr(item, "fixturenames", ())) or item.nodeid.startswith(PROCESSES):
            item.add_marker(pytest.mark.training)
    items.sort(key=_place)


def pytest_collection_finish() -> None:
    """Hide what was imported from the garbage collector: each training run has it look through everything, and of half
    a million objects that takes a quarter of a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Say how many steps a notebook takes: its kernel starts with its first cell, and inherits what is set here."""
    steps = next((n for start, n in SHORTENED.items() if item.nodeid.startswith(start)), None)
    os.environ.pop(STEPS, None)
    os.environ.update({STEPS: asked} if (asked := ASKED or steps) else {})


def _place(item: pytest.Item) -> int:
    places = (place for place, start in enumerate(LONGEST_FIRST) if item.nodeid.startswith(start))
    return next(places, len(LONGEST_FIRST))
