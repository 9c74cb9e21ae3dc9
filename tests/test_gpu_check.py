"""``make gpu-check``: a check that has not run has not passed, and a check that breaks does not affect others."""

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from dotenv import dotenv_values

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import checks, four_bit, report, runner
from benchmarks.gpu.runner import FAILED, MEASURED, NOT_RUN, PASSED, Check, Figure, Outcome, Place, judged
from tests.conftest import python

Figures = dict[str, Figure]

# --- checks to run, here or in a new process --------------------------------------------------------------


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
    (place.scratch / "pid").write_text(str(sleeper.pid))
    (place.scratch / "pid").rename(place.scratch / "sleeper")
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
    """``run(*checks)``: their outcomes, each from a new process."""

    def outcomes(*given: Check, budget: float = 500.0) -> dict[str, Outcome]:
        place = Place(tmp_path)

        def run_one(one: Check, seconds: float) -> Outcome:
            return runner.run_in_process(one, seconds, place, tmp_path / "log.txt")

        return {one.name: outcome for one, outcome in runner.run_all(given, budget, place, run_one)}

    return outcomes


def statuses(outcomes: dict[str, Outcome]) -> list[str]:
    return [outcome.status for outcome in outcomes.values()]


# --- a process of its own ---------------------------------------------------------------------------------


def test_a_check_that_crashes_or_runs_out_of_memory_fails_alone(run):
    found = run(check(crash), check(out_of_memory), check(fine))
    assert statuses(found) == [FAILED, FAILED, PASSED]
    assert found["crash"].note == "the process ended with 3: the last thing it said"
    assert found["out_of_memory"].note == "MemoryError: CUDA out of memory"


def test_a_check_that_hangs_is_killed_with_its_children_at_the_end_of_the_budget(run, tmp_path, monkeypatch):
    pid, wait = tmp_path / "sleeper", subprocess.Popen.wait

    def until_it_hangs(process: Any, timeout: float | None = None) -> int:
        """Start the timeout only once the check hangs, however long it takes to start."""
        while timeout and not pid.exists():
            time.sleep(0.05)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", until_it_hangs)
    found = run(check(hang), budget=2.0)
    assert statuses(found) == [NOT_RUN]
    assert found["hang"].note == "the budget ended while it ran"
    with contextlib.suppress(psutil.NoSuchProcess):
        sleeper = psutil.Process(int(pid.read_text()))
        deadline = time.monotonic() + 60
        while sleeper.status() != psutil.STATUS_ZOMBIE:  # killed, but not yet waited for
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_check_is_offline_has_no_token_and_gets_its_variables(run, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = run(check(surroundings, variables={"ASKED_FOR": "7"}))["surroundings"]
    assert [figure.value for figure in found.figures.values()] == [0.0, True, 7.0]


# --- budget, order and needs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "note"),
    [
        ({"seconds": 9.0}, "5 s of the budget left, takes 9"),
        ({"needs": ("broken",)}, "needs broken"),
        ({"packages": ("pytest", "nowhere")}, "needs the package nowhere, which is not installed"),
        ({"card_gib": 48}, "needs a GPU of 48 GiB"),
        ({"rehearsed": False}, "needs a GPU"),
    ],
)
def test_a_check_that_lacks_what_it_needs_is_not_run_and_the_next_one_is(how, note):
    clock = [0.0]

    def run_one(one: Check, seconds: float) -> Outcome:
        clock[0] += 5.0
        return Outcome(FAILED if one.name == "broken" else PASSED)

    given = [check(fine, 5, "broken"), check(fine, **{"seconds": 5.0, "name": "it", **how}), check(fine, 5)]
    place = Place(Path("unused"), is_rehearsal=True)
    ran = runner.run_all(given, 10.0, place, run_one, card_gib=24, now=lambda: clock[0])
    found = {one.name: outcome for one, outcome in ran}
    assert statuses(found) == [FAILED, NOT_RUN, PASSED]
    assert found["it"].note == note


@pytest.mark.parametrize(("part", "most"), [("all", 630), ("right", 450), ("learns", 480), ("time", 600)])
def test_a_part_has_its_budget_and_begins_with_what_is_worth_most(part, most):
    budget, every = checks.PARTS[part]
    assert budget <= most
    assert checks.chosen((), part) == every, "all names differ, and needs are in the part"
    ends = list(itertools.accumulate(one.seconds for one in every))
    reached = {one.name.split("/")[0] for one, end in zip(every, ends, strict=True) if end <= budget}
    missed = {one.name.split("/")[0] for one in every} - reached
    assert missed <= {"4-bit"}, "each kind is reached, or has a command of its own"
    if part in ("right", "learns"):  # in other parts the least valuable checks may be cut
        assert ends[-1] <= budget
    for place, one in enumerate(every):
        assert {other.name for other in every[:place]} >= set(one.needs), f"{one.name} comes before what it needs"


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
def test_a_check_fails_by_any_limit(figures, status):
    assert judged({str(i): figure for i, figure in enumerate(figures)}, 1.0).status == status


def test_results_are_files_and_a_later_command_adds_to_them(tmp_path, monkeypatch, capsys):
    machine = {"device": "a card", "memory": "24 GiB", "versions": "torch 2.13"}
    monkeypatch.setattr(command, "machine_of", lambda: machine)
    for name, given in (("speed/a", fine), ("memory/b", without_limits), ("speed/a", out_of_memory)):
        monkeypatch.setattr(checks, "PARTS", {"all": checks.Part(60, [check(given, name=name)])})
        assert command.main(["--out", str(tmp_path)]) == int(given is out_of_memory)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt", "results.json", "results.md"]
    found = report.load(tmp_path / "results.json")
    assert list(zip(found, statuses(found), strict=True)) == [("speed/a", FAILED), ("memory/b", MEASURED)]
    assert report.merged(found, {"memory/b": Outcome(NOT_RUN)}) == found
    text = (tmp_path / "results.md").read_text()
    assert [said for said in ("# a card", "torch 2.", "| seconds | 3 |", "1 FAILED") if said not in text] == []
    assert "MemoryError" in (tmp_path / "log.txt").read_text()


def test_without_a_gpu_or_such_a_check_the_exit_status_is_2(monkeypatch, capsys):
    monkeypatch.setattr(command, "machine_of", lambda: {"versions": "torch"})
    assert command.main([]) == command.main(["--only", "no such check"]) == 2
    said = capsys.readouterr().out
    assert "--rehearse t4 needs no GPU" in said
    assert "No check's name begins with no such check" in said
    assert command.main(["--list"]) == 0


def test_the_baseline_run_does_not_import_the_kit():
    code = "import benchmarks.gpu.runner, benchmarks.gpu.speed, sys; print(sorted(sys.modules))"
    paths = os.pathsep.join([str(runner.ROOT), str(runner.ROOT / "benchmarks")])
    shown = python("-c", code, PYTHONPATH=paths)
    assert "'benchmarks.gpu.speed'" in shown.stdout
    assert not any(f"'{name}'" in shown.stdout for name in ("rloo_kit", "unsloth", "trl"))


@pytest.mark.parametrize(
    ("seconds", "kept", "said"),
    [
        ([3.0, 2.0], "0", "UNSLOTH_BNB_GEMM_4BIT=0 is written into"),
        ([2.0, 2.05], "9", "alike, and the kit's default stays"),
        ([2.0], "9", ""),
    ],
)
def test_the_faster_way_with_4_bit_weights_is_written_where_prepare_reads_it(seconds, kept, said, tmp_path):
    (tmp_path / ".env").write_text("HF_TOKEN='hf_x'\nUNSLOTH_BNB_GEMM_4BIT=9\n")
    outcomes = {name: Outcome(NOT_RUN) for name in four_bit.WAYS.values()}
    timed = zip(outcomes, seconds, strict=False)
    outcomes |= {name: Outcome(MEASURED, figures={four_bit.SECONDS: Figure(took)}) for name, took in timed}
    found = four_bit.keep_faster(outcomes, tmp_path)
    assert said in found
    assert bool(said) == bool(found)
    assert dotenv_values(tmp_path / ".env") == {"HF_TOKEN": "hf_x", "UNSLOTH_BNB_GEMM_4BIT": kept}
