"""``make gpu-check``: what has not run has not passed, and a check that breaks costs no other check anything."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from dotenv import dotenv_values

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import checks, four_bit, report, runner
from benchmarks.gpu.runner import FAILED, MEASURED, NOT_RUN, PASSED, Check, Figure, Outcome, Place, judged

Figures = dict[str, Figure]
HERE = Place(Path("unused"))

# --- checks to run, here or in a process of their own -----------------------------------------------------


def fine(place: Place) -> Figures:
    return {"it works": Figure(True)}


def without_limits(place: Place) -> Figures:
    return {"seconds": Figure(3.0)}


def crash(place: Place) -> Figures:
    print("the last thing it said", flush=True)
    os._exit(3)


def out_of_memory(place: Place) -> Figures:
    raise MemoryError("CUDA out of memory\nand the rest of the message")


def hang(place: Place) -> Figures:
    sleeper = subprocess.Popen(["sleep", "60"])
    (place.scratch / "sleeper").write_text(str(sleeper.pid))
    time.sleep(60)
    return {}


def surroundings(place: Place) -> Figures:
    return {
        "a token": Figure(float("HF_TOKEN" in os.environ)),
        "offline": Figure(os.environ["HF_HUB_OFFLINE"] == "1"),
        "variable": Figure(float(os.environ["ASKED_FOR"])),
    }


def check(function: Callable[[Place], Figures], seconds: float = 1.0, name: str = "", **how: Any) -> Check:
    return Check(name or function.__name__, f"tests.test_gpu_check:{function.__name__}", seconds, **how)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Outcome]]:
    """``run(*checks)``: their outcomes, each from a process of its own."""

    def outcomes(*given: Check, budget: float = 100.0) -> dict[str, Outcome]:
        place = Place(tmp_path)

        def run_one(one: Check, seconds: float) -> Outcome:
            return runner.run_in_process(one, seconds, place, tmp_path / "log.txt")

        return {one.name: outcome for one, outcome in runner.run_all(given, budget, place, run_one)}

    return outcomes


def simulate(*given: Check, budget: float = 1000.0, place: Place = HERE, **how: Any) -> dict[str, Outcome]:
    """Outcomes by a clock on which each check takes 5 seconds, or its limit; one called "broken" fails."""
    clock = [0.0]

    def run_one(one: Check, seconds: float) -> Outcome:
        clock[0] += min(5.0, seconds)
        return Outcome(FAILED if one.name == "broken" or seconds < 5.0 else PASSED)

    found = runner.run_all(given, budget, place, run_one, now=lambda: clock[0], **how)
    return {one.name: outcome for one, outcome in found}


def statuses(outcomes: dict[str, Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes.values()]


# --- a process of its own ---------------------------------------------------------------------------------


def test_a_check_that_crashes_or_runs_out_of_memory_fails_alone(run: Any) -> None:
    found = run(check(crash), check(out_of_memory), check(fine))
    assert statuses(found) == [FAILED, FAILED, PASSED]
    assert found["crash"].note == "the process ended with 3: the last thing it said"
    assert found["out_of_memory"].note == "MemoryError: CUDA out of memory"


def test_a_check_that_hangs_is_killed_with_its_children_at_the_end_of_the_budget(
    run: Any, tmp_path: Path
) -> None:
    found = run(check(hang), budget=6.0)
    assert statuses(found) == [NOT_RUN]
    assert found["hang"].note == "the budget ended while it ran"
    sleeper = int((tmp_path / "sleeper").read_text())
    deadline = time.monotonic() + 30
    while runs(sleeper) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not runs(sleeper)


def runs(pid: int) -> bool:
    """Whether a process runs; one that nothing has waited for is dead."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def test_a_check_is_offline_has_no_token_and_gets_its_variables(run: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = run(check(surroundings, variables={"ASKED_FOR": "7"}))["surroundings"]
    assert [figure.value for figure in found.figures.values()] == [0.0, True, 7.0]


# --- budget, order and needs ------------------------------------------------------------------------------


def test_what_the_budget_does_not_reach_or_what_needs_a_failed_check_is_not_run() -> None:
    found = simulate(check(fine, 5), check(fine, 9, "long"), check(fine, 5, "short"), budget=10)
    assert statuses(found) == [PASSED, NOT_RUN, PASSED]
    assert found["long"].note == "5 s of the budget left, takes 9"
    found = simulate(check(fine, name="broken"), check(fine, name="b", needs=("broken",)), check(fine))
    assert statuses(found) == [FAILED, NOT_RUN, PASSED]
    assert found["b"].note == "needs broken"


def test_every_part_is_reached_within_nine_minutes_and_needs_come_first() -> None:
    budget = checks.PARTS["all"].seconds
    assert budget < 540
    spent, before, reached = 0.0, set[str](), set()
    for one in checks.CHECKS:
        assert before >= set(one.needs), f"{one.name} comes before what it needs"
        before.add(one.name)
        spent += one.seconds
        if spent < budget:
            reached.add(one.name.split("/")[0])
    assert len(before) == len(checks.CHECKS), "no name twice"
    assert reached >= {"correct", "memory", "speed", "hygiene"}


@pytest.mark.parametrize(("part", "most"), [("right", 360), ("learns", 600), ("time", 600)])
def test_a_part_has_its_budget_and_begins_with_what_is_worth_most(part: str, most: float) -> None:
    budget, every = checks.PARTS[part]
    assert budget <= most
    assert checks.chosen((), part) == every, "all names differ, and needs are in the part"
    assert every[0].seconds + every[1].seconds < budget
    if part != "time":  # of which the least worth may be cut
        assert sum(one.seconds for one in every) <= budget


def test_a_part_may_be_narrowed_by_names() -> None:
    found = [one.name for one in checks.chosen(["speed/qwen3-1.7b K 16, kit"], "time")]
    assert found == ["shape/qwen3-1.7b", "speed/qwen3-1.7b K 16, kit"]


def test_a_check_whose_package_is_not_installed_says_so() -> None:
    found = simulate(check(fine, packages=("pytest", "no_such_package")))["fine"]
    assert found == Outcome(NOT_RUN, "needs the package no_such_package, which is not installed")


# --- the report -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("figures", "status"),
    [
        ([Figure(1.0)], MEASURED),
        ([Figure(1.0), Figure(1.0, high=1.0)], PASSED),
        ([Figure(1.01, high=1.0)], FAILED),
        ([Figure(float("nan"), low=0.0)], FAILED),
        ([Figure(True), Figure(False)], FAILED),
    ],
)
def test_a_check_fails_by_any_limit(figures: list[Figure], status: str) -> None:
    assert judged({str(i): figure for i, figure in enumerate(figures)}, 1.0).status == status


def one_check(monkeypatch: Any, name: str, run: Any) -> None:
    """The command has one check, on a machine with a GPU."""
    machine = {"device": "a card", "memory": "24 GiB", "versions": "torch 2.13"}
    monkeypatch.setattr(command, "machine_of", lambda: machine)
    monkeypatch.setattr(checks, "chosen", lambda *given: [check(run, name=name)])


def test_results_are_files_and_a_later_command_adds_to_them(
    tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    for name, given in (("speed/a", fine), ("memory/b", without_limits), ("speed/a", out_of_memory)):
        one_check(monkeypatch, name, given)
        status = command.main(["--out", str(tmp_path)])
        assert status == int(given is out_of_memory)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "results.json", "results.md"]
    found = report.load(tmp_path / "results.json")
    assert list(zip(found, statuses(found), strict=True)) == [("speed/a", FAILED), ("memory/b", MEASURED)]
    assert report.merged(found, {"memory/b": Outcome(NOT_RUN)}) == found
    text = (tmp_path / "results.md").read_text()
    said = ("# a card", "torch 2.", "| seconds | 3 |", "1 FAILED")
    assert all(part in text for part in said)
    assert "MemoryError" in (tmp_path / "log.txt").read_text()


def test_without_a_gpu_or_such_a_check_the_exit_status_is_2(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(command, "machine_of", lambda: {"versions": "torch"})
    assert command.main([]) == command.main(["--only", "no such check"]) == 2
    said = capsys.readouterr().out
    assert "--rehearse t4 needs no GPU" in said
    assert "No check's name begins with no such check" in said
    assert command.main(["--list"]) == 0


def test_a_run_of_plain_trl_is_not_given_unsloths_patches() -> None:
    code = "import benchmarks.gpu.runner, benchmarks.gpu.speed, sys; print(sorted(sys.modules))"
    paths = os.pathsep.join([str(runner.ROOT), str(runner.ROOT / "benchmarks")])
    given = {**os.environ, "PYTHONPATH": paths}
    shown = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)
    assert "'benchmarks.gpu.speed'" in shown.stdout
    assert not any(f"'{name}'" in shown.stdout for name in ("rloo_kit", "unsloth", "trl"))


def test_overlapping_kernels_are_counted_once_as_busy(monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(str(runner.ROOT / "benchmarks"))
    from benchmarks.gpu.speed import by_kernel

    def event(name: str, device: str, start: float = 0, end: float = 0, is_annotation: bool = False) -> Any:
        kind, times = SimpleNamespace(name=device), SimpleNamespace(start=start, end=end)
        return SimpleNamespace(
            name=name, device_type=kind, time_range=times, is_user_annotation=is_annotation
        )

    calls = [event("cudaLaunchKernel", "CPU"), event("cudaGraphLaunch", "CPU"), event("aten::mm", "CPU")]
    kernels = [event("gemv", "CUDA", 0, 40), event("norm", "CUDA", 30, 50), event("gemv", "CUDA", 80, 90)]
    found = by_kernel([*calls, *kernels, event("step", "CUDA", 0, 100, True)], tokens=2, seconds=1e-4)
    assert [figure.value for figure in found.values()] == pytest.approx([0.5, 0.5, 1.5, 0.6, 0.025, 0.01])


# --- the faster of two settings ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("products", "made", "kept", "said"),
    [
        (3.0, 2.0, "0", "UNSLOTH_BNB_GEMM_4BIT=0 is written into"),
        (2.0, 2.05, None, "alike, and the kit's default stays"),
        (2.0, None, None, ""),
    ],
)
def test_the_faster_way_with_4_bit_weights_is_written_where_prepare_reads_it(
    products: float, made: float | None, kept: str | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("HF_TOKEN='hf_x'\nUNSLOTH_BNB_GEMM_4BIT=9\n")
    timings = zip(four_bit.WAYS.values(), (products, made), strict=True)
    outcomes = {
        name: Outcome(MEASURED, figures={four_bit.SECONDS: Figure(seconds)}) if seconds else Outcome(NOT_RUN)
        for name, seconds in timings
    }
    found = four_bit.keep_faster(outcomes, tmp_path)
    assert said in found
    assert bool(said) == bool(found)
    values = dotenv_values(tmp_path / ".env")
    assert values == {"HF_TOKEN": "hf_x", "UNSLOTH_BNB_GEMM_4BIT": kept or "9"}
