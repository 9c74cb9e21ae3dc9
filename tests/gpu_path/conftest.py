"""Processes under a pretended card: Unsloth takes its GPU path in them (benchmarks/pretended)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pretended
from benchmarks.gpu import report
from tests.conftest import ROOT, Done, python

collect_ignore = ["run_as_user.py"]  # a script that --doctest-modules would import

SECONDS = 1800
"""Seconds for a process on a busy machine; on two quiet cores none takes two minutes."""

Pretended = Callable[..., Done]
Rehearsed = Callable[..., report.Outcomes]


@pytest.fixture(scope="session")
def on_card() -> Pretended:
    """``on_card(card, *words)``: run Python with these arguments under the card; skip if there is no Triton."""
    if not pretended.is_possible():
        pytest.skip("make test puts Triton into .triton, on Linux")

    def run(card: str, *words: str, **how: Any) -> Done:
        # With bytecode the stack is imported in a quarter of the time.
        always = {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "", **pretended.variables(card)}
        return python(*words, cwd=ROOT, seconds=SECONDS - 60, **always, **how)

    return run


@pytest.fixture(scope="session")
def rehearsed(on_card: Pretended, tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    """``rehearsed(card, *names)``: return the outcomes of these checks of ``make gpu-check`` under the card."""

    def run(card: str, *names: str) -> report.Outcomes:
        out: Path = tmp_path_factory.mktemp("rehearsed")
        only = [word for name in names for word in ("--only", name)]
        # The command runs as a user's would: it pretends the card by itself.
        words = ["-m", "benchmarks.gpu", "--rehearse", card, "--out", str(out), *only]
        words += ["--budget", str(SECONDS)]
        done = on_card("", *words, check=False)
        print(done.stdout, done.stderr, (out / "log.txt").read_text()[-4000:], sep="\n")
        return report.load(out / "results.json")

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests more time: the first test of a file waits for its process."""
    for item in items:
        if item.nodeid.startswith("tests/gpu_path"):
            item.add_marker(pytest.mark.timeout(SECONDS))
